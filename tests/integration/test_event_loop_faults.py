"""Faults around the engines: coordinator, store, driver, other starts. On one event loop, on virtual time, no Ray."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from regen.data.plan import RunPlan, open_plan
from regen.data.planning import build_plan
from regen.engines.fake import FakeEngine
from regen.errors import (
    EngineDied,
    FingerprintDrift,
    NodeLost,
    RegenError,
    RunHeld,
    SpecError,
    StoreRefused,
    StoreUnavailable,
)
from regen.records import (
    Command,
    CoordinatorStatus,
    EngineCounters,
    ExchangeReply,
    ExchangeRequest,
    GenerationRequest,
    Left,
    Phase,
    ReplicaState,
    ReplicaStats,
    Status,
    WorkerId,
)
from regen.run import schedule as schedules
from regen.run.coordinator import Coordinator
from regen.run.driver import Driver
from regen.run.local import LocalCluster, LocalWorker
from regen.run.look import look
from regen.run.record import read_record
from regen.run.session import seal_run, standing
from regen.run.setup import WorkerSetup
from regen.run.start import Begun, StartOptions, begin, resume
from regen.spec import RunSpec
from regen.store.history import read_history
from regen.store.local import LocalStorage
from tests import virtual_time
from tests.runs import begin_run, drive, make_spec, shard_table


@dataclass
class Session:
    """A driver over a cluster in this process, with what it said."""

    begun: Begun
    cluster: LocalCluster = field(default_factory=LocalCluster)
    said: list[str] = field(default_factory=list)
    seen: list[CoordinatorStatus] = field(default_factory=list)
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.driver = Driver(self.cluster, self.begun.worker_setup, self.seen.append, self.said.append)

    async def during(self, act: Callable[[Session], Awaitable[None]], seconds: float = 25) -> CoordinatorStatus:
        """Run it, do something meanwhile, and wait for its end."""
        began, running = time.monotonic(), asyncio.ensure_future(self.driver.run())
        try:
            await act(self)
            return await asyncio.wait_for(running, seconds)
        finally:
            self.seconds = time.monotonic() - began
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def until(self, condition: Callable[[], object], seconds: float = 15) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "waited too long"
            await asyncio.sleep(0.02)

    @property
    def done(self) -> int:
        return standing(self.begun.storage).totals.done

    async def restart_coordinator(self) -> None:
        assert self.cluster.coordinator is not None
        await self.cluster.coordinator.restart()


class Away:
    """A store that is away while it is told to be: every method named raises StoreUnavailable."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *methods: str, prefix: str = "") -> None:
        self.is_away = False
        for name in methods:
            monkeypatch.setattr(LocalStorage, name, self._wrapped(getattr(LocalStorage, name), prefix))

    def _wrapped(self, real: Callable[..., Any], prefix: str) -> Callable[..., Any]:
        def call(storage: LocalStorage, key: str, *rest: Any) -> Any:
            if self.is_away and key.startswith(prefix):
                raise StoreUnavailable("the file server does not answer")
            return real(storage, key, *rest)

        return call


def slow_rows(tmp_path: Path, **sections: Any) -> Begun:
    """80 rows that take some seconds."""
    sections["engine"] = {"step_seconds": 0.02, **sections.get("engine", {})}
    return begin_run(make_spec(tmp_path, rows=80, **sections))


def test_a_drain_survives_a_restart_of_the_coordinator(tmp_path: Path) -> None:
    session = Session(slow_rows(tmp_path, engine={"step_seconds": 0.1}))

    async def act(session: Session) -> None:
        await asyncio.sleep(1.5)
        session.driver.drain(6.0)
        await asyncio.sleep(0.5)
        await session.restart_coordinator()

    assert virtual_time.run(session.during(act)).phase is Phase.DRAINED
    assert 0 < session.done < 80


def test_a_coordinator_restarted_while_the_store_is_away_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Away(monkeypatch, "open", "read")
    session = Session(slow_rows(tmp_path))

    async def act(session: Session) -> None:
        await asyncio.sleep(0.8)
        store.is_away = True
        await session.restart_coordinator()
        await asyncio.sleep(1.0)
        store.is_away = False

    assert virtual_time.run(session.during(act)).phase is Phase.FINISHED


def test_while_the_store_is_away_rows_are_made_and_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Away(monkeypatch, "create", prefix="journal")
    session = Session(slow_rows(tmp_path, checkpoint={"interval_seconds": 0.2}))

    async def act(session: Session) -> None:
        await session.until(lambda: session.done > 0)
        store.is_away = True
        await session.until(lambda: session.seen[-1].uncommitted_rows > 20)
        store.is_away = False

    assert virtual_time.run(session.during(act)).phase is Phase.FINISHED
    assert any("does not answer" in (status.store_error or "") for status in session.seen)
    assert session.seen[-1].store_error is None
    assert read_history(session.begun.storage)[-1].tally.store_errors > 0


def test_a_drain_with_the_store_away_ends_at_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Away(monkeypatch, "create", prefix="journal")
    session = Session(slow_rows(tmp_path, checkpoint={"interval_seconds": 0.2}))

    async def act(session: Session) -> None:
        await session.until(lambda: session.done > 0)
        store.is_away = True
        await asyncio.sleep(2.5)
        session.driver.drain(1.0)

    with pytest.raises(StoreUnavailable):
        virtual_time.run(session.during(act))
    assert session.seconds < 15


def test_a_plan_that_cannot_be_read_for_a_moment_costs_no_replica(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = slow_rows(tmp_path, engine={"replicas": 2, "restarts": 0})
    calls = iter(range(10**6))
    real = RunPlan.rows

    def rows(plan: RunPlan, ordinals: Any) -> Any:
        if next(calls) in (2, 3, 5):
            raise StoreUnavailable("the file server does not answer")
        return real(plan, ordinals)

    monkeypatch.setattr(RunPlan, "rows", rows)
    session = Session(begun)
    assert virtual_time.run(session.during(_nothing)).phase is Phase.FINISHED
    assert session.said == []


def test_a_failed_row_is_written_down_when_the_plan_can_be_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = [{"kind": "fail", "times": 1, "after_requests": 2}]
    begun = slow_rows(tmp_path, engine={"faults": faults}, limits={"attempts": 1})
    real = RunPlan.rows
    refused: list[Any] = []

    def rows(plan: RunPlan, ordinals: Any) -> Any:
        if len(ordinals) == 1 and len(refused) < 3:
            refused.append(ordinals)
            raise StoreUnavailable("the file server does not answer")
        return real(plan, ordinals)

    monkeypatch.setattr(RunPlan, "rows", rows)
    session = Session(begun)
    assert virtual_time.run(session.during(_nothing)).phase is Phase.FINISHED
    assert standing(begun.storage).totals.by_status()[Status.FAILED] == 1


class OneWorkerChanged(LocalCluster):
    """A cluster where one incarnation of one slot is changed before it runs."""

    def __init__(self, slot: int, change: Callable[[LocalWorker], None]) -> None:
        super().__init__()
        self._slot, self._change = slot, change

    async def start_worker(self, setup: WorkerSetup) -> LocalWorker:
        worker = await super().start_worker(setup)
        if (setup.worker.slot, setup.worker.incarnation) == (self._slot, 0):
            self._change(worker)
        return worker


def test_a_replica_whose_process_hangs_is_killed_and_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules, "HUNG_SECONDS", 1.5)
    monkeypatch.setattr(schedules, "SILENT_SECONDS", 1.0)

    def hang(worker: LocalWorker) -> None:
        real, calls = worker._worker._exchange, iter(range(10**6))

        async def exchange(request: ExchangeRequest) -> ExchangeReply:
            if next(calls) > 5:
                await asyncio.Event().wait()
            return await real(request)

        worker._worker._exchange = exchange

    session = Session(slow_rows(tmp_path), OneWorkerChanged(0, hang))
    assert virtual_time.run(session.during(_nothing)).phase is Phase.FINISHED
    assert any("says nothing any more" in line for line in session.said)
    assert read_history(session.begun.storage)[-1].tally.slots[0].stalls == 1


def test_a_replica_that_cannot_be_built_is_spoken_of_and_the_others_go_on(tmp_path: Path) -> None:
    def fail(worker: LocalWorker) -> None:
        async def run() -> Left:
            raise SpecError("target.model: no tokenizer can be loaded from /models/x")

        worker.run = run  # type: ignore[method-assign]

    begun = slow_rows(tmp_path, engine={"replicas": 2, "restarts": 0})
    session = Session(begun, OneWorkerChanged(1, fail))
    assert virtual_time.run(session.during(_nothing)).phase is Phase.FINISHED
    assert any("replica 1 is gone: SpecError" in line for line in session.said)


class NodesThatGo(LocalCluster):
    """The first engines of a slot get rows, and their node goes."""

    def __init__(self, slot: int, times: int) -> None:
        super().__init__()
        self._slot, self._times = slot, times
        self.starts: list[float] = []

    async def start_worker(self, setup: WorkerSetup) -> LocalWorker:
        worker = await super().start_worker(setup)
        if setup.worker.slot == self._slot:
            self.starts.append(time.monotonic())
            if setup.worker.incarnation < self._times:
                self._lose(worker)
        return worker

    def _lose(self, worker: LocalWorker) -> None:
        real = worker.run

        async def run() -> Left:
            running = asyncio.ensure_future(real())
            while not worker.stats().running_rows:
                await asyncio.sleep(0.02)
            await worker.kill()
            await asyncio.gather(running, return_exceptions=True)
            raise NodeLost("node 7 is gone")

        worker.run = run  # type: ignore[method-assign]


def test_a_node_that_goes_costs_neither_restart_nor_attempt_and_the_next_engine_waits_longer_each_time(
    tmp_path: Path,
) -> None:
    """With `restarts: 0` a death would end the run: its only replica has none left."""
    session = Session(slow_rows(tmp_path, engine={"replicas": 1, "restarts": 0}), NodesThatGo(0, times=3))
    assert virtual_time.run(session.during(_nothing, seconds=60)).phase is Phase.FINISHED
    assert isinstance(session.cluster, NodesThatGo)
    starts = session.cluster.starts
    gaps = [later - earlier for earlier, later in pairwise(starts)]
    assert [round(gap) for gap in gaps] == [1, 2, 4]
    assert sum("no fault of its own: NodeLost: node 7 is gone" in line for line in session.said) == 3
    assert max(status.suspects for status in session.seen) == 0
    seal_run(session.begun.storage, session.begun.worker_setup.run)
    rows = shard_table(Path(session.begun.storage.url)).to_pylist()
    assert {row["observed"]["attempts"] for row in rows} == {1}


def test_one_row_that_never_returns_costs_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = begin_run(make_spec(tmp_path, rows=6, engine={"restarts": 3, "stall_timeout_seconds": 0.3}))
    bad = open_plan(begun.storage).rows([5])[0].row_id
    real = FakeEngine._suffer

    async def suffer(engine: FakeEngine, request: GenerationRequest) -> None:
        if request.request_id.startswith(bad):
            await asyncio.Event().wait()
        await real(engine, request)

    monkeypatch.setattr(FakeEngine, "_suffer", suffer)
    virtual_time.run(drive(LocalCluster(), begun))
    assert standing(begun.storage).totals.reasons == {(Status.FAILED, "stalled"): 1}


def test_a_drain_while_engines_load_starts_no_more_of_them(tmp_path: Path) -> None:
    session = Session(slow_rows(tmp_path, engine={"start_seconds": 60}))

    async def act(session: Session) -> None:
        await asyncio.sleep(1.5)
        session.driver.drain(3.0)

    assert virtual_time.run(session.during(act)).phase is Phase.DRAINED
    assert len(session.cluster.workers) == 1


def test_when_the_last_replica_is_lost_finished_rows_are_published_first(tmp_path: Path) -> None:
    engine = {"restarts": 0, "slots": 4, "step_seconds": 0.01, "faults": [{"kind": "die", "after_requests": 40}]}
    begun = begin_run(make_spec(tmp_path, rows=80, engine=engine, checkpoint={"interval_seconds": 60.0}))
    with pytest.raises(EngineDied):
        virtual_time.run(drive(LocalCluster(), begun))
    assert standing(begun.storage).totals.done > 20
    assert look(begun.storage).has_ended


def test_watching_cannot_kill_a_run(tmp_path: Path) -> None:
    def watch(status: CoordinatorStatus) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    begun = begin_run(make_spec(tmp_path, rows=10))
    driver = Driver(LocalCluster(), begun.worker_setup, watch, log=lambda text: None)
    assert virtual_time.run(driver.run()).phase is Phase.FINISHED


def test_the_endpoint_is_checked_without_a_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    begun = begin_run(make_spec(tmp_path, rows=5, metrics={"port": 0}))
    assert virtual_time.run(drive(LocalCluster(), begun)).phase is Phase.FINISHED


def test_a_heartbeat_that_cannot_be_written_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = LocalStorage.replace

    def replace(storage: LocalStorage, key: str, data: bytes | Path) -> None:
        if key == "holder.json":
            raise StoreRefused("holder.json: no permission")
        real(storage, key, data)

    monkeypatch.setattr(LocalStorage, "replace", replace)
    begun = begin_run(make_spec(tmp_path, rows=10))
    assert virtual_time.run(drive(LocalCluster(), begun)).phase is Phase.FINISHED


def test_the_limit_of_hours_drains_whatever_the_coordinator_forgets(tmp_path: Path) -> None:
    session = Session(slow_rows(tmp_path, engine={"step_seconds": 0.1}, limits={"hours": 2 / 3600}))

    async def act(session: Session) -> None:
        await asyncio.sleep(1.0)
        await session.restart_coordinator()

    assert virtual_time.run(session.during(act)).phase is Phase.DRAINED
    assert session.seconds < 10


def test_after_the_breaker_the_cause_is_mended_and_the_run_goes_on(tmp_path: Path) -> None:
    limits = {"attempts": 1, "failed_share": 0.1}
    bad = {"faults": [{"kind": "fail", "after_requests": 150, "times": 10_000}]}
    broken = begin_run(make_spec(tmp_path, rows=600, engine=bad, limits=limits))
    with pytest.raises(RegenError, match="engine_error"):
        virtual_time.run(drive(LocalCluster(), broken))
    assert look(broken.storage).reasons["failed"].keys() == {"engine_error"}
    mended = begin_run(make_spec(tmp_path, engine={"faults": []}, limits=limits))
    assert virtual_time.run(drive(LocalCluster(), mended)).phase is Phase.FINISHED


def test_an_engine_that_refuses_every_row_trips_the_breaker(tmp_path: Path) -> None:
    begun = begin_run(make_spec(tmp_path, rows=600, engine={"faults": [{"kind": "refuse", "times": 10_000}]}))
    with pytest.raises(RegenError, match="engine_refused"):
        virtual_time.run(drive(LocalCluster(), begun))


def test_a_start_that_was_still_planning_leaves_the_run_that_began_meanwhile_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = make_spec(tmp_path, rows=60, engine={"step_seconds": 0.03})
    gate = threading.Event()

    def slow(*arguments: Any, **options: Any) -> Any:
        gate.wait(20)
        return build_plan(*arguments, **options)

    async def both() -> None:
        monkeypatch.setattr("regen.run.start.build_plan", slow)
        late = asyncio.ensure_future(asyncio.to_thread(_begin, spec))
        await asyncio.sleep(1.0)
        monkeypatch.setattr("regen.run.start.build_plan", build_plan)
        early = await asyncio.to_thread(_begin, spec)
        running = asyncio.ensure_future(drive(LocalCluster(), early))
        await asyncio.sleep(1.0)
        gate.set()
        with pytest.raises(RunHeld):
            await late
        assert (await running).phase is Phase.FINISHED

    asyncio.run(both())


def test_a_start_that_loses_the_race_for_run_json_is_compared_with_the_winner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    winner, loser = (make_spec(tmp_path, rows=5, sampling={"temperature": value}) for value in (0.2, 0.9))

    def late(storage: LocalStorage) -> Any:
        found = read_record(storage)
        monkeypatch.setattr("regen.run.start.read_record", read_record)
        begin_run(winner)
        return found

    monkeypatch.setattr("regen.run.start.read_record", late)
    with pytest.raises(FingerprintDrift, match="temperature"):
        begin_run(loser)


def test_accepted_drift_is_recorded_and_holds(tmp_path: Path) -> None:
    begin_run(make_spec(tmp_path, rows=20, sampling={"temperature": 0.6}))
    changed = make_spec(tmp_path, sampling={"temperature": 0.9})
    with pytest.raises(FingerprintDrift, match=r"sampling\.temperature: was 0\.6, is 0\.9"):
        begin_run(changed)
    begun = begin_run(changed, accept_drift=True)
    virtual_time.run(drive(LocalCluster(), begun))
    seal_run(begun.storage, begun.worker_setup.run)
    assert begin_run(changed).record.fingerprint == begun.record.fingerprint  # accepted once, known from then on
    with pytest.raises(FingerprintDrift, match="regen run SPEC"):
        resume(str(tmp_path / "run"), StartOptions(processes=1), say=lambda text: None)


def test_the_size_of_shards_is_fixed_when_the_run_begins(tmp_path: Path) -> None:
    begin_run(make_spec(tmp_path, rows=20))
    with pytest.raises(FingerprintDrift, match="rows_per_shard"):
        begin_run(make_spec(tmp_path, checkpoint={"rows_per_shard": 10}), accept_drift=True)


def _begin(spec: RunSpec) -> Begun:
    return begin(spec, StartOptions(processes=1), say=lambda text: None)


async def _nothing(session: Session) -> None: ...


def test_a_repeated_exchange_takes_nothing_back_from_a_worker_that_is_to_leave(tmp_path: Path) -> None:
    """The first answer, which had the rows, may be the one that arrives."""
    begun = begin_run(make_spec(tmp_path, rows=12, engine={"replicas": {"min": 0, "max": 2}}))

    def asks(slot: int, seq: int, free_slots: int) -> ExchangeRequest:
        stats = ReplicaStats(ReplicaState.RUNNING, 8, 0, 0.0, EngineCounters(), arm="off")
        session = begun.worker_setup.run.session
        return ExchangeRequest(WorkerId(slot, 0), session, seq, (), (), b"", (), free_slots, stats)

    async def told() -> tuple[ExchangeReply, ExchangeReply, ExchangeReply]:
        coordinator = Coordinator(begun.worker_setup.run)
        while (await coordinator.status()).phase is not Phase.RUNNING:
            await asyncio.sleep(0.02)
        first = await coordinator.exchange(asks(0, 1, free_slots=4))
        coordinator._duty._roster._releasing.add(0)
        again = await coordinator.exchange(asks(0, 1, free_slots=4))
        other = await coordinator.exchange(asks(1, 1, free_slots=12))
        await coordinator.close()
        return first, again, other

    first, again, other = asyncio.run(told())
    assert (again.command, again.leases) == (Command.RELEASE, ())
    assert len(first.leases) == 4
    assert {lease.row.ordinal for lease in other.leases} == set(range(12)) - {one.row.ordinal for one in first.leases}
