"""What the replicas say of themselves, and what their engines have sampled. Pure.

Counts never fall: what an engine has made stays counted when the next one of its slot counts from zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from regen.records import WORKING_STATES, EngineCounters, ReplicaState, ReplicaStats, WorkerId, engines_acceptance


class Fleet:
    """One slot each; `stats` is what was heard last. Every slot is there from the first moment."""

    def __init__(self, replicas: int, slots_of: Callable[[int], int]) -> None:
        """`slots_of` each engine, until it says so itself."""
        self.stats = {
            slot: ReplicaStats(ReplicaState.STARTING, slots_of(slot), 0, 0.0, EngineCounters())
            for slot in range(replicas)
        }
        self.paced_tokens = 0
        self._heard: dict[int, WorkerId] = {}
        self._lost: set[int] = set()
        self._sampled_before = 0

    def hear(self, worker: WorkerId, stats: ReplicaStats) -> None:
        slot, before = worker.slot, self._heard.get(worker.slot)
        counted = self.stats[slot].counters.output_tokens
        if before is not None and before != worker:
            self._sampled_before += counted
        elif before is not None and self.stats[slot].state in WORKING_STATES:
            # Neither a warm-up's tokens nor those that an earlier coordinator has seen belong to this session's rows.
            self.paced_tokens += stats.counters.output_tokens - counted
        self._heard[slot], self.stats[slot] = worker, stats

    def gone(self, slot: int) -> None:
        """What its engine has made stays counted, what it is doing does not."""
        last = self.stats[slot]
        counters = replace(last.counters, running=0, waiting=0, kv_usage=0.0)
        self.stats[slot] = replace(
            last, state=ReplicaState.STOPPED, running_rows=0, loop_lag_seconds=0.0, counters=counters
        )

    def lost(self, slot: int) -> None:
        """No engine comes there any more."""
        self._lost.add(slot)

    def has_heard(self, slot: int) -> bool:
        """Since this coordinator began."""
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
        """Those of engines that work, or will: one that starts, or is replaced, is part of what is ahead."""
        return sum(stats.slots for slot, stats in self.stats.items() if slot not in self._lost)

    @property
    def accept_length(self) -> float | None:
        """Since the engines started; None without speculation or before its first step."""
        return engines_acceptance(self.stats.values()).accept_length

    def has_idle_drainer(self) -> bool:
        """An engine that is to be replaced has ended its rows."""
        return any(stats.state is ReplicaState.DRAINING and not stats.running_rows for stats in self.stats.values())

    def _working(self) -> Iterator[ReplicaStats]:
        return (stats for stats in self.stats.values() if stats.state in WORKING_STATES)
