"""When a run ends: against runs that are known to the end."""

import functools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

import pytest

from regen.observe.eta import Estimator
from regen.observe.length_curve import Curve, edges_to
from regen.observe.lengths import Group, Running
from regen.observe.speed import Beat, Speed
from regen.records import Eta, EtaState
from tests.simulated_run import (
    Session,
    Source,
    Stall,
    TrueLengths,
    Watch,
    drawn_rows,
    groups_of,
    resumed,
)

SOURCES = {
    "chat": Source(0.5, 1500, 0.8, 32_768),
    "code": Source(0.3, 2500, 0.9, 65_536),
    "math": Source(0.2, 5000, 0.8, 65_536),
}
ROWS, SLOTS, SEEDS = 1000, 256, 200
TIMES = (0.25, 0.5, 0.75)
# The first session's pace, and that of the one that goes on.
STEP_SECONDS, STEP_SECONDS_AFTER = 0.15, 0.2


@functools.cache
def resumed_runs() -> dict[float, list[tuple[float, Eta, Eta]]]:
    """By share of the whole run's time: (true seconds left, what is learned, what one says who knows), of each seed.

    Three sources over 256 slots; killed at 60 % of the rows; the second session has another pace, and stalls for ten
    minutes when a third of its time has passed.
    """
    runs: dict[float, list[tuple[float, Eta, Eta]]] = {at: [] for at in TIMES}
    for seed in range(SEEDS):
        rows = drawn_rows(SOURCES, ROWS, random.Random(seed))
        run = resumed(Session(rows, SLOTS, STEP_SECONDS), 0.6, STEP_SECONDS_AFTER, Stall(0.33, 600.0))
        learning = Estimator(groups_of(SOURCES))
        knowing = Estimator(groups_of(SOURCES), lengths=TrueLengths(SOURCES, run.interrupted))
        for row in run.done:
            learning.row_finished_before(row.group, row.tokens)
            knowing.row_finished_before(row.group, row.tokens)
        watch = Watch(run.session, (learning, knowing))
        total = run.seconds_before + run.session.seconds
        for at in TIMES:
            now = at * total - run.seconds_before
            seen = watch.until(now)
            ask = (now, seen.left(), seen.running())
            runs[at].append((run.session.seconds - now, learning.estimate(*ask), knowing.estimate(*ask)))
    return runs


def off(truth: float, eta: Eta) -> float:
    assert eta.mid_seconds is not None
    return abs(eta.mid_seconds - truth) / truth


@pytest.mark.parametrize("at", TIMES)
def test_it_is_about_as_near_as_one_who_knows_the_lengths(at: float) -> None:
    runs = resumed_runs()[at]
    learned = median(off(truth, eta) for truth, eta, _ in runs)
    known = median(off(truth, eta) for truth, _, eta in runs)
    print(f"at {at:.0%}: off by {learned:.2f}, knowing the lengths by {known:.2f}")
    assert learned <= 1.2 * known


@pytest.mark.parametrize("at", TIMES)
def test_the_true_end_is_in_the_range(at: float) -> None:
    runs = resumed_runs()[at]
    ranges = [(eta.low_seconds or 0.0, truth, eta.high_seconds or 0.0) for truth, eta, _ in runs]
    inside = sum(low <= truth <= high for low, truth, high in ranges) / SEEDS
    width = median(high / low for low, _, high in ranges)
    print(f"at {at:.0%}: inside in {inside:.0%}, from low to high x{width:.1f}")
    assert inside >= 0.75
    assert width < 8  # or it would say nothing


@functools.cache
def fresh_runs() -> list[tuple[float, float, Eta]]:
    """At half of the rows: (seconds so far, seconds left, what is said)."""
    found = []
    for seed in range(20):
        session = Session(drawn_rows(SOURCES, ROWS, random.Random(seed)), SLOTS, STEP_SECONDS)
        estimator = Estimator(groups_of(SOURCES))
        now = session.when_ended(ROWS // 2)
        seen = Watch(session, [estimator]).until(now)
        found.append((now, session.seconds - now, estimator.estimate(now, seen.left(), seen.running())))
    return found


def test_finished_rows_alone_say_a_fifth_at_half_of_the_rows() -> None:
    """What this is for: short rows end first."""
    naive = median((so_far + (eta.naive_seconds or math.inf)) / (so_far + left) for so_far, left, eta in fresh_runs())
    learned = median((so_far + (eta.mid_seconds or 0.0)) / (so_far + left) for so_far, left, eta in fresh_runs())
    assert 0.1 < naive < 0.3
    assert 0.75 < learned < 1.25


# --- one property at a time ----------------------------------------------------------------------


def even_run(estimator: Estimator, ended: int, tokens: int = 100, until: int = 60, slots: int = 4) -> None:
    """Slots that make ten tokens a second each, all busy, and rows that all have the same length."""
    for second in range(0, until + 1, 5):
        estimator.beat(Beat(second, second * slots * 10, slots, slots))
    for _ in range(ended):
        estimator.row_finished("a", tokens)


def mid(eta: Eta) -> float:
    assert eta.mid_seconds is not None
    return eta.mid_seconds


def test_nothing_is_said_before_rows_have_ended_and_tokens_have_come() -> None:
    estimator = Estimator({"a": Group(1000)})
    assert estimator.estimate(0.0, {"a": 50}, []) == Eta(EtaState.WARMING)
    even_run(estimator, ended=3)
    warming = estimator.estimate(60.0, {"a": 47}, [Running("a", 50, 4)])
    assert (warming.state, warming.mid_seconds, warming.high_seconds) == (EtaState.WARMING, None, None)
    unpaced = Estimator({"a": Group(1000)})
    for _ in range(50):
        unpaced.row_finished_before("a", 100)
    assert unpaced.estimate(60.0, {"a": 47}, []).state is EtaState.WARMING


def test_a_run_of_few_rows_does_not_warm_up_for_ever() -> None:
    estimator = Estimator({"a": Group(1000)})
    even_run(estimator, ended=2)
    assert estimator.estimate(60.0, {"a": 2}, [Running("a", 50, 2)]).state is EtaState.ESTIMATING


def test_what_finished_rows_say_is_told_beside_it() -> None:
    """Rows of earlier sessions are not among them."""
    estimator = Estimator({"a": Group(1000)})
    estimator.row_finished_before("a", 100)
    even_run(estimator, ended=20)
    assert estimator.estimate(90.0, {"a": 40}, [Running("a", 50, 4)]).naive_seconds == 180


def test_nothing_left_is_finished() -> None:
    estimator = Estimator({"a": Group(1000)})
    even_run(estimator, ended=20)
    assert estimator.estimate(60.0, {"a": 0}, []) == Eta(EtaState.FINISHED, 0.0, 0.0, 0.0, 0.0)


def test_the_queue_goes_by_work_over_slots() -> None:
    """Ten thousand rows of 100 tokens over four slots at ten tokens a second: 25,000 s."""
    estimator = Estimator({"a": Group(1000)})
    even_run(estimator, ended=400)
    eta = estimator.estimate(60.0, {"a": 10_000}, [Running("a", 50, 4)])
    assert mid(eta) == pytest.approx(25_000, rel=0.1)
    assert eta.low_seconds is not None
    assert eta.high_seconds is not None
    assert eta.low_seconds < mid(eta) < eta.high_seconds < 30_000


def test_rows_that_find_a_free_slot_begin_at_once() -> None:
    """Four rows of 100 tokens for four idle slots: ten seconds, give or take what a bin is wide."""
    estimator = Estimator({"a": Group(1000)})
    even_run(estimator, ended=400)
    assert 8 < mid(estimator.estimate(60.0, {"a": 4}, [])) < 13


def test_no_row_outlives_its_cap() -> None:
    """All that ended was cut at 1000 tokens. One row is at 900, and gets no more than ten seconds."""
    estimator = Estimator({"a": Group(1000)})
    even_run(estimator, ended=50, tokens=1000)
    eta = estimator.estimate(60.0, {"a": 1}, [Running("a", 900)])
    assert eta.high_seconds is not None
    assert 8 < mid(eta) <= eta.high_seconds < 11


def test_a_row_that_got_far_is_expected_to_get_farther() -> None:
    estimator = Estimator({"a": Group(100_000)})
    draw = random.Random(3)
    even_run(estimator, ended=0)
    for _ in range(200):
        estimator.row_finished("a", round(math.exp(draw.gauss(5, 1))))
    near = estimator.estimate(60.0, {"a": 1}, [Running("a", 100)])
    far = estimator.estimate(60.0, {"a": 1}, [Running("a", 3000)])
    assert mid(far) > 2 * mid(near)


def test_rows_that_run_say_how_long_rows_are() -> None:
    """The same rows have ended. Where many others are far beyond them, more is to come."""
    some, many = (Estimator({"a": Group(100_000)}) for _ in range(2))
    for estimator in (some, many):
        even_run(estimator, ended=0, slots=64)
        for tokens in range(50, 150):
            estimator.row_finished("a", tokens)
    begun = some.estimate(60.0, {"a": 2000}, [Running("a", 20, 64)])
    beyond = many.estimate(60.0, {"a": 2000}, [Running("a", 2000, 64)])
    assert mid(beyond) > 2 * mid(begun)


def test_rows_are_as_long_as_their_group() -> None:
    estimator = Estimator({"a": Group(10_000), "b": Group(10_000)})
    even_run(estimator, ended=200)
    for _ in range(200):
        estimator.row_finished("b", 1000)
    short = estimator.estimate(60.0, {"a": 1000, "b": 0}, [Running("a", 50, 4)])
    long = estimator.estimate(60.0, {"a": 0, "b": 1000}, [Running("b", 50, 4)])
    assert mid(long) == pytest.approx(10 * mid(short), rel=0.25)


def test_a_group_without_rows_goes_by_the_others_turn_by_turn() -> None:
    groups = {"a": Group(10_000), "one": Group(10_000), "ten": Group(10_000, turns=10)}
    estimator = Estimator(groups)
    even_run(estimator, ended=200)
    one = estimator.estimate(60.0, {"one": 1000}, [])
    ten = estimator.estimate(60.0, {"ten": 1000}, [])
    assert mid(ten) == pytest.approx(10 * mid(one), rel=0.3)
    assert ten.low_seconds is not None
    assert ten.high_seconds is not None
    assert ten.high_seconds > 1.5 * ten.low_seconds


def test_earlier_sessions_are_in_no_rate() -> None:
    """A million tokens were made before: this session makes forty a second all the same."""
    estimator = Estimator({"a": Group(1000)})
    for _ in range(10_000):
        estimator.row_finished_before("a", 100)
    even_run(estimator, ended=0)
    eta = estimator.estimate(60.0, {"a": 10_000}, [Running("a", 50, 4)])
    assert mid(eta) == pytest.approx(25_000, rel=0.1)
    assert eta.naive_seconds is None


def test_a_stall_is_said_and_moves_the_end_by_itself_only() -> None:
    estimator = Estimator({"a": Group(1000)})
    even_run(estimator, ended=400)
    left, running = {"a": 10_000}, [Running("a", 50, 4)]
    before = estimator.estimate(60.0, left, running)
    for second in range(65, 660, 5):
        estimator.beat(Beat(second, 60 * 40, 4, 4))
    assert estimator.estimate(100.0, left, running).state is EtaState.ESTIMATING
    during = estimator.estimate(659.0, left, running)
    assert during.state is EtaState.STALLED
    assert during.mid_seconds == before.mid_seconds
    for second in range(660, 721, 5):
        estimator.beat(Beat(second, 60 * 40 + (second - 655) * 40, 4, 4))
    after = estimator.estimate(720.0, left, running)
    assert after.state is EtaState.ESTIMATING
    assert mid(after) == pytest.approx(mid(before), rel=0.01)


def test_an_engine_that_tells_of_tokens_in_large_steps_is_not_stalled() -> None:
    estimator = Estimator({"a": Group(1000)})
    for second in range(601):
        estimator.beat(Beat(second, second // 30 * 30 * 40, 4, 4))
    for _ in range(400):
        estimator.row_finished("a", 100)
    eta = estimator.estimate(600.0, {"a": 10_000}, [Running("a", 50, 4)])
    assert eta.state is EtaState.ESTIMATING
    assert mid(eta) == pytest.approx(25_000, rel=0.1)


def test_a_count_that_falls_begins_anew() -> None:
    """Tokens of a lost engine were not useful after all."""
    estimator = Estimator({"a": Group(1000)})
    even_run(estimator, ended=400)
    unbroken = mid(estimator.estimate(60.0, {"a": 10_000}, [Running("a", 50, 4)]))
    for second in range(65, 121, 5):
        estimator.beat(Beat(second, (second - 65) * 40, 4, 4))
    assert mid(estimator.estimate(120.0, {"a": 10_000}, [Running("a", 50, 4)])) == pytest.approx(unbroken, rel=0.001)


def test_a_batch_that_costs_less_as_it_empties_ends_sooner() -> None:
    """A full step takes three times a lone one. Seen at half the slots, it is known before."""
    costly, even = Estimator({"a": Group(10_000)}), Estimator({"a": Group(10_000)})
    for estimator, cost in ((costly, 2.0), (even, 0.0)):
        made = 0.0
        for second in range(0, 601, 5):
            busy = 100 if second < 300 else 50
            estimator.beat(Beat(second, int(made), busy, 100))
            made += 5 * busy * 10 / (1 + cost * busy / 100)
        for _ in range(400):
            estimator.row_finished("a", 10_000)
    one = {"a": 1}, [Running("a", 5000)]
    assert mid(even.estimate(600.0, *one)) == pytest.approx(500, rel=0.1)
    assert mid(costly.estimate(600.0, *one)) == pytest.approx(500, rel=0.15)


def test_the_same_question_has_the_same_answer() -> None:
    estimator = Estimator({"a": Group(1000)})
    even_run(estimator, ended=20)
    ask = (60.0, {"a": 100}, [Running("a", 50, 4)])
    assert estimator.estimate(*ask) == estimator.estimate(*ask)


def test_more_slots_end_sooner() -> None:
    estimator = Estimator({"a": Group(1000)})
    even_run(estimator, ended=400)
    left, running = {"a": 10_000}, [Running("a", 50, 4)]
    before = mid(estimator.estimate(60.0, left, running))
    estimator.beat(Beat(61, 61 * 40, 4, 8))
    assert mid(estimator.estimate(61.0, left, running)) < 0.65 * before


class CountingCurve(Curve):
    """How often it was looked at."""

    looks = 0

    def above(self, tokens: float) -> float:
        CountingCurve.looks += 1
        return super().above(tokens)


class CountedLengths:
    """`LengthModel` of one curve."""

    def __init__(self) -> None:
        edges = edges_to(16_384)
        self._curves = {"a": CountingCurve(edges, [math.exp(-edge / 1000) for edge in edges])}

    def saw(self, group: str, tokens: int, is_earlier: bool, rows: int = 1) -> None:
        pass

    def guesses(self, running: Sequence[Running], count: int) -> Iterator[Mapping[str, Curve]]:
        return iter([self._curves] * (count + 1))


def test_a_long_queue_costs_no_more_than_a_short_one() -> None:
    """83,000 rows of 1000 tokens over 2048 slots, thirty tokens a second each: 1350 s, and the last rows."""
    estimator = Estimator({"a": Group(16_384)}, lengths=CountedLengths())
    for _ in range(20):
        estimator.row_finished("a", 1000)
    for second in (0, 30, 60):
        estimator.beat(Beat(second, second * 2048 * 30, 2048, 2048))
    running = [Running("a", tokens) for tokens in range(2048)]
    looks = []
    for left in (5000, 83_000):
        CountingCurve.looks = 0
        eta = estimator.estimate(60.0, {"a": left}, running)
        looks.append(CountingCurve.looks)
    assert 1350 < mid(eta) < 1350 + 16_384 / 30
    assert looks[1] < 1.5 * looks[0]
    assert looks[1] < 30_000


# --- how engines tell of tokens ------------------------------------------------------------------


def stepwise(speed: Speed, until: int, slots: int = 16, start_seconds: int = 0, step_tokens: int = 64) -> None:
    """Each sequence makes ten tokens a second and tells of 64 at a time; short answers end in between."""
    tellings = sorted(
        (start_seconds + 6.4 * turn + (slot % 4) * 0.4, step_tokens) for slot in range(slots) for turn in range(1, 200)
    )
    made = 0
    for second in range(until + 1):
        while tellings and tellings[0][0] <= second:
            made += tellings.pop(0)[1]
        is_at_work = second >= start_seconds
        speed.add(Beat(second, made, slots if is_at_work else 0, slots if is_at_work else 0))


@pytest.mark.parametrize("start_seconds", [0, 20, 300])
def test_large_steps_and_a_start_do_not_bend_the_rate(start_seconds: int) -> None:
    """A tenth of a second a token, whatever came in which second, and however long the engines loaded."""
    for worked in (40, 60, 300):
        speed = Speed(60.0)
        stepwise(speed, start_seconds + worked, start_seconds=start_seconds)
        assert speed.is_known
        assert speed.seconds(1000, 16_000, 16) == pytest.approx(100, rel=0.1)


def test_nothing_is_said_of_the_first_seconds() -> None:
    speed = Speed(60.0)
    stepwise(speed, 12)
    assert not speed.is_known


def test_engines_that_start_are_not_stalled_and_those_that_never_answer_are() -> None:
    estimator = Estimator({"a": Group(1000)})
    for second in range(301):
        estimator.beat(Beat(second, 0, 0, 0))
    assert estimator.estimate(300.0, {"a": 9}, []).state is EtaState.WARMING
    for second in range(301, 367):
        estimator.beat(Beat(second, 0, 4, 4))
    assert estimator.estimate(355.0, {"a": 9}, []).state is EtaState.WARMING
    assert estimator.estimate(366.0, {"a": 9}, []) == Eta(EtaState.STALLED)


def test_engines_that_start_again_are_not_stalled_and_have_their_time_for_a_first_token() -> None:
    """A calibration starts them for each of its arms, and a large model takes a quarter of an hour to load."""
    speed = Speed(60.0)
    for second in range(120):
        speed.add(Beat(second, 500 * second, 8, 8))
    for second in range(120, 1000):
        speed.add(Beat(second, 500 * 119, 0, 0))
        assert not speed.is_stalled(second)
    for second in range(1000, 1062):
        speed.add(Beat(second, 500 * 119, 8, 8))
        assert speed.is_stalled(second) == (second > 1060)


def test_slots_to_come_count() -> None:
    """Half of the engines are being replaced: the queue goes as fast as with all of them."""
    estimator = Estimator({"a": Group(1000)})
    even_run(estimator, ended=400)
    left, running = {"a": 10_000}, [Running("a", 50, 4)]
    now = mid(estimator.estimate(60.0, left, running))
    assert mid(estimator.estimate(60.0, left, running, slots=8)) == pytest.approx(now / 2, rel=0.1)


def test_rows_told_at_once_are_as_good_as_one_by_one() -> None:
    one_by_one, at_once = Estimator({"a": Group(1000)}), Estimator({"a": Group(1000)})
    for tokens in (50, 100, 200, 1000):
        for _ in range(30):
            one_by_one.row_finished_before("a", tokens)
        at_once.row_finished_before("a", tokens, rows=30)
    for estimator in (one_by_one, at_once):
        even_run(estimator, ended=0)
    left = {"a": 500}
    assert mid(one_by_one.estimate(60.0, left, [])) == pytest.approx(mid(at_once.estimate(60.0, left, [])))
