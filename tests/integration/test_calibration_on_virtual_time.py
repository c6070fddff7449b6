"""Calibration in the real coordinator, worker and driver, over the fake engine's cost model, hours in seconds.

Time is virtual (tests/virtual_time.py): what is asserted of rates holds on any machine.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from regen.records import CoordinatorStatus, Phase, ReplicaState
from regen.run.held import replayed_run
from regen.run.local import LocalCluster
from regen.run.session import seal_run
from regen.run.start import Begun
from regen.store.control import ArmMeasured, DecidedBy, SpeculationDecided, Verdict
from tests import virtual_time
from tests.places import ScarceCluster
from tests.runs import begin_run, drive, make_spec, shard_table, with_draft

# Every commit is a real file, synced.
CHECKPOINT = {"interval_seconds": 20.0, "rows_per_shard": 100}
STEP, ANSWER_TOKENS = 0.1, 300


def calibrated(folder: Path, slots: int, rows: int, replicas: int = 1, **calibration: Any) -> tuple[Begun, int]:
    """A finished run that was calibrated, and how many engines it took."""
    begun, cluster = prepared(folder, slots, rows, replicas, **calibration), LocalCluster()
    finish(begun, rows, drive(cluster, begun))
    return begun, len(cluster.workers)


def finish(begun: Begun, rows: int, work: Coroutine[Any, Any, CoordinatorStatus]) -> None:
    status = virtual_time.run(work)
    assert status.phase is Phase.FINISHED
    assert status.totals.done == rows
    seal_run(begun.storage, begun.worker_setup.run)


def prepared(folder: Path, slots: int, rows: int, replicas: object, **calibration: Any) -> Begun:
    engine = {
        "slots": slots,
        "replicas": replicas,
        "step_seconds": STEP,
        "answer_tokens": ANSWER_TOKENS,
        "answer_spread": 0.3,
        "start_seconds": 20,
        "acceptance_by_position": [0.7, 0.3, 0.1],
        "cost": {},
    }
    prompts: list[dict[str, Any]] = [{"prompt": f"say {number}"} for number in range(rows)]
    spec = with_draft(
        make_spec(folder, rows=prompts, engine=engine, sampling={"max_tokens": 1000}, checkpoint=CHECKPOINT),
        folder,
        calibrate="auto",
        calibration={"window_seconds": 8.0, **calibration},
        warmup={"drafts": 100, "max_tokens": 32, "seconds": 60},
    )
    return begin_run(spec)


def choice(begun: Begun) -> SpeculationDecided | None:
    replayed = replayed_run(begun.storage)
    assert replayed is not None
    made = [one for one in replayed.records if isinstance(one, SpeculationDecided) and one.by is DecidedBy.CALIBRATION]
    return made[-1] if made else None


@pytest.mark.parametrize(
    ("slots", "rows", "replicas", "expected"),
    [(4, 320, 1, "configured"), (64, 2400, 1, "off"), (8, 600, 2, "configured")],
)
def test_the_faster_setting_is_found_and_kept(
    tmp_path: Path, slots: int, rows: int, replicas: int, expected: str
) -> None:
    begun, engines = calibrated(tmp_path, slots, rows, replicas)
    decided = choice(begun)
    assert decided is not None
    assert decided.arm == expected
    assert engines <= replicas + 6, "calibration.max_engine_starts"
    figures = {row["arm"]: row for row in json.loads(decided.evidence)}
    assert figures["off"]["tokens_per_second"] == pytest.approx(slots / STEP, rel=0.07)
    cost = 1.1 + 1.5 * (slots - 1) / 63
    assert figures["configured"]["tokens_per_second"] == pytest.approx(slots * 2.1 / cost / STEP, rel=0.07)
    last = shard_table(tmp_path / "run").to_pylist()[-1]
    assert (last["observed"]["draft"] is not None) == (expected == "configured")


def test_a_fleet_that_changes_is_compared_on_what_there_is_and_a_node_that_goes_ends_no_comparison(
    tmp_path: Path,
) -> None:
    """Two of at most six have room. One loses its node in the middle, and comes back on another."""
    rows = 600
    begun, cluster = prepared(tmp_path, 8, rows, {"min": 1, "max": 6}, arms=2), ScarceCluster(room=2)

    async def work() -> CoordinatorStatus:
        running = asyncio.ensure_future(drive(cluster, begun))
        async with asyncio.timeout(100):
            while "off" not in {
                worker.stats().arm for worker in cluster.placed.values() if worker.stats().running_rows
            }:
                await asyncio.sleep(0.2)
        assert cluster.placed.keys() == {0, 1}, "nobody takes the room of an engine that is replaced"
        await cluster.lose(1)
        await asyncio.sleep(40)
        cluster.give(1)
        return await running

    finish(begun, rows, work())
    decided = choice(begun)
    assert decided is not None
    assert (decided.arm, decided.verdict) == ("configured", Verdict.MEASURED)
    replayed = replayed_run(begun.storage)
    assert replayed is not None
    last = [worker for at, worker in cluster.workers.items() if at.slot == 1][-1].stats()
    assert last.arm == "configured", "it takes no part any more"
    measured = [(one.slot, one.arm) for one in replayed.records if isinstance(one, ArmMeasured)]
    assert measured == [(0, "configured"), (0, "off")], "forth and back on the one that stayed, as far as it takes"


@pytest.mark.parametrize(
    ("replicas", "room"), [({"min": 1, "max": 3}, 2), ({"min": 2, "max": 3}, 1)], ids=["node lost", "too little room"]
)
def test_who_waits_for_room_does_not_take_that_of_an_engine_that_is_replaced(
    tmp_path: Path, replicas: object, room: int
) -> None:
    begun, cluster = prepared(tmp_path, 8, 1200, replicas, arms=2), ScarceCluster(room)

    async def until_decided() -> float:
        running = asyncio.ensure_future(drive(cluster, begun))
        async with asyncio.timeout(600):
            while room > 1 and not any(worker.stats().arm == "off" for worker in cluster.placed.values()):
                await asyncio.sleep(0.2)
            if room > 1:
                await asyncio.sleep(20)
                await cluster.lose(1)
            while cluster.coordinator is None or (await cluster.coordinator.status()).speculation.phase != "decided":
                await asyncio.sleep(1)
        ended_at = asyncio.get_running_loop().time()
        await asyncio.sleep(CHECKPOINT["interval_seconds"] + 1)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return ended_at

    assert virtual_time.run(until_decided()) < 400
    decided = choice(begun)
    assert decided is not None
    assert (decided.arm, decided.verdict) == ("configured", Verdict.MEASURED)


@pytest.mark.parametrize("replicas", [1, {"min": 1, "max": 3}])
def test_nodes_that_go_while_an_engine_starts_switch_nothing_off(tmp_path: Path, replicas: object) -> None:
    begun, cluster = prepared(tmp_path, 8, 40, replicas, arms=2), ScarceCluster(room=1)

    async def work() -> CoordinatorStatus:
        running = asyncio.ensure_future(drive(cluster, begun))
        for _ in range(2):
            async with asyncio.timeout(60):
                while 0 not in cluster.placed:
                    await asyncio.sleep(0.1)
            await asyncio.sleep(6)
            assert cluster.placed[0].stats().state is ReplicaState.STARTING
            await cluster.lose(0)
            cluster.give(1)
        return await running

    finish(begun, 40, work())
    decided = choice(begun)
    assert decided is not None
    assert (decided.arm, decided.verdict) == ("configured", Verdict.UNMEASURED), "little is left, and that is all"


def test_what_was_measured_is_in_the_journal(tmp_path: Path) -> None:
    begun, _ = calibrated(tmp_path, 4, 240, arms=2)
    replayed = replayed_run(begun.storage)
    assert replayed is not None
    measured = [one for one in replayed.records if isinstance(one, ArmMeasured)]
    assert {one.arm for one in measured} == {"off", "configured"}
    assert all(one.seconds >= 8.0 for one in measured)


def test_a_run_that_is_nearly_over_is_not_calibrated(tmp_path: Path) -> None:
    begun, engines = calibrated(tmp_path, 16, 40)
    decided = choice(begun)
    assert decided is not None
    assert (decided.arm, decided.verdict) == ("configured", Verdict.UNMEASURED)
    assert engines == 1
