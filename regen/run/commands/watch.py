"""Watching a run from its folder alone, until it has ended: `regen status --watch`.

Guarantees: it reads and never writes; it works before there is a run, while the store is away, and beside whoever runs
it, wherever that is. That a holder is silent is judged by the watcher's own clock. Costs a look every few seconds: a
listing of the journal, the footers since its newest snapshot, and once the plan's columns of settled rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from regen.errors import ExitCode, StoreUnavailable
from regen.observe.terminal_facts import TerminalFacts
from regen.protocols import Storage
from regen.records import Phase, Status
from regen.run.look import KnownPlan, Look, look
from regen.run.record import read_record
from regen.store.holder import Holder, HolderProgress, HolderState

INTERVAL_SECONDS = 5.0
# The holder's heart beats every 2 s (run/coordinator.py). From then on its silence is shown.
SILENT_SECONDS = 15.0
# Ray restarts a coordinator within seconds, and replaying a large journal takes some more.
DEAD_SECONDS = 60.0
NO_RUN = "no run here yet"


class Heartbeat:
    """Since when the holder's heartbeat stands still. Pure: `now` is the watcher's monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._last: tuple[str, int] | None = None
        self._moved_at = 0.0

    def silent_seconds(self, holder: Holder | None, now: float) -> float:
        """0 where nobody says that it runs the folder."""
        if holder is None or holder.state is not HolderState.RUNNING:
            self._last = None
            return 0.0
        beat = (holder.session, holder.beat)
        if beat != self._last:
            self._last, self._moved_at = beat, now
        return now - self._moved_at


def watch(
    storage: Storage,
    interval_seconds: float,
    show: Callable[[TerminalFacts, Look | None], None],
    wait: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> tuple[ExitCode, float]:
    """Look and show until the run has ended: its exit code, and for how long its heartbeat was not seen.

    FAILED after `DEAD_SECONDS` without a heartbeat. A store that is away is waited for. Raises JournalDamaged,
    StoreRefused.
    """
    heartbeat, plan = Heartbeat(), KnownPlan(storage)
    last, seen = waiting(storage.url), None
    while True:
        try:
            seen = look(storage, plan) if read_record(storage) is not None else None
        except StoreUnavailable as error:
            show(replace(last, store_error=str(error)), seen)
        else:
            silent = heartbeat.silent_seconds(seen.holder if seen else None, now())
            last = waiting(storage.url) if seen is None else facts_of_look(seen, silent)
            show(last, seen)
            if seen is not None and (code := ended(seen)) is not None:
                return code, 0.0
            if silent >= max(DEAD_SECONDS, 3 * interval_seconds):
                return ExitCode.FAILED, silent
        wait(interval_seconds)


def waiting(url: str) -> TerminalFacts:
    """What is shown before there is a run."""
    return TerminalFacts(name=url, phase="waiting", planned=None, left=0, note=NO_RUN)


def no_run_json(url: str) -> dict[str, Any]:
    """What `regen status --watch --json` says before there is a run."""
    return {"name": None, "url": url, "planned": None, "done": 0, "is_finished": False, "note": NO_RUN}


def facts_of_look(seen: Look, silent_seconds: float = 0.0) -> TerminalFacts:
    """What the store shows of the run. What its coordinator alone knows is as old as the last heartbeat.

    None of that is shown once the heartbeat is silent.
    """
    facts = TerminalFacts(
        name=seen.name,
        phase=_phase(seen),
        session=seen.holder.session if seen.holder else "",
        planned=seen.planned,
        left=(seen.planned or 0) - seen.totals.done + seen.reopened,
        outcomes=seen.totals.by_status(),
        reopened=seen.reopened,
        suspects=seen.suspects,
        output_tokens=seen.totals.output_tokens,
        accept_length=seen.totals.acceptance.accept_length,
        commits=seen.commits,
        decisions=seen.decisions,
        tally=seen.tally,
        cost_so_far=None if seen.price is None else seen.price.so_far(seen.tally),
        currency="" if seen.price is None else seen.price.currency,
    )
    if seen.is_finished or seen.holder is None or seen.holder.state is not HolderState.RUNNING:
        return facts
    if silent_seconds >= SILENT_SECONDS:
        return replace(facts, heartbeat_age_seconds=silent_seconds)
    return facts if seen.holder.progress is None else _with_progress(facts, seen.holder.progress)


def _with_progress(facts: TerminalFacts, progress: HolderProgress) -> TerminalFacts:
    return replace(
        facts,
        phase=progress.phase.value,
        eta=progress.eta if progress.phase is Phase.RUNNING else None,
        tokens_per_second=progress.useful_tokens_per_second,
        in_flight=progress.in_flight,
        queued=progress.queued,
        accept_length=progress.accept_length or facts.accept_length,
    )


def ended(seen: Look) -> ExitCode | None:
    """With what its last session has ended, as far as the store can tell; None while it runs, or nobody ever ran it."""
    if seen.is_finished:
        counts = seen.totals.by_status()
        has_lost = counts[Status.REJECTED] or counts[Status.FAILED]
        return ExitCode.COMPLETED_WITH_REJECTS if has_lost else ExitCode.OK
    if seen.holder is None or seen.holder.state is HolderState.RUNNING:
        return None
    return ExitCode.FAILED if seen.holder.state is HolderState.FAILED else ExitCode.DRAINED


def _phase(seen: Look) -> str:
    if seen.is_finished:
        return Phase.FINISHED.value
    if seen.holder is None:
        return "planned" if seen.planned is not None else "planning"
    return seen.holder.state.value
