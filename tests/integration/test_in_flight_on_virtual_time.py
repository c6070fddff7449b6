"""A replica whose engine's cache is short of room, in the real coordinator, worker and driver. Time is virtual."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from regen.records import CoordinatorStatus, ExchangeReply, ExchangeRequest, Phase, ReplicaState, SlotState
from regen.run.driver import Driver
from regen.run.fleet.in_flight import InFlight
from regen.run.local import LocalCluster, LocalCoordinator
from regen.run.session import seal_run
from regen.run.setup import RunSetup
from regen.run.start import Begun
from tests import virtual_time
from tests.runs import begin_run, determined, make_spec


def short_of_room(folder: Path, blocks: int = 300, rows: int = 400, run: str = "run", **engine: Any) -> Begun:
    """Computing a token costs a fiftieth of a step, as in a large batch. 32 slots; about 16 rows fit."""
    spec = make_spec(
        folder,
        output=str(folder / run),
        rows=[{"prompt": f"tell me all about the number {number}, please"} for number in range(rows)],
        engine={
            "slots": 32,
            "max_model_len": 2048,
            "step_seconds": 0.05,
            "answer_tokens": 300,
            "answer_spread": 0.5,
            "cost": {},
            "kv_cache": {"blocks": blocks, "prompt_token_cost": 0.02},
            **engine,
        },
        sampling={"max_tokens": 1500},
        checkpoint={"interval_seconds": 5.0, "rows_per_shard": 200},
    )
    return begin_run(spec)


class Watched(LocalCoordinator):
    """Keeps what the worker said with each exchange."""

    def __init__(self, setup: RunSetup) -> None:
        super().__init__(setup)
        self.said: list[ExchangeRequest] = []

    async def exchange(self, request: ExchangeRequest) -> ExchangeReply:
        self.said.append(request)
        return await super().exchange(request)


class WatchedCluster(LocalCluster):
    watched: Watched | None = None

    @property
    def said(self) -> list[ExchangeRequest]:
        return [] if self.watched is None else self.watched.said

    async def start_coordinator(self, setup: RunSetup) -> LocalCoordinator:
        self.coordinator = self.watched = Watched(setup)
        return self.coordinator


def driven(begun: Begun) -> tuple[CoordinatorStatus, list[ExchangeRequest]]:
    cluster = WatchedCluster()
    status = virtual_time.run(Driver(cluster, begun.worker_setup, lambda status: None, lambda text: None).run())
    seal_run(begun.storage, begun.worker_setup.run)
    return status, cluster.said


def preemptions(status: CoordinatorStatus) -> int:
    return sum(slot.preemptions for slot in status.tally.slots.values())


def without_limit() -> Any:
    return mock.patch.object(InFlight, "look", return_value=None)


def test_rows_that_are_computed_again_are_few_and_more_useful_tokens_come_out(tmp_path: Path) -> None:
    limited, said = driven(short_of_room(tmp_path, run="limited"))
    with without_limit():
        unlimited, _ = driven(short_of_room(tmp_path, run="unlimited"))
    assert limited.phase is unlimited.phase is Phase.FINISHED
    assert determined(tmp_path / "limited") == determined(tmp_path / "unlimited")
    assert preemptions(limited) < 0.6 * preemptions(unlimited)
    assert limited.session_seconds < 0.97 * unlimited.session_seconds
    limits = [request.stats.row_limit for request in said if request.stats.row_limit is not None]
    assert 8 <= min(limits) <= max(limits) < 32
    assert any(map(_waits, said)), "rows that the engine has no room for are listed, and wait in the worker"


def test_slots_that_the_cache_has_no_room_for_are_not_starved(tmp_path: Path) -> None:
    status, _ = driven(short_of_room(tmp_path, rows=200))
    spent = status.tally.slots[0].slot_seconds
    assert spent.get(SlotState.STARVED, 0.0) < 0.05 * spent[SlotState.BUSY], (
        "half of the slots are beyond what the cache holds"
    )


def test_with_room_for_all_nothing_changes(tmp_path: Path) -> None:
    limited, said = driven(short_of_room(tmp_path, blocks=4000, rows=200, run="limited"))
    with without_limit():
        unlimited, _ = driven(short_of_room(tmp_path, blocks=4000, rows=200, run="unlimited"))
    assert preemptions(limited) == 0
    assert {request.stats.row_limit for request in said} == {None}
    assert limited.session_seconds == pytest.approx(unlimited.session_seconds, rel=0.03)


def test_a_drain_begins_no_row_that_has_waited_for_room(tmp_path: Path) -> None:
    cluster = WatchedCluster()
    driver = Driver(cluster, short_of_room(tmp_path).worker_setup, lambda status: None, lambda text: None)

    async def drained() -> None:
        running = asyncio.ensure_future(driver.run())
        while not any(_waits(request) for request in cluster.said):
            await asyncio.sleep(1.0)
        driver.drain(3600.0)
        await running

    virtual_time.run(drained())
    draining = [request for request in cluster.said if request.stats.state is ReplicaState.DRAINING]
    assert draining
    assert not any(map(_waits, draining[1:])), "they went back to the queue"


def _waits(request: ExchangeRequest) -> bool:
    """Some of its rows are not with the engine, beyond a row or two that are on their way in or out."""
    counters = request.stats.counters
    return request.stats.row_limit is not None and counters.running + counters.waiting + 2 < len(request.running)


def test_as_many_rows_are_kept_ready_as_end_at_once(tmp_path: Path) -> None:
    _, said = driven(short_of_room(tmp_path, blocks=40_000, rows=200, answer_tokens=40, answer_spread=0.0))
    assert max(len(request.running) for request in said) == 64


def test_an_engine_that_dies_short_of_room_loses_nothing(tmp_path: Path) -> None:
    faults = [{"kind": "die", "after_requests": 100}]
    begun = short_of_room(tmp_path, rows=200, faults=faults, restarts=3)
    status, _ = driven(begun)
    assert status.phase is Phase.FINISHED
    assert len(determined(tmp_path / "run")) == 200
