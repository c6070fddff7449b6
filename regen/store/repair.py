"""Voiding journal files that are not what was published: which, what the others amount to, and the file that says so.

Guarantees: nothing is deleted or overwritten. One new file carries a claim, the voided numbers, a snapshot of what the
sound files amount to, and the release: it is there as a whole or not at all, every earlier session is fenced by it, and
no reader looks at a voided file again. Rows that only a voided file had are thereby not done.
Costs what `verify` costs for the journal, two or three times, and one pass over the columns that are counted.
"""

from __future__ import annotations

import uuid
from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow as pa

from regen.errors import JournalDamaged, RunHeld
from regen.ordinals import OrdinalSet
from regen.protocols import Plan, Storage
from regen.records import Totals
from regen.rows import SCHEMA
from regen.store import footer as footers
from regen.store import totals
from regen.store.control import Claim, FilesVoided, Released, ReleaseReason, Standing
from regen.store.files import JournalFiles
from regen.store.findings import Findings
from regen.store.footer import Footer, Snapshot
from regen.store.layout import JOURNAL, LAST_NUMBER, journal_key
from regen.store.parquet import content_digest, damaged, encode_rows, integers
from regen.store.replay import Ledger
from regen.store.verify_journal import JournalCheck
from regen.store.verify_plan import PlanIds, check_plan

# More in a row than a run loses by accident: then it is a stray file under a high number that makes the gap.
MOST_MISSING = 10_000


@dataclass(frozen=True, slots=True)
class Fault:
    """Journal files `first` to `last`, both included, and what is wrong with them."""

    first: int
    last: int
    reason: str


@dataclass(frozen=True, slots=True)
class Examined:
    """A journal without the files that are not what was published. Without `faults` there is nothing to do.

    `ledger` is what the sound files amount to; its `next_number` is behind every file that is there. `lost` are rows
    that had a result and have none now, `older` those of which an earlier result counts again, as far as any file names
    them; `unnamed` is how many more rows were lost, and `is_open_ended`: the newest files are among those that cannot
    be read, so that how many they held is not known. `records_lost_in` are the faulty files whose control records
    nothing else holds.
    """

    faults: tuple[Fault, ...]
    ledger: Ledger
    lost: OrdinalSet
    older: OrdinalSet
    unnamed: int
    is_open_ended: bool
    records_lost_in: tuple[int, ...]


def examine(storage: Storage, plan: Plan, progress: Callable[[str], None] | None = None) -> Examined:
    """Read the whole journal. The plan must be sound. Raises StoreUnavailable, StoreRefused.

    Raises JournalDamaged where a file under a stray number makes the journal impossible to continue.
    """
    return _Examination(storage, plan, progress or (lambda key: None)).result()


def void(storage: Storage, examined: Examined, claim: Claim, at: str) -> int:
    """Publish what was examined; the number of the new file. May be called again after StoreUnavailable.

    Raises RunHeld if anything was published since: examine again then.
    """
    ledger = examined.ledger
    numbers = tuple((fault.first, fault.last) for fault in examined.faults)
    records = (
        claim,
        FilesVoided(claim.session, numbers, tuple(fault.reason for fault in examined.faults), at),
        Released(claim.session, ReleaseReason.DRAINED, at),
    )
    footer = Footer(
        number=ledger.next_number,
        session=claim.session,
        writer=uuid.uuid4().hex,
        at=at,
        plan_rows=ledger.done.size,
        rows=0,
        table_bytes=0,
        digest=content_digest((), ()),
        first=None,
        last=None,
        totals=ledger.totals,
        published=ledger.published,
        records=records,
        bytes_before=ledger.total_bytes,
        previous_digest=ledger.last_digest,
        snapshot=Snapshot(ledger.done.to_text(), ledger.rounds, ledger.standing.after(records)),
    )
    data = encode_rows(SCHEMA.empty_table(), footers.to_json(footer))
    if not storage.create(journal_key(footer.number), data) and storage.read(journal_key(footer.number)) != data:
        raise RunHeld(
            f"{storage.url}: somebody has published {journal_key(footer.number)} meanwhile; nothing was voided"
        )
    return footer.number


class _Examination:
    def __init__(self, storage: Storage, plan: Plan, progress: Callable[[str], None]) -> None:
        self._storage = storage
        self._plan_rows, self._stages = plan.count, plan.stages
        self._progress = progress
        self._files = JournalFiles(storage)
        self._listed = list(self._files.listed())
        self._altered: set[int] = set()
        self._faults: dict[int, str] = {}
        self._check = self._checked(check_plan(plan, Findings()))

    def result(self) -> Examined:
        standing, records_lost_in = self._standing()
        ledger = self._ledger(standing)
        known, promised, is_open_ended = self._evidence()
        lost, older = OrdinalSet(self._plan_rows), OrdinalSet(self._plan_rows)
        for ordinal, round_ in enumerate(known):
            if round_ > self._check.winners.round_of(ordinal):
                (older if ordinal in ledger.done else lost).add(ordinal)
        return Examined(
            faults=tuple(_grouped(self._faults)),
            ledger=ledger,
            lost=lost,
            older=older,
            unnamed=max(0, promised - len(ledger.done | lost)),
            is_open_ended=is_open_ended,
            records_lost_in=tuple(records_lost_in),
        )

    def _checked(self, ids: PlanIds) -> JournalCheck:
        """What the sound files amount to: checked anew, without those found faulty, until nothing more is found."""
        while True:
            check = JournalCheck(self._storage, ids, self._stages, Findings(), self._faults)
            check.run(self._progress)
            self._altered |= check.altered
            found = {**check.faults, **self._missing(check)} or check.faults_by_comparison
            if not found:
                return check
            self._faults.update(found)

    def _missing(self, check: JournalCheck) -> dict[int, str]:
        for numbers in check.missing:
            if len(numbers) > MOST_MISSING or self._listed[-1].number >= LAST_NUMBER:
                stray = journal_key(numbers.stop)
                raise damaged(
                    f"{self._storage.url}/{stray}",
                    f"it stands alone, {len(numbers)} numbers behind the others: no run has come so far."
                    f" Move it out of {JOURNAL} and repair again",
                )
        return {number: "is missing" for numbers in check.missing for number in numbers}

    def _ledger(self, standing: Standing) -> Ledger:
        check, whole = self._check, self._check.whole
        return Ledger(
            done=check.done.copy(),
            rounds={ordinal: round_ for ordinal in check.done if (round_ := check.winners.round_of(ordinal)) > 0},
            totals=self._totals(),
            standing=standing,
            next_number=self._listed[-1].number + 1 if self._listed else 0,
            total_bytes=sum(file.size for file in whole),
            last_digest=self._files.read_digest(whole[-1].number) if whole else "",
            published=self._published(),
        )

    def _published(self) -> Totals:
        """What was published stays so: as the newest file has it that can be read."""
        footers = (self._readable_footer(number) for number in reversed(self._numbers()))
        return next((footer.published for footer in footers if footer is not None), Totals())

    def _totals(self) -> Totals:
        counted = Totals()
        for file in self._check.whole:
            table = self._files.read_table(file.number, ("ordinal", *totals.COLUMNS))
            counts = [self._check.winners.number_of(ordinal) == file.number for ordinal in integers(table, "ordinal")]
            counted = totals.plus(counted, totals.count(table.filter(pa.array(counts, pa.bool_()))))
        return counted

    def _standing(self) -> tuple[Standing, list[int]]:
        """All control records that can be read, and the faulty files that may have had others."""
        standing, lost = Standing(), list[int]()
        for number in self._numbers():
            footer = self._readable_footer(number)
            if footer is None:
                lost.append(number)
                standing = replace(standing, released=None)  # whoever claimed the run there may still be at it
            elif footer.snapshot is None:
                standing = standing.after(footer.records)
            else:
                standing = footer.snapshot.standing
                lost.clear()
        return standing, lost

    def _evidence(self) -> tuple[array[int], int, bool]:
        """By row the highest round that any file speaks of; how many rows the newest readable one counts; and whether
        it is not the newest of all."""
        known, promised, is_open_ended = array("b", [-1]) * self._plan_rows, 0, False
        for number in self._numbers():
            footer = self._readable_footer(number)
            is_open_ended = footer is None
            if footer is None or footer.plan_rows > self._plan_rows:
                continue
            promised = footer.totals.done
            if footer.snapshot is not None:
                if any(isinstance(record, FilesVoided) for record in footer.records):
                    known = array("b", [-1]) * self._plan_rows  # an earlier repair: its losses were told then
                _note_snapshot(known, footer.snapshot)
            if number in self._faults:
                self._note_rows(known, number)
        return known, promised, is_open_ended

    def _note_rows(self, known: array[int], number: int) -> None:
        with suppress(JournalDamaged):
            _, ids = self._files.read_ids(number)
            for ordinal, round_ in zip(integers(ids, "ordinal"), integers(ids, "round"), strict=True):
                if 0 <= ordinal < self._plan_rows and 0 <= round_ < 128:
                    known[ordinal] = max(known[ordinal], round_)

    def _numbers(self) -> list[int]:
        """Of all files that are there or ought to be, without what was voided earlier."""
        numbers = {*(file.number for file in self._listed), *self._faults}
        return sorted(number for number in numbers if number not in self._check.voided)

    def _readable_footer(self, number: int) -> Footer | None:
        """Also of a faulty file, whose footer carries a digest of its own; not of one that took another's place."""
        if number in self._altered:
            return None
        try:
            return self._files.read_footer(number)
        except JournalDamaged:
            return None


def _note_snapshot(known: array[int], snapshot: Snapshot) -> None:
    with suppress(ValueError):
        for ordinal in OrdinalSet.from_text(len(known), snapshot.done, may_be_shorter=True):
            known[ordinal] = max(known[ordinal], snapshot.rounds.get(ordinal, 0))


def _grouped(faults: dict[int, str]) -> Iterator[Fault]:
    """Neighbours with one reason as one."""
    group: Fault | None = None
    for number, reason in sorted(faults.items()):
        if group is not None and number == group.last + 1 and reason == group.reason:
            group = replace(group, last=number)
            continue
        if group is not None:
            yield group
        group = Fault(number, number, reason)
    if group is not None:
        yield group
