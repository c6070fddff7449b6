"""The journal's part of `verify`: every file read in full, and compared with its footer, its neighbours and the plan.

Any altered byte is found, each file holding a digest over all of itself; and a file put in the place of another, each
file holding its predecessor's digest. Costs 24 bytes a row of the plan, and one file.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from regen.errors import JournalDamaged
from regen.ordinals import OrdinalSet
from regen.protocols import Storage
from regen.records import PlanStage, Status, Totals
from regen.rows import determined_digest
from regen.store import totals
from regen.store.control import Standing
from regen.store.files import JournalFile, JournalFiles
from regen.store.findings import Code, Findings
from regen.store.footer import Footer
from regen.store.layout import journal_key
from regen.store.parquet import RowsFile, naming_damage
from regen.store.reopened import reopened
from regen.store.verify_plan import PlanIds
from regen.store.winners import Winners

BATCH_ROWS = 64
_STATUSES = tuple(Status)


class JournalCheck:
    """`winners` and `status_of` tell, after `run`, what the readable files amount to."""

    is_closed = False

    def __init__(self, storage: Storage, ids: PlanIds, stages: Sequence[PlanStage], findings: Findings) -> None:
        self.journal = JournalFiles(storage)
        self.ids = ids
        self._sizes = [stage.rows for stage in stages]
        self._plan_rows = plan_rows = self._sizes[-1]
        self.findings = findings
        self._statuses = array("b", [-1]) * plan_rows
        self._running = _Running()
        self.winners = Winners(plan_rows)
        self.done = OrdinalSet(plan_rows)
        self.files = 0
        self.unreadable: set[str] = set()

    def run(self, progress: Callable[[str], None]) -> None:
        for file in self.journal.listed():
            for number in range(self._running.next_number, file.number):
                self.findings.add(Code.JOURNAL_GAP, journal_key(number), "is missing")
                self._running.lose_track()
            progress(file.key)
            self._check_file(file)
            self.files += 1

    def reopened(self) -> OrdinalSet:
        """Rows that are wanted once more, as far as the records can be read."""
        return reopened(self._running.standing.records, self._plan_rows, self.winners.round_of).pending

    def status_of(self, ordinal: int) -> Status | None:
        """The outcome in the journal; None if there is none."""
        status = self._statuses[ordinal]
        return None if status < 0 else _STATUSES[status]

    def _check_file(self, file: JournalFile) -> None:
        self._running.next_number = file.number + 1
        try:
            data = self.journal.read_bytes(file.number)
            opened = RowsFile(data, self.journal.where(file.number))
            opened.check_bytes()
            self._check_content(file, opened)
        except JournalDamaged as error:
            self.findings.add(Code.JOURNAL_DAMAGED, file.key, str(error))
            self._running.lose_track()
        else:
            self._running.follow(opened.digest, len(data))

    def _check_content(self, file: JournalFile, opened: RowsFile) -> None:
        footer, _ = self.journal.decode_ids(file.number, opened)
        self._check_chain(file, footer)
        self._check_fence(file.key, footer)
        for group in opened.groups():
            self._running.count(group)
            for batch in group.to_batches(max_chunksize=BATCH_ROWS):
                with naming_damage(opened.where):
                    rows = batch.to_pylist()
                for values in rows:
                    self.check_row(file, values)
        self._check_running(file.key, footer)

    def _check_chain(self, file: JournalFile, footer: Footer) -> None:
        running = self._running
        if running.last_digest is not None and footer.previous_digest != running.last_digest:
            before = journal_key(file.number - 1) if file.number else file.key
            self.findings.add(Code.JOURNAL_ALTERED, before, f"is not what it was when {file.key} was written")
        if running.total_bytes is not None and footer.bytes_before != running.total_bytes:
            message = f"the files before it have {running.total_bytes} bytes, and had {footer.bytes_before}"
            self.findings.add(Code.JOURNAL_ALTERED, file.key, message)
        if footer.plan_rows not in self._sizes:
            sizes = " and before ".join(map(str, reversed(self._sizes)))
            message = f"is of a plan of {footer.plan_rows} rows, and this plan has {sizes}"
            self.findings.add(Code.JOURNAL_ALTERED, file.key, message)
        elif footer.plan_rows < running.plan_rows:
            message = f"is of a plan of {footer.plan_rows} rows, and a file before it of {running.plan_rows}"
            self.findings.add(Code.JOURNAL_ALTERED, file.key, message)
        running.plan_rows = max(running.plan_rows, footer.plan_rows)

    def _check_fence(self, key: str, footer: Footer) -> None:
        running = self._running
        running.standing = running.standing.after(footer.records)
        claim = running.standing.claim
        if running.has_all and (claim is None or claim.session != footer.session):
            holder = f"session {claim.session}" if claim else "nobody"
            message = f"is of session {footer.session} while {holder} held the run"
            self.findings.add(Code.JOURNAL_FENCE, key, message)

    def check_row(self, file: JournalFile, values: dict[str, Any]) -> None:
        ordinal, status = values["ordinal"], values["status"]
        if not 0 <= ordinal < self._plan_rows:
            message = f"row {ordinal} is outside a plan of {self._plan_rows} rows"
            self.findings.add(Code.ROW_OUTSIDE, file.key, message)
        elif status not in _STATUSES:
            self.findings.add(Code.ROW_STATUS, file.key, f"row {ordinal} has status {status!r}")
        else:
            self._check_identity(file.key, values)
            self._note(file, ordinal, status, values)

    def _note(self, file: JournalFile, ordinal: int, status: str, values: dict[str, Any]) -> None:
        with naming_damage(self.journal.where(file.number)):
            counts = self.winners.note(ordinal, values["round"], file.number, values["digest"])
        if counts:
            self.done.add(ordinal)
            self._statuses[ordinal] = _STATUSES.index(Status(status))
        else:
            message = f"row {ordinal} has a result of round {values['round']} or higher already"
            self.findings.add(Code.ROW_REPEATED, file.key, message)

    def _check_identity(self, key: str, values: dict[str, Any]) -> None:
        ordinal = values["ordinal"]
        if determined_digest(values) != values["digest"]:
            self.findings.add(Code.ROW_DIGEST, key, f"row {ordinal} is not what its digest was made from")
        if ordinal >= self.ids.known:
            return
        if (settled := self.ids.outcome_of(ordinal)) is not None:
            message = f"row {ordinal} is {settled.value} in the plan and has a result"
            self.findings.add(Code.ROW_REFUSED, key, message)
        found, planned = (values["row_id"], values["source"]), (self.ids.id_of(ordinal), self.ids.source_of(ordinal))
        if found != planned:
            message = f"row {ordinal} is {found[0]} of {found[1]!r}, and in the plan {planned[0]} of {planned[1]!r}"
            self.findings.add(Code.ROW_ID, key, message)

    def _check_running(self, key: str, footer: Footer) -> None:
        running = self._running
        if running.has_all and footer.totals.done != len(self.done):
            message = f"counts {footer.totals.done} rows up to here, and there are {len(self.done)}"
            self.findings.add(Code.JOURNAL_TOTALS, key, message)
        elif running.can_sum and footer.totals != running.totals:
            message = "its running totals are not those of the rows up to here"
            self.findings.add(Code.JOURNAL_TOTALS, key, message)
        if running.has_all and footer.snapshot is not None:
            with naming_damage(key):
                done = OrdinalSet.from_text(footer.plan_rows, footer.snapshot.done).grown(self._plan_rows)
            if done != self.done:
                self.findings.add(Code.JOURNAL_SNAPSHOT, key, "its snapshot is not what is done up to here")


class _Running:
    """What the files amount to so far; after a gap or damage only what can still be told."""

    def __init__(self) -> None:
        self.next_number = 0
        self.plan_rows = 0
        self.last_digest: str | None = ""
        self.total_bytes: int | None = 0
        self.standing = Standing()
        self.totals = Totals()
        self.has_all = True
        self.can_sum = True

    def count(self, group: pa.Table) -> None:
        if (pc.max(group["round"]).as_py() or 0) > 0:
            self.can_sum = False  # an older row does not count any more, and its numbers are not kept
        if not set(group["status"].unique().to_pylist()) <= set(_STATUSES):
            self.can_sum = False
        if self.can_sum:
            self.totals = totals.plus(self.totals, totals.count(group))

    def lose_track(self) -> None:
        self.has_all = self.can_sum = False
        self.last_digest = self.total_bytes = None

    def follow(self, digest: str, size: int) -> None:
        self.last_digest = digest
        if self.total_bytes is not None:
            self.total_bytes += size
