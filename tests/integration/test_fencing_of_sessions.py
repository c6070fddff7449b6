"""Two sessions of one run folder on disk, each with driver, coordinator and workers; hours in seconds."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from regen.engines.fake import FakeEngine
from regen.errors import ExitCode, Fenced, RunHeld
from regen.records import GenerationRequest, Phase
from regen.run.coordinator import Coordinator
from regen.run.local import LocalCluster
from regen.run.session import seal_run, standing
from regen.run.start import Begun
from regen.store.files import JournalFiles
from tests import virtual_time
from tests.runs import begin_run, determined, drive, make_spec


def freeze(coordinator: Coordinator) -> Callable[[], None]:
    """As SIGSTOP does it: nothing of it moves until the returned function is called."""
    woken = asyncio.Event()

    def held_back(real: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(*arguments: Any) -> Any:
            await woken.wait()
            return await real(*arguments)

        return call

    for name in ("_step", "exchange", "status"):
        setattr(coordinator, name, held_back(getattr(coordinator, name)))
    return woken.set


def sessions_of(begun: Begun) -> list[str]:
    files = JournalFiles(begun.storage)
    return [files.read_footer(file.number).session for file in files.files()]


def test_a_frozen_coordinator_that_wakes_after_a_take_over_writes_nothing_more(tmp_path: Path) -> None:
    spec = make_spec(tmp_path, rows=60, engine={"step_seconds": 0.2, "replicas": 2})

    async def both() -> tuple[Begun, Begun, BaseException]:
        first, cluster = begin_run(spec), LocalCluster()
        holding = asyncio.ensure_future(drive(cluster, first))
        await asyncio.sleep(4.0)
        assert cluster.coordinator is not None
        wake = freeze(cluster.coordinator._living)
        await asyncio.sleep(1.0)
        second = begin_run(spec, take_over=True)
        assert (await drive(LocalCluster(), second)).phase is Phase.FINISHED
        wake()
        (lost,) = await asyncio.gather(holding, return_exceptions=True)
        assert isinstance(lost, BaseException)
        return first, second, lost

    first, second, lost = virtual_time.run(both())
    assert isinstance(lost, Fenced)
    assert lost.exit_code is ExitCode.HELD
    for part in (second.worker_setup.run.session, f"driver pid {second.worker_setup.run.driver_pid}", "last heartbeat"):
        assert part in str(lost)
    order = sessions_of(first)
    began = order.index(second.worker_setup.run.session)
    assert began > 1, "the first one had published rows"
    assert set(order[began:]) == {second.worker_setup.run.session}
    seal_run(second.storage, second.worker_setup.run)
    assert len(determined(tmp_path / "run")) == standing(second.storage).totals.done == 60


@pytest.mark.parametrize("take_over", [False, True])
def test_of_two_starts_within_a_second_one_runs_and_the_other_is_told(tmp_path: Path, take_over: bool) -> None:
    spec = make_spec(tmp_path, rows=40, engine={"step_seconds": 0.05})
    if take_over:
        begin_run(spec)  # there is a plan, and nobody

    async def both() -> list[Any]:
        begun = [begin_run(spec, take_over=take_over) for _ in range(2)]
        return await asyncio.gather(*(drive(LocalCluster(), one) for one in begun), return_exceptions=True)

    ends = virtual_time.run(both())
    (lost,) = [end for end in ends if isinstance(end, BaseException)]
    (won,) = [end for end in ends if not isinstance(end, BaseException)]
    assert isinstance(lost, Fenced | RunHeld)
    assert lost.exit_code is ExitCode.HELD
    assert (won.phase, won.totals.done) == (Phase.FINISHED, 40)


def test_two_thousand_rows_in_flight_survive_a_restart_of_the_coordinator_and_are_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"prompt": f"say {number}"} for number in range(2400)]
    engine = {"step_seconds": 0.5, "replicas": 4, "slots": 512, "answer_tokens": 40, "answer_spread": 0.8}
    begun = begin_run(make_spec(tmp_path, rows=rows, engine=engine, checkpoint={"interval_seconds": 5.0}))
    made: Counter[str] = Counter()
    real = FakeEngine._suffer

    async def counted(engine: FakeEngine, request: GenerationRequest) -> None:
        made[request.request_id] += 1
        await real(engine, request)

    monkeypatch.setattr(FakeEngine, "_suffer", counted)

    async def restarted() -> int:
        cluster = LocalCluster()
        running = asyncio.ensure_future(drive(cluster, begun))
        while cluster.coordinator is None or (await cluster.coordinator.status()).in_flight < 2000:
            await asyncio.sleep(0.5)
        await asyncio.sleep(12.0)  # some are finished: committed, received, or held by their worker
        in_flight = (await cluster.coordinator.status()).in_flight
        await cluster.coordinator.restart()
        assert (await running).phase is Phase.FINISHED
        return in_flight

    assert virtual_time.run(restarted()) > 1000
    assert standing(begun.storage).totals.done == len(rows) == len(made)
    assert set(made.values()) == {1}
