"""`regen extend`: what the sources have gained becomes further rows of a frozen plan.

    spec -> held? -> only sources differ? -> plan the new rows (parts) -> claim -> summary -> record, let go

Guarantees: nobody runs the folder while it is extended, or the extension stops and has changed nothing. The summary
(`plan-0001.json`) is the commit; the journal's record says when, and by whom. A kill in between leaves a run that is
extended, and whose journal learns of it when the same command runs again; nothing depends on it. Killed before the
summary it has left parts that nobody reads (`regen clean` removes them).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from regen.data.extending import Extension, commit_extension, plan_extension
from regen.data.plan import RunPlan, open_plan
from regen.data.plan_summary import PlanSummary
from regen.data.target import resolve_target
from regen.errors import FingerprintDrift, JournalDamaged, RunHeld, SpecError
from regen.protocols import Storage
from regen.rows import SCHEMA
from regen.run.drift import accepted_drift
from regen.run.held import control_records, refuse_if_held
from regen.run.keeper import is_begun_meanwhile, keepers_claim, keepers_release, new_session, time_of_day
from regen.run.record import RunRecord, make_record, require_record, with_sources
from regen.run.start import Say, StartOptions, has_plan, planning_progress
from regen.spec import RunSpec, SourceSpec
from regen.store.control import PlanExtended
from regen.store.journal import Journal
from regen.store.replay import Replayed, replay
from regen.store.storage import open_storage

# What may change of a source that the run has: where its rows are, and how many of them are taken.
_MAY_CHANGE = frozenset({"path", "revision", "limit", "prompt_token_quota"})


@dataclass(frozen=True, slots=True)
class Extended:
    """What came of it. `added` has the new rows of each source; `gone` rows are in no source any more, and stay."""

    url: str
    planned_before: int
    planned: int
    added: Mapping[str, int]
    known: int
    gone: int

    def to_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "url": self.url,
            "planned_before": self.planned_before,
            "planned": self.planned,
            "added": dict(self.added),
            "known": self.known,
            "gone": self.gone,
        }

    def lines(self) -> list[str]:
        """For people."""
        if not self.added:
            return [f"nothing new: the sources have no row that the plan of {self.planned:,} does not have"]
        total = self.planned - self.planned_before
        by_source = ", ".join(f"{name} {rows:,}" for name, rows in self.added.items())
        return [
            f"added {total:,} rows ({by_source}): the plan has {self.planned:,} now;"
            f" {self.known:,} rows of the sources were in it already",
            f"make them with: regen resume {self.url}",
        ]


def extend(spec: RunSpec, options: StartOptions, say: Say) -> Extended:
    """Add to the run of this spec what its sources have and its plan has not. Repeatable.

    Raises SpecError, SourceError, RunHeld, FingerprintDrift (another difference than of sources), StoreError.
    """
    storage = open_storage(spec.output, spec.store)
    before = require_record(storage)
    if not has_plan(storage):
        raise SpecError(f"{storage.url}: planning has not ended yet, so there is nothing to extend: regen run SPEC")
    refuse_if_held(storage, take_over=False)
    target = resolve_target(spec.target)
    record = make_record(spec, target)
    _refuse_other_changes(before, record, storage, options)
    plan, session = open_plan(storage), new_session()
    extension = plan_extension(
        spec, target, storage, plan, session, options.processes, planning_progress(say), record.spec.sources
    )
    if extension.gone:
        say(f"{extension.gone:,} planned rows are in the sources no more; they stay planned")
    _publish(storage, plan, extension, session)
    planned = extension.summary.rows if extension.summary else plan.count
    return Extended(storage.url, plan.count, planned, extension.added, extension.known, extension.gone)


def _refuse_other_changes(before: RunRecord, now: RunRecord, storage: Storage, options: StartOptions) -> None:
    accepted_drift(
        before, with_sources(now, before.spec.sources), control_records(storage), storage.url, options.accept_drift
    )
    given = {source.name: source for source in now.spec.sources}
    changes = [line for source in before.spec.sources for line in _changes(source, given.get(source.name))]
    if changes:
        raise FingerprintDrift(
            f"{storage.url} cannot be extended with this spec:\n"
            + "\n".join(changes)
            + "\nOf a source that the run has, only the rows may change, and"
            + f" {', '.join(sorted(_MAY_CHANGE))}; further sources may be added."
        )


def _changes(was: SourceSpec, now: SourceSpec | None) -> list[str]:
    if now is None:
        return [f"  sources: {was.name!r} is not in the spec; its rows are planned and need it"]
    old, new = was.model_dump(mode="json"), now.model_dump(mode="json")
    return [
        f"  sources.{was.name}.{name}: was {old[name]!r}, is {new[name]!r}"
        for name in old
        if name not in _MAY_CHANGE and old[name] != new[name]
    ]


def _publish(storage: Storage, plan: RunPlan, extension: Extension, session: str) -> None:
    """Commit what was planned, and tell the journal; also of an earlier extension that it was not told of."""
    claim_seen = refuse_if_held(storage, take_over=False)  # planning takes time, and others start meanwhile
    if extension.summary is None and _is_told(replay(storage, plan.count, plan.settled()), plan.summary):
        return
    journal = Journal(storage, session, plan.count)
    replayed = journal.replay(plan.settled())
    _refuse_newcomer(replayed, claim_seen, storage)
    journal.claim(keepers_claim(session))
    if extension.summary is not None:
        _commit(storage, extension.summary)
    told = _record(session, extension.summary or plan.summary)
    journal.publish(SCHEMA.empty_table(), (told, keepers_release(session)))


def _refuse_newcomer(replayed: Replayed, claim_seen: str | None, storage: Storage) -> None:
    claim = replayed.newest_claim
    if claim is not None and is_begun_meanwhile(replayed, claim_seen):
        raise RunHeld(
            f"{storage.url}: session {claim.session} (host {claim.host}) has begun this run meanwhile; nothing was"
            " changed. Extend again when it has ended"
        )


def _commit(storage: Storage, summary: PlanSummary) -> None:
    try:
        is_committed = commit_extension(storage, summary)
    except JournalDamaged as error:
        raise RunHeld(
            f"{storage.url}: what was planned is gone ({error}): was the folder cleaned meanwhile? Nothing was changed;"
            " extend again"
        ) from error
    if not is_committed:
        raise RunHeld(
            f"{storage.url}: somebody else has extended this run meanwhile; nothing was changed, extend again"
        )


def _is_told(replayed: Replayed, summary: PlanSummary) -> bool:
    if not summary.before:
        return True
    told = [record for record in replayed.records if isinstance(record, PlanExtended)]
    return bool(told) and told[-1].digest == summary.digest


def _record(session: str, summary: PlanSummary) -> PlanExtended:
    added = summary.rows - summary.before[-1].rows
    return PlanExtended(session, added, summary.rows, summary.digest, time_of_day())
