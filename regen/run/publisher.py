"""Finished rows on their way into the journal: what is buffered, and what is being published.

Guarantees: at most one publication at a time; while the store is away the same bytes are tried again, with backoff and
jitter, and new rows come together meanwhile; an interval without rows still looks whether somebody else has published,
or publishes what has gone wrong since the last file.
A publication's error is raised by the next `turn`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import cast

import pyarrow as pa

from regen import rows
from regen.ordinals import OrdinalSet
from regen.run.keeper import time_of_day
from regen.run.patience import Patience
from regen.run.progress.tally import RunningTally
from regen.run.schedule import Schedule
from regen.spec import CheckpointSpec
from regen.store.control import Record, RetriesEnded, RowsReopened
from regen.store.journal import Journal
from regen.store.reopened import LAST_ROUND, Reopened


@dataclass(slots=True)
class _Buffer:
    """Finished rows as tables in `rows.SCHEMA`, and retries that have ended without an answer: counted as rows too."""

    tables: list[pa.Table] = field(default_factory=list)
    rows: int = 0
    size_bytes: int = 0
    ended: list[tuple[int, int, str, str]] = field(default_factory=list)

    def add(self, table: pa.Table) -> None:
        self.tables.append(table)
        self.rows += table.num_rows
        self.size_bytes += table.nbytes

    def withdraw(self, unwanted: Collection[int]) -> list[int]:
        tables, self.tables, self.rows, self.size_bytes = self.tables, [], len(self.ended), 0
        withdrawn: list[int] = []
        for table in tables:
            is_kept = [ordinal not in unwanted for ordinal in ordinals(table)]
            withdrawn += [ordinal for ordinal in ordinals(table) if ordinal in unwanted]
            if any(is_kept):
                self.add(table if all(is_kept) else table.filter(pa.array(is_kept)))
        return withdrawn

    def end(self, ended: tuple[int, int, str, str]) -> None:
        self.ended.append(ended)
        self.rows += 1


class Publisher:
    """Owns the journal from claim to end. Everything here happens on one event loop; the store is asked in threads."""

    def __init__(
        self,
        journal: Journal,
        schedule: Schedule,
        checkpoint: CheckpointSpec,
        patience: Patience,
        session: str,
        reopened: Reopened,
        tally: RunningTally,
    ) -> None:
        """`reopened` is the journal's now; kept up to date from here on. `tally` goes with each publication."""
        self.journal = journal
        self.reopened = reopened
        self._session = session
        self._tally = tally
        self._schedule = schedule
        self._checkpoint = checkpoint
        self._patience = patience
        self._buffer = _Buffer()
        self._publishing = _Buffer()
        self._records: list[Record] = []
        self._attached: list[Record] = []
        self._reopening: list[int] = []
        self._publication: asyncio.Task[None] | None = None
        self._looked_at = time.monotonic()
        self.published_at = time.monotonic()

    @property
    def uncommitted_rows(self) -> int:
        return self._buffer.rows + self._publishing.rows

    @property
    def uncommitted_bytes(self) -> int:
        return self._buffer.size_bytes + self._publishing.size_bytes

    @property
    def is_idle(self) -> bool:
        """Nothing is buffered and nothing is on its way."""
        return self._publication is None and not self._buffer.rows and not self._records

    def add(self, table: pa.Table) -> None:
        """Finished rows, each ordinal once: the schedule has seen to that."""
        self._buffer.add(table)

    def end_retry(self, ordinal: int, round: int, status: str, reason: str) -> None:
        """A retry that has ended without an answer: the row keeps its older result, and the journal a note."""
        self._buffer.end((ordinal, round, status, reason))

    def note(self, records: Sequence[Record]) -> None:
        """Control records that go with the next publication, which they make due."""
        self._records.extend(records)

    def attach(self, records: Sequence[Record]) -> None:
        """Control records that go with the next publication, whenever it is due."""
        self._attached.extend(records)

    def withdraw(self, unwanted: Collection[int]) -> list[int]:
        """These rows are not to be committed, where there still is time: which of them there was time for."""
        return self._buffer.withdraw(unwanted)

    def reopen(self, wanted: Sequence[int], plan_rows: int, asked: str) -> bool:
        """Rows that are committed, or about to be, are to be made again: written down, then given to the schedule.

        False: there is no room for another round.
        """
        round_ = self.journal.next_round
        if round_ > LAST_ROUND:
            return False
        rows_text = OrdinalSet(plan_rows, wanted).to_text()
        self.note([RowsReopened(self._session, round_, rows_text, len(wanted), {}, asked, time_of_day())])
        self._reopening += wanted
        return True

    async def turn(self, now: float, at_once: bool) -> None:
        """Take in a publication that has ended, begin one that is due. `at_once`: whatever is there."""
        if self._publication is not None and self._publication.done():
            publication, self._publication = self._publication, None
            publication.result()
        if self._publication is None and self._is_due(now, at_once):
            self._publication = asyncio.ensure_future(self._publish())

    def look_at_once(self) -> None:
        """Publish, or look at the fence, with the next turn: somebody else may hold the run."""
        self._looked_at = float("-inf")

    async def write(self, records: Sequence[Record]) -> None:
        """Publish control records in a file without rows, when nothing else is being published."""
        attached, self._attached = self._attached, []
        await self._commit(rows.SCHEMA.empty_table(), [*attached, *records, self._tally.record()])

    async def cancel(self) -> None:
        """Stop a publication where it is."""
        if self._publication is not None:
            self._publication.cancel()
            await asyncio.gather(self._publication, return_exceptions=True)

    def _is_due(self, now: float, at_once: bool) -> bool:
        if self._records:
            return True
        interval_is_over = now - self._looked_at >= self._checkpoint.interval_seconds
        if not self._buffer.rows:
            return interval_is_over
        everything_is_in = self._schedule.left == self._schedule.received
        return interval_is_over or at_once or everything_is_in or self._buffer.size_bytes >= self._checkpoint.max_bytes

    async def _publish(self) -> None:
        self._publishing, self._buffer = self._buffer, _Buffer()
        records, self._records = self._records, []
        reopening, self._reopening = self._reopening, []
        if records or self._publishing.rows or self._tally.has_news:
            records, self._attached = [*records, *self._attached], []
        if ended := self._publishing.ended:
            records = [*records, RetriesEnded(self._session, tuple(ended))]
        if self._publishing.rows or records or self._tally.has_news:
            records = [*records, self._tally.record()]
            table = pa.concat_tables([rows.SCHEMA.empty_table(), *self._publishing.tables])
            await self._commit(table, records)
            self._schedule.committed([*ordinals(table), *(ordinal for ordinal, *_ in ended)])
            await self._reopened(reopening)
            if self._publishing.rows:
                self.published_at = time.monotonic()
        else:
            await self._patience(self.journal.check_fence)
        self._publishing = _Buffer()
        self._looked_at = time.monotonic()

    async def _reopened(self, wanted: Sequence[int]) -> None:
        if wanted:
            self.reopened = await asyncio.to_thread(self.journal.reopened)
            self._schedule.reopen(wanted)

    async def _commit(self, table: pa.Table, records: Sequence[Record]) -> None:
        # It reads older files where rows are made again.
        prepared = await self._patience(lambda: self.journal.prepare(table, records))
        await self._patience(lambda: self.journal.commit(prepared))


def ordinals(table: pa.Table) -> list[int]:
    """The ordinals of a table in `rows.SCHEMA`, where they are never null."""
    return cast(list[int], table.column("ordinal").to_pylist())
