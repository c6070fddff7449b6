"""Lengths of rows, of which many are seen only in part."""

import math
import random
from collections.abc import Sequence

import pytest

from regen.observe.length_curve import Curve, edges_to
from regen.observe.lengths import Group, Lengths, Running, gathered
from regen.observe.lognormal import Belief, Evidence, learned
from tests.simulated_run import AGAIN, Session, Source, Stall, drawn_rows, resumed

VAGUE = Belief(6.0, 0.0, 100.0, 0.0, 10.0)


def evidence(logs: Sequence[float], stopped_at: Sequence[float]) -> Evidence:
    """Rows of which each was watched so far and no farther."""
    ended = [log for log, stop in zip(logs, stopped_at, strict=True) if log <= stop]
    cut = [(stop, 1.0) for log, stop in zip(logs, stopped_at, strict=True) if log > stop]
    return Evidence(len(ended), sum(ended), sum(log * log for log in ended), cut)


def middle(lengths: Lengths, group: str, running: Sequence[Running] = ()) -> Curve:
    return next(lengths.guesses(running, 0))[group]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("watched", [5.5, 7.0, 9.0])
def test_rows_seen_in_part_do_not_bend_the_fit(seed: int, watched: float) -> None:
    """True mean 7 and spread 1.2, of ln(tokens): found within what the fit itself thinks it may be off, times four."""
    draw = random.Random(seed)
    logs = [draw.gauss(7.0, 1.2) for _ in range(400)]
    belief = learned(VAGUE, evidence(logs, [watched + draw.uniform(-1, 1) for _ in logs]))
    assert abs(belief.mu - 7.0) < 4 * math.sqrt(belief.mu_variance)
    assert abs(belief.log_sigma - math.log(1.2)) < 4 * math.sqrt(belief.log_sigma_variance)
    assert math.sqrt(belief.mu_variance) < 0.6


def test_the_less_was_seen_the_less_is_sure() -> None:
    logs = [random.Random(1).gauss(7.0, 1.2) for _ in range(400)]
    short, long = (learned(VAGUE, evidence(logs, [at] * len(logs))) for at in (6.0, 9.0))
    assert short.mu_variance > 2 * long.mu_variance


@pytest.mark.parametrize("extreme", [-50.0, 0.0, 50.0])
def test_no_rows_or_absurd_ones_leave_numbers(extreme: float) -> None:
    for seen in (Evidence(0, 0.0, 0.0, []), Evidence(3, 3 * extreme, 3 * extreme**2, [(20.0, 500.0)])):
        belief = learned(VAGUE, seen)
        for value in (belief.mu, belief.log_sigma, *belief.at(1.0, -1.0)):
            assert math.isfinite(value)
        assert belief.mu_variance > 0
        assert belief.log_sigma_variance > 0


def test_lengths_of_two_kinds_are_no_lognormal() -> None:
    """Half of the rows are short, half loop to the cap: what was seen often is believed as it is."""
    lengths = Lengths({"a": Group(10_000)})
    for _ in range(1000):
        lengths.saw("a", 100, is_earlier=False)
        lengths.saw("a", 10_000, is_earlier=False)
    curve = middle(lengths, "a")
    assert curve.above(1000) == pytest.approx(0.5, abs=0.03)
    assert curve.above(9999) == pytest.approx(0.5, abs=0.06)
    assert curve.made(math.inf) == pytest.approx(5050, rel=0.05)


def test_nothing_is_longer_than_the_cap_and_curves_only_fall() -> None:
    lengths = Lengths({"a": Group(5000), "tiny": Group(3)})
    lengths.saw("a", 40, is_earlier=False)
    for curves in lengths.guesses([Running("a", 4999), Running("a", 0), Running("tiny", 2)], 10):
        for curve, cap in ((curves["a"], 5000), (curves["tiny"], 3)):
            shares = [curve.above(tokens) for tokens in range(0, cap, max(1, cap // 100))]
            assert shares == sorted(shares, reverse=True)
            assert all(0 < share <= 1 for share in shares)
            assert curve.above(cap) == 0
            assert curve.made(math.inf) <= cap


def test_where_rows_stop_is_the_inverse_of_what_they_make() -> None:
    curve = Curve(edges_to(5000), [math.exp(-edge / 800) for edge in edges_to(5000)])
    for tokens in (1, 8, 100, 1234, 4999):
        assert curve.stopped_after(curve.made(tokens)) == pytest.approx(tokens, rel=0.05)
    assert curve.made(math.inf) == pytest.approx(800, rel=0.01)


def test_rows_that_were_interrupted_are_longer_than_others() -> None:
    """A session that ran for long and was killed: its rows in work are made again, and nothing is seen of them yet."""
    draw = random.Random(5)
    lengths = Lengths({"a": Group(65_536), "again": Group(65_536, interrupted_of="a")})
    for _ in range(5000):
        lengths.saw("a", round(math.exp(draw.gauss(6, 1))), is_earlier=True)
    curves = next(lengths.guesses([Running("again", 1, 64)], 0))
    ratio = curves["again"].made(math.inf) / curves["a"].made(math.inf)
    assert ratio == pytest.approx(math.e, rel=0.2)  # of lognormal lengths: the exponential of the variance


def test_rows_that_ended_before_a_kill_do_not_pass_for_all() -> None:
    """The longest were in work when the session was killed, and have just begun again."""
    draw = random.Random(5)
    source = Source(1.0, 2000, 1.0, 65_536)
    first = Session(drawn_rows({"a": source}, 4000, draw), slots=1024, step_seconds=1.0)
    run = resumed(first, 0.4, 1.0, Stall(0.5, 0.0))
    lengths = Lengths({"a": Group(65_536), AGAIN + "a": Group(65_536, interrupted_of="a")})
    for row in run.done:
        lengths.saw("a", row.tokens, is_earlier=True)
    mean_of_done = sum(row.tokens for row in run.done) / len(run.done)
    curve = middle(lengths, "a", [Running(AGAIN + "a", 10, len(run.interrupted))])
    truth = source.curve().made(math.inf)
    assert mean_of_done < 0.6 * truth
    assert 1.25 * mean_of_done < curve.made(math.inf) < truth


def test_few_rows_are_smoothed() -> None:
    """Three rows do not mean that no other one is longer than the longest."""
    lengths = Lengths({"a": Group(10_000)})
    for tokens in (50, 100, 200):
        lengths.saw("a", tokens, is_earlier=False)
    assert 0.02 < middle(lengths, "a").above(300) < 0.4


def test_what_lies_beyond_all_that_was_seen_is_never_sure() -> None:
    """Thousands of rows fix the fit, and not that rows far out end as fitted."""
    lengths = Lengths({"a": Group(10_000)})
    draw = random.Random(2)
    for _ in range(5000):
        lengths.saw("a", round(math.exp(draw.gauss(5, 0.5))), is_earlier=False)
    going_on = [curves["a"].above(1600) / curves["a"].above(1200) for curves in lengths.guesses([], 24)]
    assert max(going_on) > 1.8 * min(going_on)


def test_rows_that_go_on_beyond_the_fit_are_taken_to_go_on() -> None:
    """Many short rows of one kind; fifty others have come far beyond, and none of those has ended yet."""
    lengths = Lengths({"a": Group(100_000)})
    draw = random.Random(2)
    for _ in range(2000):
        lengths.saw("a", round(math.exp(draw.gauss(6, 0.5))), is_earlier=False)
    curve = middle(lengths, "a", [Running("a", 10_000, 50)])
    assert curve.above(20_000) / curve.above(10_000) > 0.5


def test_rows_in_one_bin_are_gathered() -> None:
    rows = [Running("a", 100), Running("a", 102, 2), Running("b", 100), Running("a", 5000)]
    assert gathered(rows) == [Running("a", 101, 3), Running("b", 100), Running("a", 5000)]
