"""`regen estimate` over a run folder: before the run, after a pilot, after the run; nothing is written."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from regen.records import SlotState, SlotTally, Status, Tally, Totals
from regen.run.commands.clean import clean
from regen.run.commands.estimate import Basis, Range, SpeedBasis
from regen.run.commands.estimate_spec import Assumptions, SpecEstimate, estimate_spec, known_speed, measured_speed
from regen.run.commands.pilot import begin_pilot
from regen.run.local import LocalCluster
from regen.run.look import look
from regen.run.session import seal_run
from regen.run.setup import Purpose
from regen.run.speculation.records import subject_of
from regen.run.start import StartOptions
from regen.spec import OpenaiEngineSpec, ReplicaRange, RunSpec, dump_spec
from regen.store.control import DecidedBy, SpeculationDecided, Verdict
from regen.store.storage import open_storage
from tests import virtual_time
from tests.processes import regen_here
from tests.runs import begin_run, conversations, drive, make_spec, with_draft, write_jsonl

# Every commit is a real file.
SELDOM = {"interval_seconds": 20.0, "rows_per_shard": 100}


def two_sources(folder: Path, **sections: Any) -> RunSpec:
    few = write_jsonl(folder / "few.jsonl", [{"prompt": f"few {number}"} for number in range(6)])
    many = write_jsonl(folder / "many.jsonl", [*conversations(60), {"nothing": "here"}])
    sources = [{"name": "few", "path": str(few)}, {"name": "many", "path": str(many)}]
    engine = {"step_seconds": 0.05, "replicas": 2, **sections.pop("engine", {})}
    return make_spec(folder, rows=1, sources=sources, engine=engine, **sections)


def asked(spec: RunSpec, **given: float) -> SpecEstimate:
    return estimate_spec(spec, Assumptions(**given), processes=1)


def piloted(spec: RunSpec, rows: int = 24) -> None:
    begun = begin_pilot(spec, StartOptions(processes=1), rows, lambda text: None)
    virtual_time.run(drive(LocalCluster(), begun))


def test_before_anything_is_made_it_says_what_it_needs_and_writes_nothing(tmp_path: Path) -> None:
    spec = two_sources(tmp_path)
    found = asked(spec)
    assert (found.is_frozen, found.found.left, found.found.prompt_tokens > 0) == (False, 66, True)
    assert [need.split(":")[0] for need in found.needs()] == ["tokens", "hours"]
    assert found.to_json()["hours"] is None
    assert not Path(spec.output).exists()


def test_what_is_assumed_is_named_as_such(tmp_path: Path) -> None:
    found = asked(two_sources(tmp_path), tokens_per_second=100, answer_tokens=20)
    assert list(found.needs()) == []
    assert found.found.hours is not None
    assert any(note.startswith("ASSUMED: 20 tokens") for note in found.notes())
    assert found.disk is not None


def test_after_a_pilot_lengths_and_speed_are_its_own(tmp_path: Path) -> None:
    spec = two_sources(tmp_path)
    piloted(spec)
    found = asked(spec)
    assert found.is_frozen
    assert found.found.left == 66 - 24
    assert {one.basis for one in found.found.sources} == {Basis.MADE}
    assert found.speed is not None
    assert found.speed.basis is SpeedBasis.MEASURED
    assert list(found.needs()) == []


def test_most_runs_take_what_was_estimated_after_their_pilots(tmp_path: Path) -> None:
    """Low and high are for 80 of 100; these four are always the same ones."""
    in_range = Counter[str]()
    for number in range(4):
        spec = one_source(tmp_path / str(number), number)
        piloted(spec, 40)
        guess, before = asked(spec).found, totals(spec).output_tokens
        seconds = virtual_time.run(timed(spec))
        assert guess.output_tokens is not None
        assert guess.hours is not None
        made = totals(spec).output_tokens - before
        in_range["tokens"] += guess.output_tokens.low < made < guess.output_tokens.high
        in_range["hours"] += guess.hours.low < seconds / 3600 < guess.hours.high
    assert min(in_range["tokens"], in_range["hours"]) >= 3
    assert (asked(spec).found.left, list(asked(spec).needs())) == (0, [])


def one_source(folder: Path, number: int) -> RunSpec:
    folder.mkdir()
    rows = write_jsonl(folder / "many.jsonl", [{"prompt": f"{number} asks {row}"} for row in range(120)])
    engine = {"step_seconds": 0.05, "replicas": 2, "answer_tokens": 30}
    return make_spec(folder, rows=1, sources=[{"name": "many", "path": str(rows)}], engine=engine)


def test_a_closed_run_takes_nothing_more_and_has_no_journal_to_measure(tmp_path: Path) -> None:
    spec = two_sources(tmp_path)
    begun = begin_run(spec)
    virtual_time.run(drive(LocalCluster(), begun))
    open_run = asked(spec)
    assert open_run.disk is not None
    assert open_run.disk.journal > 0
    seal_run(begun.storage, begun.worker_setup.run)
    clean(begun.storage, journal=True, is_dry_run=False, say=lambda text: None)
    closed = asked(spec)
    assert (closed.found.left, closed.disk, list(closed.needs())) == (0, None, [])


async def timed(spec: RunSpec) -> float:
    began_at = asyncio.get_running_loop().time()
    await drive(LocalCluster(), begin_run(spec))
    return asyncio.get_running_loop().time() - began_at


def totals(spec: RunSpec) -> Totals:
    return look(open_storage(spec.output)).totals


def test_the_measured_speed_lies_between_slots_as_they_went_and_all_of_them_full() -> None:
    seconds = {SlotState.BUSY: 500.0, SlotState.NO_ROWS: 500.0, SlotState.STARTING: 9000.0, SlotState.GONE: 9000.0}
    tally = Tally(slots={0: SlotTally(slot_seconds=seconds)})
    found = measured_speed(tally, Totals(output_tokens=1000, outcomes={("a", Status.OK): 1}), slots=10)
    assert found is not None
    assert (found.tokens_per_second.low, found.tokens_per_second.high) == (10.0, 20.0)
    assert measured_speed(Tally(), Totals(output_tokens=1000), slots=10) is None


def test_a_calibrated_speed_is_that_of_the_chosen_arm_in_every_replica(tmp_path: Path) -> None:
    spec = with_draft(two_sources(tmp_path), tmp_path)
    arms = [
        {"arm": "off", "tokens_per_second": 90.0, "low": 89.0, "high": 91.0},
        {"arm": "eagle3-3", "tokens_per_second": 100.0, "low": 95.0, "high": 110.0},
    ]
    decided = SpeculationDecided(
        session="s",
        by=DecidedBy.CALIBRATION,
        subject=subject_of(spec),
        slot=None,
        arm="eagle3-3",
        speculation=None,
        verdict=Verdict.MEASURED,
        reason="faster",
        evidence=json.dumps(arms),
        at="2026-01-01T00:00:00+00:00",
    )
    found = known_speed(spec, Assumptions(), Totals(), [decided], engines=2)
    assert found is not None
    assert (found.basis, found.tokens_per_second) == (SpeedBasis.CALIBRATED, Range(190, 200, 220))
    slower = spec.model_copy(update={"engine": spec.engine.model_copy(update={"slots": 4})})
    assert known_speed(slower, Assumptions(), Totals(), [decided], engines=2) is None


def test_after_calibrating_hours_go_by_what_was_found(tmp_path: Path) -> None:
    """Two replicas of eight slots, where speculation pays: 2.1 tokens a step, which takes 1.27 units of 0.1 s."""
    engine = {"answer_tokens": 300, "answer_spread": 0.3, "step_seconds": 0.1, "start_seconds": 20, "cost": {}}
    engine |= {"replicas": 2, "acceptance_by_position": [0.7, 0.3, 0.1]}
    spec = with_draft(
        make_spec(tmp_path, rows=prompts(500), engine=engine, sampling={"max_tokens": 1000}, checkpoint=SELDOM),
        tmp_path,
        calibrate="auto",
        calibration={"window_seconds": 8.0},
        warmup={"drafts": 100, "max_tokens": 32, "seconds": 60},
    )
    virtual_time.run(drive(LocalCluster(), begin_run(spec, purpose=Purpose.CALIBRATE)))
    found, before = asked(spec), totals(spec).output_tokens
    assert found.speed is not None
    assert found.speed.basis is SpeedBasis.CALIBRATED
    assert found.speed.tokens_per_second.mid == pytest.approx(2 * 8 * 2.1 / 1.267 / 0.1, rel=0.05)
    assert 0 < found.found.left < 400
    seconds = virtual_time.run(timed(spec)) - 20  # its engines start
    hours = found.found.hours
    assert hours is not None
    assert hours.mid == pytest.approx(seconds / 3600, rel=0.1)
    assert found.found.output_tokens is not None
    assert found.found.output_tokens.mid == pytest.approx(totals(spec).output_tokens - before, rel=0.1)


def prompts(count: int) -> list[dict[str, Any]]:
    return [{"prompt": f"say {number}"} for number in range(count)]


def test_the_disk_is_as_full_as_it_was_said_to_be(tmp_path: Path) -> None:
    """The journal's files are small, so half of it is what files have beside their rows. In shards that is little."""
    spec = make_spec(
        tmp_path,
        rows=conversations(2000),
        engine={"slots": 64, "step_seconds": 0.1, "answer_tokens": 60},
        checkpoint={"interval_seconds": 5, "rows_per_shard": 500},
    )
    piloted(spec, 200)
    found = asked(spec).disk
    assert found is not None
    begun = begin_run(spec)
    virtual_time.run(drive(LocalCluster(), begun))
    seal_run(begun.storage, begun.worker_setup.run)
    for name, said in (("plan", found.plan), ("journal", found.journal), ("shards", found.shards)):
        stored = sum(path.stat().st_size for path in Path(spec.output, name).rglob("*.parquet"))
        assert said == pytest.approx(stored, rel=0.2), name


def test_a_fleet_that_comes_and_goes_is_estimated_for_the_fewest_and_the_most(tmp_path: Path) -> None:
    spec = two_sources(tmp_path)
    piloted(spec)
    elastic = spec.model_copy(
        update={"engine": spec.engine.model_copy(update={"replicas": ReplicaRange(min=1, max=4)})}
    )
    found = asked(elastic)
    few, many = found.fleets
    assert (few.replicas, few.held.slots, many.replicas, many.held.slots) == (1, 8, 4, 32)
    assert few.speed is not None
    assert many.speed is not None
    assert many.speed.tokens_per_second.mid == pytest.approx(4 * few.speed.tokens_per_second.mid)
    assert few.found.hours is not None
    assert many.found.hours is not None
    assert many.found.hours.mid < few.found.hours.mid
    assert found.found == few.found
    names = [name for name, _ in found.view().facts]
    assert {"minutes, 1 replica", "minutes, 4 replicas"} <= set(names)
    assert [one["replicas"] for one in found.to_json()["fleets"]] == [1, 4]


def test_servers_are_replicas_with_slots_of_their_own_and_no_gpus_of_ours(tmp_path: Path) -> None:
    endpoints = [{"url": "http://127.0.0.1:1"}, {"url": "http://127.0.0.1:2", "slots": 3}]
    spec = two_sources(
        tmp_path, engine={"endpoints": endpoints, "token_timeout_seconds": 10}, price={"per_gpu_hour": 2}
    )
    (fleet,) = asked(spec, tokens_per_second=100, answer_tokens=20).fleets
    assert (fleet.replicas, fleet.held.slots, fleet.held.gpus) == (4, 8 + 3 + 2 * 8, 0)
    alone = spec.model_copy(update={"engine": OpenaiEngineSpec(slots=8, endpoints=spec.engine.endpoints)})
    found = asked(alone, tokens_per_second=100, answer_tokens=20)
    assert [one.replicas for one in found.fleets] == [2]
    assert not [name for name, _ in found.view().facts if "GPU" in name or "cost" in name]
    assert any(note.startswith("2 servers of somebody else") for note in found.notes())
    assert not any("cost" in need for need in found.needs())


def test_what_is_given_comes_before_what_was_measured(tmp_path: Path) -> None:
    spec = two_sources(tmp_path)
    piloted(spec)
    found = asked(spec, tokens_per_second=7)
    assert found.speed is not None
    assert (found.speed.basis, found.speed.tokens_per_second.mid) == (SpeedBasis.GIVEN, 7)


@pytest.mark.parametrize("as_json", [True, False])
def test_the_command_prints_a_table_or_json(tmp_path: Path, as_json: bool) -> None:
    spec = two_sources(tmp_path)
    file = tmp_path / "spec.yaml"
    file.write_text(dump_spec(spec), encoding="utf-8")
    flags = ("--tokens-per-second", "100", "--answer-tokens", "20", *(["--json"] if as_json else []))
    done = regen_here("estimate", str(file), *flags, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    if as_json:
        said = json.loads(done.stdout)
        assert (said["rows_left"], said["speed_basis"], said["needs"]) == (66, "given", [])
        assert said["hours"]["low"] <= said["hours"]["mid"] <= said["hours"]["high"]
    else:
        assert "What is left of the run" in done.stdout
        assert "ASSUMED" in done.stdout
