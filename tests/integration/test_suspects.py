"""Prompts that kill engines, in the real coordinator, worker and driver over the fake engine. Time is virtual."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from regen.errors import EngineDied, EngineStartFailed
from regen.records import CoordinatorStatus, Phase
from regen.run.driver import Driver
from regen.run.held import control_records
from regen.run.local import LocalCluster
from regen.run.session import seal_run, standing
from regen.run.start import Begun
from regen.store.control import RowAttempts, SuspectRows
from tests import virtual_time
from tests.runs import begin_run, make_spec, shard_table

CHECKPOINT = {"interval_seconds": 5.0, "rows_per_shard": 100}


def fault(kind: str, prompt: str, **changes: Any) -> dict[str, Any]:
    """A fault of one row, in every engine that gets it."""
    return {"kind": kind, "prompt_ids": list(prompt.encode()), "lives": 1000, "times": 1000, **changes}


def prepared(folder: Path, rows: int, faults: list[dict[str, Any]], **engine: Any) -> Begun:
    """A run over rows `say row 0.`, `say row 1.`, ...: a dot ends what a fault is matched with."""
    prompts: list[dict[str, Any]] = [{"prompt": f"say row {number}."} for number in range(rows)]
    engine = {"replicas": 4, "step_seconds": 0.05, "start_seconds": 3, "faults": faults, **engine}
    return begin_run(make_spec(folder, rows=prompts, engine=engine, checkpoint=CHECKPOINT))


@dataclass
class Session:
    """One session of a run on virtual time, with what it said."""

    begun: Begun
    cluster: LocalCluster = field(default_factory=LocalCluster)
    said: list[str] = field(default_factory=list)
    seen: list[CoordinatorStatus] = field(default_factory=list)

    def run(self, act: Callable[[Session], Awaitable[None]] | None = None) -> CoordinatorStatus | None:
        """To its end; None if `act` has ended it, as kill -9 of the driver does."""
        return virtual_time.run(self._run(act))

    async def _run(self, act: Callable[[Session], Awaitable[None]] | None) -> CoordinatorStatus | None:
        driver = Driver(self.cluster, self.begun.worker_setup, self.seen.append, self.said.append)
        self.running = asyncio.ensure_future(driver.run())
        if act is not None:
            await act(self)
        await asyncio.wait((self.running,), timeout=24 * 3600)
        return None if self.running.cancelled() else self.running.result()

    async def until(self, condition: Callable[[], object]) -> None:
        for _ in range(20_000):
            if condition():
                return
            await asyncio.sleep(0.05)
        raise AssertionError("waited too long")

    async def until_bisecting(self) -> None:
        """Some engines have died, and suspects are left."""
        await self.until(lambda: self.deaths >= 3 and self.seen[-1].suspects)

    @property
    def deaths(self) -> int:
        return sum("is gone" in line for line in self.said)

    def rows(self) -> list[dict[str, Any]]:
        seal_run(self.begun.storage, self.begun.worker_setup.run)
        return shard_table(Path(self.begun.worker_setup.run.run_url)).to_pylist()


def failed(rows: list[dict[str, Any]]) -> dict[int, str]:
    return {row["ordinal"]: row["reason"] for row in rows if row["status"] == "failed"}


def assert_nobody_else_lost_anything(rows: list[dict[str, Any]], total: int) -> None:
    assert [row["ordinal"] for row in rows] == list(range(total))
    others = [row for row in rows if row["status"] != "failed"]
    assert {row["status"] for row in others} <= {"ok", "truncated"}
    assert {row["observed"]["attempts"] for row in others} == {1}


@pytest.mark.parametrize(
    ("killers", "replicas", "most_deaths"),
    [((33,), 4, 8), ((199,), 4, 8), ((33,), 1, 8), ((40, 41), 4, 12), ((30, 120, 198), 2, 18)],
)
def test_a_prompt_that_kills_engines_costs_some_engines_and_one_row(
    tmp_path: Path, killers: tuple[int, ...], replicas: int, most_deaths: int
) -> None:
    session = Session(prepared(tmp_path, 200, [fault("die", f"row {row}.") for row in killers], replicas=replicas))
    status = session.run()
    assert status is not None
    assert (status.phase, status.suspects) == (Phase.FINISHED, 0)
    rows = session.rows()
    assert failed(rows) == dict.fromkeys(killers, "kills_engine")
    assert_nobody_else_lost_anything(rows, 200)
    assert session.deaths <= most_deaths
    print(f"{len(killers)} killers, {replicas} replicas: {session.deaths} engines died")
    first = rows[killers[0]]
    assert (first["stage"], first["observed"]["attempts"]) == ("generate", 2)
    assert first["detail"].count("EngineDied: the fake engine died") == 2
    if replicas > 1:
        assert len({part.split(":")[0] for part in first["detail"].split("replica ")[1:]}) == 2, "on two replicas"
    assert any("rows under suspicion" in line for line in session.said)
    assert not [one for one in control_records(session.begun.storage) if isinstance(one, SuspectRows)]


def test_a_replica_killed_at_random_fails_no_row(tmp_path: Path) -> None:
    async def act(session: Session) -> None:
        await session.until(lambda: session.seen and session.seen[-1].session_rows > 40)
        await list(session.cluster.workers.values())[1].kill()

    session = Session(prepared(tmp_path, 200, []))
    session.run(act)
    assert session.deaths == 1
    assert max(status.suspects for status in session.seen) > 1
    rows = session.rows()
    assert failed(rows) == {}
    assert_nobody_else_lost_anything(rows, 200)


def test_a_coordinator_that_dies_while_suspects_are_told_apart_goes_on_there(tmp_path: Path) -> None:
    async def act(session: Session) -> None:
        await session.until_bisecting()
        assert session.cluster.coordinator is not None
        await session.cluster.coordinator.restart()

    session = Session(prepared(tmp_path, 200, [fault("die", "row 33.")]))
    session.run(act)
    rows = session.rows()
    assert failed(rows) == {33: "kills_engine"}
    assert_nobody_else_lost_anything(rows, 200)
    assert session.deaths <= 8  # a death that was not written down yet costs one engine more


def test_a_restarted_coordinator_hears_which_slots_are_lost(tmp_path: Path) -> None:
    """Else a row that has killed on the only slot left would wait for another one for ever."""

    async def act(session: Session) -> None:
        await session.until(
            lambda: any("replica 1 is gone" in one and "no other engine" in one for one in session.said)
        )
        await session.until_bisecting()
        assert session.cluster.coordinator is not None
        await session.cluster.coordinator.restart()

    never_starts = {"kind": "die_at_start", "replica": 1, "lives": 1000}
    faults = [never_starts, fault("die", "row 60.")]
    # A death that the restarted coordinator hears of before it knows the rows costs a restart.
    session = Session(prepared(tmp_path, 80, faults, replicas=2, restarts=3))
    session.run(act)
    assert failed(session.rows()) == {60: "kills_engine"}


def test_a_driver_that_dies_while_suspects_are_told_apart_is_continued_there(tmp_path: Path) -> None:
    async def act(session: Session) -> None:
        await session.until_bisecting()
        session.running.cancel()

    first = Session(prepared(tmp_path, 200, [fault("die", "row 33.")]))
    assert first.run(act) is None
    second = Session(begin_run(first.begun.worker_setup.run.spec, take_over=True))
    second.run()
    rows = second.rows()
    assert failed(rows) == {33: "kills_engine"}
    assert_nobody_else_lost_anything(rows, 200)
    assert first.deaths + second.deaths <= 7


@pytest.mark.parametrize(("kind", "reason"), [("freeze", "stalled"), ("hang", "stalled")])
def test_a_prompt_that_hangs_its_engine_is_found_too(tmp_path: Path, kind: str, reason: str) -> None:
    begun = prepared(tmp_path, 80, [fault(kind, "row 33.")], replicas=2, stall_timeout_seconds=20)
    session = Session(begun)
    session.run()
    rows = session.rows()
    assert failed(rows) == {33: reason}
    assert [row["ordinal"] for row in rows] == list(range(80))
    assert session.deaths <= 9


@pytest.mark.parametrize("after_requests", [0, 3])
def test_a_broken_replica_is_lost_and_no_row_is_blamed(tmp_path: Path, after_requests: int) -> None:
    broken = {"kind": "die", "replica": 0, "lives": 1000, "after_requests": after_requests}
    session = Session(prepared(tmp_path, 400, [broken], replicas=2, restarts=2))
    status = session.run()
    assert status is not None
    assert status.phase is Phase.FINISHED
    rows = session.rows()
    assert failed(rows) == {}
    assert_nobody_else_lost_anything(rows, 400)
    assert any("it gets no other engine" in line for line in session.said) or after_requests
    assert session.deaths <= 30
    print(f"broken after {after_requests} requests: {session.deaths} engines died")


def test_engines_that_are_all_broken_end_the_run_and_fail_no_row(tmp_path: Path) -> None:
    broken = {"kind": "die", "lives": 1000}
    session = Session(prepared(tmp_path, 100, [broken], replicas=2, restarts=1))
    with pytest.raises(EngineDied):
        session.run()
    assert standing(session.begun.storage).totals.done == 0
    assert session.deaths <= 2 * (24 + 3)


@pytest.mark.parametrize("kind", ["die_at_start", "hang_at_start"])
def test_an_engine_that_never_starts_is_bounded_and_suspects_nobody(tmp_path: Path, kind: str) -> None:
    session = Session(prepared(tmp_path, 20, [{"kind": kind, "lives": 1000}], replicas=2, start_timeout_seconds=60))
    with pytest.raises(EngineStartFailed):
        session.run()
    assert session.deaths == 8
    assert {status.suspects for status in session.seen} == {0}


def test_an_engine_that_dies_now_and_then_after_good_work_is_never_lost(tmp_path: Path) -> None:
    tired = {"kind": "die", "after_requests": 60, "lives": 1000}
    session = Session(prepared(tmp_path, 500, [tired], replicas=1, restarts=1))
    session.run()
    assert session.deaths >= 5
    rows = session.rows()
    assert failed(rows) == {}
    assert_nobody_else_lost_anything(rows, 500)


def test_attempts_are_counted_on_by_the_next_session(tmp_path: Path) -> None:
    async def act(session: Session) -> None:
        await session.until(lambda: session.seen and session.seen[-1].totals.done > 30)
        session.running.cancel()

    faults = [fault("fail", "row 3.", times=1), fault("hang", "row 3.", every=2)]  # in each engine: fails, then hangs
    first = Session(prepared(tmp_path, 100, faults, replicas=1))
    assert first.run(act) is None
    (record,) = [one for one in control_records(first.begun.storage) if isinstance(one, RowAttempts)]
    assert record.attempts == ((3, 0, 1),)
    second = Session(begin_run(first.begun.worker_setup.run.spec, take_over=True))
    second.run()
    rows = second.rows()
    assert failed(rows) == {3: "stalled"}
    assert rows[3]["observed"]["attempts"] == 3
    assert not [one for one in control_records(second.begun.storage) if isinstance(one, RowAttempts)]
