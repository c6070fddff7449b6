"""Which slots are open, and what is in them: joins roster, fleet and what the driver has told. Pure.

Guarantees: a coordinator that takes over opens and releases nothing before the driver has told it what is placed, so
that it knows each engine that may hold rows. What is said of an engine that was replaced changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from regen.records import WORKING_STATES, Places, ReplicaState, ReplicaStats, WorkerId
from regen.run.fleet.fleet import Fleet, rows_held_at_most
from regen.run.fleet.roster import Roster, Work
from regen.run.schedule import Schedule
from regen.spec import EngineSpec

# An engine that is to be there anyway, or is the next of its slot, waits for a node when none was found for so long:
# Ray takes its time also where there is room.
PENDING_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Outlook:
    """What the roster must know beside the schedule. `seconds_left` of the run, None: nobody knows."""

    is_comparing: bool
    seconds_left: float | None


@dataclass(frozen=True, slots=True)
class Moves:
    """What has changed since the last look: where engines are now, or will be soon; where none can be for now; where
    none comes any more.
    """

    opened: frozenset[int]
    closed: frozenset[int]
    lost: frozenset[int]


class FleetDuty:
    """One per coordinator."""

    def __init__(self, engine: EngineSpec) -> None:
        self.fleet = Fleet(engine.slots_of)
        self._roster = Roster(len(engine.endpoints), engine.fewest_replicas, engine.most_replicas)
        self._engine_slots = engine.slots
        self._kept = range(engine.fewest_replicas)
        self._lost: frozenset[int] = frozenset()
        self._newly_lost: frozenset[int] = frozenset()
        self._there: frozenset[int] = frozenset(self._kept)
        self._waits_since: dict[int, float] = {}
        self.places: Places | None = None
        self.fleet.opened(self._there)

    # --- answers -----------------------------------------------------------------------------------

    @property
    def open_slots(self) -> frozenset[int]:
        """Those that have an engine, or are to have one."""
        return self._roster.open_slots

    @property
    def there(self) -> frozenset[int]:
        """Open ones that have an engine, or will soon."""
        return self._there

    @property
    def pending_slots(self) -> frozenset[int]:
        """Open ones that no node has room for."""
        return self.open_slots - self._there

    def is_to_leave(self, slot: int) -> bool:
        """Nobody wants an engine there any more."""
        return slot in self._roster.to_release

    # --- events ------------------------------------------------------------------------------------

    def hear(self, worker: WorkerId, stats: ReplicaStats, now: float) -> None:
        """What a replica that is not superseded says of itself."""
        self.fleet.hear(worker, stats)
        self._roster.placed(worker.slot, now)

    def gone(self, worker: WorkerId, is_released: bool, now: float) -> None:
        """This incarnation has ended; `is_released`: since nobody wanted it."""
        if not self.fleet.is_newest(worker):
            return
        self.fleet.gone(worker.slot)
        if is_released:
            self._roster.released(worker.slot, now)
        else:
            self._roster.gone(worker.slot, now)

    def told(self, places: Places, now: float) -> None:
        """What the driver knows of slots. It may be old by the time of an exchange, which says that one is there.

        Slots that are lost when it is told first were lost before this coordinator: nobody knows how.
        """
        is_first, self.places = self.places is None, places
        for slot in places.placed:
            self._roster.placed(slot, now)
        for slot in places.pending:
            self._roster.pending(slot, now)
        newly_lost = places.lost - self._lost
        for slot in newly_lost:
            self._roster.lost(slot, now, may_have_been_up=is_first)
            self.fleet.lost(slot)
        self._lost |= newly_lost
        self._newly_lost |= newly_lost

    # --- decisions ---------------------------------------------------------------------------------

    def look(self, schedule: Schedule, outlook: Outlook, now: float) -> Moves:
        """Open and release what is due."""
        self._roster.look(self._work(schedule, outlook), now)
        before, self._there = self._there, self.open_slots - self._pending(now)
        lost, self._newly_lost = self._newly_lost, frozenset()
        self.fleet.opened(self.open_slots, self.pending_slots)
        return Moves(self._there - before, before - self._there, lost)

    def _pending(self, now: float) -> frozenset[int]:
        waiting = self._roster.waiting
        self._waits_since = {slot: self._waits_since.get(slot, now) for slot in waiting}
        return frozenset(slot for slot in waiting if self._has_waited(slot, now))

    def _has_waited(self, slot: int, now: float) -> bool:
        is_expected = slot in self._kept or self.fleet.has_heard(slot)
        return not is_expected or now - self._waits_since[slot] >= PENDING_SECONDS

    def _work(self, schedule: Schedule, outlook: Outlook) -> Work:
        up = {slot: stats for slot, stats in self.fleet.stats.items() if stats.state in WORKING_STATES}
        starts = [stats.started_seconds for stats in self.fleet.stats.values() if stats.started_seconds]
        return Work(
            queued=schedule.queued,
            free_slots=_free(up, schedule),
            rows_held={slot: schedule.held_by(slot) for slot in up},
            engine_slots=self._engine_slots,
            has_suspects=bool(schedule.suspects) or schedule.has_failures,
            is_comparing=outlook.is_comparing,
            seconds_left=outlook.seconds_left,
            start_seconds=max(starts, default=None),
        )


def _free(up: Mapping[int, ReplicaStats], schedule: Schedule) -> int:
    """Rows that they would take."""
    running = ((slot, stats.usable_slots) for slot, stats in up.items() if stats.state is ReplicaState.RUNNING)
    return sum(max(0, rows_held_at_most(slots) - schedule.held_by(slot)) for slot, slots in running)
