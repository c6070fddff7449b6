"""Replicas that join and leave while a run goes on: the real coordinator, driver and workers, on virtual time."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from regen.errors import EngineDied, EngineStartFailed
from regen.records import CoordinatorStatus, Phase, Places, ReplicaState, SlotState, WorkerId
from regen.run.coordinator import Coordinator
from regen.run.driver import COORDINATOR_RESTARTS, Driver
from regen.run.fleet.roster import IDLE_SECONDS
from regen.run.local import LocalCoordinator
from regen.run.open_run import ADOPTION_SECONDS
from regen.run.session import seal_run
from regen.run.setup import WorkerSetup
from regen.run.start import Begun
from tests import virtual_time
from tests.places import ScarceCluster, ScarceWorker
from tests.runs import begin_run, make_spec, shard_table

CHECKPOINT = {"interval_seconds": 5.0, "rows_per_shard": 100}
# The first rows, which the first engine gets, take 200 s, any other 20 s.
LONG = [{"prompt_ids": list(f"row {number}.".encode()), "ids": [100] * 400} for number in range(5)]


def prepared(folder: Path, rows: int, replicas: object = "auto", **engine: Any) -> Begun:
    """An answer of the fake engine takes 20 s here; an engine has 4 sequences, and holds a row more."""
    prompts: list[dict[str, Any]] = [{"prompt": f"say row {number}."} for number in range(rows)]
    quick = {"slots": 4, "step_seconds": 0.5, "answer_tokens": 40, "answer_spread": 0.0, "start_seconds": 5}
    engine = {**quick, "replicas": replicas, **engine}
    return begin_run(
        make_spec(folder, rows=prompts, engine=engine, checkpoint=CHECKPOINT, sampling={"max_tokens": 1000, "seed": 7})
    )


@dataclass
class Session:
    begun: Begun
    cluster: ScarceCluster
    said: list[str] = field(default_factory=list)
    seen: list[CoordinatorStatus] = field(default_factory=list)
    seconds: float = 0.0

    def run(self, act: Callable[[Session], Awaitable[None]] | None = None) -> CoordinatorStatus:
        return virtual_time.run(self._run(act))

    async def _run(self, act: Callable[[Session], Awaitable[None]] | None) -> CoordinatorStatus:
        driver = Driver(self.cluster, self.begun.worker_setup, self._see, self.said.append)
        running = asyncio.ensure_future(driver.run())
        try:
            if act is not None:
                await act(self)
            async with asyncio.timeout(3600):
                return await running
        finally:
            running.cancel()
            self.seconds = asyncio.get_running_loop().time()

    def _see(self, status: CoordinatorStatus) -> None:
        self.seen.append(status)

    async def until(self, condition: Callable[[], object], seconds: float = 600) -> None:
        async with asyncio.timeout(seconds):
            while not condition():
                await asyncio.sleep(0.05)

    @property
    def now(self) -> CoordinatorStatus:
        return self.seen[-1]

    def is_up(self, slot: int) -> bool:
        stats = self.now.replicas.get(slot) if self.seen else None
        return stats is not None and stats.state is ReplicaState.RUNNING and stats.running_rows > 0

    def rows(self) -> list[dict[str, Any]]:
        seal_run(self.begun.storage, self.begun.worker_setup.run)
        return shard_table(Path(self.begun.worker_setup.run.run_url)).to_pylist()

    def check_rows(self, total: int) -> Counter[int]:
        """All there, at the first attempt; by the slot that made them."""
        rows = self.rows()
        assert [row["ordinal"] for row in rows] == list(range(total))
        assert {row["observed"]["attempts"] for row in rows} == {1}
        return Counter(row["observed"]["replica"] for row in rows)


def test_a_fleet_begins_with_what_there_is_and_grows_when_a_node_comes(tmp_path: Path) -> None:
    session = Session(prepared(tmp_path, 120), ScarceCluster(room=1))

    async def act(session: Session) -> None:
        await session.until(lambda: session.is_up(0))
        await asyncio.sleep(40)
        assert session.now.open_slots == {0, 1}, "one more than there is room for"
        assert session.now.pending_slots == {1}
        session.cluster.give(1)
        await session.until(lambda: session.is_up(1), seconds=10)
        assert session.now.open_slots == {0, 1, 2}

    assert session.run(act).phase is Phase.FINISHED
    made = session.check_rows(120)
    assert made[1] > 20
    assert made.keys() == {0, 1}
    assert session.cluster.workers.keys() == {WorkerId(slot, 0) for slot in range(3)}, "none was started twice"
    assert session.cluster.most_placed == 2
    assert not any("is gone" in line for line in session.said)


def test_most_is_never_exceeded(tmp_path: Path) -> None:
    session = Session(prepared(tmp_path, 200, {"min": 1, "max": 3}), ScarceCluster(room=10))
    assert session.run().phase is Phase.FINISHED
    assert session.check_rows(200).keys() == {0, 1, 2}
    assert session.cluster.most_placed == 3


def test_a_fleet_without_any_node_waits_for_one(tmp_path: Path) -> None:
    session = Session(prepared(tmp_path, 8), ScarceCluster(room=0))

    async def act(session: Session) -> None:
        await asyncio.sleep(300)
        assert session.now.phase is Phase.RUNNING
        session.cluster.give(1)

    assert session.run(act).phase is Phase.FINISHED
    assert session.check_rows(8).keys() == {0}
    assert session.now.tally.slots[0].engine_seconds < 60, "what waits for a node holds nothing"


def test_a_fleet_that_waits_for_its_first_node_outlives_any_number_of_coordinators(tmp_path: Path) -> None:
    session = Session(prepared(tmp_path, 8), ScarceCluster(room=0))

    async def act(session: Session) -> None:
        for _ in range(COORDINATOR_RESTARTS + 2):
            await asyncio.sleep(30)
            assert session.cluster.coordinator is not None
            await session.cluster.coordinator.restart()
        await asyncio.sleep(30)
        session.cluster.give(1)

    assert session.run(act).phase is Phase.FINISHED
    session.check_rows(8)


def test_a_node_that_goes_costs_no_attempt_and_its_slot_goes_on_when_another_comes(tmp_path: Path) -> None:
    session = Session(prepared(tmp_path, 160, restarts=0), ScarceCluster(room=2))

    async def act(session: Session) -> None:
        await session.until(lambda: session.is_up(0) and session.is_up(1))
        await asyncio.sleep(7)
        await session.cluster.lose(0)
        await asyncio.sleep(60)
        assert not session.now.suspects
        assert session.now.pending_slots >= {0}
        session.cluster.give(1)
        await session.until(lambda: session.is_up(0) or session.is_up(2), seconds=90)

    assert session.run(act).phase is Phase.FINISHED
    session.check_rows(160)
    assert any("through no fault of its own" in line for line in session.said)


def test_idle_replicas_are_released_at_the_tail_and_hold_nothing_from_then_on(tmp_path: Path) -> None:
    session = Session(prepared(tmp_path, 30, answers=LONG[:1]), ScarceCluster(room=2))

    async def act(session: Session) -> None:
        await session.until(lambda: session.is_up(0) and session.is_up(1))
        await session.until(lambda: session.cluster.free)
        assert session.now.left, "the run goes on"
        assert session.cluster.placed.keys() == {0}
        await session.until(lambda: session.now.open_slots == {0}, seconds=5)
        assert session.now.replicas[1].state is ReplicaState.RELEASED
        assert not session.cluster.waiting, "and nobody waits for a node for rows that are not there"

    assert session.run(act).phase is Phase.FINISHED
    session.check_rows(30)
    stayed, left = (session.now.tally.slots[slot] for slot in (0, 1))
    assert left.slot_seconds[SlotState.RELEASED] > 4 * 50
    assert left.engine_seconds < stayed.engine_seconds - 50
    assert not left.slot_seconds[SlotState.GONE]
    assert session.now.replicas[2].state is ReplicaState.RELEASED
    assert not session.now.replicas[2].engine, "who waited for a node was called off before there was one"
    assert not any("is gone" in line for line in session.said)


def test_an_engine_that_still_starts_when_nobody_wants_it_any_more_leaves_at_once(tmp_path: Path) -> None:
    begun = prepared(tmp_path, 10, answers=LONG[:1], start_seconds=100)
    session = Session(begun, ScarceCluster(room=1))

    async def act(session: Session) -> None:
        await session.until(lambda: session.is_up(0))
        session.cluster.give(1)
        await session.until(lambda: session.cluster.placed.keys() == {0, 1}, seconds=10)
        await session.until(lambda: session.cluster.free, seconds=90)
        assert session.now.replicas[1].state in (ReplicaState.STARTING, ReplicaState.RELEASED)

    assert session.run(act).phase is Phase.FINISHED
    assert session.check_rows(10).keys() == {0}
    waited = session.now.tally.slots[2].slot_seconds if 2 in session.now.tally.slots else {}
    assert not waited.get(SlotState.STARTING), "who waits for a node starts nothing"


def test_a_fixed_number_stays_to_the_end(tmp_path: Path) -> None:
    session = Session(prepared(tmp_path, 30, 2, answers=LONG[:1]), ScarceCluster(room=2))

    async def act(session: Session) -> None:
        await session.until(lambda: session.seen and session.now.left == 1)
        await asyncio.sleep(2 * IDLE_SECONDS)
        assert session.cluster.placed.keys() == {0, 1}

    assert session.run(act).phase is Phase.FINISHED
    session.check_rows(30)


def test_a_slot_that_was_released_is_opened_again_for_rows_that_come_back(tmp_path: Path) -> None:
    """Its incarnations go on: what the first engine there has said is over."""
    # As many long rows as an engine has sequences: one that waited would be taken by the engine that is done.
    begun = prepared(tmp_path, 30, {"min": 0, "max": 2}, answers=LONG[:4], restarts=0)
    session = Session(begun, ScarceCluster(room=2))

    async def act(session: Session) -> None:
        await session.until(lambda: session.is_up(0) and session.is_up(1))
        await session.until(lambda: session.cluster.free)
        assert session.cluster.placed.keys() == {0}
        await session.cluster.placed[0].kill()
        await session.until(lambda: session.is_up(1), seconds=15)

    assert session.run(act).phase is Phase.FINISHED
    session.check_rows(30)
    long = {row["observed"]["replica"] for row in session.rows()[:4]}
    assert long == {1}, "its rows were made where an engine came back"
    assert session.cluster.workers.keys() == {WorkerId(0, 0), WorkerId(1, 0), WorkerId(1, 1)}
    assert session.now.tally.slots[1].starts == 2
    assert session.now.replicas[0].state is ReplicaState.STOPPED, "a lost slot is no released one"


def test_a_restarted_coordinator_waits_for_no_engine_that_never_was(tmp_path: Path) -> None:
    """Of 64 slots two are placed: it goes on as soon as these have said what they hold."""
    session = Session(prepared(tmp_path, 120), ScarceCluster(room=2))

    async def act(session: Session) -> None:
        await session.until(lambda: session.is_up(0) and session.is_up(1))
        assert session.cluster.coordinator is not None
        await session.cluster.coordinator.restart()
        before = session.now.incarnation
        restarted_at = asyncio.get_running_loop().time()
        await session.until(lambda: session.now.incarnation != before and session.now.phase is Phase.RUNNING)
        assert asyncio.get_running_loop().time() - restarted_at < ADOPTION_SECONDS / 3
        await session.until(lambda: session.now.open_slots == {0, 1, 2}, seconds=5)

    assert session.run(act).phase is Phase.FINISHED
    session.check_rows(120)
    assert session.cluster.workers.keys() == {WorkerId(slot, 0) for slot in range(3)}, "nothing was started anew"
    sampled = sum(worker.stats().counters.output_tokens for worker in session.cluster.workers.values())
    assert sampled == session.now.totals.output_tokens, "no row was made twice"


@pytest.mark.parametrize("replicas", ["auto", {"min": 3, "max": 8}])
def test_engines_that_never_start_end_the_run_and_not_after_64_slots(tmp_path: Path, replicas: object) -> None:
    broken = {"kind": "die_at_start", "lives": 1000}
    begun = prepared(tmp_path, 20, replicas, restarts=1, faults=[broken])
    session = Session(begun, ScarceCluster(room=64))
    with pytest.raises(EngineStartFailed):
        session.run()
    assert len(session.cluster.workers) <= 16
    assert session.seconds < 600


def test_a_drain_does_not_wait_for_an_engine_that_has_no_node(tmp_path: Path) -> None:
    begun = prepared(tmp_path, 120)
    cluster, seen = ScarceCluster(room=1), list[CoordinatorStatus]()

    async def drained() -> float:
        driver = Driver(cluster, begun.worker_setup, seen.append, lambda _: None)
        running = asyncio.ensure_future(driver.run())
        while not (seen and seen[-1].pending_slots and seen[-1].session_rows):
            await asyncio.sleep(0.1)
        began = asyncio.get_running_loop().time()
        cluster.free = -1  # what its own engine leaves is for others
        driver.drain(3.0)
        assert (await running).phase is Phase.DRAINED
        return asyncio.get_running_loop().time() - began

    assert virtual_time.run(drained()) < 10
    assert cluster.waiting == 0


class RefusingCluster(ScarceCluster):
    """It refuses the first engine of one slot."""

    def __init__(self, room: int, refused: int) -> None:
        super().__init__(room)
        self._refused = WorkerId(refused, 0)

    async def start_worker(self, setup: WorkerSetup) -> ScarceWorker:
        if setup.worker == self._refused:
            raise RuntimeError("no group can be had")
        return await super().start_worker(setup)


@pytest.mark.parametrize("replicas", [2, {"min": 1, "max": 3}])
def test_an_engine_that_the_cluster_refuses_is_tried_again(tmp_path: Path, replicas: object) -> None:
    session = Session(prepared(tmp_path, 60, replicas), RefusingCluster(room=4, refused=1))
    assert session.run().phase is Phase.FINISHED
    assert session.check_rows(60)[1] > 5
    assert any("has refused its engine: RuntimeError: no group" in line for line in session.said)


def test_an_engine_that_cannot_be_ended_is_said_and_its_slot_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(prepared(tmp_path, 60, {"min": 1, "max": 2}, restarts=1), ScarceCluster(room=2))

    async def refuse() -> None:
        raise RuntimeError("who is that")

    async def act(session: Session) -> None:
        await session.until(lambda: session.is_up(0) and session.is_up(1))
        worker = session.cluster.placed[1]
        worker.is_node_lost = True
        session.cluster.give(1)
        kill = worker.kill
        monkeypatch.setattr(worker, "kill", refuse)
        await kill()
        await session.until(lambda: WorkerId(1, 1) in session.cluster.workers and session.is_up(1), seconds=60)
        monkeypatch.setattr(worker, "kill", kill)

    assert session.run(act).phase is Phase.FINISHED
    session.check_rows(60)
    assert any("could not be ended" in line for line in session.said)


@pytest.mark.parametrize("replicas", [1, {"min": 1, "max": 1}])
def test_the_last_replica_s_loss_ends_the_run_though_its_slot_is_closed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replicas: object
) -> None:
    """The coordinator hears of it before the driver hears that it was heard."""
    told = LocalCoordinator.places

    async def answered_late(self: LocalCoordinator, places: Places) -> None:
        await told(self, places)
        if places.lost:
            await asyncio.sleep(1.5)

    monkeypatch.setattr(LocalCoordinator, "places", answered_late)
    session = Session(prepared(tmp_path, 60, replicas, restarts=0), ScarceCluster(room=3))

    async def act(session: Session) -> None:
        await session.until(lambda: session.is_up(0))
        await session.cluster.placed[0].kill()

    with pytest.raises(EngineDied):
        session.run(act)
    assert session.seconds < 120


def test_an_engine_that_was_told_to_leave_for_good_does_so_also_over_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CHECKPOINT, "interval_seconds", 600.0)
    session = Session(prepared(tmp_path, 30, {"min": 1, "max": 2}, answers=LONG[:1]), ScarceCluster(room=2))

    async def act(session: Session) -> None:
        await session.until(lambda: session.is_up(0) and session.is_up(1))
        leaving = ReplicaState.DRAINING
        await session.until(lambda: any(one.stats().state is leaving for one in session.cluster.placed.values()))
        assert session.cluster.coordinator is not None
        await session.cluster.coordinator.restart()

    assert session.run(act).phase is Phase.FINISHED
    session.check_rows(30)
    assert session.cluster.workers.keys() == {WorkerId(0, 0), WorkerId(1, 0)}, "nobody came for rows that are not there"


def test_the_hours_of_a_session_go_on_over_a_restart_of_the_coordinator(tmp_path: Path) -> None:
    setup = prepared(tmp_path, 8).worker_setup.run
    limits = setup.spec.limits.model_copy(update={"hours": 2.0})
    began = (datetime.now(UTC) - timedelta(hours=1.5)).isoformat()
    restarted = replace(setup, spec=setup.spec.model_copy(update={"limits": limits}), started_at=began)
    coordinator = Coordinator(restarted)
    assert coordinator._within_hours(1e6, time.monotonic()) == pytest.approx(1800, abs=30)
    assert coordinator._within_hours(100.0, time.monotonic()) == 100.0
