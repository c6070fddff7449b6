"""Rows in the order of their ordinals, and cut: the same as Arrow's own sorting gives, copied no more than once."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from regen.records import Status
from regen.rows import to_table
from regen.store import row_order
from regen.store.row_order import OrderedRows, in_order, runs_of
from tests.output_rows import output_row


def _tables(ordinals: list[int], per_table: int) -> list[pa.Table]:
    rows = [output_row(ordinal, text=f"answer {ordinal} " * (ordinal % 7)) for ordinal in ordinals]
    return [to_table(rows[at : at + per_table]) for at in range(0, len(rows), per_table)]


def _shuffled(count: int, seed: int) -> list[int]:
    ordinals = list(range(count))
    random.Random(seed).shuffle(ordinals)
    return ordinals


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("per_table", [1, 7, 60])
def test_the_order_is_that_of_arrow(seed: int, per_table: int) -> None:
    table = pa.concat_tables(_tables(_shuffled(60, seed), per_table))

    found = in_order(table)

    assert found.equals(table.combine_chunks().sort_by("ordinal"))
    assert found["generations"].num_chunks == 1
    found.validate(full=True)


def test_rows_in_order_and_no_rows_are_taken_as_they_are() -> None:
    tables = _tables(list(range(20)), 6)

    assert in_order(pa.concat_tables(tables)).equals(pa.concat_tables(tables))
    assert in_order(tables[0].slice(0, 0)).num_rows == 0


def test_what_is_too_large_for_one_chunk_is_put_in_order_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_order, "_MOST_COMBINED_BYTES", 1)
    table = pa.concat_tables(_tables(_shuffled(30, 1), 10))

    found = in_order(table)

    assert found["ordinal"].to_pylist() == list(range(30))
    assert found["ordinal"].num_chunks > 1


def test_rows_that_follow_one_another_are_one_run() -> None:
    assert list(runs_of([4, 5, 6, 0, 2, 3])) == [(4, 7), (0, 1), (2, 4)]
    assert list(runs_of([])) == []


def test_cuts_of_a_table() -> None:
    table = to_table(output_row(ordinal, status=Status.OK) for ordinal in (3, 5, 8, 9, 12))
    rows = OrderedRows(table)

    assert rows.between(4, 9)["ordinal"].to_pylist() == [5, 8, 9]
    assert rows.ordinals_within((4, 9)) == [5, 8, 9]
    assert rows.ordinals_within(None) == [3, 5, 8, 9, 12]
    assert rows.between(10, 11).num_rows == 0
    assert rows.of([3, 8, 9]).between(0, 20).equals(table.take([0, 2, 3]))
    assert rows.of(rows.ordinals) is rows


def test_a_few_rows_do_not_hold_the_memory_of_their_table() -> None:
    before = pa.total_allocated_bytes()
    rows = OrderedRows(to_table(output_row(ordinal, text="x" * 10_000) for ordinal in range(100)))
    whole = pa.total_allocated_bytes() - before

    few = rows.of([7, 70])
    del rows

    assert few.ordinals == [7, 70]
    assert pa.total_allocated_bytes() - before < whole / 10
