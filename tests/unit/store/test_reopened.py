"""Rows opened again: in what round, and sampled how."""

from __future__ import annotations

from typing import Any

from regen.ordinals import OrdinalSet
from regen.store.control import RowsReopened
from regen.store.reopened import reopened

ROWS = 10


def opening(round_: int, ordinals: list[int], **sampling: Any) -> RowsReopened:
    rows = OrdinalSet(ROWS)
    for ordinal in ordinals:
        rows.add(ordinal)
    return RowsReopened("s", round_, rows.to_text(), len(ordinals), sampling, "{}", "now")


def test_a_second_retry_keeps_what_the_first_one_has_set() -> None:
    records = [
        opening(1, [1, 2], max_tokens=200),
        opening(2, [2, 3], temperature=0.5),
        opening(3, [2], max_tokens=300),
    ]
    found = reopened(records, ROWS, lambda ordinal: 0)
    assert found.sampling_of(1) == {"max_tokens": 200}
    assert found.sampling_of(2) == {"max_tokens": 300, "temperature": 0.5}
    assert found.sampling_of(3) == {"temperature": 0.5}
    assert found.sampling_of(4) == {}
    assert [found.round_of(ordinal) for ordinal in range(1, 5)] == [1, 3, 2, 0]
