"""Counts of one request, out of JSON that may hold anything."""

from __future__ import annotations

from typing import Any

import pytest

from regen.engines.raw_counts import acceptance
from regen.records import Acceptance


def test_counts_and_a_histogram_of_exactly_so_many() -> None:
    assert acceptance(10, 9, 30, [4, 4, 1, 1]) == Acceptance(10, 30, 9, (6, 2, 1))


def test_accepted_tokens_may_be_told_by_the_histogram_alone() -> None:
    assert acceptance(10, None, None, [4, 4, 1, 1]) == Acceptance(10, 0, 9, (6, 2, 1))


def test_a_histogram_that_does_not_add_up_is_left_out() -> None:
    assert acceptance(10, 9, 30, [4, 4]) == Acceptance(10, 30, 9)


@pytest.mark.parametrize(
    ("drafts", "accepted", "drafted", "histogram"),
    [
        (None, 9, 30, None),
        (10, None, 30, None),
        (10, 31, 30, None),
        (-10, 9, 30, None),
        (True, 0, 3, None),
        (10, "9", 30, None),
        (10.5, 9, 30, None),
        (0, 9, 30, None),
        (10, None, 30, [4, -4]),
        (10, None, 30, [[1]]),
        (2**70, 1, None, None),
    ],
)
def test_what_cannot_be_true_is_no_count(drafts: Any, accepted: Any, drafted: Any, histogram: Any) -> None:
    assert acceptance(drafts, accepted, drafted, histogram) is None
