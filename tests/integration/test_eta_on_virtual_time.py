"""The ETA in the real coordinator, workers and driver, over the fake engine. Time is virtual (tests/virtual_time.py)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from regen.records import CoordinatorStatus, EtaState, Phase
from regen.run.driver import Driver
from regen.run.local import LocalCluster
from regen.run.start import Begun, StartOptions, resume
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
    return begin_run(spec)


Meddling = Callable[[LocalCluster, Driver], Coroutine[Any, Any, None]]


def watched(begun: Begun, meddle: Meddling | None = None) -> Watched:
    """One session, driven to its end or to where `meddle` takes it."""
    watch, cluster = Watched(), LocalCluster()

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


def test_x(tmp_path: Path) -> None:
    watch = watched(begun_run(tmp_path))
    for when, s in watch.seen[::10]:
        print(round(when), s.phase.value, s.left, s.in_flight, s.queued, s.useful_tokens_per_second, round(watch.ended_at - when), s.eta)
    assert 0
