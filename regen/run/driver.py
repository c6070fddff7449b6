"""The driver: makes the coordinator and the workers, awaits them, replaces dead ones, drains when asked.

It keeps a task for each slot that the coordinator wants open (fleet/roster.py), and decides nothing of that itself. All
that it remembers is of its slots: incarnations, which count on for the whole session, restarts, and which are lost.
It knows replicas and the coordinator only through `Cluster`: Ray actors (cluster.py) or one event loop (local.py).
Killed at any moment it loses nothing: the same command continues from the store.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from regen.errors import (
    EngineGarbage,
    EngineStalled,
    EngineStartFailed,
    NodeLost,
    RegenError,
    ServerUnavailable,
    UserError,
)
from regen.records import ENDED_PHASES, CoordinatorStatus, Death, Left, Phase, Places, Toll, WorkerId
from regen.run.fleet.restarts import Restarts
from regen.run.setup import Assignment, RunSetup, WorkerSetup
from regen.run.stopwatch import Lap, untimed

POLL_SECONDS = 1.0
OPENING_POLL_SECONDS = 0.1
# A coordinator that dies so often without publishing anything in between will not come right by itself.
COORDINATOR_RESTARTS = 5
# How long after the end the workers may take to leave before they are killed.
LEAVE_SECONDS = 20.0
# So many failures of engines whose settings are being compared are calibration's affair, not a restart of the replica.
TRIAL_RESTARTS = 8
# After `limits.hours`, what runs gets so long to end.
HOURS_DRAIN_SECONDS = 60.0
# While the final numbers wait for a scrape, it is asked so often whether it came; an answer may take so long.
FAREWELL_POLL_SECONDS = 0.5
FAREWELL_ANSWER_SECONDS = 5.0
# Errors that say nothing of the rows that an engine had.
_BLAMELESS = (UserError, EngineStartFailed, EngineGarbage, NodeLost, ServerUnavailable)
# Of those, the ones that say nothing of the engine either: they use up no restart.
_TAKEN_AWAY = (NodeLost,)
# And those that say nothing of its setting: what it ran on, or who ran it, has gone.
_NOT_OF_ITS_SETTING = (*_TAKEN_AWAY, ServerUnavailable)


class CoordinatorHandle(Protocol):
    """`run.coordinator.Coordinator`, wherever it lives."""

    async def status(self) -> CoordinatorStatus: ...

    async def drain(self, seconds: float) -> None: ...

    async def assignment(self, slot: int) -> Assignment | None: ...

    async def worker_gone(
        self, worker: WorkerId, death: Death | None = None, is_released: bool = False, is_to_blame: bool = True
    ) -> Toll: ...

    async def places(self, places: Places) -> None: ...

    async def farewell(self) -> str | None:
        """Who has yet to scrape the final numbers; None: nobody is waited for."""
        ...


class WorkerHandle(Protocol):
    """`run.worker.Worker`, wherever it lives."""

    async def run(self) -> Left:
        """Ends when the worker was told to leave. Raises EngineError when it, or its process, is no good any more."""
        ...

    async def placed(self) -> None:
        """Returns when there is room for it somewhere and its process has come up, or is gone again."""
        ...

    async def kill(self) -> None:
        """End it and every process it started. No error if it is gone."""
        ...


class Cluster(Protocol):
    """Where coordinator and workers live."""

    async def start_coordinator(self, setup: RunSetup) -> CoordinatorHandle: ...

    async def start_worker(self, setup: WorkerSetup) -> WorkerHandle: ...

    async def close(self) -> None:
        """End everything that was started here."""
        ...


Watcher = Callable[[CoordinatorStatus], None]
EventLog = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _End:
    """How one incarnation ended. `error` None: it left by itself."""

    left: Left
    error: Exception | None
    toll: Toll


@dataclass(slots=True)
class _Slot:
    """One slot for the whole session, also when it is closed and opened again. `keeper`: while it is open."""

    restarts: Restarts
    trials_left: int = TRIAL_RESTARTS
    next_incarnation: int = 0
    keeper: asyncio.Task[Left] | None = None
    worker: WorkerHandle | None = None
    is_placed: bool = False
    is_lost: bool = False

    @property
    def is_kept(self) -> bool:
        """Somebody sees to its engine."""
        return self.keeper is not None and not self.keeper.done()


class Driver:
    """One session of a run, from claim to end."""

    def __init__(
        self, cluster: Cluster, worker_setup: WorkerSetup, watch: Watcher, log: EventLog, lap: Lap = untimed
    ) -> None:
        """`worker_setup` is the pattern for every replica; `watch` is called with each new status."""
        self._lap = lap
        self._cluster = cluster
        self._pattern = worker_setup
        self._watch = watch
        self._log = log
        self._slots: dict[int, _Slot] = {}
        self._drain_until: float | None = None
        self._incarnation = ""
        self._places = Places()
        self._places_told_to = ""
        self._wake = asyncio.Event()
        self._told: set[str] = set()
        self._is_leaving = False
        self._is_hurried = False

    def drain(self, seconds: float) -> None:
        """Somebody asks for an orderly end: nothing new is begun, finished rows are published, then the session ends.

        Whoever asks waits for it: then nobody's scrape is waited for.
        """
        self._is_hurried = True
        if self._is_leaving:
            self._wake.set()
        else:
            self._drain(seconds)

    def _drain(self, seconds: float) -> None:
        if seconds > 0:
            self._say(f"draining: finished rows are published, running ones get up to {seconds:g} s to end")
        self._drain_until = time.monotonic() + seconds
        self._incarnation = ""  # whichever coordinator answers next is told
        self._wake.set()

    def drain_now(self) -> None:
        """Asked a second time: what still runs is dropped, what is finished is published."""
        self.drain(0.0)

    async def run(self) -> CoordinatorStatus:
        """The last status: finished or drained. Raises the run's error otherwise."""
        coordinator = await self._cluster.start_coordinator(self._pattern.run)
        try:
            return await self._until_end(coordinator)
        except asyncio.CancelledError:
            self._is_hurried = True
            raise
        finally:
            await self._farewell(coordinator)
            await self._cluster.close()

    async def _until_end(self, coordinator: CoordinatorHandle) -> CoordinatorStatus:
        """Until the run has ended for this session and every replica has left."""
        try:
            await self._until_open(coordinator)
            self._lap("coordinator")
            status = await self._supervise(coordinator)
            await self._until_left()
            return await self._last_status(coordinator, status)
        finally:
            await _cancelled(self._keepers())

    async def _until_left(self) -> None:
        """Who waits for a node is not waited for."""
        await _cancelled(slot.keeper for slot in self._slots.values() if not slot.is_placed)
        if left := [keeper for keeper in self._keepers() if not keeper.done()]:
            await asyncio.wait(left, timeout=LEAVE_SECONDS)

    def _keepers(self) -> list[asyncio.Task[Left]]:
        return [slot.keeper for slot in self._slots.values() if slot.keeper is not None]

    async def _last_status(self, coordinator: CoordinatorHandle, seen: CoordinatorStatus) -> CoordinatorStatus:
        """With the replicas as they have left; what was seen before, where the coordinator has gone meanwhile."""
        with suppress(RegenError, TimeoutError):
            async with asyncio.timeout(FAREWELL_ANSWER_SECONDS):
                last = await coordinator.status()
                return last if last.phase is seen.phase else seen
        return seen

    async def _farewell(self, coordinator: CoordinatorHandle) -> None:
        """While somebody has yet to scrape the final numbers: nothing else is held by then, and nothing is lost."""
        self._is_leaving = True
        told = ""
        with suppress(RegenError, TimeoutError):
            while not self._is_hurried:
                async with asyncio.timeout(FAREWELL_ANSWER_SECONDS):
                    awaited = await coordinator.farewell()
                if awaited is None:
                    return
                if not told:
                    self._say(told := awaited)
                self._wake.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(FAREWELL_POLL_SECONDS):
                        await self._wake.wait()

    async def _until_open(self, coordinator: CoordinatorHandle) -> None:
        """No engine is loaded for a run that somebody else holds."""
        restarts = _RestartCount()
        while (status := await coordinator.status()).phase is Phase.REPLAYING and self._drain_until is None:
            restarts.see(status)
            await asyncio.sleep(OPENING_POLL_SECONDS)
        _raise_if_failed(status)

    async def _supervise(self, coordinator: CoordinatorHandle) -> CoordinatorStatus:
        restarts, started_at = _RestartCount(), time.monotonic()
        without_replicas_since: float | None = None
        while True:
            status = await coordinator.status()
            self._observe(status)
            _raise_if_failed(status)
            if status.phase in ENDED_PHASES:
                return status
            restarts.see(status, any(slot.is_placed for slot in self._slots.values()))
            self._obey_hours(started_at)
            await self._pass_on_drain(coordinator, status)
            await self._replace_hung(status)
            await self._obey_roster(coordinator, status)
            await self._pass_on_places(coordinator, status)
            if self._is_without_replicas(status):
                without_replicas_since = without_replicas_since or time.monotonic()
                await self._end_without_replicas(coordinator, without_replicas_since)
            else:
                without_replicas_since = None
            self._wake.clear()
            with suppress(TimeoutError):  # a drain is passed on at once: without our own grace, Ray gives 3 s in all
                async with asyncio.timeout(POLL_SECONDS):
                    await self._wake.wait()

    async def _keep_replica(self, coordinator: CoordinatorHandle, number: int) -> Left:
        """One slot: an engine after another until one is told to leave. Raises when its restarts are used up."""
        slot = self._slots[number]
        while (assignment := await self._assignment(coordinator, number)) is not None:
            worker, slot.next_incarnation = WorkerId(number, slot.next_incarnation), slot.next_incarnation + 1
            setup = replace(self._pattern, worker=worker, assignment=assignment)
            end = await self._one_engine(coordinator, setup)
            if end.error is None:
                if end.left is not Left.REPLACED:
                    return end.left
                continue
            if isinstance(end.error, _TAKEN_AWAY) and not self._is_final(end.error):
                self._say(f"replica {number} is gone, through no fault of its own: {_told(end.error)}")
                await self._pause(slot.restarts.was_taken(end.toll))
            elif not self._may_go_on(slot, assignment, worker, end, end.error):
                slot.is_lost = True
                await self._tell_places(coordinator)
                raise end.error
        return Left.STOPPED

    def _may_go_on(self, slot: _Slot, assignment: Assignment, worker: WorkerId, end: _End, error: Exception) -> bool:
        """Whether the slot gets another engine after one that has failed."""
        is_final = self._is_final(error)
        if assignment.is_trial and slot.trials_left and not is_final:
            slot.trials_left -= 0 if end.toll.narrows else 1
            self._say(f"replica {worker.slot}, tried with {assignment.arm}: {_told(error)}{_told_toll(end.toll)}")
            return True
        may_go_on = not is_final and slot.restarts.died(end.toll, isinstance(error, ServerUnavailable))
        left = f"restarts left: {slot.restarts.left}" if may_go_on else "it gets no other engine"
        self._say(f"replica {worker.slot} is gone: {_told(error)}{_told_toll(end.toll)}; {left}")
        return may_go_on

    def _is_final(self, error: Exception) -> bool:
        return self._drain_until is not None or isinstance(error, UserError)

    async def _pause(self, seconds: float) -> None:
        """Shorter where a drain begins meanwhile."""
        until = time.monotonic() + seconds
        while self._drain_until is None and time.monotonic() < until:
            await asyncio.sleep(OPENING_POLL_SECONDS)

    async def _one_engine(self, coordinator: CoordinatorHandle, setup: WorkerSetup) -> _End:
        """From its start to its end, whatever that is; the coordinator has heard of it then."""
        slot = self._slots[setup.worker.slot]
        left, error = Left.STOPPED, None
        try:
            slot.worker = await self._started(setup)
            left = await self._until_it_ends(slot, slot.worker)
        except Exception as caught:  # whatever it is, it is this replica's end, and must be heard of
            error = caught
        finally:
            slot.worker, slot.is_placed = None, False
            is_to_blame = error is not None and not isinstance(error, _NOT_OF_ITS_SETTING)
            is_released = left is Left.RELEASED
            toll = await coordinator.worker_gone(setup.worker, self._death(error), is_released, is_to_blame)
        return _End(left, error, toll)

    async def _started(self, setup: WorkerSetup) -> WorkerHandle:
        try:
            return await self._cluster.start_worker(setup)
        except RegenError:
            raise
        except Exception as error:  # the cluster's own, which has many
            raise EngineStartFailed(
                f"replica {setup.worker.slot}: the cluster has refused its engine: {_told(error)}"
            ) from error

    async def _until_it_ends(self, slot: _Slot, worker: WorkerHandle) -> Left:
        placing = asyncio.ensure_future(self._note_placed(slot, worker))
        try:
            return await worker.run()
        finally:
            placing.cancel()
            await self._kill(worker)

    async def _kill(self, worker: WorkerHandle) -> None:
        """One that cannot be killed is said, and in nobody's way."""
        try:
            await worker.kill()
        except Exception as error:
            self._say(f"an engine could not be ended, and may hold what it runs on: {_told(error)}")

    async def _note_placed(self, slot: _Slot, worker: WorkerHandle) -> None:
        await worker.placed()
        slot.is_placed = True
        self._wake.set()  # the next one may be wanted now

    def _death(self, error: Exception | None) -> Death | None:
        """How the engine died, if its rows may have brought that about: not in a drain, nor when it never started."""
        if error is None or self._drain_until is not None or isinstance(error, _BLAMELESS):
            return None
        return Death(isinstance(error, EngineStalled), _told(error))

    async def _assignment(self, coordinator: CoordinatorHandle, slot: int) -> Assignment | None:
        """What the slot's next engine is started with, asked of a coordinator that may be replaying; None: none is."""
        while self._drain_until is None:
            if (assignment := await coordinator.assignment(slot)) is not None:
                return assignment
            if (await coordinator.status()).phase in ENDED_PHASES:
                return None
            await asyncio.sleep(OPENING_POLL_SECONDS)
        return None

    # --- what supervision does ---------------------------------------------------------------------

    def _obey_hours(self, started_at: float) -> None:
        hours = self._pattern.run.spec.limits.hours
        if hours is not None and self._drain_until is None and time.monotonic() - started_at > hours * 3600:
            self._drain(HOURS_DRAIN_SECONDS)

    async def _pass_on_drain(self, coordinator: CoordinatorHandle, status: CoordinatorStatus) -> None:
        """To every coordinator that has not heard of it: a restarted one has forgotten. Bounded, whatever hangs."""
        if self._drain_until is None:
            return
        left = self._drain_until - time.monotonic()
        if status.incarnation != self._incarnation:
            self._incarnation = status.incarnation
            await coordinator.drain(max(0.0, left))
        if left < -LEAVE_SECONDS:
            raise RegenError(
                f"the drain did not end {LEAVE_SECONDS:g} s after its time; what was committed is kept"
                + (f" (the store: {status.store_error})" if status.store_error else "")
            )

    async def _replace_hung(self, status: CoordinatorStatus) -> None:
        """A process that hangs on a live node is seen by nobody else; killed, it is replaced like any other."""
        for number in status.hung:
            if (slot := self._slots.get(number)) is not None and slot.worker is not None:
                worker, slot.worker = slot.worker, None
                self._say(f"replica {number} says nothing any more, and is killed")
                await self._kill(worker)

    async def _obey_roster(self, coordinator: CoordinatorHandle, status: CoordinatorStatus) -> None:
        """An engine for each open slot that has none; those that still wait for a node in closed ones are called off.

        A coordinator that was restarted knows of these once it was told.
        """
        if self._drain_until is None:
            for number in sorted(status.open_slots):
                slot = self._slots.setdefault(number, _Slot(Restarts(self._pattern.run.spec.engine.restarts)))
                if slot.keeper is None and not slot.is_lost:
                    slot.keeper = asyncio.ensure_future(self._keep_replica(coordinator, number))
        knows_places = status.incarnation == self._places_told_to
        closed = [slot for number, slot in self._slots.items() if knows_places and number not in status.open_slots]
        # The keeper of a lost slot is about to say why: cancelled, it would seem to have let go.
        await _cancelled(slot.keeper for slot in closed if slot.is_kept and not (slot.is_placed or slot.is_lost))
        for slot in self._slots.values():
            if slot.keeper is not None and slot.keeper.done() and _has_let_go(slot.keeper):
                slot.keeper = None

    async def _pass_on_places(self, coordinator: CoordinatorHandle, status: CoordinatorStatus) -> None:
        """At every change, and to every coordinator that has not heard of them: a restarted one has forgotten."""
        if status.incarnation != self._places_told_to or self._places != self._places_now():
            await self._tell_places(coordinator)
            self._places_told_to = status.incarnation

    async def _tell_places(self, coordinator: CoordinatorHandle) -> None:
        self._places = self._places_now()
        await coordinator.places(self._places)

    def _places_now(self) -> Places:
        with_worker = {number: slot for number, slot in self._slots.items() if slot.worker is not None}
        return Places(
            placed=frozenset(number for number, slot in with_worker.items() if slot.is_placed),
            pending=frozenset(number for number, slot in with_worker.items() if not slot.is_placed),
            lost=frozenset(number for number, slot in self._slots.items() if slot.is_lost),
        )

    def _is_without_replicas(self, status: CoordinatorStatus) -> bool:
        """There were some, there is none, and none will come: a fleet that waits for a node is none of these."""
        keepers = self._keepers()
        if not keepers or any(slot.is_kept for slot in self._slots.values()):
            return False
        if self._drain_until is not None:
            return True
        knows_places = status.incarnation == self._places_told_to and status.phase is Phase.RUNNING
        return knows_places and not any(self._slots[number].keeper is None for number in status.open_slots)

    async def _end_without_replicas(self, coordinator: CoordinatorHandle, since: float) -> None:
        """A lost replica is a smaller fleet; the last one's loss ends the run, once finished rows are published."""
        failed = [error for keeper in self._keepers() if keeper.done() and (error := keeper.exception()) is not None]
        if failed and self._drain_until is None:
            self._drain(LEAVE_SECONDS / 2)  # for the store: nothing is in work any more
            status = await coordinator.status()
            while status.phase not in ENDED_PHASES and time.monotonic() - since < LEAVE_SECONDS:
                await self._pass_on_drain(coordinator, status)
                await asyncio.sleep(OPENING_POLL_SECONDS)
                status = await coordinator.status()
            raise failed[-1]
        if time.monotonic() - since > LEAVE_SECONDS:
            raise RegenError("every replica has left and the run has not ended; continue it with the same command")

    def _observe(self, status: CoordinatorStatus) -> None:
        """Watching cannot kill a run: a closed pipe, say, is the watcher's trouble."""
        with suppress(Exception):
            self._watch(status)
        for slot, stats in status.replicas.items():
            if stats.metrics_error is not None and stats.metrics_error not in self._told:
                self._told.add(stats.metrics_error)
                self._say(f"replica {slot}: {stats.metrics_error}")

    def _say(self, text: str) -> None:
        with suppress(Exception):
            self._log(text)


class _RestartCount:
    """Restarts of the coordinator since it last published a row, whatever phase it died in.

    Of a coordinator that had opened the run and had no engine nothing was to be published: its death does not count.
    """

    def __init__(self) -> None:
        self._incarnation = ""
        self._done = -1
        self._left = 0
        self._restarts = 0
        self._is_open = self._had_engine = False

    def see(self, status: CoordinatorStatus, has_engine: bool = False) -> None:
        if self._incarnation and status.incarnation != self._incarnation:
            self._restarts += self._had_engine or not self._is_open
            self._is_open = self._had_engine = False
        self._had_engine = self._had_engine or has_engine
        self._is_open = self._is_open or status.phase is not Phase.REPLAYING
        if status.phase is not Phase.REPLAYING:
            if status.totals.done > self._done or status.left < self._left:  # a row made again is no further one
                self._restarts = 0
            self._done, self._left = status.totals.done, status.left
        self._incarnation = status.incarnation
        if self._restarts >= COORDINATOR_RESTARTS:
            raise RegenError(
                f"the coordinator died {self._restarts} times without publishing anything in between;"
                " its log in the Ray session's folder says why. Nothing committed is lost."
            )


def _has_let_go(keeper: asyncio.Task[Left]) -> bool:
    """Its slot was closed, and may be opened again."""
    return keeper.cancelled() or (keeper.exception() is None and keeper.result() is Left.RELEASED)


async def _cancelled(keepers: Iterable[asyncio.Task[Left] | None]) -> None:
    """They have ended."""
    ending = [keeper for keeper in keepers if keeper is not None]
    for keeper in ending:
        keeper.cancel()
    await asyncio.gather(*ending, return_exceptions=True)


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _told_toll(toll: Toll) -> str:
    """What a death has meant for rows, for the event log."""
    condemned = f"; {toll.condemned} row found that kills engines" if toll.condemned else ""
    return condemned + (f"; rows under suspicion: {toll.suspects}" if toll.suspects else "")


def _raise_if_failed(status: CoordinatorStatus) -> None:
    if status.phase is Phase.FAILED:
        raise status.error or RegenError("the coordinator failed and gave no reason")
