"""The same Coordinator, Worker and Driver classes that run under Ray, on one event loop over the fake engine."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from regen.errors import EngineDied, EngineStalled, EngineStartFailed, Fenced, RegenError, RunHeld
from regen.records import CoordinatorStatus, Phase, RetryReason, SlotState, Status
from regen.run.driver import Driver
from regen.run.local import LocalCluster
from regen.run.session import seal_run, standing
from regen.run.start import Begun, StartOptions, begin, resume
from regen.store.history import read_history
from tests import virtual_time
from tests.runs import begin_run, conversations, determined, drive, make_spec, shard_table
from tests.toy_target import build_toy_target

# A session that lives for a second is not to spend it on its warm-up.
BRIEF = {"rows": 8, "drafts": 1, "max_tokens": 8, "canary_rows": 0}


def finish(begun: Begun) -> CoordinatorStatus:
    status = virtual_time.run(drive(LocalCluster(), begun))
    seal_run(begun.storage, begun.worker_setup.run)
    return status


def run_folder(begun: Begun) -> Path:
    return Path(begun.worker_setup.run.run_url)


def test_every_row_gets_its_outcome_and_no_source_answer_survives(tmp_path: Path) -> None:
    begun = begin_run(make_spec(tmp_path, rows=30, engine={"replicas": 2}))
    status = finish(begun)
    assert status.phase is Phase.FINISHED
    rows = shard_table(run_folder(begun)).to_pylist()
    assert [row["ordinal"] for row in rows] == list(range(30))
    assert {row["status"] for row in rows} <= {"ok", "truncated"}
    assert "OLD ANSWER" not in str(rows)


def test_each_turn_is_built_on_the_history_that_the_target_itself_produced(tmp_path: Path) -> None:
    begun = begin_run(make_spec(tmp_path, rows=30))
    finish(begun)
    two_turns = [row for row in shard_table(run_folder(begun)).to_pylist() if len(row["generations"]) == 2]
    assert two_turns
    for row in two_turns:
        first, second = row["generations"]
        start = first["prompt_token_ids"] + first["completion_token_ids"]
        assert second["prompt_token_ids"][: len(start)] == start
        assert [message["role"] for message in row["messages"]] == ["user", "assistant", "user", "assistant"]
        assert row["messages"][1]["content"] == first["content"]


def test_system_prompts_are_kept(tmp_path: Path) -> None:
    begun = begin_run(make_spec(tmp_path, rows=3))
    finish(begun)
    first = shard_table(run_folder(begun)).to_pylist()[2]["messages"][0]
    assert {name: value for name, value in first.items() if value is not None} == {
        "role": "system",
        "content": "Be brief.",
    }


def test_what_the_template_was_given_is_in_every_row(tmp_path: Path) -> None:
    target = {"model": str(build_toy_target(tmp_path / "target")), "template_kwargs": {"thinking": True}}
    begun = begin_run(make_spec(tmp_path, rows=3, target=target))
    finish(begun)
    assert {row["template_kwargs"] for row in shard_table(run_folder(begun)).to_pylist()} == {'{"thinking": true}'}


def test_the_cap_ends_a_conversation_as_truncated_and_the_effective_cap_is_stored(tmp_path: Path) -> None:
    begun = begin_run(make_spec(tmp_path, rows=3, sampling={"max_tokens": 5}))
    finish(begun)
    rows = shard_table(run_folder(begun)).to_pylist()
    assert {row["status"] for row in rows} == {"truncated"}
    assert {len(row["generations"]) for row in rows} == {1}
    assert {row["generations"][0]["cap"] for row in rows} == {5}
    assert {row["generations"][0]["finish_reason"] for row in rows} == {"length"}


def test_a_bad_row_costs_a_row(tmp_path: Path) -> None:
    rows = [*conversations(5), {"messages": []}, {"prompt": "x" * 5000}]
    begun = begin_run(make_spec(tmp_path, rows=rows))
    finish(begun)
    table = shard_table(run_folder(begun)).to_pylist()
    assert [row["status"] for row in table].count("rejected") == 2
    assert {row["reason"] for row in table if row["status"] == "rejected"} == {
        "empty_conversation",
        "longer_than_context",
    }
    assert standing(begun.storage).is_finished


@pytest.mark.parametrize(
    ("fault", "restarts"),
    [("die", 1), ("die_at_start", 1), ("hang", 1), ("fail", 0)],
)
def test_one_fault_of_an_engine_loses_nothing(tmp_path: Path, fault: str, restarts: int) -> None:
    engine: dict[str, Any] = {
        "replicas": 2,
        "restarts": restarts,
        "stall_timeout_seconds": 0.5,
        "faults": [{"kind": fault, "replica": 0, "after_requests": 0 if "start" in fault else 3}],
    }
    begun = begin_run(make_spec(tmp_path, rows=40, engine=engine))
    tally = finish(begun).tally
    assert standing(begun.storage).totals.by_status()[Status.FAILED] == 0
    assert len(determined(run_folder(begun))) == 40
    hung = fault == "hang"  # it may be noticed so late that no other engine is needed
    assert (tally.slots[0].restarts, tally.slots[1].restarts) == (tally.slots[0].restarts if hung else restarts, 0)
    assert (tally.slots[0].stalls > 0, tally.slots[1].stalls) == (hung, 0)
    assert tally.retries.get(RetryReason.ENGINE_ERROR, 0) == (fault == "fail")


def test_trouble_is_published_before_any_row_is_and_once(tmp_path: Path) -> None:
    engine = {
        "replicas": 1,
        "restarts": 1,
        "start_seconds": 20,
        "faults": [{"kind": "die_at_start", "after_requests": 0}],
    }
    begun = begin_run(make_spec(tmp_path, rows=20, engine=engine, checkpoint={"interval_seconds": 2.0}))
    finish(begun)
    without_rows = [moment.tally.slots for moment in read_history(begun.storage) if not moment.totals.output_tokens]
    assert [slots[0].restarts if slots else 0 for slots in without_rows].count(1) == 1


def test_an_engine_that_hangs_while_it_loads_is_a_named_failure(tmp_path: Path) -> None:
    engine = {"restarts": 0, "start_timeout_seconds": 0.5, "faults": [{"kind": "hang_at_start"}]}
    begun = begin_run(make_spec(tmp_path, rows=3, engine=engine))
    with pytest.raises(EngineStartFailed, match="start_timeout_seconds"):
        finish(begun)


@pytest.mark.parametrize(("fault", "error"), [("die", EngineDied), ("hang", EngineStalled)])
def test_a_replica_that_keeps_breaking_ends_the_run_with_its_reason(
    tmp_path: Path, fault: str, error: type[Exception]
) -> None:
    engine = {
        "restarts": 1,
        "slots": 1,
        "stall_timeout_seconds": 0.3,
        "faults": [{"kind": fault, "lives": 9, "times": 99}],
    }
    begun = begin_run(make_spec(tmp_path, rows=3, engine=engine))
    with pytest.raises(error):
        finish(begun)
    assert standing(begun.storage).totals.done == 0


def test_a_row_whose_attempts_are_used_up_is_failed_and_the_rest_goes_on(tmp_path: Path) -> None:
    engine = {"slots": 1, "faults": [{"kind": "fail", "times": 2}]}
    begun = begin_run(make_spec(tmp_path, rows=1, engine=engine, limits={"attempts": 2}))
    finish(begun)
    (row,) = shard_table(run_folder(begun)).to_pylist()
    assert (row["status"], row["reason"], row["observed"]["attempts"]) == ("failed", "engine_error", 2)


def test_too_many_failures_stop_the_run_early_and_keep_what_is_done(tmp_path: Path) -> None:
    engine = {"faults": [{"kind": "fail", "after_requests": 150, "times": 10_000}]}
    limits = {"attempts": 1, "failed_share": 0.1}
    begun = begin_run(make_spec(tmp_path, rows=600, engine=engine, limits=limits))
    with pytest.raises(RegenError, match=r"more than limits\.failed_share"):
        finish(begun)
    found = standing(begun.storage)
    assert 200 <= found.totals.done < 600


def test_acceptance_is_recorded_for_each_generation(tmp_path: Path) -> None:
    speculation = {"method": "ngram", "num_tokens": 3}
    begun = begin_run(make_spec(tmp_path, rows=6, speculation=speculation))
    finish(begun)
    totals = standing(begun.storage).totals
    seen = [g for row in shard_table(run_folder(begun)).to_pylist() for g in row["observed"]["generations"]]
    assert sum(generation["drafts"] for generation in seen) == totals.acceptance.drafts > 0
    assert sum(generation["accepted"] for generation in seen) == totals.acceptance.accepted > 0


def test_without_speculation_acceptance_is_absent_not_zero(tmp_path: Path) -> None:
    begun = begin_run(make_spec(tmp_path, rows=3))
    finish(begun)
    seen = [g for row in shard_table(run_folder(begun)).to_pylist() for g in row["observed"]["generations"]]
    assert {generation["drafts"] for generation in seen} == {None}


async def _killed_coordinator(begun: Begun, kills: int) -> LocalCluster:
    cluster = LocalCluster()
    running = asyncio.ensure_future(drive(cluster, begun))
    for _ in range(kills):
        await asyncio.sleep(0.4)
        assert cluster.coordinator is not None
        await cluster.coordinator.restart()
    await running
    return cluster


def test_when_only_the_coordinator_dies_no_row_is_made_twice(tmp_path: Path) -> None:
    engine = {"replicas": 2, "step_seconds": 0.005, "answer_tokens": 30}
    checkpoint = {"interval_seconds": 5.0}
    begun = begin_run(make_spec(tmp_path, rows=90, engine=engine, checkpoint=checkpoint))
    cluster = virtual_time.run(_killed_coordinator(begun, kills=4))
    seal_run(begun.storage, begun.worker_setup.run)
    totals = standing(begun.storage).totals
    sampled = sum(worker.stats().counters.output_tokens for worker in cluster.workers.values())
    assert sampled == totals.output_tokens
    (newest,) = read_history(begun.storage)[-1:]
    assert newest.tally.coordinator_restarts == 4
    assert sum(slot.sampled_tokens for slot in newest.tally.slots.values()) == sampled
    assert sum(slot.starts for slot in newest.tally.slots.values()) == 2
    assert newest.totals.output_tokens == sum(one.output_tokens for one in newest.totals.by_replica.values()) == sampled


async def _ended_and_left(begun: Begun) -> CoordinatorStatus:
    """The status asked for after the driver has told of every worker that it is gone."""
    cluster = LocalCluster()
    await drive(cluster, begun)
    assert cluster.coordinator is not None
    for worker in cluster.workers:
        await cluster.coordinator.worker_gone(worker)
    return await cluster.coordinator.status()


def test_what_the_engines_have_sampled_is_known_after_they_have_left(tmp_path: Path) -> None:
    die = {"kind": "die", "after_requests": 9}
    begun = begin_run(make_spec(tmp_path, rows=60, engine={"replicas": 2, "step_seconds": 0.002, "faults": [die]}))
    status = virtual_time.run(_ended_and_left(begun))
    assert status.session_sampled_tokens >= status.session_output_tokens > 0
    slots = status.tally.slots.values()
    assert sum(slot.sampled_tokens for slot in slots) >= status.session_output_tokens
    assert sum(slot.restarts for slot in slots) == 2  # each replica's first engine died
    assert all(slot.slot_seconds[SlotState.BUSY] > 0 < slot.engine_seconds for slot in slots)


async def _drained(begun: Begun, after_seconds: float) -> CoordinatorStatus:
    cluster = LocalCluster()
    driver = Driver(cluster, begun.worker_setup, watch=lambda status: None, log=lambda text: None)
    running = asyncio.ensure_future(driver.run())
    await asyncio.sleep(after_seconds)
    driver.drain(5.0)
    return await running


def test_a_drain_publishes_what_is_finished_and_the_run_goes_on_later(tmp_path: Path) -> None:
    spec = make_spec(tmp_path, rows=80, engine={"step_seconds": 0.01}, checkpoint={"interval_seconds": 60.0})
    begun = begin_run(spec)
    status = virtual_time.run(_drained(begun, after_seconds=1.0))
    assert status.phase is Phase.DRAINED
    done = standing(begun.storage).totals.done
    assert 0 < done < 80
    again = begin_run(spec)
    assert finish(again).phase is Phase.FINISHED
    assert standing(begun.storage).is_finished


async def _abandoned(begun: Begun, after_seconds: float) -> None:
    """What kill -9 of the driver leaves: everything ends at once, without a word."""
    running = asyncio.ensure_future(drive(LocalCluster(), begun))
    await asyncio.sleep(after_seconds)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def test_killed_at_random_moments_and_with_other_settings_the_shards_are_identical(tmp_path: Path) -> None:
    whole = begin_run(make_spec(tmp_path, rows=2000, checkpoint={"rows_per_shard": 300}))
    finish(whole)
    spec = make_spec(
        tmp_path,
        output=str(tmp_path / "other"),
        engine={"replicas": 3, "slots": 16, "step_seconds": 0.02},
        checkpoint={"interval_seconds": 0.2, "rows_per_shard": 300},
        speculation={"method": "ngram", "num_tokens": 2, "calibrate": "off", "warmup": BRIEF},
    )
    draw = random.Random(20)
    kills = 0
    while not standing((begun := begin_run(spec, take_over=True)).storage).is_finished:
        # Later sessions live longer: at the end the longest rows are left, and they must be able to finish.
        virtual_time.run(_abandoned(begun, after_seconds=draw.uniform(0.4, 1.6) + 0.1 * kills))
        kills += 1
    assert kills > 4
    seal_run(begun.storage, begun.worker_setup.run)
    assert determined(run_folder(begun)) == determined(run_folder(whole))


def test_resume_needs_nothing_but_the_folder(tmp_path: Path) -> None:
    begun = begin_run(make_spec(tmp_path, rows=60, engine={"step_seconds": 0.005}))
    virtual_time.run(_abandoned(begun, after_seconds=0.5))
    (tmp_path / "rows.jsonl").unlink()
    again = resume(str(tmp_path / "run"), StartOptions(processes=1, take_over=True), say=lambda text: None)
    assert finish(again).phase is Phase.FINISHED


async def _second_starter(begun: Begun, spec: Any) -> None:
    running = asyncio.ensure_future(drive(LocalCluster(), begun))
    await asyncio.sleep(0.5)
    with pytest.raises(RunHeld, match=begun.worker_setup.run.session):
        await asyncio.to_thread(begin, spec, StartOptions(processes=1), lambda text: None)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def test_a_second_coordinator_on_a_live_run_is_refused_naming_the_holder(tmp_path: Path) -> None:
    spec = make_spec(tmp_path, rows=500, engine={"step_seconds": 0.05})
    asyncio.run(_second_starter(begin_run(spec), spec))


async def _taken_over(spec: Any) -> None:
    holding = asyncio.ensure_future(drive(LocalCluster(), begin_run(spec)))
    await asyncio.sleep(0.6)
    second = await asyncio.to_thread(begin_run, spec, take_over=True)
    taking = asyncio.ensure_future(drive(LocalCluster(), second))
    with pytest.raises(Fenced, match=second.worker_setup.run.session):
        await holding
    assert (await taking).phase is Phase.FINISHED


def test_a_run_taken_over_fences_its_former_holder(tmp_path: Path) -> None:
    spec = make_spec(tmp_path, rows=60, engine={"step_seconds": 0.01})
    virtual_time.run(_taken_over(spec))
    seal_run(begin_run(spec).storage, begin_run(spec).worker_setup.run)
    assert len(determined(tmp_path / "run")) == 60
