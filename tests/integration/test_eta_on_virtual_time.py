"""The ETA in the real coordinator, workers and driver, over the fake engine, on virtual time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from regen.errors import EngineDied
from regen.records import CoordinatorStatus, Eta, EtaState
from regen.run.driver import Driver
from regen.run.local import LocalCluster
from regen.run.start import Begun
from tests import virtual_time
from tests.runs import begin_run, make_spec

STEP, MEDIAN, SLOTS, ROWS = 0.1, 300, 16, 240


class Watched:
    """A session's statuses by when they were seen, and when it ended."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, CoordinatorStatus]] = []
        self.ended_at = 0.0

    def __call__(self, status: CoordinatorStatus) -> None:
        self.seen.append((time.monotonic(), status))

    @property
    def last(self) -> CoordinatorStatus:
        return self.seen[-1][1]

    def at(self, moment: float) -> tuple[float, CoordinatorStatus]:
        """The first status from then on."""
        return next((when, status) for when, status in self.seen if when >= moment)


def begun_run(folder: Path, **engine: Any) -> Begun:
    spread = {"answer_tokens": MEDIAN, "answer_spread": 0.8, "step_seconds": STEP, "slots": SLOTS, "start_seconds": 20}
    spec = make_spec(
        folder,
        rows=[{"prompt": f"say {number}"} for number in range(ROWS)],
        engine={**spread, "max_model_len": 8192, "stall_timeout_seconds": 900, **engine},
        sampling={"max_tokens": 4000},
        checkpoint={"interval_seconds": 20.0, "rows_per_shard": 1000},
    )
    return begin_run(spec, take_over=True)


Meddling = Callable[[LocalCluster, Driver], Coroutine[Any, Any, None]]


def watched(begun: Begun, meddle: Meddling | None = None, watch: Watched | None = None) -> Watched:
    """One session, driven to its end or to where `meddle` takes it."""
    watch, cluster = watch or Watched(), LocalCluster()

    async def session() -> CoordinatorStatus:
        driver = Driver(cluster, begun.worker_setup, watch, log=lambda text: None)
        meddling = asyncio.ensure_future(meddle(cluster, driver)) if meddle else None
        try:
            return await driver.run()
        finally:
            watch.ended_at = time.monotonic()
            if meddling is not None:
                meddling.cancel()

    virtual_time.run(session())
    return watch


def truth(watch: Watched, moment: float) -> tuple[float, Eta]:
    """(seconds that were really left, what was said) at the first status from then on."""
    when, status = watch.at(moment)
    return watch.ended_at - when, status.eta


def assert_in_range(seconds: float, eta: Eta) -> None:
    assert eta.state is EtaState.ESTIMATING
    assert eta.low_seconds is not None
    assert eta.mid_seconds is not None
    assert eta.high_seconds is not None
    print(f"{seconds:.0f} s left; said {eta.mid_seconds:.0f} ({eta.low_seconds:.0f} to {eta.high_seconds:.0f})")
    assert eta.low_seconds <= seconds <= eta.high_seconds
    assert eta.high_seconds < 6 * eta.low_seconds  # or it would say nothing


def test_the_true_end_is_in_the_range_from_the_first_minutes_on(tmp_path: Path) -> None:
    watch = watched(begun_run(tmp_path))
    assert watch.last.eta == Eta(EtaState.FINISHED, 0.0, 0.0, 0.0, 0.0)
    for share in (0.25, 0.5, 0.75):
        assert_in_range(*truth(watch, share * watch.ended_at))
    _, status = watch.at(0.5 * watch.ended_at)
    assert status.useful_tokens_per_second == pytest.approx(SLOTS / STEP, rel=0.05)
    assert status.queued + status.in_flight + status.uncommitted_rows == status.left
    assert 0.0 <= status.last_commit_age_seconds < 30.0


def test_a_coordinator_that_is_made_anew_says_the_same_after_seconds(tmp_path: Path) -> None:
    async def kill(cluster: LocalCluster, driver: Driver) -> None:
        await asyncio.sleep(300.0)
        assert cluster.coordinator is not None
        await cluster.coordinator.restart()

    watch = watched(begun_run(tmp_path), kill)
    assert_in_range(*truth(watch, 290.0))
    assert watch.at(310.0)[1].incarnation != watch.at(290.0)[1].incarnation
    back = next(when for when, status in watch.seen if when > 305.0 and status.eta.mid_seconds is not None)
    assert back < 345.0
    assert_in_range(*truth(watch, back + 10.0))


def test_a_resume_has_an_eta_within_a_minute_of_work_and_a_rate_of_its_own(tmp_path: Path) -> None:
    """Killed at 60 % of the rows; the second session's engines are half as fast."""
    begun = begun_run(tmp_path)

    async def kill(cluster: LocalCluster, driver: Driver) -> None:
        while not watch.seen or watch.last.totals.done < 0.6 * ROWS:
            await asyncio.sleep(1.0)
        await cluster.close()
        driver.drain_now()

    watch = Watched()
    with suppress(EngineDied):
        watched(begun, kill, watch)
    made = watch.last.totals.done
    assert 0.55 * ROWS < made < 0.8 * ROWS
    again = begun_run(tmp_path, step_seconds=2 * STEP)
    stalled = [when for when, status in watch.seen if status.eta.state is EtaState.STALLED]
    assert stalled
    print(frozen_at, stalled[0], stalled[-1])
    _, during = watch.at(stalled[0])
    assert during.eta.mid_seconds is not None
    assert_in_range(*truth(watch, stalled[-1] + 60.0))
