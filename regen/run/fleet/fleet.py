"""What the replicas say of themselves, and what their engines have sampled. Pure.

Counts never fall: what an engine has made stays counted when the next one of its slot counts from zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from regen.records import WORKING_STATES, EngineCounters, ReplicaState, ReplicaStats, WorkerId, engines_acceptance

# A replica holds more rows than slots, so that a free slot finds the next prompt already in the engine's queue.
OVERSUBSCRIPTION = 1.25


def rows_held_at_most(slots: int) -> int:
    """By a replica of so many slots."""
    return math.ceil(slots * OVERSUBSCRIPTION)


class Fleet:
    """`stats` is what was heard last, of each slot that was ever opened: none of them goes again."""

    def __init__(self, slots_of: Callable[[int], int]) -> None:
        """`slots_of` each engine, until it says so itself."""
        self._slots_of = slots_of
        self.stats: dict[int, ReplicaStats] = {}
        self.paced_tokens = 0
        self._heard: dict[int, WorkerId] = {}
        self._open: frozenset[int] = frozenset()
        self._pending: frozenset[int] = frozenset()
        self._lost: set[int] = set()
        self._sampled_before = 0

    def opened(self, open_slots: frozenset[int], pending: frozenset[int] = frozenset()) -> None:
        """Those that have an engine, or are to have one: `pending` ones wait for a node. All others are closed."""
        closed, self._open, self._pending = self._open - open_slots, open_slots, pending
        for slot in sorted(open_slots):
            self._begin(slot)
        for slot in closed:
            self.gone(slot)

    def hear(self, worker: WorkerId, stats: ReplicaStats) -> None:
        """Also of a slot that nobody has opened here: an earlier coordinator has."""
        slot, before = worker.slot, self._heard.get(worker.slot)
        counted = self.stats.setdefault(slot, self._unheard(slot)).counters.output_tokens
        if before is not None and before != worker:
            self._sampled_before += counted
        elif before is not None and self.stats[slot].state in WORKING_STATES:
            # Neither a warm-up's tokens nor those that an earlier coordinator has seen belong to this session's rows.
            self.paced_tokens += stats.counters.output_tokens - counted
        self._heard[slot], self.stats[slot] = worker, stats

    def gone(self, slot: int) -> None:
        """What its engine has made stays counted, what it is doing does not."""
        last = self.stats.get(slot) or self._unheard(slot)
        counters = replace(last.counters, running=0, waiting=0, kv_usage=0.0)
        state = ReplicaState.STOPPED if slot in self._open or slot in self._lost else ReplicaState.RELEASED
        self.stats[slot] = replace(last, state=state, running_rows=0, loop_lag_seconds=0.0, counters=counters)

    def lost(self, slot: int) -> None:
        """No engine comes there any more: that is a fault, and looks like one."""
        self._lost.add(slot)
        self._open -= {slot}
        self.gone(slot)

    def is_newest(self, worker: WorkerId) -> bool:
        """No later engine of its slot was heard."""
        heard = self._heard.get(worker.slot)
        return heard is None or heard.incarnation <= worker.incarnation

    def has_heard(self, slot: int) -> bool:
        """Since this coordinator began, or since the slot was opened again."""
        return slot in self._heard

    @property
    def sampled_tokens(self) -> int:
        return self._sampled_before + sum(stats.counters.output_tokens for stats in self.stats.values())

    @property
    def busy(self) -> int:
        """Sequences that are being decoded."""
        return sum(stats.counters.running for stats in self._working())

    @property
    def slots(self) -> int:
        """Those of engines that work."""
        return sum(stats.slots for stats in self._working())

    @property
    def slots_to_come(self) -> int:
        """Those of engines that work, or will: one that starts, or is replaced, is part of what is ahead.

        One that waits for a node is not: none may come.
        """
        return sum(self.stats[slot].slots for slot in self._open - self._pending)

    @property
    def accept_length(self) -> float | None:
        """Since the engines started; None without speculation or before its first step."""
        return engines_acceptance(self.stats.values()).accept_length

    def has_idle_drainer(self) -> bool:
        """An engine that is to be replaced has ended its rows."""
        return any(stats.state is ReplicaState.DRAINING and not stats.running_rows for stats in self.stats.values())

    def _begin(self, slot: int) -> None:
        """Opened, for the first time or again: then what its engines have made is counted, and the next begins."""
        last = self.stats.setdefault(slot, self._unheard(slot))
        if last.state is ReplicaState.RELEASED:
            self._sampled_before += last.counters.output_tokens
            self._heard.pop(slot, None)
            self.stats[slot] = replace(last, state=ReplicaState.STARTING, counters=EngineCounters())

    def _unheard(self, slot: int) -> ReplicaStats:
        return ReplicaStats(ReplicaState.STARTING, self._slots_of(slot), 0, 0.0, EngineCounters())

    def _working(self) -> Iterator[ReplicaStats]:
        return (stats for stats in self.stats.values() if stats.state in WORKING_STATES)
