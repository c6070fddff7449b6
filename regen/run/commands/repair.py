"""`regen verify --repair`: what is damaged and can be made again is taken out of the count, or written anew.

Guarantees: nothing is deleted. A damaged journal file stays under its name and is ignored from then on, so the next
session makes exactly its rows again; a damaged shard is written anew from the journal, as a whole. Killed in the
middle, or run again, it does what is left to do. The plan and run.json cannot be made again in a folder that has rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from regen.data.plan import open_plan
from regen.errors import ExitCode, JournalDamaged
from regen.ordinals import OrdinalSet
from regen.protocols import Plan, Storage
from regen.records import Totals
from regen.run.commands.check import Checked, check
from regen.run.held import refuse_if_alive
from regen.run.keeper import keepers_claim, new_session
from regen.run.record import RunRecord, require_record
from regen.store.files import JournalFiles
from regen.store.findings import Code, Finding
from regen.store.layout import journal_key
from regen.store.repair import Examined, Fault, examine, void
from regen.store.replay import closed_error, summed_up
from regen.store.shards import seal_again

_RANGES_SHOWN = 20
_NOT_REPAIRABLE = frozenset({Code.RUN_ALTERED, Code.PLAN_DAMAGED, Code.PLAN_COUNT, Code.PLAN_REFUSED, Code.PLAN_ID})


@dataclass(frozen=True, slots=True)
class Repaired:
    """What was done. `examined` is None where the journal is right; `sealed` are keys of shards written anew.

    `checked` is the whole folder afterwards.
    """

    examined: Examined | None
    sealed: tuple[str, ...]
    checked: Checked

    @property
    def exit_code(self) -> ExitCode:
        """FAILED: something is left that a person must look at."""
        return ExitCode.FAILED if self.checked.findings else ExitCode.OK

    @property
    def faults(self) -> tuple[Fault, ...]:
        return self.examined.faults if self.examined else ()

    def to_json(self) -> dict[str, Any]:
        """Plain data; ranges are of ordinals, both ends included."""
        found = self.examined
        return {
            "voided": [{"first": one.first, "last": one.last, "reason": one.reason} for one in self.faults],
            "rows_lost": len(found.lost) if found else 0,
            "rows_lost_ranges": list(ranges(found.lost)) if found else [],
            "rows_older_again": len(found.older) if found else 0,
            "rows_older_again_ranges": list(ranges(found.older)) if found else [],
            "rows_lost_unnamed": found.unnamed if found else 0,
            "is_open_ended": found.is_open_ended if found else False,
            "records_lost_in": list(found.records_lost_in) if found else [],
            "shards_sealed_again": list(self.sealed),
            "checked": self.checked.to_json(),
        }

    def lines(self, run: str) -> Iterator[str]:
        """For a person: found, done, left, and the next command."""
        yield from (f"voided: {_names(fault)}: {fault.reason}" for fault in self.faults)
        if self.examined is not None:
            yield from _rows_told(self.examined)
        yield from (f"sealed again: {key}" for key in self.sealed)
        if not self.faults and not self.sealed:
            yield "nothing to repair" if not self.checked.findings else "nothing that can be repaired"
        yield from (f"left: {found.code.value}: {found.where}: {found.message}" for found in self.checked.findings)
        yield self.checked.summary()
        verification = self.checked.verification
        if verification is not None and (verification.missing or verification.reopened):
            yield f"to make the rows that are missing: regen resume {run}"


def repair(storage: Storage) -> Repaired:
    """Raises SpecError (no run here), RunHeld, StoreError; JournalDamaged for what cannot be repaired, naming it."""
    _refuse_closed(storage)
    found = _checked(storage)
    if not found.findings:
        return Repaired(None, (), found)
    record, plan = require_record(storage), open_plan(storage)
    examined = _voided(storage, plan)
    checked = check(storage) if examined is not None else found
    sealed = _sealed_again(storage, plan, record, checked)
    return Repaired(examined, sealed, check(storage) if sealed else checked)


def _refuse_closed(storage: Storage) -> None:
    """There is no journal to repair, and none to make a shard from."""
    files = JournalFiles(storage)
    numbers = [file.number for file in files.listed()]
    try:
        closed = files.closed()
    except JournalDamaged as error:
        if numbers == [0] or len(numbers) > 1:
            return
        # Voided, it would take all rows of a closed run with it.
        raise _hopeless(storage, [f"{error}; it is the journal's only file, as it is in a closed run"]) from error
    if closed is not None:
        raise closed_error(storage.url, closed)


def _sealed_again(storage: Storage, plan: Plan, record: RunRecord, checked: Checked) -> tuple[str, ...]:
    if checked.verification is None or not checked.verification.shards_faulty:
        return ()
    rows_per_shard, faulty = record.spec.checkpoint.rows_per_shard, checked.verification.shards_faulty
    return tuple(seal_again(storage, plan, rows_per_shard, faulty, session="", fingerprint=record.fingerprint))


def _checked(storage: Storage) -> Checked:
    try:
        found = check(storage)
    except JournalDamaged as error:
        raise _hopeless(storage, [str(error)]) from error
    hopeless = [_told(finding) for finding in found.findings if finding.code in _NOT_REPAIRABLE]
    if hopeless:
        raise _hopeless(storage, hopeless)
    return found


def _voided(storage: Storage, plan: Plan) -> Examined | None:
    """What was found in the journal and voided; None if it is right."""
    examined = examine(storage, plan)
    if not examined.faults:
        return None
    refuse_if_alive(storage, summed_up(examined.ledger, OrdinalSet(plan.count), Totals()))
    claim = keepers_claim(new_session())
    void(storage, examined, claim, claim.started_at)
    return examined


def ranges(ordinals: OrdinalSet) -> Iterator[tuple[int, int]]:
    """Ranges of neighbours, both ends included."""
    members = list(ordinals)
    starts = [0, *(index + 1 for index, (one, other) in enumerate(pairwise(members)) if other != one + 1)]
    for start, stop in pairwise([*starts, len(members)]):
        if start < stop:
            yield members[start], members[stop - 1]


def _rows_told(found: Examined) -> Iterator[str]:
    if len(found.lost):
        yield f"rows to be made again: {len(found.lost):,} ({_shown(found.lost)})"
    if len(found.older):
        yield f"rows of which an older result counts again: {len(found.older):,} ({_shown(found.older)})"
    if found.unnamed:
        yield f"and {found.unnamed:,} rows more, which no file that can be read names: they are among the missing ones"
    if found.is_open_ended:
        yield "the newest files cannot be read: their rows, if they had any, are among the missing ones"
    if found.records_lost_in:
        numbers = ", ".join(map(str, found.records_lost_in[:_RANGES_SHOWN]))
        yield (
            f"control records in the files {numbers} cannot be read: if they re-opened rows (regen retry), accepted a"
            " drift or decided about speculation, that is to be asked for again"
        )


def _shown(ordinals: OrdinalSet) -> str:
    told = list(ranges(ordinals))
    shown = ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in told[:_RANGES_SHOWN])
    return shown if len(told) <= _RANGES_SHOWN else f"{shown} and {len(told) - _RANGES_SHOWN:,} ranges more"


def _names(fault: Fault) -> str:
    first = journal_key(fault.first)
    return first if fault.first == fault.last else f"{first} to {journal_key(fault.last)}"


def _told(finding: Finding) -> str:
    return f"{finding.where}: {finding.message}"


def _hopeless(storage: Storage, problems: Sequence[str]) -> JournalDamaged:
    told = "\n  ".join(problems)
    return JournalDamaged(
        f"{storage.url} cannot be repaired; nothing was changed:\n  {told}\n"
        "run.json and the plan are not made again in a folder that has rows: put them back from a copy, or begin a new"
        " folder, for which the sources give the plan again. Shards that are sealed can still be read: they are Parquet"
    )
