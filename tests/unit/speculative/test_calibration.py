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


def test_without_an_engine_for_off_the_configured_one_goes_on() -> None:
    choice = chosen(SimulatedRun(spec=TWO, fails={"off": 0}))
    assert (choice.arm.name, choice.is_measured) == ("configured", False)


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
    again = Calibration(run.arms, 1, run.spec, False, run.journal)
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
    made = Calibration(run.arms, 2, TWO, False)
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
