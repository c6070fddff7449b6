"""The journal's files as they lie in the store, for everybody who reads them.

Guarantees that what it returns agrees with the file's own footer: number, row count, order, digests. Holds nothing in
memory and caches nothing. Whole rows are checked page by page while they are read; what a row's own digest says is
`verify`'s work. Files that a repair has voided are not returned, and may be missing or unreadable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa

from regen.protocols import Storage
from regen.store import footer as footers
from regen.store.control import RunClosed, Voided
from regen.store.footer import Footer
from regen.store.layout import JOURNAL, journal_key, journal_number
from regen.store.parquet import RowsFile, content_digest, damaged, integers, texts

ID_COLUMNS = ("ordinal", "round", "digest")


@dataclass(frozen=True, slots=True)
class JournalFile:
    """One published file; `size` in bytes."""

    number: int
    key: str
    size: int


class JournalFiles:
    """Read access. All methods raise JournalDamaged naming the file, StoreUnavailable, StoreRefused."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    def listed(self) -> Iterator[JournalFile]:
        """What is there under a journal file's name, by number; gaps are not looked for."""
        for found in self.storage.list(JOURNAL):
            number = journal_number(found.key)
            if number is not None:
                yield JournalFile(number, found.key, found.size)

    def files(self) -> list[JournalFile]:
        """The sequence from number 0 on, without a gap but for voided ones; of a closed run the last file alone.

        Reads the footers since the snapshot.
        """
        listed = list(self.listed())
        footers = []
        for file in self.back(listed):
            footers.append(self.read_footer(file.number))
            if footers[-1].snapshot is not None:
                break
        return self.sequence(listed, voided_by(footers))

    def back(self, listed: Sequence[JournalFile]) -> Iterator[JournalFile]:
        """The newest file first, as long as there is no gap: that, and only that, raises."""
        expected = listed[-1].number if listed else 0
        for file in reversed(listed):
            self._require(expected, file)
            yield file
            expected -= 1

    def sequence(self, listed: Sequence[JournalFile], voided: Voided) -> list[JournalFile]:
        """The files that count. Raises for a gap that is not voided."""
        expected = 0
        for file in listed:
            while expected < file.number and expected in voided:
                expected += 1
            self._require(expected, file)
            expected += 1
        return [file for file in listed if file.number not in voided] if voided else list(listed)

    def _require(self, expected: int, file: JournalFile) -> None:
        if file.number != expected:
            raise damaged(self.where(expected), f"it is missing, while {file.key} is there")

    def closed(self) -> RunClosed | None:
        """What the last file says of the run's end; None if the run can go on."""
        number = max((file.number for file in self.listed()), default=None)
        records = () if number is None else self.read_footer(number).records
        return next((record for record in records if isinstance(record, RunClosed)), None)

    def where(self, number: int) -> str:
        """How errors name this file."""
        return f"{self.storage.url}/{journal_key(number)}"

    def exists(self, number: int) -> bool:
        """Whether the number is taken."""
        try:
            self.storage.open(journal_key(number)).close()
        except KeyError:
            return False
        return True

    def read_bytes(self, number: int) -> bytes:
        """The file as it lies there, unchecked."""
        try:
            return self.storage.read(journal_key(number))
        except KeyError:
            raise damaged(self.where(number), "it is missing") from None

    def read_footer(self, number: int) -> Footer:
        with self._opened(number) as file:
            return self._footer(number, file)

    def read_table(self, number: int, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows in order of ordinal, or some top-level columns of them."""
        with self._opened(number) as file:
            self._footer(number, file)
            return file.table(columns)

    def read_groups(self, number: int, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """The rows in order of ordinal, one row group in memory; `columns` are Parquet's paths to what is wanted."""
        with self._opened(number) as file:
            self._footer(number, file)
            yield from file.groups(columns)

    def read_digest(self, number: int) -> str:
        """What the file says its digest is."""
        with self._opened(number) as file:
            return file.digest

    def read_ids(self, number: int) -> tuple[Footer, pa.Table]:
        """Footer and `ID_COLUMNS`, checked against each other."""
        with self._opened(number) as file:
            return self.decode_ids(number, file)

    def decode_ids(self, number: int, file: RowsFile) -> tuple[Footer, pa.Table]:
        """`read_ids` on a file that is open already; its own digest is `file.digest`."""
        footer = self._footer(number, file)
        ids = file.table(ID_COLUMNS)
        check_content(footer, ids, file.where)
        return footer, ids

    @contextmanager
    def _opened(self, number: int) -> Iterator[RowsFile]:
        try:
            source = self.storage.open(journal_key(number))
        except KeyError:
            raise damaged(self.where(number), "it is missing") from None
        with source:
            yield RowsFile(source, self.where(number))

    def _footer(self, number: int, file: RowsFile) -> Footer:
        footer = footers.from_json(file.entry, file.where)
        if footer.number != number:
            raise damaged(file.where, f"its footer says that it is number {footer.number}")
        if footer.rows != file.rows:
            raise damaged(file.where, f"it holds {file.rows} rows and its footer says {footer.rows}")
        return footer


def voided_by(footers: Sequence[Footer]) -> Voided:
    """What is voided, from the newest footers down to the newest snapshot: no repair is without one."""
    records = [record for footer in footers for record in footer.records]
    snapshot = footers[-1].snapshot if footers else None
    return Voided([*records, *(snapshot.standing.records if snapshot is not None else ())])


def check_content(footer: Footer, ids: pa.Table, where: str) -> None:
    """Raises JournalDamaged unless the rows are those that the footer was written for."""
    ordinals, digests = integers(ids, "ordinal"), texts(ids, "digest")
    if any(one >= other for one, other in pairwise(ordinals)):
        raise damaged(where, "its rows are not in the order of their ordinals")
    ends = (ordinals[0], ordinals[-1]) if ordinals else (None, None)
    if ends != (footer.first, footer.last):
        raise damaged(where, f"its rows go from {ends[0]} to {ends[1]}, not from {footer.first} to {footer.last}")
    if content_digest(ordinals, digests) != footer.digest:
        raise damaged(where, "the digests of its rows are not those that its footer was written for")
