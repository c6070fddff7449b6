"""Calibration chooses well, whatever noise, slow replicas and drift do, and never starts more engines than it may.

The runs are simulated (tests/calibration_runs.py): the cost model is the one that speculation is known for, a step of
1.0 without it, of 1.1 with one sequence and 2.6 with 64, at an accept length of 2.1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from regen.spec import CalibrationSpec, SpeculationSpec
from regen.speculative.arms import Arm
from regen.speculative.calibration import Calibration, Choice, Window
from tests.calibration_runs import SimulatedRun, slope, wave

TWO = CalibrationSpec(arms=2)
UNEVEN = (0.95, 1.05, 1.02, 0.97)


def chosen(run: SimulatedRun) -> Choice:
    choice = run.until_settled().choice
    assert choice is not None
    return choice


def relative(**by_arm: float) -> Callable[[Arm], float]:
    """Rates by arm name, off being 1."""
    return lambda arm: 1000 * by_arm.get(arm.name, 1.0)


# --- the right choice ----------------------------------------------------------------------------


@pytest.mark.parametrize("slots", range(1, 65))
@pytest.mark.parametrize(
    ("replicas", "drift"), [(1, slope(-0.1)), (4, wave(0.03, 900.0))], ids=["one replica", "four replicas"]
)
def test_within_two_per_cent_of_the_best_at_every_concurrency(
    slots: int, replicas: int, drift: Callable[[float], float]
) -> None:
    run = SimulatedRun(slots=slots, replicas=replicas, seed=slots, speeds=UNEVEN, drift=drift)
    assert chosen(run).is_measured
    assert run.loss() <= 0.02
    assert run.starts <= run.spec.max_engine_starts


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_noise_never_makes_it_take_what_is_worse_by_more_than_two_per_cent(seed: int, replicas: int) -> None:
    run = SimulatedRun(
        replicas=replicas,
        seed=seed,
        spec=TWO,
        rate=relative(configured=0.975),
        speeds=(1.05, 0.95),
        burst=0.08,
        drift=wave(0.02, 5000.0, phase=seed),
    )
    assert chosen(run).arm.name == "off"


def test_the_faster_replica_does_not_win_for_its_arm() -> None:
    run = SimulatedRun(replicas=2, spec=TWO, rate=relative(configured=0.96), speeds=(1.1, 0.9))
    assert chosen(run).arm.name == "off"


@pytest.mark.parametrize("direction", [1, -1])
def test_drift_does_not_decide(direction: int) -> None:
    faster = SimulatedRun(spec=TWO, rate=relative(configured=1.04), drift=slope(direction * 0.8))
    assert chosen(faster).arm.name == "configured"
    slower = SimulatedRun(spec=TWO, rate=relative(configured=0.96), drift=slope(direction * 0.8))
    assert chosen(slower).arm.name == "off"


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_tie_goes_to_off(replicas: int) -> None:
    run = SimulatedRun(replicas=replicas, rate=relative())
    assert chosen(run).arm.name == "off"
    quiet = SimulatedRun(replicas=replicas, spec=TWO, rate=relative(configured=1.01), burst=0.001)
    assert chosen(quiet).arm.name == "off", "faster beyond doubt, and by less than is asked for"
    assert quiet.starts <= 2 + replicas, "once there and back is enough to see that"


def test_a_tie_of_two_drafts_goes_to_what_the_spec_says() -> None:
    run = SimulatedRun(rate=relative(**{"configured": 1.3, "tokens-1": 1.305}))
    assert chosen(run).arm.name == "configured"


def test_the_grid_can_win() -> None:
    run = SimulatedRun(rate=relative(**{"configured": 1.1, "tokens-1": 1.3}))
    assert chosen(run).arm.name == "tokens-1"


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_two_alike_are_decided_even_where_no_gain_is_too_small(replicas: int) -> None:
    spec = CalibrationSpec(min_gain=0.0, window_seconds=20, arms=3, max_engine_starts=12)
    run = SimulatedRun(replicas=replicas, spec=spec, rate=relative(**{"configured": 2.0, "tokens-1": 2.0}))
    choice = chosen(run)
    assert choice.is_measured
    assert choice.arm.name in ("configured", "tokens-1")


def test_a_clear_winner_ends_it_early() -> None:
    clear = SimulatedRun(slots=1, spec=TWO)
    assert chosen(clear).arm.name == "configured"
    assert clear.starts == 2  # to off, and back
    close = SimulatedRun(slots=38, spec=TWO)
    chosen(close)
    assert close.now > clear.now


# --- what it costs -------------------------------------------------------------------------------


@pytest.mark.parametrize("starts", range(1, 12))
@pytest.mark.parametrize("replicas", [1, 2, 3, 4, 5])
def test_no_more_engines_are_started_than_the_spec_allows(starts: int, replicas: int) -> None:
    spec = CalibrationSpec(max_engine_starts=starts, arms=5)
    run = SimulatedRun(slots=40, replicas=replicas, spec=spec, seed=starts, speeds=UNEVEN, burst=0.1)
    choice = chosen(run)
    bystanders = max(0, replicas - 2) if choice.is_measured else 0
    assert run.starts <= max(starts, 3 + bystanders)
    if starts < 3:
        assert (choice.arm.name, choice.is_measured, run.starts) == ("configured", False, 0)
        assert "max_engine_starts" in choice.reason


def test_more_starts_let_more_settings_be_compared() -> None:
    few = SimulatedRun(spec=CalibrationSpec(max_engine_starts=3, arms=4))
    many = SimulatedRun(spec=CalibrationSpec(max_engine_starts=12, arms=4))
    assert [row.arm for row in chosen(few).table] == ["off", "configured"]
    assert [row.arm for row in chosen(many).table] == ["off", "configured", "tokens-1", "ngram-4"]


def test_skipped_where_less_could_be_saved_than_deciding_costs() -> None:
    short = SimulatedRun(start_seconds=600.0, seconds_left=lambda now: 3000.0 - now)
    choice = chosen(short)
    assert (choice.arm.name, choice.is_measured, short.starts) == ("configured", False, 0)
    assert "could save" in choice.reason
    long = SimulatedRun(start_seconds=600.0, seconds_left=lambda now: 200_000.0 - now)
    assert chosen(long).is_measured
    many = SimulatedRun(start_seconds=600.0, replicas=4, seconds_left=lambda now: 8000.0 - now)
    assert chosen(many).is_measured, "one of four engines that starts costs a quarter"


def test_what_is_required_is_not_skipped() -> None:
    run = SimulatedRun(start_seconds=600.0, seconds_left=lambda now: 3000.0 - now, is_required=True)
    assert chosen(run).is_measured


def test_too_few_rows_to_fill_the_slots_leave_it_undecided() -> None:
    choice = chosen(SimulatedRun(is_full=False))
    assert (choice.arm.name, choice.is_measured) == ("configured", False)
    assert "free slots" in choice.reason


def test_free_slots_now_and_then_are_no_reason_to_give_up() -> None:
    """Half of the time, for hours: what counts is that there is enough between."""
    made = Calibration(SimulatedRun(spec=TWO).arms, range(2), TWO, True)
    window = Window(0, made.wanted(0).name, 5.0, 5_000, True, 0, 0, 0, 0, 0)
    for _ in range(300):
        made.add(window)
        made.add(replace(window, is_full=False))
        made.add(replace(window, slot=1, arm=made.wanted(1).name, is_full=False, seconds=0.1))
    assert made.choice is None


def test_a_full_window_once_in_a_while_is_not_enough() -> None:
    made = Calibration(SimulatedRun(spec=TWO).arms, range(1), TWO, True)
    window = Window(0, made.wanted(0).name, 5.0, 5_000, True, 0, 0, 0, 0, 0)
    for _ in range(15):
        made.add(window)
        for _ in range(30):
            made.add(replace(window, is_full=False))
    assert made.choice is not None
    assert "free slots" in made.choice.reason


# --- what breaks ---------------------------------------------------------------------------------


@pytest.mark.parametrize("replicas", [1, 3])
def test_an_arm_whose_engine_fails_is_left_out(replicas: int) -> None:
    run = SimulatedRun(slots=4, replicas=replicas, fails={"tokens-1": replicas - 1})
    assert chosen(run).arm.name == "configured"
    assert run.starts <= run.spec.max_engine_starts


@pytest.mark.parametrize("replicas", [1, 3])
def test_without_its_draft_nothing_made_of_it_is_tried(replicas: int) -> None:
    run = SimulatedRun(slots=4, replicas=replicas, fails={"configured": 0})
    choice = chosen(run)
    assert (choice.arm.name, choice.is_measured) == ("off", False)
    assert "failed on replica 0" in choice.reason


@pytest.mark.parametrize(("replicas", "arms"), [(1, 2), (1, 4), (3, 4)])
def test_without_an_engine_for_off_the_configured_one_goes_on(replicas: int, arms: int) -> None:
    """That one setting of it beats another does not say that it pays."""
    spec = CalibrationSpec(arms=arms, max_engine_starts=12)
    slot = 0 if replicas == 1 else 1
    choice = chosen(SimulatedRun(slots=4, replicas=replicas, spec=spec, fails={"off": slot}))
    assert (choice.arm.name, choice.is_measured) == ("configured", False)
    assert f"the engine of 'off' failed on replica {slot}" in choice.reason


def test_off_is_not_needed_any_more_once_it_is_beaten() -> None:
    run = SimulatedRun(rate=relative(**{"configured": 2.0, "tokens-1": 2.0}))
    until_clearly_slower(run, "off")
    run.calibration.engine_failed(0, "off")
    assert chosen(run).is_measured
    assert run.loss() == 0.0


def is_open(run: SimulatedRun) -> bool:
    return run.calibration.choice is None


def until_clearly_slower(run: SimulatedRun, arm: str) -> None:
    """Until the others are compared without it."""
    while arm in run.calibration._alive():
        run.step()
        assert run.calibration.choice is None


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_what_was_slower_than_an_arm_that_failed_is_compared_again(replicas: int) -> None:
    run = SimulatedRun(replicas=replicas, rate=relative(**{"configured": 2.0, "tokens-1": 2.0}))
    until_clearly_slower(run, "off")
    run.calibration.engine_failed(0, "configured")
    choice = chosen(run)
    assert (choice.arm.name, choice.is_measured) == ("off", False)
    assert "the engine of 'configured' failed on replica 0" in choice.reason


@pytest.mark.parametrize("replicas", [1, 2, 3, 4])
def test_what_is_slower_than_off_is_not_chosen_because_it_is_all_that_is_left(replicas: int) -> None:
    spec = CalibrationSpec(arms=5, max_engine_starts=20)
    rate = relative(**{"configured": 2.0, "tokens-1": 2.0, "ngram-4": 0.5})
    run = SimulatedRun(replicas=replicas, spec=spec, rate=rate)
    until_clearly_slower(run, "off")
    run.calibration.engine_failed(0, "configured")
    choice = chosen(run)
    assert (choice.arm.name, choice.is_measured) == ("off", True)
    assert "failed on replica 0" in choice.reason


def test_a_setting_that_is_out_already_can_fail_too() -> None:
    """Replicas that take no part run the configured one even where it is slower."""
    spec = CalibrationSpec(arms=3, max_engine_starts=20)
    run = SimulatedRun(replicas=5, spec=spec, rate=relative(**{"configured": 0.5, "off": 1.0, "tokens-1": 1.01}))
    until_clearly_slower(run, "configured")
    run.calibration.engine_failed(4, "configured")
    assert run.calibration.wanted(4).name == "off"


def test_where_nothing_runs_it_falls_back_to_off() -> None:
    """With one draft behind all other arms, `configured` fails and takes them along; `off` was out before it."""
    spec = CalibrationSpec(arms=3, max_engine_starts=12)
    run = SimulatedRun(spec=spec, rate=relative(**{"configured": 2.0, "tokens-1": 2.0}))
    until_clearly_slower(run, "off")
    run.calibration.engine_failed(0, "off")
    assert is_open(run)
    run.calibration.engine_failed(0, "configured")
    choice = chosen(run)
    assert (choice.arm.name, choice.is_measured) == ("off", False)
    assert "no setting runs" in choice.reason
    assert "'off' failed" in choice.reason


@pytest.mark.parametrize("after_seconds", [0, 60, 200, 400])
@pytest.mark.parametrize("slot", [0, 1, 2])
@pytest.mark.parametrize("replicas", [2, 3, 4, 8])
def test_a_replica_that_is_lost_for_good_is_not_waited_for(slot: int, replicas: int, after_seconds: int) -> None:
    run = SimulatedRun(slots=4, replicas=replicas, speeds=UNEVEN, seed=after_seconds)
    while run.now < after_seconds and run.calibration.choice is None:
        run.step()
    run.lose(min(slot, replicas - 1))
    choice = chosen(run)
    assert run.now < 10_000
    if choice.is_measured:
        assert run.loss() <= 0.02
    else:
        assert "engine starts" in choice.reason
    assert run.starts <= run.spec.max_engine_starts + max(0, replicas - 2)


def test_with_starts_to_spare_the_others_measure_it_without_the_lost_one() -> None:
    for slot in (0, 1):
        run = SimulatedRun(slots=4, replicas=2, spec=CalibrationSpec(arms=2, max_engine_starts=12))
        run.step()
        run.lose(slot)
        choice = chosen(run)
        assert (choice.arm.name, choice.is_measured) == ("configured", True)


@pytest.mark.parametrize(("lost", "starts"), [([], 5), ([3], 4), ([3, 3], 4), ([2, 3], 3)])
def test_a_lost_replica_is_not_moved_at_the_end(lost: list[int], starts: int) -> None:
    """Two of four are compared: each changes its setting once, and at worst three are moved at the end."""
    made = Calibration(SimulatedRun(spec=TWO).arms, range(4), TWO, False)
    made.engine_started(0, "configured", 600.0)
    for slot in lost:
        made.slot_lost(slot)
    made.outlook(100.0)
    assert made.choice is not None
    assert f"takes {starts} more engine starts" in made.choice.reason


@pytest.mark.parametrize(
    ("joined", "left", "starts", "share"),
    [([], [], 5, 4), ([7], [], 6, 5), ([7, 8, 9], [], 8, 7), ([7, 8], [8, 8], 6, 5), ([1], [], 5, 4), ([3], [3], 4, 3)],
)
def test_one_that_joins_is_moved_at_the_end_and_costs_the_run_less(
    joined: list[int], left: list[int], starts: int, share: int
) -> None:
    made = Calibration(SimulatedRun(spec=TWO).arms, range(4), TWO, False)
    made.engine_started(0, "configured", 600.0)
    for slot in joined:
        made.slot_joined(slot)
    for slot in left:
        made.slot_lost(slot)
    made.outlook(100.0)
    assert made.choice is not None
    seconds = starts * (600.0 + TWO.window_seconds / 2) / share
    assert f"takes {starts} more engine starts, {seconds:,.0f} s" in made.choice.reason


def test_those_that_join_use_up_no_starts_and_nothing_of_them_counts() -> None:
    run = SimulatedRun(replicas=2, spec=TWO)
    joined = range(2, 40)
    for slot in joined:
        run.calibration.slot_joined(slot)
    while run.calibration.choice is None:
        run.step()
        for slot in joined:
            assert run.calibration.wanted(slot).name == "configured"
            run.calibration.add(Window(slot, "configured", 4.0, 400_000, True, 0, 0, 0, 0, 0))
        assert run.now < 50_000
    assert run.calibration.choice.is_measured
    assert run.loss() <= 0.02
    assert {one.slot for one in run.journal} == {0, 1}


def test_a_compared_replica_that_comes_back_is_a_bystander_and_the_last_one_is_waited_for() -> None:
    run = SimulatedRun(replicas=2, spec=TWO)
    made = run.calibration
    made.slot_left(1)
    made.slot_joined(1)
    assert made.has_joined(1)
    assert made.wanted(1).name == "configured"
    made.slot_left(0)
    made.slot_joined(0)
    assert made.choice is None
    assert not made.has_joined(0)
    made.slot_lost(0)
    assert made.choice is not None


def test_those_that_joined_tell_the_time_while_all_that_are_compared_say_nothing() -> None:
    run = SimulatedRun(replicas=2, spec=TWO, start_seconds=40.0)
    made, seconds = run.calibration, 0
    made.slot_left(1)
    made.slot_joined(1)
    made.engine_started(0, "configured", 40.0)
    while made.choice is None:
        made.add(Window(1, "configured", 4.0, 400_000, True, 0, 0, 0, 0, 0))
        seconds += 4
        assert seconds < 30 * TWO.window_seconds + 3 * 40 + 20, "they would say so for ever"
    assert "replica 0 has said nothing" in made.choice.reason
    assert seconds > 10 * TWO.window_seconds


def test_without_any_replica_that_takes_part_it_is_undecided() -> None:
    run = SimulatedRun(replicas=3, spec=TWO)
    run.calibration.slot_lost(2)
    run.calibration.slot_lost(1)
    run.calibration.slot_lost(1)
    assert is_open(run)
    run.calibration.slot_lost(0)
    choice = chosen(run)
    assert (choice.arm.name, choice.is_measured) == ("configured", False)
    assert "lost" in choice.reason


@pytest.mark.parametrize("after_seconds", [0, 80, 200])
def test_a_replica_that_says_nothing_is_not_waited_for_without_end(after_seconds: int) -> None:
    run = SimulatedRun(replicas=2, spec=TWO, start_seconds=40.0, is_required=True)
    while run.now < after_seconds:
        run.step()
    run.lose(1, is_said=False)
    choice = chosen(run)
    assert (choice.arm.name, choice.is_measured) == ("configured", False)
    assert "replica 1 has said nothing" in choice.reason
    assert run.now < after_seconds + 30 * 60 + 3 * 40 + 200


def test_a_slow_start_is_waited_for() -> None:
    """Half an hour, where the other one took ten seconds."""
    run = SimulatedRun(replicas=2, spec=TWO)
    made = Calibration(run.arms, range(2), TWO, False)
    made.engine_started(0, "configured", 10.0)
    for _ in range(180):
        made.add(Window(0, "configured", 10.0, 10_000, True, 0, 0, 0, 0, 0))
    assert made.choice is None


@pytest.mark.parametrize("after_seconds", range(50, 900, 90))
@pytest.mark.parametrize("replicas", [1, 2, 4])
@pytest.mark.parametrize("with_engines", [False, True], ids=["coordinator", "session"])
def test_a_restart_goes_on_from_what_was_measured(after_seconds: int, replicas: int, with_engines: bool) -> None:
    run = SimulatedRun(slots=8, replicas=replicas, seed=after_seconds, speeds=UNEVEN)
    while run.now < after_seconds:
        run.step()
    run.restart(with_engines=with_engines)
    run.until_settled()
    assert run.loss() <= 0.02
    assert run.starts <= run.spec.max_engine_starts


def test_what_was_measured_is_not_measured_again() -> None:
    run = SimulatedRun(slots=32)
    while len(run.journal) < 3:
        run.step()
    run.restart(with_engines=True)
    run.until_settled()
    assert len({one.stage for one in run.journal}) == len(run.journal)
    again = Calibration(run.arms, range(1), run.spec, False, run.journal)
    assert again.choice is not None
    assert again.choice == run.calibration.choice


# --- what is shown -------------------------------------------------------------------------------


@pytest.mark.parametrize("replicas", [1, 4])
def test_the_table_has_figures_for_every_arm(replicas: int) -> None:
    run = SimulatedRun(slots=16, replicas=replicas)
    choice = chosen(run)
    rows = {row.arm: row for row in choice.table}
    assert rows["off"].accept_length is None
    assert rows["configured"].accept_length == pytest.approx(2.1, abs=0.01)
    assert rows["tokens-1"].accept_length == pytest.approx(1.7, abs=0.01)
    for arm in run.arms[:3]:
        row = rows[arm.name]
        assert row.low < row.tokens_per_second < row.high
        assert row.tokens_per_second == pytest.approx(run.true_rate(arm), rel=0.06)
        assert row.prefix_hit_rate == pytest.approx(0.5, abs=0.01)
        assert row.prefill_tokens > 0
        assert row.seconds >= run.spec.window_seconds
    assert "'configured' makes" in choice.reason
    assert "against 'off'" in choice.reason


def test_ngram_is_compared_with_fewer_tokens_of_itself() -> None:
    run = SimulatedRun(slots=2, speculation=SpeculationSpec(method="ngram", num_tokens=2))
    assert chosen(run).arm.name == "configured"


def test_windows_beside_an_engine_that_starts_do_not_count() -> None:
    """Two replicas on one machine: while one loads, the other has more of it, or less."""
    run = SimulatedRun(replicas=2, spec=TWO)
    made = Calibration(run.arms, range(2), TWO, False)
    window = Window(0, made.wanted(0).name, 30.0, 30_000, True, 0, 0, 0, 0, 0)
    made.engine_started(0, window.arm, 10.0)
    for _ in range(40):
        made.add(window)
    assert made.newly_measured() == ()
    other = replace(window, slot=1, arm=made.wanted(1).name)
    made.engine_started(1, other.arm, 10.0)
    for _ in range(40):
        made.add(replace(window, output_tokens=15_000))
        made.add(other)
        if measured := made.newly_measured():
            break
    assert {one.slot: one.rate for one in measured} == {0: pytest.approx(500), 1: pytest.approx(1000)}
