"""Buckets of lengths: every length has one, in order, and its middle is near."""

from __future__ import annotations

import pytest

from regen import length_buckets


@pytest.mark.parametrize("tokens", [*range(300), 2**16 - 1, 2**16, 2**20])
def test_every_length_lies_in_its_bucket(tokens: int) -> None:
    index = length_buckets.bucket(tokens)
    assert length_buckets.lowest(index) <= tokens < length_buckets.lowest(index + 1)


def test_the_last_bucket_is_open_above() -> None:
    assert length_buckets.bucket(10**9) == length_buckets.COUNT - 1


def test_a_negative_length_is_refused() -> None:
    with pytest.raises(ValueError, match="-1"):
        length_buckets.bucket(-1)


@pytest.mark.parametrize("index", range(1, length_buckets.COUNT))
def test_a_middle_is_within_a_quarter_of_all_in_its_bucket(index: int) -> None:
    middle = length_buckets.middle(index)
    assert 0.8 * (length_buckets.lowest(index + 1) - 1) <= middle <= 1.25 * length_buckets.lowest(index)
