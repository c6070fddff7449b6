"""Decisions about speculation: what workers are told, what engines are started with, what is written down."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from regen.records import (
    Acceptance,
    CanaryMiss,
    Command,
    EngineCounters,
    ReplicaState,
    ReplicaStats,
    WarmupReport,
    WorkerId,
)
from regen.run.setup import OFF, Purpose, RunSetup
from regen.run.speculation.control import SpeculationControl
from regen.run.speculation.records import subject_of
from regen.spec import parse_spec
from regen.store.control import ArmMeasured, Record, SpeculationDecided, Verdict

GOOD = WarmupReport(1.0, 100, 0, 3000, Acceptance(1000, 4000, 1500, (800, 400, 200, 100)))
DEAD = WarmupReport(1.0, 100, 0, 3000, Acceptance(1000, 4000, 10, (10, 0, 0, 0)))
GARBAGE = replace(GOOD, canary_answers=32, canary_misses=(CanaryMiss("r", 3, 20.0),))
SLOTS = 8


def make_setup(replicas: Any = 2, purpose: Purpose = Purpose.RUN, session: str = "s1", **speculation: Any) -> RunSetup:
    raw = {
        "name": "test",
        "output": "run",
        "target": {"model": "target"},
        "engine": {"kind": "fake", "slots": SLOTS, "replicas": replicas, "max_model_len": 2048},
        "speculation": {"method": "mtp", "num_tokens": 4, **speculation},
        "sampling": {"max_tokens": 100},
        "sources": [{"name": "rows", "path": "rows.jsonl"}],
    }
    return RunSetup(
        spec=parse_spec(raw, origin="test"),
        run_url="run",
        session=session,
        fingerprint="f",
        host="h",
        boot_id="b",
        driver_pid=1,
        started_at="t",
        take_over=False,
        purpose=purpose,
    )


def stats(
    state: ReplicaState,
    arm: str = "configured",
    warmup: WarmupReport | None = None,
    now: float = 0.0,
    tokens: int = 0,
) -> ReplicaStats:
    """An engine whose slots are full, and whose drafts are accepted as the warm-up has shown."""
    steps = tokens * 2 // 5
    acceptance = None if arm == OFF else Acceptance(steps, 4 * steps, tokens - steps, (steps, steps // 2, 0, 0))
    counters = EngineCounters(output_tokens=tokens, running=SLOTS, waiting=2, acceptance=acceptance)
    return ReplicaStats(state, SLOTS, 10, 0.0, counters, arm=arm, counted_at=now, started_seconds=5.0, warmup=warmup)


def warmed(control: SpeculationControl, worker: WorkerId, report: WarmupReport) -> Command:
    control.hear(worker, stats(ReplicaState.WARMING, control.assignment(worker.slot).arm), 0.0)
    assert control.command(worker) is Command.WAIT, "it has not shown anything yet"
    control.hear(worker, stats(ReplicaState.WARMING, control.assignment(worker.slot).arm, report), 1.0)
    return control.command(worker)


def decided(control: SpeculationControl) -> list[SpeculationDecided]:
    return [record for record in control.unwritten("now") if isinstance(record, SpeculationDecided)]


def test_without_speculation_nothing_is_asked_and_nothing_waits() -> None:
    setup = make_setup()
    control = SpeculationControl(replace(setup, spec=setup.spec.model_copy(update={"speculation": None})), [])
    control.hear(WorkerId(0, 0), stats(ReplicaState.RUNNING, OFF), 0.0)
    control.tick(1.0, 1e5)
    assert control.command(WorkerId(0, 0)) is Command.WORK
    assert (control.assignment(0).arm, control.status().phase, control.unwritten("now")) == (OFF, "off", [])


# --- the gate ------------------------------------------------------------------------------------


def test_a_healthy_engine_works() -> None:
    control = SpeculationControl(make_setup(calibrate="off"), [])
    assert warmed(control, WorkerId(0, 0), GOOD) is Command.WORK
    assert control.error is None
    assert not decided(control)


def test_gate_fail_lets_nobody_work() -> None:
    control = SpeculationControl(make_setup(calibrate="off"), [])
    assert warmed(control, WorkerId(0, 0), GOOD) is Command.WORK
    assert warmed(control, WorkerId(1, 0), DEAD) is Command.WAIT
    assert control.command(WorkerId(0, 0)) is Command.WAIT
    assert control.error is not None
    assert "accept length 1.01" in str(control.error)


def test_under_gate_disable_no_condemned_engine_gets_a_row() -> None:
    """However many there are: "one at a time" is for engines that work."""
    control = SpeculationControl(make_setup(replicas=3, calibrate="off", gate="disable"), [])
    assert [warmed(control, WorkerId(slot, 0), GARBAGE) for slot in range(3)] == [Command.REPLACE] * 3
    assert [control.assignment(slot).arm for slot in range(3)] == [OFF] * 3


def test_gate_warn_works_and_says_so() -> None:
    control = SpeculationControl(make_setup(calibrate="off", gate="warn"), [])
    assert warmed(control, WorkerId(0, 0), DEAD) is Command.WORK
    assert [(record.slot, record.verdict) for record in decided(control)] == [(0, "dead")]


def test_what_the_gate_switched_off_holds_for_its_session_only() -> None:
    setup = make_setup(calibrate="off", gate="disable")
    control = SpeculationControl(setup, [])
    warmed(control, WorkerId(0, 0), DEAD)
    records: list[Record] = control.unwritten("now")
    assert SpeculationControl(setup, records).assignment(0).arm == OFF
    assert SpeculationControl(replace(setup, session="s2"), records).assignment(0).arm == "configured"


# --- calibration ---------------------------------------------------------------------------------


def measure(control: SpeculationControl, rates: dict[str, float], seconds: float = 4000.0) -> None:
    """Engines that make so many tokens a second by their arm, replaced whenever the control says so."""
    incarnations, tokens, now = [0, 0], [0.0, 0.0], 0.0
    while control.status().phase == "calibrating" and now < seconds:
        now += 5.0
        for slot in range(2):
            worker, arm = WorkerId(slot, incarnations[slot]), running_arm(control, slot)
            tokens[slot] += 5.0 * rates[arm]
            warmup = None if arm == OFF else GOOD
            control.hear(worker, stats(ReplicaState.RUNNING, arm, warmup, now, int(tokens[slot])), now)
            if control.command(worker) is Command.REPLACE:
                control.worker_gone(worker)
                incarnations[slot], tokens[slot] = incarnations[slot] + 1, 0.0
        control.tick(now, 1e6)


def running_arm(control: SpeculationControl, slot: int) -> str:
    return control.status().arms.get(slot, control.assignment(slot).arm)


@pytest.mark.parametrize(("on", "arm"), [(130.0, "configured"), (70.0, OFF)])
def test_the_faster_setting_is_chosen_and_written_down(on: float, arm: str) -> None:
    setup = make_setup(calibration={"arms": 2})
    control = SpeculationControl(setup, [])
    measure(control, {OFF: 100.0, "configured": on})
    assert [control.assignment(slot).arm for slot in range(2)] == [arm, arm]
    records = control.unwritten("now")
    (choice,) = [record for record in records if isinstance(record, SpeculationDecided)]
    assert (choice.arm, choice.verdict, choice.at) == (arm, Verdict.MEASURED, "now")
    later = SpeculationControl(replace(setup, session="s2"), records)
    assert (later.assignment(1).arm, later.status().phase) == (arm, "decided")


def chosen_off(**speculation: Any) -> tuple[RunSetup, list[Record]]:
    setup = make_setup(calibration={"arms": 2}, **speculation)
    control = SpeculationControl(setup, [])
    measure(control, {OFF: 100.0, "configured": 70.0})
    return replace(setup, session="s2"), control.unwritten("now")


def test_a_choice_does_not_hold_for_another_engine_or_draft() -> None:
    setup, records = chosen_off()
    engine = setup.spec.engine.model_copy(update={"slots": 2})
    other = replace(setup, spec=setup.spec.model_copy(update={"engine": engine}))
    assert SpeculationControl(other, records).status().phase == "calibrating"


def test_calibrate_off_and_again_do_not_follow_an_earlier_choice() -> None:
    setup, records = chosen_off()
    speculation = setup.spec.speculation
    assert speculation is not None
    without = speculation.model_copy(update={"calibrate": "off"})
    forced = replace(setup, spec=setup.spec.model_copy(update={"speculation": without}))
    assert SpeculationControl(forced, records).assignment(0).arm == "configured"
    again = replace(setup, purpose=Purpose.CALIBRATE_AGAIN)
    assert SpeculationControl(again, records).status().phase == "calibrating"


def test_a_choice_is_judged_by_the_present_settings() -> None:
    setup = make_setup(calibration={"arms": 2})
    control = SpeculationControl(setup, [])
    measure(control, {OFF: 100.0, "configured": 130.0})
    now = make_setup(session="s2", calibration={"arms": 2}, warmup={"canary_margin": 5.0})
    kept = SpeculationControl(now, control.unwritten("now")).assignment(0).speculation
    assert kept is not None
    assert kept.warmup.canary_margin == 5.0


def test_one_failed_start_is_no_verdict_and_two_are() -> None:
    control = SpeculationControl(make_setup(calibration={"arms": 2}), [])
    first = next(slot for slot in range(2) if control.assignment(slot).arm == "configured")
    for incarnation, phase in ((0, "calibrating"), (1, "decided")):
        control.hear(WorkerId(first, incarnation), stats(ReplicaState.STARTING), 0.0)
        control.worker_gone(WorkerId(first, incarnation))
        control.tick(1.0, 1e5)
        assert control.status().phase == phase
    assert [record.verdict for record in decided(control)] == [Verdict.LEFT_OUT, Verdict.UNMEASURED]
    assert control.assignment(0).arm == OFF


@pytest.mark.parametrize("replicas", [1, {"min": 1, "max": 3}])
def test_nodes_that_go_while_an_engine_starts_say_nothing_of_its_setting(replicas: object) -> None:
    control = SpeculationControl(make_setup(calibration={"arms": 2}, replicas=replicas), [])
    for incarnation in range(5):
        control.hear(WorkerId(0, incarnation), stats(ReplicaState.STARTING), 0.0)
        control.worker_gone(WorkerId(0, incarnation), is_to_blame=False)
        control.tick(1.0, 1e5)
    assert not decided(control)
    assert control.status().phase != "decided"


def test_an_engine_that_has_worked_may_die_without_a_verdict_on_its_setting() -> None:
    control = SpeculationControl(make_setup(calibration={"arms": 2}), [])
    for incarnation in range(4):
        arm = control.assignment(0).arm
        control.hear(WorkerId(0, incarnation), stats(ReplicaState.RUNNING, arm, GOOD), 0.0)
        control.worker_gone(WorkerId(0, incarnation))
    control.tick(1.0, 1e5)
    assert control.status().phase == "calibrating"


def test_an_engine_that_drains_when_a_new_coordinator_hears_it_was_told_to_leave() -> None:
    control = SpeculationControl(make_setup(calibrate="required"), [])
    for incarnation in range(3):
        control.hear(WorkerId(0, incarnation), stats(ReplicaState.DRAINING, warmup=GOOD), 0.0)
        assert control.command(WorkerId(0, incarnation)) is Command.REPLACE
        control.worker_gone(WorkerId(0, incarnation))
    control.tick(1.0, None)
    assert (control.error, control.status().phase) == (None, "calibrating")


def test_a_bad_draft_under_gate_disable_ends_a_comparison_also_over_a_restart() -> None:
    setup = make_setup(gate="disable", calibration={"arms": 2})
    control = SpeculationControl(setup, [])
    slot = next(slot for slot in range(2) if control.assignment(slot).arm == "configured")
    warmed(control, WorkerId(slot, 0), DEAD)
    restarted = SpeculationControl(setup, control.unwritten("now"))
    restarted.tick(2.0, 1e6)
    assert restarted.status().phase == "decided"
    assert [restarted.assignment(slot).arm for slot in range(2)] == [OFF, OFF]


def test_a_lost_replica_does_not_keep_the_others_waiting() -> None:
    control = SpeculationControl(make_setup(calibration={"arms": 2}), [])
    control.slot_lost(1)
    control.slot_lost(0)
    control.tick(1.0, 1e6)
    assert control.status().phase == "decided"


def test_asked_for_and_not_measured_is_an_error_that_says_so() -> None:
    control = SpeculationControl(make_setup(purpose=Purpose.CALIBRATE), [])
    control.slot_lost(0)
    control.slot_lost(1)
    control.tick(1.0, 1e6)
    assert control.error is not None
    assert "asked for" in str(control.error)


# --- replicas that join and leave ------------------------------------------------------------------

SOME = {"min": 1, "max": 6}


def begun(there: int, **options: Any) -> SpeculationControl:
    """A fleet that changes, in which so many are placed; the first engine is up."""
    control = SpeculationControl(make_setup(replicas=SOME, calibration={"arms": 2}, **options), [])
    control.slots_open(frozenset(range(there)), 0.0)
    control.hear(WorkerId(0, 0), stats(ReplicaState.WARMING), 0.0)
    return control


def arms_of(control: SpeculationControl, *slots: int) -> list[tuple[str, bool]]:
    return [(control.assignment(slot).arm, control.assignment(slot).is_trial) for slot in slots]


def test_what_is_there_when_the_first_engine_is_up_is_compared_and_what_joins_later_is_not() -> None:
    control = SpeculationControl(make_setup(replicas=SOME, calibration={"arms": 2}), [])
    assert arms_of(control, 0, 1, 5) == [("configured", True)] * 3
    assert (control.status().phase, control.is_comparing) == ("calibrating", False), "nobody makes way for another yet"
    control.slots_open(frozenset({0, 1, 2}), 0.0)
    control.hear(WorkerId(2, 0), stats(ReplicaState.STARTING), 0.0)
    control.tick(0.0, 1e6)
    assert arms_of(control, 0, 1) == [("configured", True)] * 2, "none is up yet"
    assert not control.is_comparing
    control.hear(WorkerId(2, 0), stats(ReplicaState.WARMING), 0.0)
    control.slots_open(frozenset({0, 1, 2, 3}), 1.0)
    assert arms_of(control, 0, 1, 2, 3) == [
        ("configured", True),
        (OFF, True),
        ("configured", True),
        ("configured", False),
    ]


def test_an_engine_makes_way_for_another_setting_when_nobody_waits_for_its_room_any_more() -> None:
    control = begun(2)
    assert control.is_comparing
    control.hear(WorkerId(1, 0), stats(ReplicaState.WARMING, warmup=GOOD), 1.0)
    for now, command in ((1.0, Command.WAIT), (4.9, Command.WAIT), (5.0, Command.REPLACE)):
        control.tick(now, 1e6)
        assert control.command(WorkerId(1, 0)) is command
    control.hear(WorkerId(0, 0), stats(ReplicaState.WARMING, warmup=GOOD), 5.0)
    assert control.command(WorkerId(0, 0)) is Command.WORK


def test_a_coordinator_that_takes_over_compares_nothing_before_it_knows_who_is_there() -> None:
    setup = make_setup(replicas=SOME, calibration={"arms": 2})
    control = SpeculationControl(setup, [])
    control.hear(WorkerId(3, 2), stats(ReplicaState.RUNNING, OFF), 0.0)
    control.tick(0.0, 1e6)
    assert arms_of(control, 3) == [("configured", True)]
    control.slots_open(frozenset({2, 3}), 1.0)
    control.tick(1.0, 1e6)
    assert arms_of(control, 2, 3, 4) == [("configured", True), (OFF, True), ("configured", True)]
    control.tick(2.0, 1.0)
    assert control.status().phase == "decided", (
        "it knows how long that engine took to start, and that too little is left"
    )


def test_a_replica_that_never_got_room_is_compared_no_more_when_its_slot_is_closed() -> None:
    """It was counted in, since the first engine was up before it was clear that there is no room for another."""
    control = begun(2)
    assert control.assignment(1).is_trial
    control.slots_open(frozenset({0}), 30.0)
    control.slots_open(frozenset({0, 1}), 60.0)
    assert arms_of(control, 0, 1) == [("configured", True), ("configured", False)], "it has joined, and shows nothing"


@pytest.mark.parametrize("state", [ReplicaState.STARTING, ReplicaState.WARMING])
def test_an_engine_that_nobody_has_told_of_is_compared_all_the_same(state: ReplicaState) -> None:
    control = SpeculationControl(make_setup(replicas={"min": 0, "max": 6}, calibration={"arms": 2}), [])
    control.slots_open(frozenset(), 0.0)
    for incarnation in range(2):
        control.hear(WorkerId(3, incarnation), stats(state), 0.0)
        control.worker_gone(WorkerId(3, incarnation))
    control.tick(1.0, 1e6)
    assert [record.slot for record in decided(control)][:1] == [3]
    assert control.assignment(3).arm == OFF


def test_those_that_were_measured_before_are_measured_again() -> None:
    setup = make_setup(replicas=SOME, calibration={"arms": 2})
    subject = subject_of(setup.spec)
    measured = [
        ArmMeasured("s1", subject, slot, arm, None, 0, 40.0, 4000, (100.0,) * 10, 0, 0, 0, 0, 0, 5.0)
        for slot, arm in ((3, "configured"), (4, OFF))
    ]
    control = SpeculationControl(setup, measured)
    control.slots_open(frozenset(range(6)), 0.0)
    control.hear(WorkerId(0, 0), stats(ReplicaState.WARMING), 0.0)
    assert [control.assignment(slot).arm for slot in range(5)] == [*["configured"] * 3, OFF, "configured"]


def test_nothing_that_joins_is_measured_and_its_failures_leave_no_setting_out() -> None:
    control = begun(2)
    control.slots_open(frozenset({0, 1, 2}), 1.0)
    for incarnation in range(3):
        control.hear(WorkerId(2, incarnation), stats(ReplicaState.STARTING), 1.0)
        control.worker_gone(WorkerId(2, incarnation))
    control.tick(2.0, 1e6)
    assert control.status().phase == "calibrating"
    measure(control, {OFF: 100.0, "configured": 130.0})
    (choice,) = [record for record in decided(control) if record.by == "calibration"]
    assert choice.verdict == Verdict.MEASURED
    assert arms_of(control, 0, 1, 2, 5) == [("configured", False)] * 4, "it holds for those that join"


def test_a_bad_warm_up_on_one_that_joined_switches_off_that_one_alone() -> None:
    control = begun(2, gate="disable")
    control.slots_open(frozenset({0, 1, 2}), 1.0)
    warmed(control, WorkerId(2, 0), DEAD)
    control.tick(6.0, 1e6)
    assert control.command(WorkerId(2, 0)) is Command.REPLACE
    assert [control.assignment(slot).arm for slot in range(3)] == ["configured", OFF, OFF]
    assert control.status().phase == "calibrating"
    assert [record.by for record in decided(control)] == ["gate"]


@pytest.mark.parametrize("there", [1, 2])
def test_a_compared_slot_whose_node_goes_is_lost_to_the_comparison_and_the_last_is_waited_for(there: int) -> None:
    control = begun(there)
    control.worker_gone(WorkerId(0, 0))
    control.slots_open(frozenset(range(1, there)), 1.0)
    control.slots_open(frozenset(range(there)), 2.0)
    control.tick(2.0, 1e6)
    assert control.status().phase == "calibrating"
    assert arms_of(control, 0) == [("configured", there == 1)]


def test_a_slot_that_has_not_come_yet_is_not_lost_to_the_comparison() -> None:
    """The replicas are a fixed number, and a node takes its time to come."""
    control = SpeculationControl(make_setup(calibration={"arms": 2}), [])
    control.slots_open(frozenset({0}), 40.0)
    control.slots_open(frozenset({0, 1}), 200.0)
    assert arms_of(control, 0, 1) == [("configured", True), (OFF, True)]


def test_engines_that_never_come_up_before_the_comparison_leave_their_setting_out() -> None:
    control = SpeculationControl(make_setup(replicas=SOME, calibration={"arms": 2}), [])
    control.slots_open(frozenset({0}), 0.0)
    for incarnation in range(2):
        control.hear(WorkerId(0, incarnation), stats(ReplicaState.STARTING), 0.0)
        control.worker_gone(WorkerId(0, incarnation))
    control.tick(1.0, 1e6)
    assert control.assignment(0).arm == OFF


def test_a_switched_off_slot_that_has_left_is_not_waited_for_by_the_next() -> None:
    control = SpeculationControl(make_setup(replicas=SOME, calibrate="off"), [])
    control.slots_open(frozenset({0, 1}), 0.0)
    for slot in range(2):
        control.hear(WorkerId(slot, 0), stats(ReplicaState.RUNNING, warmup=GOOD), 0.0)
        control._switched_off.add(slot)
    assert control.command(WorkerId(0, 0)) is Command.REPLACE
    control.worker_gone(WorkerId(0, 0))
    assert control.command(WorkerId(1, 0)) is Command.WORK, "one at a time"
    control.slots_open(frozenset({1}), 1.0)
    assert control.command(WorkerId(1, 0)) is Command.REPLACE


def test_the_guard_forgets_an_engine_whose_slot_has_closed_and_no_other() -> None:
    control = SpeculationControl(make_setup(replicas=SOME, calibrate="off"), [])
    control.slots_open(frozenset({0, 1}), 0.0)
    for now in range(1, 4):
        for slot in range(2):
            control.hear(WorkerId(slot, 0), stats(ReplicaState.RUNNING, warmup=GOOD, tokens=10_000 * now), float(now))
    assert control._guard is not None
    judged = control._guard._guard
    assert all(verdict.accept_length for verdict in judged.verdicts(4.0)[:2])
    control.worker_gone(WorkerId(1, 0))
    control.slots_open(frozenset({0}), 5.0)
    assert [verdict.accept_length is None for verdict in judged.verdicts(6.0)[:2]] == [False, True]


def test_what_a_restart_costs_is_counted_among_those_that_are_there() -> None:
    control = SpeculationControl(make_setup(replicas=SOME, calibrate="off"), [])
    for slots in (frozenset({0, 1, 4}), frozenset({0}), frozenset[int]()):
        control.slots_open(slots, 0.0)
        control.tick(0.0, 100.0)
        assert control._outlook.replicas == max(1, len(slots))
