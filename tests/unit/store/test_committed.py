"""Reading what counts out of a journal, whatever came about in it."""

from __future__ import annotations

from regen.store.committed import CommittedRows
from tests.memory_storage import MemoryStorage
from tests.output_rows import output_row
from tests.unit.store.journals import published


def texts_of(committed: CommittedRows, ordinals: list[int]) -> dict[int, str]:
    return {row.ordinal: row.generations[0].text for row in committed.rows(ordinals)}


def test_of_each_row_the_highest_round_is_read_once() -> None:
    storage = MemoryStorage()
    first = [output_row(ordinal, text=f"first {ordinal}") for ordinal in (0, 2, 5)]
    again = [output_row(2, text="again 2", round_=1), output_row(3, text="first 3")]
    published(storage, [first, again], plan_rows=8)

    committed = CommittedRows(storage, 8)

    seen = [ordinal for table in committed.tables(("source",)) for ordinal in table["ordinal"].to_pylist()]
    assert seen == [0, 5, 2, 3]
    assert texts_of(committed, [0, 2, 4]) == {0: "first 0", 2: "again 2"}


def test_only_the_columns_that_are_asked_for_are_read() -> None:
    storage = MemoryStorage()
    published(storage, [[output_row(1)]], plan_rows=4)
    (table,) = CommittedRows(storage, 4).tables(("generations.list.element.turn",))
    assert table.to_pylist() == [{"ordinal": 1, "generations": [{"turn": 0}]}]


def test_what_is_published_while_it_is_read_is_left_out() -> None:
    storage = MemoryStorage()
    published(storage, [[output_row(1)]], plan_rows=4)
    committed = CommittedRows(storage, 4)
    published(storage, [[output_row(2)]], plan_rows=4)
    assert [len(table) for table in committed.tables()] == [1]
    assert list(committed.rows([2])) == []


def test_an_empty_journal_has_no_rows() -> None:
    assert list(CommittedRows(MemoryStorage(), 4).tables(("source",))) == []
