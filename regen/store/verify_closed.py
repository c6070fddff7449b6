"""The journal's part of `verify` for a run that is closed: its shards are the record, and its last file says how many.

Guarantees: every row of a shard that the target made is checked as a row of the journal would be, against the plan and
its own digest; all of them together have the totals that the journal's last file was closed with. Costs a pass over the
shards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

from regen.errors import JournalDamaged
from regen.records import Totals
from regen.store import totals
from regen.store.files import JournalFile
from regen.store.findings import Code
from regen.store.layout import SHARDS, shard_range
from regen.store.parquet import RowsFile, integers, naming_damage
from regen.store.verify_journal import BATCH_ROWS, JournalCheck


class ClosedCheck(JournalCheck):
    """`JournalCheck` for such a run; `unreadable` are the keys of shards that are damaged, each found here."""

    is_closed = True
    _reading = ""

    def find(self, code: Code, number: int, message: str) -> None:
        """Of the shard whose rows are being read."""
        self.findings.add(code, self._reading, message)

    def run(self, progress: Callable[[str], None]) -> None:
        closing = list(self.journal.listed())[-1]
        progress(closing.key)
        self.files = 1
        found = self._totals_of_shards(closing, progress)
        try:
            opened = RowsFile(self.journal.read_bytes(closing.number), self.journal.where(closing.number))
            opened.check_bytes()
            footer, _ = self.journal.decode_ids(closing.number, opened)
        except JournalDamaged as error:
            self.findings.add(Code.JOURNAL_DAMAGED, closing.key, str(error))
            return
        if found is not None and footer.totals != found:
            message = "its totals, with which the run was closed, are not those of the rows in the shards"
            self.findings.add(Code.JOURNAL_TOTALS, closing.key, message)

    def _totals_of_shards(self, closing: JournalFile, progress: Callable[[str], None]) -> Totals | None:
        """None if some shard cannot be read."""
        found: Totals | None = Totals()
        for stored in self.journal.storage.list(SHARDS):
            if shard_range(stored.key) is None:
                continue
            progress(stored.key)
            self._reading = stored.key
            shard = JournalFile(closing.number, stored.key, stored.size)
            try:
                for group in self._made_rows(shard):
                    found = None if found is None else totals.plus(found, totals.count(group))
            except JournalDamaged as error:
                message = f"{error}; the run is closed, and its rows are nowhere else: put back a copy"
                self.findings.add(Code.SHARD_DAMAGED, stored.key, message)
                self.unreadable.add(stored.key)
                found = None
        return found

    def _made_rows(self, shard: JournalFile) -> Iterator[pa.Table]:
        where = f"{self.journal.storage.url}/{shard.key}"
        with self.journal.storage.open(shard.key) as source:
            file = RowsFile(source, where)
            file.check_bytes()
            for group in file.groups():
                made = group.filter(pa.array([not self._is_settled(one) for one in integers(group, "ordinal")]))
                for batch in made.to_batches(max_chunksize=BATCH_ROWS):
                    with naming_damage(where):
                        rows = batch.to_pylist()
                    for values in rows:
                        self.check_row(shard, values)
                yield made

    def _is_settled(self, ordinal: int) -> bool:
        return 0 <= ordinal < self.ids.settled.size and ordinal in self.ids.settled
