"""Gate, calibration and guard in the real coordinator, worker and driver, on one event loop over the fake engine."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from regen.cli import app
from regen.errors import ExitCode, PreflightRefused, SpeculationFailed
from regen.records import CoordinatorStatus, Phase
from regen.run.held import replayed_run
from regen.run.local import LocalCluster
from regen.run.session import seal_run, standing, write_report
from regen.run.setup import Purpose
from regen.run.speculation.chosen import standing_choice
from regen.run.speculation.wanted import NewDraft
from regen.run.start import Begun, StartOptions, resume
from regen.spec import RunSpec, dump_spec
from regen.store.control import ArmMeasured, DecidedBy, SpeculationDecided, Verdict
from tests import virtual_time
from tests.heads import eagle3
from tests.processes import regen_here
from tests.runs import begin_run, drive, make_spec, shard_table, with_draft

DEAD = {"acceptance_by_position": [0.0, 0.0, 0.0]}
# The fake engine's answers are short: a verdict is to need fewer drafts here.
SHORT = {"warmup": {"drafts": 100, "max_tokens": 32, "seconds": 20.0}}


def speculating(folder: Path, rows: int = 60, engine: dict[str, Any] | None = None, **changes: Any) -> RunSpec:
    spec = make_spec(folder, rows=rows, engine=engine or {})
    return with_draft(spec, folder, **{**SHORT, **changes})


def finish(begun: Begun) -> CoordinatorStatus:
    status = virtual_time.run(drive(LocalCluster(), begun))
    seal_run(begun.storage, begun.worker_setup.run)
    return status


def decisions(begun: Begun, by: DecidedBy) -> list[SpeculationDecided]:
    replayed = replayed_run(begun.storage)
    assert replayed is not None
    return [record for record in replayed.records if isinstance(record, SpeculationDecided) and record.by is by]


def speculated(begun: Begun) -> dict[int, set[bool]]:
    """By replica: whether its rows were made with a draft."""
    found: dict[int, set[bool]] = {}
    for row in shard_table(Path(begun.worker_setup.run.run_url)).to_pylist():
        observed = row["observed"]
        found.setdefault(observed["replica"], set()).add(observed["draft"] is not None)
    return found


# --- the gate ------------------------------------------------------------------------------------


def test_a_dead_draft_stops_the_run_before_any_row_is_committed(tmp_path: Path) -> None:
    begun = begin_run(speculating(tmp_path, engine=DEAD))
    with pytest.raises(SpeculationFailed, match=r"accept length 1\.00") as raised:
        virtual_time.run(drive(LocalCluster(), begun))
    assert raised.value.exit_code is ExitCode.SPECULATION
    assert standing(begun.storage).totals.done == 0
    (decided,) = decisions(begun, DecidedBy.GATE)
    assert decided.verdict == "dead"


def test_a_draft_that_works_is_let_through(tmp_path: Path) -> None:
    begun = begin_run(speculating(tmp_path, engine={"replicas": 2}))
    status = finish(begun)
    assert status.phase is Phase.FINISHED
    assert set(status.speculation.verdicts.values()) <= {"healthy", "unknown"}
    assert {True} == set().union(*speculated(begun).values())
    assert not decisions(begun, DecidedBy.GATE)


def test_gate_disable_goes_on_without_speculation(tmp_path: Path) -> None:
    begun = begin_run(speculating(tmp_path, engine=DEAD, gate="disable"))
    assert finish(begun).phase is Phase.FINISHED
    assert speculated(begun) == {0: {False}}
    (decided,) = decisions(begun, DecidedBy.GATE)
    assert (decided.arm, decided.slot) == ("off", 0)


def test_gate_warn_goes_on_with_it_and_says_so(tmp_path: Path) -> None:
    begun = begin_run(speculating(tmp_path, engine=DEAD, gate="warn", guard="warn"))
    status = finish(begun)
    assert status.phase is Phase.FINISHED
    assert speculated(begun) == {0: {True}}
    assert any("accept length 1.00" in decision for decision in status.speculation.decisions)


def test_the_verdict_is_per_replica_and_not_on_the_average(tmp_path: Path) -> None:
    fault = {"kind": "reject_drafts", "replica": 2, "lives": 9, "times": 10**9}
    engine = {"replicas": 3, "faults": [fault], "step_seconds": 0.001}
    begun = begin_run(speculating(tmp_path, rows=200, engine=engine, gate="disable"))
    assert finish(begun).phase is Phase.FINISHED
    assert [decided.slot for decided in decisions(begun, DecidedBy.GATE)] == [2]
    made = speculated(begun)
    assert made[0] == made[1] == {True}
    assert made.get(2, {False}) == {False}


def test_counters_that_are_absent_are_not_a_zero(tmp_path: Path) -> None:
    begun = begin_run(speculating(tmp_path, engine={"counters_absent": True}))
    with pytest.raises(SpeculationFailed, match="no speculation counters"):
        virtual_time.run(drive(LocalCluster(), begun))
    assert [decided.verdict for decided in decisions(begun, DecidedBy.GATE)] == ["absent"]


def test_word_salad_under_load_is_seen_by_the_canary(tmp_path: Path) -> None:
    fault = {"kind": "salad", "lives": 9, "times": 10**9}
    begun = begin_run(speculating(tmp_path, engine={"faults": [fault]}, rows=200))
    with pytest.raises(SpeculationFailed):
        virtual_time.run(drive(LocalCluster(), begun))
    assert [decided.verdict for decided in decisions(begun, DecidedBy.GATE)] == ["garbage"]


def test_a_draft_below_its_profile_is_stopped_although_it_is_alive(tmp_path: Path) -> None:
    engine = {"acceptance_by_position": [0.1, 0.02, 0.0]}
    expected = {"by_position": [0.53, 0.21, 0.07]}
    spec = speculating(tmp_path, engine=engine, expected=expected)
    begun = begin_run(spec.model_copy(update={"sampling": spec.sampling.model_copy(update={"temperature": 0.0})}))
    with pytest.raises(SpeculationFailed):
        virtual_time.run(drive(LocalCluster(), begun))
    assert [decided.verdict for decided in decisions(begun, DecidedBy.GATE)] == ["off_profile"]


# --- the guard -----------------------------------------------------------------------------------


LONG = {"replicas": 2, "slots": 8, "answer_tokens": 60, "step_seconds": 0.1}


def collapsing(folder: Path, kind: str, **changes: Any) -> RunSpec:
    fault = {"kind": kind, "replica": 1, "after_requests": 150, "lives": 9, "times": 10**9}
    return speculating(folder, rows=900, engine={**LONG, "faults": [fault]}, **changes)


@pytest.mark.parametrize(("kind", "verdict"), [("reject_drafts", "collapsed"), ("counters_absent", "absent")])
def test_a_replica_that_stops_working_is_noticed_and_goes_on_without(tmp_path: Path, kind: str, verdict: str) -> None:
    begun = begin_run(collapsing(tmp_path, kind))
    status = finish(begun)
    assert status.phase is Phase.FINISHED
    decided = decisions(begun, DecidedBy.GUARD)
    assert (1, verdict) in {(decision.slot, decision.verdict) for decision in decided}
    assert {decision.slot for decision in decided} == {1}
    assert speculated(begun) == {0: {True}, 1: {True, False}}, "it goes on without, and only it"


def test_guard_fail_ends_the_run_and_keeps_what_is_done(tmp_path: Path) -> None:
    begun = begin_run(collapsing(tmp_path, "reject_drafts", guard="fail"))
    with pytest.raises(SpeculationFailed, match="replica 1"):
        virtual_time.run(drive(LocalCluster(), begun))
    assert 0 < standing(begun.storage).totals.done < 900


# --- calibration ---------------------------------------------------------------------------------

# The cost model of a target that is bound by memory at small batches and by arithmetic at large ones.
COST = {"without": 1.0, "with_speculation": [[1, 1.1], [64, 2.6]]}
ACCEPTS = {"acceptance_by_position": [0.6, 0.33, 0.17]}  # accept length 2.1


def calibrating(folder: Path, slots: int, replicas: int = 1, **changes: Any) -> RunSpec:
    engine = {
        "replicas": replicas,
        "slots": slots,
        "step_seconds": 0.01,
        "answer_tokens": 60,
        "cost": COST,
        **ACCEPTS,
    }
    calibration = {"window_seconds": 2.0, "arms": 2, "max_engine_starts": 6}
    return speculating(
        folder, rows=300 * slots, engine=engine, **{"calibrate": "required", "calibration": calibration, **changes}
    )


@pytest.mark.parametrize(("slots", "replicas", "arm"), [(2, 1, "configured"), (64, 1, "off"), (64, 2, "off")])
def test_what_is_faster_at_this_concurrency_is_chosen(tmp_path: Path, slots: int, replicas: int, arm: str) -> None:
    begun = begin_run(calibrating(tmp_path, slots, replicas), purpose=Purpose.CALIBRATE)
    status = virtual_time.run(drive(LocalCluster(), begun))
    assert status.phase is Phase.DRAINED
    choice = standing_choice(begun.storage, begun.record.spec)
    assert choice is not None
    assert choice.arm == arm
    totals = standing(begun.storage).totals
    assert totals.done > 0, "the rows made while measuring count"
    replayed = replayed_run(begun.storage)
    assert replayed is not None
    assert {record.arm for record in replayed.records if isinstance(record, ArmMeasured)} == {"off", "configured"}


def test_the_choice_holds_for_the_run_that_follows(tmp_path: Path) -> None:
    spec = calibrating(tmp_path, 64)
    first = begin_run(spec, purpose=Purpose.CALIBRATE)
    virtual_time.run(drive(LocalCluster(), first))
    (tmp_path / "spec.yaml").write_text(dump_spec(spec), encoding="utf-8")
    asked = regen_here("calibrate", "spec.yaml", "--json", cwd=tmp_path)  # it is known: no engine is started
    assert json.loads(asked.stdout)["arm"] == "off", asked.stderr
    before = standing(first.storage).totals.done
    again = begin_run(spec)
    status = virtual_time.run(_for_a_while(again, seconds=3.0))
    assert status.speculation.phase == "decided"
    assert set(status.speculation.arms.values()) == {"off"}
    assert standing(again.storage).totals.done > before


def test_a_choice_is_shown_where_it_holds_and_a_stopped_measurement_shows_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = calibrating(tmp_path, 64)
    begun = begin_run(spec, purpose=Purpose.CALIBRATE)
    status = virtual_time.run(drive(LocalCluster(), begun))
    (tmp_path / "spec.yaml").write_text(dump_spec(spec), encoding="utf-8")
    monkeypatch.setattr("regen.cli._drive", lambda *given: None)  # stopped before anything was measured
    again = CliRunner().invoke(app, ["calibrate", str(tmp_path / "spec.yaml"), "--again"])
    assert (again.exit_code, again.stdout) == (ExitCode.DRAINED, "")
    assert "was stopped" in again.stderr
    fewer_slots = spec.model_copy(update={"engine": spec.engine.model_copy(update={"slots": 32})})
    for used, arm in ((spec, "off"), (fewer_slots, None)):
        write_report(begun.storage, used, status, standing(begun.storage))
        choice = json.loads((tmp_path / "run" / "report.json").read_text())["speculation"]["choice"]
        assert (choice and choice["arm"]) == arm


def test_a_finished_run_has_nothing_to_measure_with_and_is_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def finish_without_a_choice(begun: Begun, *others: object) -> None:
        setup = begun.worker_setup
        plain = replace(setup, run=replace(setup.run, purpose=Purpose.RUN))
        virtual_time.run(drive(LocalCluster(), replace(begun, worker_setup=plain)))

    spec = speculating(tmp_path, rows=20)
    (tmp_path / "spec.yaml").write_text(dump_spec(spec), encoding="utf-8")
    monkeypatch.setattr("regen.cli._drive", finish_without_a_choice)
    ended = CliRunner().invoke(app, ["calibrate", str(tmp_path / "spec.yaml")])
    assert ended.exit_code == ExitCode.FAILED, ended.stderr
    assert shard_table(tmp_path / "run").num_rows == 20
    monkeypatch.undo()
    monkeypatch.setattr("regen.run.cluster.connect", lambda *given: pytest.fail("Ray was joined"))
    for options in ((), ("--again",)):
        asked = CliRunner().invoke(app, ["calibrate", str(tmp_path / "spec.yaml"), *options])
        assert asked.exit_code == ExitCode.FAILED
        assert "nothing is left to measure with" in asked.stderr


async def _for_a_while(begun: Begun, seconds: float) -> CoordinatorStatus:
    cluster = LocalCluster()
    work = asyncio.ensure_future(drive(cluster, begun))
    await asyncio.sleep(seconds)
    assert cluster.coordinator is not None
    seen = await cluster.coordinator.status()
    await cluster.coordinator.drain(0.0)
    await work
    return seen


def test_a_run_too_short_to_pay_for_it_is_not_measured(tmp_path: Path) -> None:
    spec = speculating(tmp_path, rows=40, engine={"start_seconds": 0.5}, calibrate="auto")
    begun = begin_run(spec)
    status = finish(begun)
    assert status.phase is Phase.FINISHED
    assert [decided.verdict for decided in decisions(begun, DecidedBy.CALIBRATION)] == [Verdict.UNMEASURED]
    assert speculated(begun) == {0: {True}}


# --- another draft -------------------------------------------------------------------------------


def test_a_new_draft_is_taken_up_in_the_middle_and_recorded_per_row(tmp_path: Path) -> None:
    spec = speculating(tmp_path, rows=120, engine={"step_seconds": 0.004, "answer_tokens": 30})
    begun = begin_run(spec)
    virtual_time.run(_for_a_while(begun, seconds=1.5))
    assert 0 < standing(begun.storage).totals.done < 120
    newer = eagle3().write(tmp_path / "newer")
    with pytest.raises(PreflightRefused, match="hidden-size"):  # what was accepted was the older one's
        resume(spec.output, StartOptions(processes=1), lambda text: None, NewDraft(str(newer)))
    assert spec.speculation is not None
    section = spec.speculation.model_copy(update={"draft": str(newer)})
    finish(begin_run(spec.model_copy(update={"speculation": section})))
    drafts = [row["observed"]["draft"] for row in shard_table(tmp_path / "run").to_pylist()]
    assert set(drafts) == {str(tmp_path / "head"), str(newer)}
    assert resume(spec.output, StartOptions(processes=1), lambda text: None).record.spec.speculation is not None
    kept = resume(spec.output, StartOptions(processes=1), lambda text: None).record.spec.speculation
    assert kept is not None
    assert kept.draft == str(newer)
