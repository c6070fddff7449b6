"""A pilot's sample: every source is in it, as many rows as asked for, the same however the rows come."""

from __future__ import annotations

import hashlib
from collections import Counter

import pytest

from regen.run.commands.pilot_sample import allotted, draw


def plan(**sizes: int) -> list[tuple[int, str, str]]:
    names = [(source, number) for source, size in sizes.items() for number in range(size)]
    return [
        (ordinal, hashlib.blake2b(f"{source}{number}".encode(), digest_size=16).hexdigest(), source)
        for ordinal, (source, number) in enumerate(names)
    ]


@pytest.mark.parametrize(
    ("sizes", "wanted", "given"),
    [
        ({"a": 1000}, 50, {"a": 50}),
        ({"a": 900, "b": 100}, 50, {"a": 36, "b": 14}),  # 13 and 12 evenly, 23 and 2 by size
        ({"a": 5000, "b": 1}, 50, {"a": 49, "b": 1}),
        ({"a": 10, "b": 10}, 50, {"a": 10, "b": 10}),
        ({"a": 5, "b": 5, "c": 5}, 2, {"a": 1, "b": 1, "c": 0}),
        ({}, 50, {}),
    ],
)
def test_half_goes_evenly_and_half_by_size(sizes: dict[str, int], wanted: int, given: dict[str, int]) -> None:
    assert allotted(sizes, wanted) == given


@pytest.mark.parametrize("wanted", range(1, 120, 7))
def test_as_many_as_asked_for_or_all_there_are(wanted: int) -> None:
    sizes = {"a": 61, "b": 7, "c": 29, "d": 1}
    given = allotted(sizes, wanted)
    assert sum(given.values()) == min(wanted, 98)
    assert all(0 <= given[source] <= size for source, size in sizes.items())


def test_the_rows_with_the_lowest_ids_of_each_source_in_order_of_the_plan() -> None:
    rows = plan(a=300, b=40)
    taken = draw(lambda: rows, 20)
    assert list(taken) == sorted(taken)
    sources = Counter(rows[ordinal][2] for ordinal in taken)
    assert sources == allotted({"a": 300, "b": 40}, 20)
    for source, count in sources.items():
        lowest = sorted(row_id for _, row_id, own in rows if own == source)[:count]
        assert sorted(rows[ordinal][1] for ordinal in taken if rows[ordinal][2] == source) == lowest


def test_the_order_of_the_rows_has_no_say() -> None:
    rows = plan(a=300, b=40)
    assert draw(lambda: rows, 30) == draw(lambda: rows[::-1], 30)
