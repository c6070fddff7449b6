"""`regen clean`: removes from a run folder what is nobody's, and, when asked, the journal of a run that is complete.

Guarantees: nobody runs the folder meanwhile, or the cleaning stops; nothing goes that a command still reads. What a
pilot has shown, and names that are not regen's, stay. Killed at any point, the folder can be read, and the same
command goes on.

With `journal`: everything is verified first, and all shards must be there. Then a last file closes the journal, with a
snapshot of what it amounts to; only then the files before it go. It is for good: nothing can be made, opened again or
added any more, and a row that a shard loses later is lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from regen.data.plan import RunPlan, open_plan, read_summary
from regen.errors import RunHeld, UserError
from regen.protocols import Storage
from regen.rows import SCHEMA
from regen.run.commands.check import check
from regen.run.held import refuse_if_held
from regen.run.keeper import is_begun_meanwhile, keepers_claim, keepers_release, new_session, time_of_day
from regen.run.record import require_record
from regen.run.start import Say
from regen.store.control import RunClosed
from regen.store.files import JournalFiles
from regen.store.journal import Journal
from regen.store.layout import PLAN_PARTS, SHARDS, shard_range
from regen.store.shards import outgrown_ranges, outgrown_shards, shard_ranges
from regen.store.verify import Verification


@dataclass(frozen=True, slots=True)
class Leftover:
    """One file that goes. `why` is a sentence's end."""

    key: str
    bytes: int
    why: str


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What went, or would. `temporaries` is None where they were not looked for; `is_closed`: the run is closed now."""

    removed: tuple[Leftover, ...]
    temporaries: int | None
    is_dry_run: bool
    is_closed: bool

    def to_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "removed": [{"key": one.key, "bytes": one.bytes, "why": one.why} for one in self.removed],
            "bytes": sum(one.bytes for one in self.removed),
            "temporaries": self.temporaries,
            "is_dry_run": self.is_dry_run,
            "is_closed": self.is_closed,
        }

    def lines(self) -> list[str]:
        """For people."""
        verb = "would remove" if self.is_dry_run else "removed"
        lines = [f"{verb} {one.key} ({one.bytes:,} bytes): {one.why}" for one in self.removed]
        lines.append(f"{verb} {len(self.removed):,} files, {sum(one.bytes for one in self.removed):,} bytes")
        if self.temporaries is None:
            lines.append("temporaries that dead processes have left are not looked for in a dry run")
        else:
            lines.append(f"removed {self.temporaries:,} temporaries that dead processes had left")
        if self.is_closed:
            lines.append("the run is closed: its shards are its only record")
        return lines


def clean(storage: Storage, *, journal: bool, is_dry_run: bool, say: Say) -> Cleaned:
    """Remove leftovers; with `journal` close the run and delete its journal too.

    Raises SpecError (no run here), RunHeld, UserError (it cannot be closed: not finished, sealed, right), StoreError.
    """
    rows_per_shard = require_record(storage).spec.checkpoint.rows_per_shard
    is_closed = JournalFiles(storage).closed() is not None
    if not is_closed:
        refuse_if_held(storage, take_over=False)
    leftovers = list(_leftovers(storage, rows_per_shard, say))
    if is_dry_run:
        if journal and not is_closed:
            _require_complete(storage)
            leftovers += _journal_files(storage, keep_from=None)
        return Cleaned(tuple(leftovers), None, True, is_closed)
    _remove(storage, leftovers, is_closed)
    if journal and not is_closed:
        say("verifying the whole run before its journal goes")
        next_number = _last_number(storage) + 1
        _close(storage, _require_complete(storage), next_number)
        deleted = list(_journal_files(storage, keep_from=_last_number(storage)))
        for one in deleted:
            storage.delete(one.key)
        leftovers += deleted
    return Cleaned(tuple(leftovers), storage.sweep(), False, is_closed or journal)


# --- what is nobody's ------------------------------------------------------------------------------


def _leftovers(storage: Storage, rows_per_shard: int, say: Say) -> Iterator[Leftover]:
    if read_summary(storage) is None:
        say("there is no plan yet: parts of plans are left alone, since somebody may be planning")
        return
    plan = open_plan(storage)
    yield from _plan_parts(storage, plan)
    yield from _shards(storage, plan, rows_per_shard)
    if JournalFiles(storage).closed() is not None:
        yield from _journal_files(storage, keep_from=_last_number(storage))


def _plan_parts(storage: Storage, plan: RunPlan) -> Iterator[Leftover]:
    named = {part.key for part in plan.summary.parts}
    for stored in storage.list(PLAN_PARTS):
        if stored.key not in named:
            yield Leftover(stored.key, stored.size, "a part that the plan does not name: its planning was not the one")


def _shards(storage: Storage, plan: RunPlan, rows_per_shard: int) -> Iterator[Leftover]:
    planned, outgrown = set(shard_ranges(plan.count, rows_per_shard)), outgrown_ranges(plan, rows_per_shard)
    found = [(stored, shard_range(stored.key)) for stored in storage.list(SHARDS)]
    sealed_from = frozenset(limits[0] for _, limits in found if limits in planned)
    for stored in outgrown_shards(storage, plan, rows_per_shard, sealed_from):
        yield Leftover(stored.key, stored.size, "its rows are in the longer shard that an extension has brought")
    for stored, limits in found:
        if limits is not None and limits not in planned and limits not in outgrown:
            yield Leftover(stored.key, stored.size, "not a range of this run")


def _journal_files(storage: Storage, keep_from: int | None) -> Iterator[Leftover]:
    for file in JournalFiles(storage).listed():
        if keep_from is None or file.number < keep_from:
            yield Leftover(file.key, file.size, "the run is closed")


def _last_number(storage: Storage) -> int:
    return max(file.number for file in JournalFiles(storage).listed())


def _remove(storage: Storage, leftovers: list[Leftover], is_closed: bool) -> None:
    """Under a claim, so that an extension that is being planned knows that its parts may be gone."""
    if not leftovers:
        return
    journal = None if is_closed else _claimed(storage)
    for one in leftovers:
        if journal is not None:
            journal.check_fence()
        storage.delete(one.key)
    if journal is not None:
        journal.publish(SCHEMA.empty_table(), (keepers_release(journal.session),))


# --- the journal -----------------------------------------------------------------------------------


def _require_complete(storage: Storage) -> Verification:
    """The verification of a run that can be closed. Raises UserError otherwise."""
    checked = check(storage)
    found = checked.verification
    if found is None or checked.findings:
        raise UserError(f"{storage.url}: it is not right, so nothing was deleted: regen verify {storage.url}")
    if found.missing or found.reopened:
        raise UserError(
            f"{storage.url}: {found.missing:,} rows are not made yet and {found.reopened:,} are to be made again:"
            f" a journal goes when a run is finished: regen resume {storage.url}"
        )
    if found.shards != found.shards_planned or found.shards_outdated or found.shards_outgrown:
        raise UserError(f"{storage.url}: not all of it is sealed as it is by now: first regen seal {storage.url}")
    return found


def _close(storage: Storage, found: Verification, next_number: int) -> None:
    """`next_number`: the journal's before it was verified."""
    journal = _claimed(storage, next_number)
    closed = RunClosed(journal.session, journal.next_number, found.planned, found.shards, time_of_day())
    journal.publish(SCHEMA.empty_table(), (closed, keepers_release(journal.session)))


def _claimed(storage: Storage, expected_number: int | None = None) -> Journal:
    claim_seen = refuse_if_held(storage, take_over=False)
    plan = open_plan(storage)
    session = new_session()
    journal = Journal(storage, session, plan.count)
    replayed = journal.replay(plan.settled())
    if is_begun_meanwhile(replayed, claim_seen) or expected_number not in (None, replayed.next_number):
        raise RunHeld(f"{storage.url}: somebody has begun this run meanwhile; clean it when that has ended")
    journal.claim(keepers_claim(session))
    if expected_number not in (None, journal.next_number - 1):
        raise RunHeld(f"{storage.url}: somebody has written into this run meanwhile; clean it when that has ended")
    return journal
