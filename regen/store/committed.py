"""The rows of the journal that count, for readers: whatever state the run is in, also while it is being written.

Guarantees: of every ordinal the row that `regen seal` would take, each once; what is published while it is read is left
out as a whole. Costs one pass over the journal's id columns and 21 bytes a row of the plan; of the rows themselves, one
row group is in memory at a time, and only the columns that are asked for are read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import pyarrow as pa

from regen.protocols import Storage
from regen.records import OutputRow
from regen.rows import from_table
from regen.store.files import JournalFiles
from regen.store.footer import Footer
from regen.store.parquet import integers, naming_damage, texts
from regen.store.winners import Winners


def note_file(winners: Winners, files: JournalFiles, number: int) -> Footer:
    """Take a journal file's rows into the winners. Raises JournalDamaged."""
    footer, ids = files.read_ids(number)
    with naming_damage(files.where(number)):
        for ordinal, round_, digest in zip(
            integers(ids, "ordinal"), integers(ids, "round"), texts(ids, "digest"), strict=True
        ):
            winners.note(ordinal, round_, number, digest)
    return footer


class CommittedRows:
    """The journal as it is when this is made. All methods raise JournalDamaged, StoreUnavailable, StoreRefused."""

    def __init__(self, storage: Storage, plan_rows: int) -> None:
        self._files = JournalFiles(storage)
        self._winners = Winners(plan_rows)
        self._numbers = [file.number for file in self._files.files()]
        for number in self._numbers:
            note_file(self._winners, self._files, number)

    def tables(self, columns: Sequence[str] = ()) -> Iterator[pa.Table]:
        """Rows in the order they were committed, a row group at a time; `ordinal` is always among the columns.

        `columns` are Parquet's paths (`generations.list.element.turn`), all columns if there are none.
        """
        for number in self._numbers:
            yield from self._tables_of(number, columns)

    def rows(self, ordinals: Collection[int]) -> Iterator[OutputRow]:
        """These rows, whole, in the order they were committed; those that are not committed are left out."""
        wanted = frozenset(ordinals)
        numbers = {self._winners.number_of(ordinal) for ordinal in wanted}
        for number in self._numbers:
            if number in numbers:
                for table in self._tables_of(number, ()):
                    yield from from_table(_kept(table, [ordinal in wanted for ordinal in integers(table, "ordinal")]))

    def _tables_of(self, number: int, columns: Sequence[str]) -> Iterator[pa.Table]:
        for table in self._files.read_groups(number, ("ordinal", *columns) if columns else None):
            yield _kept(table, [self._winners.number_of(ordinal) == number for ordinal in integers(table, "ordinal")])


def _kept(table: pa.Table, is_wanted: Sequence[bool]) -> pa.Table:
    return table if all(is_wanted) else table.filter(pa.array(is_wanted, pa.bool_()))
