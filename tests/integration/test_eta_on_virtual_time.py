"""The ETA in the real coordinator, workers and driver, over the fake engine, on virtual time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from regen.engines.fake import PROGRESS_TOKENS, FakeEngine
from regen.records import CoordinatorStatus, Eta, EtaState, ExchangeReply, ExchangeRequest
from regen.run.driver import Driver
from regen.run.local import LocalCluster, LocalCoordinator
from regen.run.session import seal_run
from regen.run.start import Begun
from tests import virtual_time
from tests.runs import begin_run, make_spec, shard_table

STEP, MEDIAN, SLOTS, ROWS = 0.05, 300, 16, 240


class Killed(Exception):
    """The session is to end here, without a word."""


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
    spread = {"answer_tokens": MEDIAN, "answer_spread": 0.8, "step_seconds": STEP, "slots": SLOTS, "start_seconds": 10}
    spec = make_spec(
        folder,
        rows=[{"prompt": f"say {number}"} for number in range(ROWS)],
        engine={**spread, "max_model_len": 8192, "stall_timeout_seconds": 900, **engine},
        sampling={"max_tokens": 4000},
        checkpoint={"interval_seconds": 20.0, "rows_per_shard": 1000},
    )
    return begin_run(spec, take_over=True)


Meddling = Callable[[LocalCluster, Watched], Coroutine[Any, Any, None]]


def watched(begun: Begun, meddle: Meddling | None = None) -> Watched:
    """One session, until it ends or `meddle` raises Killed."""
    watch, cluster = Watched(), LocalCluster()

    async def session() -> None:
        driving = asyncio.ensure_future(Driver(cluster, begun.worker_setup, watch, log=lambda text: None).run())
        meddling = asyncio.ensure_future(meddle(cluster, watch)) if meddle else asyncio.ensure_future(asyncio.sleep(0))
        await asyncio.wait((driving, meddling), return_when=asyncio.FIRST_EXCEPTION)
        watch.ended_at = time.monotonic()
        is_killed = meddling.done() and isinstance(meddling.exception(), Killed)
        for task in (driving, meddling):
            task.cancel()
        ends = await asyncio.gather(driving, meddling, return_exceptions=True)
        await cluster.close()
        if isinstance(ends[0], BaseException) and not is_killed:
            raise ends[0]

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
    async def restart(cluster: LocalCluster, watch: Watched) -> None:
        await asyncio.sleep(150.0)
        assert cluster.coordinator is not None
        await cluster.coordinator.restart()

    watch = watched(begun_run(tmp_path), restart)
    assert_in_range(*truth(watch, 149.0))
    assert watch.at(155.0)[1].incarnation != watch.at(149.0)[1].incarnation
    back = next(when for when, status in watch.seen if when > 152.0 and status.eta.mid_seconds is not None)
    assert back < 180.0
    assert_in_range(*truth(watch, back + 5.0))


def test_a_resume_has_an_eta_within_a_minute_of_work_and_a_rate_of_its_own(tmp_path: Path) -> None:
    """Killed at 60 % of the rows. The second session's engines are half as fast."""

    async def kill(cluster: LocalCluster, watch: Watched) -> None:
        while not watch.seen or watch.last.totals.done < 0.6 * ROWS:
            await asyncio.sleep(1.0)
        raise Killed

    before = watched(begun_run(tmp_path), kill).last.totals.done
    watch = watched(begun_run(tmp_path, step_seconds=2 * STEP))
    assert watch.at(10.0)[1].totals.done >= before
    at_work = next(when for when, status in watch.seen if status.session_paced_tokens)
    first = next(when for when, status in watch.seen if status.eta.mid_seconds is not None)
    assert first - at_work < 60.0
    assert_in_range(*truth(watch, first + 10.0))
    assert_in_range(*truth(watch, (first + watch.ended_at) / 2))


class _Pause(float):
    """Times any number of steps, the same seconds."""

    def __rmul__(self, steps: float) -> float:
        return 300.0


def test_a_stall_is_said_within_about_a_minute_and_is_over_with_the_next_tokens(tmp_path: Path) -> None:
    async def stall(cluster: LocalCluster, watch: Watched) -> None:
        await asyncio.sleep(150.0)
        (engine,) = (worker._worker._engine for worker in cluster.workers.values())
        assert isinstance(engine, FakeEngine)
        engine._spec, usual = engine._spec.model_copy(update={"step_seconds": _Pause()}), engine._spec
        await asyncio.sleep(PROGRESS_TOKENS * STEP + 0.1)
        engine._spec = usual

    watch = watched(begun_run(tmp_path), stall)
    tokens = {when: status.session_paced_tokens for when, status in watch.seen}
    stalled = [when for when, status in watch.seen if status.eta.state is EtaState.STALLED]
    since = min(when for when, made in tokens.items() if made == tokens[stalled[0]])
    until = min(when for when, made in tokens.items() if made > tokens[stalled[-1]])
    assert 60.0 <= stalled[0] - since < 66.0
    assert until - since > 250.0
    assert until - stalled[-1] < 5.0
    before, during, after = (watch.at(when)[1].eta for when in (since, stalled[-1], until + 10.0))
    assert during.mid_seconds == pytest.approx(before.mid_seconds, rel=0.1)
    assert after.mid_seconds == pytest.approx(before.mid_seconds, rel=0.2)
    assert_in_range(*truth(watch, until + 10.0))


def test_a_worker_says_how_far_each_of_its_rows_is_over_all_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: dict[int, list[int]] = {}
    real = LocalCoordinator.exchange

    async def exchange(self: LocalCoordinator, request: ExchangeRequest) -> ExchangeReply:
        for ordinal, tokens in zip(request.running, request.running_tokens, strict=True):
            said.setdefault(ordinal, []).append(tokens)
        return await real(self, request)

    monkeypatch.setattr(LocalCoordinator, "exchange", exchange)
    engine = {"answer_tokens": 150, "step_seconds": 0.1, "slots": 12}
    begun = begin_run(make_spec(tmp_path, rows=12, engine=engine, sampling={"max_tokens": 1000}))
    watched(begun)
    seal_run(begun.storage, begun.worker_setup.run)
    rows = shard_table(tmp_path / "run").to_pylist()
    turns = {row["ordinal"]: [len(made["completion_token_ids"]) for made in row["generations"]] for row in rows}
    assert all(tokens == sorted(tokens) for tokens in said.values())
    assert all(tokens[-1] <= sum(turns[ordinal]) for ordinal, tokens in said.items())
    assert any(len(turns[ordinal]) > 1 and tokens[-1] > turns[ordinal][0] for ordinal, tokens in said.items())
