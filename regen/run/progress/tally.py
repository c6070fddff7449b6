"""Counts of what no finished row tells, over engines, coordinators and sessions. Pure: `now` is handed in.

Engines count from zero, and a coordinator hears of them what they have counted so far. What is kept is by how much each
reading is above the last one of the same engine. Both are published in one record (`RunTally`), so that a coordinator
that takes over goes on from there: nothing that was published is lost, and nothing counts twice. Counts that were
heard and never published are heard again from an engine that still runs, and are lost with one that does not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from regen.records import (
    EngineCounters,
    FailedAttempt,
    ReplicaState,
    ReplicaStats,
    RetryReason,
    SlotState,
    SlotTally,
    WorkerId,
)
from regen.store.control import Record, RunTally, SlotReading
from regen.store.tally import counted, newest_tally, slot_counts, tally_of

_NO_ENGINE = {ReplicaState.STOPPED: SlotState.GONE, ReplicaState.RELEASED: SlotState.RELEASED}
_NOT_UP = (ReplicaState.STARTING, ReplicaState.WARMING)
_ENGINELESS = frozenset(_NO_ENGINE.values())


def restarted(session: str, records: Iterable[Record]) -> tuple[RunTally]:
    """What goes with the claim of a coordinator that takes over within its session: one restart more."""
    tally = RunningTally(session, records)
    tally.coordinator_restarts += 1
    return (tally.record(),)


def sequences(stats: ReplicaStats, has_queue: bool, may_lease: bool) -> dict[SlotState, int]:
    """What each of a replica's sequences is doing. `has_queue`: rows are with nobody; `may_lease`: they may go out.

    A free sequence of an engine that has requests waiting is busy: it is the engine that cannot take them, for want of
    memory, and no feeder. So are those that it is given no rows for, for the same reason.
    """
    if stats.state in _NO_ENGINE:
        return {_NO_ENGINE[stats.state]: stats.slots}
    if stats.state in _NOT_UP:
        return {SlotState.STARTING: stats.slots}
    beyond_memory = stats.slots - stats.usable_slots
    busy = min(stats.slots, stats.counters.running + stats.counters.waiting + beyond_memory)
    if stats.state is ReplicaState.DRAINING or not has_queue:
        why_free = SlotState.NO_ROWS
    else:
        why_free = SlotState.STARVED if may_lease else SlotState.HELD_BACK
    return {SlotState.BUSY: busy, why_free: stats.slots - busy}


@dataclass(slots=True)
class _Slot:
    """`SlotTally`, and the reading up to which it counts."""

    reading: SlotReading
    counts: dict[str, int] = field(default_factory=dict)
    engine_seconds: float = 0.0
    gpu_seconds: float = 0.0
    seconds: dict[SlotState, float] = field(default_factory=dict)

    def add(self, name: str, count: int) -> None:
        self.counts[name] = self.counts.get(name, 0) + count

    def tally(self) -> SlotTally:
        return SlotTally(
            engine_seconds=self.engine_seconds,
            gpu_seconds=self.gpu_seconds,
            slot_seconds=self.seconds,
            **self.counts,
        )


class RunningTally:
    """Goes on from what `records` have. Any event may be told again, and readings may come late."""

    def __init__(self, session: str, records: Iterable[Record]) -> None:
        before = newest_tally(records)
        so_far = tally_of(before)
        self._session = session
        is_same_session = before is not None and before.session == session
        seen = {one.slot: one for one in before.seen} if before is not None and is_same_session else {}
        self._slots = {
            slot: _taken_up(tally, seen.get(slot, _nothing(slot))) for slot, tally in sorted(so_far.slots.items())
        }
        self._retries = dict(so_far.retries)
        self._store_errors_before, self._store_errors = so_far.store_errors, 0
        self.coordinator_restarts = so_far.coordinator_restarts
        self._hung: set[WorkerId] = set()
        self._looked_at: float | None = None
        self._told = self._trouble()

    @property
    def has_news(self) -> bool:
        """Something went wrong that the latest `record` does not have."""
        return self._trouble() != self._told

    def record(self) -> RunTally:
        """All of it, for the journal."""
        self._told = self._trouble()
        return RunTally(
            session=self._session,
            slots=tuple(slot_counts(slot, state.tally()) for slot, state in sorted(self._slots.items())),
            seen=tuple(state.reading for _, state in sorted(self._slots.items()) if state.reading.incarnation >= 0),
            retries=dict(sorted(self._retries.items())),
            store_errors=self._store_errors_before + self._store_errors,
            coordinator_restarts=self.coordinator_restarts,
        )

    # --- events ----------------------------------------------------------------------------------

    def heard(self, worker: WorkerId, counters: EngineCounters) -> None:
        """What an engine has counted. An older engine of the slot is over; an older reading is below a newer one."""
        slot = self._begun(worker)
        before = slot.reading
        if before.incarnation != worker.incarnation:
            return
        now = before._replace(
            sampled_tokens=max(before.sampled_tokens, counters.output_tokens),
            computed_prompt_tokens=max(
                before.computed_prompt_tokens, counters.prompt_tokens - counters.prefix_hit_tokens
            ),
            prefix_hit_tokens=max(before.prefix_hit_tokens, counters.prefix_hit_tokens),
            preemptions=max(before.preemptions, counters.preemptions),
        )
        for name in ("sampled_tokens", "computed_prompt_tokens", "prefix_hit_tokens", "preemptions"):
            slot.add(name, getattr(now, name) - getattr(before, name))
        slot.reading = now

    def gone(self, worker: WorkerId, is_stall: bool) -> None:
        """An engine has ended; `is_stall`: because it gave no token any more."""
        slot = self._begun(worker)
        if slot.reading.incarnation == worker.incarnation and not slot.reading.is_gone:
            slot.reading = slot.reading._replace(is_gone=True)
            slot.add("stalls", int(is_stall))

    def hung(self, slots: Iterable[int]) -> None:
        """Processes that say nothing any more, and are to be replaced: each is a stall once."""
        for number in slots:
            slot = self._slot(number)
            worker = WorkerId(number, slot.reading.incarnation)
            if worker not in self._hung:
                self._hung.add(worker)
                slot.add("stalls", 1)

    def failed(self, slot: int, attempts: Iterable[FailedAttempt]) -> None:
        """Attempts at rows that have failed here, each told once."""
        for attempt in attempts:
            reason = _retry_reason(attempt.reason)
            self._retries[reason] = self._retries.get(reason, 0) + 1
            if reason is RetryReason.STALLED:
                self._slot(slot).add("stalls", 1)

    def store_failed(self, times: int) -> None:
        """How often the store was waited for since this coordinator began."""
        self._store_errors = max(self._store_errors, times)

    def look(
        self,
        now: float,
        slots: Mapping[int, Mapping[SlotState, int]],
        gpus: Callable[[int], float] = lambda slot: 0.0,
        unheard: Collection[int] = (),
    ) -> None:
        """What the sequences of each slot have been doing since the last look; `now` in seconds.

        `gpus` are those that the engine of a slot holds, in this session: the next may give it others. Slots that are
        `unheard` hold nothing: their process may wait for a node for as long as the run lasts.
        """
        before, self._looked_at = self._looked_at, now
        if before is None:
            return
        for number, states in slots.items():
            slot = self._slot(number)
            held_seconds = 0.0 if _ENGINELESS & states.keys() or number in unheard else now - before
            slot.engine_seconds += held_seconds
            slot.gpu_seconds += held_seconds * gpus(number)
            for state, count in states.items():
                slot.seconds[state] = slot.seconds.get(state, 0.0) + count * (now - before)

    # --- inside ----------------------------------------------------------------------------------

    def _slot(self, number: int) -> _Slot:
        return self._slots.setdefault(number, _Slot(_nothing(number)))

    def _begun(self, worker: WorkerId) -> _Slot:
        """The slot. Incarnations count from 0 in each session: also those that were never heard were begun."""
        slot = self._slot(worker.slot)
        newest = slot.reading.incarnation
        if worker.incarnation > newest:
            slot.add("starts", worker.incarnation - newest)
            slot.add("restarts", worker.incarnation - max(newest, 0))
            slot.reading = SlotReading(worker.slot, worker.incarnation)
        return slot

    def _trouble(self) -> tuple[object, ...]:
        counts = [(state.counts.get("restarts", 0), state.counts.get("stalls", 0)) for state in self._slots.values()]
        kinds = (sum(restarts for restarts, _ in counts), sum(stalls for _, stalls in counts))
        return (*kinds, sum(self._retries.values()), self._store_errors, self.coordinator_restarts)


def _nothing(slot: int) -> SlotReading:
    """Of no engine yet."""
    return SlotReading(slot, incarnation=-1)


def _taken_up(tally: SlotTally, reading: SlotReading) -> _Slot:
    return _Slot(reading, counted(tally), tally.engine_seconds, tally.gpu_seconds, dict(tally.slot_seconds))


def _retry_reason(reason: str) -> RetryReason:
    try:
        return RetryReason(reason)
    except ValueError:
        return RetryReason.OTHER
