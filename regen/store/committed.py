"""The rows of the journal that count, for readers: whatever state the run is in, also while it is being written.

Guarantees: of every ordinal the row that `regen seal` would take, each once; what is published while it is read is left
out as a whole, and so is what a repair has voided. Costs one pass over the journal's id columns and 21 bytes a row of
the plan; of the rows themselves, one row group is in memory at a time, and only the columns that are asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import pyarrow as pa

from regen.protocols import Storage
from regen.records import OutputRow
from regen.rows import from_table
from regen.store.files import JournalFiles
from regen.store.parquet import integers, naming_damage, texts
from regen.store.replay import refuse_closed
from regen.store.row_order import OrderedRows
from regen.store.winners import Winners


class CommittedRows:
    """The journal as it is when this is made. All methods raise JournalDamaged, StoreUnavailable, StoreRefused."""

    def __init__(self, storage: Storage, plan_rows: int) -> None:
        """Raises UserError if the run is closed: its rows are in its shards alone."""
        self._files = JournalFiles(storage)
        self._row_bytes: dict[int, int] = {}
        self.winners = Winners(plan_rows)
        files = self._files.files()
        # The newest number of a journal without gaps is its length less one.
        self.has_voided_files = bool(files) and files[-1].number >= len(files)
        for file in files:
            self._row_bytes[file.number] = self._note(file.number)
        self._numbers = list(self._row_bytes)

    def tables(self, columns: Sequence[str] = ()) -> Iterator[pa.Table]:
        """Rows in the order they were committed, a row group at a time; `ordinal` is always among the columns.

        `columns` are Parquet's paths (`generations.list.element.turn`), all columns if there are none.
        """
        for number in self._numbers:
            yield from self._tables_of(number, columns)

    def rows(self, ordinals: Collection[int]) -> Iterator[OutputRow]:
        """These rows, whole, in the order they were committed; those that are not committed are left out."""
        wanted = frozenset(ordinals)
        numbers = {self.winners.number_of(ordinal) for ordinal in wanted}
        for number in self._numbers:
            if number in numbers:
                for table in self._tables_of(number, ()):
                    yield from from_table(_kept(table, [ordinal in wanted for ordinal in integers(table, "ordinal")]))

    def parts(self, ordinals: Iterable[int]) -> dict[int, list[int]]:
        """Which of these ordinals each file of the journal holds, in the order given."""
        parts: dict[int, list[int]] = {}
        for ordinal in ordinals:
            number = self.winners.number_of(ordinal)
            if number is not None:
                parts.setdefault(number, []).append(ordinal)
        return parts

    def bytes_of(self, parts: Mapping[int, Sequence[int]]) -> int:
        """About what these parts need in memory, judged by the mean row of each file."""
        return sum(self._row_bytes[number] * len(ordinals) for number, ordinals in parts.items())

    def tables_of(self, parts: Mapping[int, Sequence[int]], columns: Sequence[str] | None = None) -> list[OrderedRows]:
        """These parts, each with ascending ordinals, or some top-level columns of them, each as one table."""
        return [OrderedRows(self._files.read_table(number, columns)).of(ordinals) for number, ordinals in parts.items()]

    def _note(self, number: int) -> int:
        """Take a file's rows into the winners; the bytes of its mean row."""
        footer, ids = self._files.read_ids(number)
        refuse_closed(footer.records, self._files.storage.url)
        with naming_damage(self._files.where(number)):
            for ordinal, round_, digest in zip(
                integers(ids, "ordinal"), integers(ids, "round"), texts(ids, "digest"), strict=True
            ):
                self.winners.note(ordinal, round_, number, digest)
        return footer.table_bytes // max(1, footer.rows)

    def _tables_of(self, number: int, columns: Sequence[str]) -> Iterator[pa.Table]:
        for table in self._files.read_groups(number, ("ordinal", *columns) if columns else None):
            yield _kept(table, [self.winners.number_of(ordinal) == number for ordinal in integers(table, "ordinal")])


def _kept(table: pa.Table, is_wanted: Sequence[bool]) -> pa.Table:
    return table if all(is_wanted) else table.filter(pa.array(is_wanted, pa.bool_()))
