"""The journal's part of `verify`: every file read in full, and compared with its footer, its neighbours and the plan.

Any altered byte is found, each file holding a digest over all of itself; and a file put in the place of another, each
file holding its predecessor's digest. What a repair has voided is not looked at. Costs 24 bytes a row of the plan, and
one file.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from regen.errors import JournalDamaged, StoreRefused
from regen.ordinals import OrdinalSet
from regen.protocols import Storage
from regen.records import PlanStage, Status, Totals
from regen.rows import determined_digest
from regen.store import totals
from regen.store.control import FilesVoided, Record, Standing, Voided
from regen.store.files import JournalFile, JournalFiles
from regen.store.findings import Code, Findings
from regen.store.footer import Footer
from regen.store.layout import journal_key
from regen.store.parquet import RowsFile, naming_damage, what_is_wrong
from regen.store.reopened import reopened
from regen.store.verify_plan import PlanIds
from regen.store.winners import Winners

BATCH_ROWS = 64
_STATUSES = tuple(Status)
# What is found of a file because of what other files say: with one of those out of the way, it may be right.
_BY_COMPARISON = frozenset({Code.JOURNAL_FENCE, Code.JOURNAL_TOTALS, Code.JOURNAL_SNAPSHOT, Code.ROW_REPEATED})


@dataclass(frozen=True, slots=True)
class _Link:
    """What a file that is whole says of itself and of the one before it."""

    number: int
    digest: str
    previous_digest: str


class JournalCheck:
    """`winners` and `status_of` tell, after `run`, what the readable files amount to.

    `faults`, and `faults_by_comparison` with other files, have a sentence for each number that something is wrong with;
    `altered` are whole files in the place of others, `whole` all that were read to their end. `skip` are numbers that
    are left out like voided ones. `unreadable` are keys of shards that were found damaged, of a closed run.
    """

    is_closed = False

    def __init__(
        self,
        storage: Storage,
        ids: PlanIds,
        stages: Sequence[PlanStage],
        findings: Findings,
        skip: Collection[int] = (),
    ) -> None:
        self.journal = JournalFiles(storage)
        self.ids = ids
        self._sizes = [stage.rows for stage in stages]
        self._plan_rows = plan_rows = self._sizes[-1]
        self.findings = findings
        self._statuses = array("b", [-1]) * plan_rows
        self._running = _Running()
        self._skip = frozenset(skip)
        self._links: list[_Link] = []
        self.altered: set[int] = set()
        self.voided = Voided()
        self.winners = Winners(plan_rows)
        self.done = OrdinalSet(plan_rows)
        self.files = 0
        self.unreadable: set[str] = set()
        self.missing: list[range] = []
        self.faults: dict[int, str] = {}
        self.faults_by_comparison: dict[int, str] = {}
        self.whole: list[JournalFile] = []

    def run(self, progress: Callable[[str], None]) -> None:
        self.voided = Voided(_repairs(self.journal))
        for file in self.journal.listed():
            self._check_gap(file.number)
            self._running.next_number = file.number + 1
            if self._is_left_out(file.number):
                self._running.leave_out(file.number)
                continue
            progress(file.key)
            self._check_file(file)
            self.files += 1
        self._check_links()

    def reopened(self) -> OrdinalSet:
        """Rows that are wanted once more, as far as the records can be read."""
        return reopened(self._running.standing.records, self._plan_rows, self.winners.round_of).pending

    def status_of(self, ordinal: int) -> Status | None:
        """The outcome in the journal; None if there is none."""
        status = self._statuses[ordinal]
        return None if status < 0 else _STATUSES[status]

    def _is_left_out(self, number: int) -> bool:
        return number in self.voided or number in self._skip

    def _check_gap(self, number: int) -> None:
        """One finding for a whole range: a stray file of a high number is no reason for millions."""
        start = self._running.next_number
        while start < number and self._is_left_out(start):
            self._running.leave_out(start)
            start += 1
        if start < number:
            more = "" if start + 1 == number else f", as are all up to {journal_key(number - 1)}"
            self.findings.add(Code.JOURNAL_GAP, journal_key(start), f"is missing{more}")
            self.missing.append(range(start, number))
            self._running.lose_track()

    def find(self, code: Code, number: int, message: str) -> None:
        self.findings.add(code, journal_key(number), message)
        faults = self.faults_by_comparison if code in _BY_COMPARISON else self.faults
        faults.setdefault(number, message)

    def _check_file(self, file: JournalFile) -> None:
        try:
            data = self.journal.read_bytes(file.number)
            opened = RowsFile(data, self.journal.where(file.number))
            opened.check_bytes()
            self._check_content(file, opened)
        except JournalDamaged as error:
            self.find(Code.JOURNAL_DAMAGED, file.number, what_is_wrong(error, self.journal.where(file.number)))
            self._running.lose_track()
        else:
            self._running.follow(len(data))
            self.whole.append(file)

    def _check_content(self, file: JournalFile, opened: RowsFile) -> None:
        footer, _ = self.journal.decode_ids(file.number, opened)
        self._running.take_up(footer)
        self._check_chain(file, footer, opened.digest)
        self._check_fence(file.number, footer)
        for group in opened.groups():
            self._running.count(group)
            for batch in group.to_batches(max_chunksize=BATCH_ROWS):
                with naming_damage(opened.where):
                    rows = batch.to_pylist()
                for values in rows:
                    self.check_row(file, values)
        self._check_running(file.number, footer)
        self._running.take_over(footer)

    def _check_chain(self, file: JournalFile, footer: Footer, digest: str) -> None:
        running = self._running
        self._links.append(_Link(file.number, digest, footer.previous_digest))
        if running.total_bytes is not None and footer.bytes_before != running.total_bytes:
            message = f"the files before it have {running.total_bytes} bytes, and had {footer.bytes_before}"
            self.findings.add(Code.JOURNAL_ALTERED, file.key, message)
            self.faults_by_comparison.setdefault(file.number, message)
            running.total_bytes = None
        if footer.plan_rows not in self._sizes:
            sizes = " and before ".join(map(str, reversed(self._sizes)))
            message = f"is of a plan of {footer.plan_rows} rows, and this plan has {sizes}"
            self.find(Code.JOURNAL_ALTERED, file.number, message)
        elif footer.plan_rows < running.plan_rows:
            message = f"is of a plan of {footer.plan_rows} rows, and a file before it of {running.plan_rows}"
            self.find(Code.JOURNAL_ALTERED, file.number, message)
        else:
            running.plan_rows = footer.plan_rows

    def _check_links(self) -> None:
        """The newest first: what a file says of the one before it counts only if it is itself what it was."""
        if self._links and self._links[0].number == 0 and self._links[0].previous_digest:
            self.find(Code.JOURNAL_ALTERED, 0, "says that a file was before it")
        for before, link in reversed(list(pairwise(self._links))):
            if link.number != before.number + 1 or link.number in self.faults:
                continue
            if link.previous_digest != before.digest:
                message = f"is not what it was when {journal_key(link.number)} was written"
                self.find(Code.JOURNAL_ALTERED, before.number, message)
                self.altered.add(before.number)

    def _check_fence(self, number: int, footer: Footer) -> None:
        running = self._running
        running.standing = running.standing.after(footer.records)
        claim = running.standing.claim
        if running.has_all and (claim is None or claim.session != footer.session):
            holder = f"session {claim.session}" if claim else "nobody"
            message = f"is of session {footer.session} while {holder} held the run"
            self.find(Code.JOURNAL_FENCE, number, message)

    def check_row(self, file: JournalFile, values: dict[str, Any]) -> None:
        ordinal, status = values["ordinal"], values["status"]
        if not 0 <= ordinal < self._plan_rows:
            message = f"row {ordinal} is outside a plan of {self._plan_rows} rows"
            self.find(Code.ROW_OUTSIDE, file.number, message)
        elif status not in _STATUSES:
            self.find(Code.ROW_STATUS, file.number, f"row {ordinal} has status {status!r}")
        else:
            self._check_identity(file.number, values)
            self._note(file, ordinal, status, values)

    def _note(self, file: JournalFile, ordinal: int, status: str, values: dict[str, Any]) -> None:
        with naming_damage(self.journal.where(file.number)):
            counts = self.winners.note(ordinal, values["round"], file.number, values["digest"])
        if counts:
            self.done.add(ordinal)
            self._statuses[ordinal] = _STATUSES.index(Status(status))
        else:
            message = f"row {ordinal} has a result of round {values['round']} or higher already"
            self.find(Code.ROW_REPEATED, file.number, message)

    def _check_identity(self, number: int, values: dict[str, Any]) -> None:
        ordinal = values["ordinal"]
        if determined_digest(values) != values["digest"]:
            self.find(Code.ROW_DIGEST, number, f"row {ordinal} is not what its digest was made from")
        if ordinal >= self.ids.known:
            return
        if (settled := self.ids.outcome_of(ordinal)) is not None:
            message = f"row {ordinal} is {settled.value} in the plan and has a result"
            self.find(Code.ROW_REFUSED, number, message)
        found, planned = (values["row_id"], values["source"]), (self.ids.id_of(ordinal), self.ids.source_of(ordinal))
        if found != planned:
            message = f"row {ordinal} is {found[0]} of {found[1]!r}, and in the plan {planned[0]} of {planned[1]!r}"
            self.find(Code.ROW_ID, number, message)

    def _check_running(self, number: int, footer: Footer) -> None:
        running = self._running
        if running.has_all and footer.totals.done != len(self.done):
            message = f"counts {footer.totals.done} rows up to here, and there are {len(self.done)}"
            self.find(Code.JOURNAL_TOTALS, number, message)
        elif running.has_all and running.can_sum and footer.totals != running.totals:
            self.find(Code.JOURNAL_TOTALS, number, "its running totals are not those of the rows up to here")
        elif running.published is not None and footer.published != running.published:
            self.find(Code.JOURNAL_TOTALS, number, "its count of all that was published is not that of the files")
        if running.has_all and footer.snapshot is not None:
            with naming_damage(self.journal.where(number)):
                done = OrdinalSet.from_text(footer.plan_rows, footer.snapshot.done).grown(self._plan_rows)
            if done != self.done:
                self.find(Code.JOURNAL_SNAPSHOT, number, "its snapshot is not what is done up to here")


def _repairs(files: JournalFiles) -> list[Record]:
    """What any file that can be read says of voided ones, whether or not it is right otherwise."""
    found: list[Record] = []
    for file in files.listed():
        try:
            footer = files.read_footer(file.number)
        except (JournalDamaged, StoreRefused):  # each is met again, and reported, when it is its turn
            continue
        found += [record for record in footer.records if isinstance(record, FilesVoided)]
    return found


class _Running:
    """What the files amount to so far; after a gap or damage only what can still be told, until a repair."""

    def __init__(self) -> None:
        self.next_number = 0
        self.plan_rows = 0
        self.whole_bytes = 0
        self._has_damage = False
        self._left_out: list[int] = []
        self.total_bytes: int | None = 0
        self.standing = Standing()
        self.totals = Totals()
        self.published: Totals | None = Totals()
        self.has_all = True
        self.can_sum = True

    def count(self, group: pa.Table) -> None:
        if (pc.max(group["round"]).as_py() or 0) > 0:
            self.can_sum = False  # an older row does not count any more, and its numbers are not kept
        if not set(group["status"].unique().to_pylist()) <= set(_STATUSES):
            self.can_sum, self.published = False, None
        if self.can_sum or self.published is not None:
            made = totals.count(group)
            self.totals = totals.plus(self.totals, made)
            self.published = None if self.published is None else totals.plus(self.published, made)

    def lose_track(self) -> None:
        self.has_all = self.can_sum = False
        self.published = None
        self.total_bytes = None
        self._has_damage = True

    def leave_out(self, number: int) -> None:
        """A file that is not looked at: what comes after it still counted it, until a repair that voided it."""
        self.has_all = False
        self.published = None
        self.total_bytes = None
        self._left_out.append(number)

    def take_up(self, footer: Footer) -> None:
        """A repair says what all files before it amount to, without those that were voided by then."""
        if footer.snapshot is None or not any(isinstance(record, FilesVoided) for record in footer.records):
            return
        voided = Voided(footer.snapshot.standing.records)
        if not self._has_damage and all(number in voided for number in self._left_out):
            self.has_all = True
            self.total_bytes = self.whole_bytes
            self.published = footer.published

    def take_over(self, footer: Footer) -> None:
        """A snapshot holds records of files before it, also of those that cannot be read any more."""
        if footer.snapshot is not None:
            self.standing = footer.snapshot.standing

    def follow(self, size: int) -> None:
        self.whole_bytes += size
        if self.total_bytes is not None:
            self.total_bytes += size
