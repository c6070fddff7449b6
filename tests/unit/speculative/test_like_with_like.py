"""When a comparison says something: not before it is precise enough, and not for one window."""

from __future__ import annotations

import pytest

from regen.records import Acceptance
from regen.speculative.alarm import Alarm
from regen.speculative.like_with_like import (
    LEARNED_ROWS,
    RAISE_WINDOWS,
    RECENT_ROWS,
    WINDOW_ROWS,
    Comparison,
    Expectation,
    Recent,
    Sums,
    bucket,
    bucket_name,
    is_learned,
    is_usable,
)


def rows_to_close(comparison: Comparison, expectation: Expectation, most: int = 2_000) -> int | None:
    for count in range(1, most):
        comparison.row(100, 100, expectation)
        if comparison.last is not None:
            return count
    return None


def sums(rows: int, *accepted: int, drafts: int = 100) -> Sums:
    whole = Sums()
    for index in range(rows):
        count = accepted[index % len(accepted)]
        whole.add(Acceptance(drafts, drafts, count, (count,)), count)
    return whole


def test_a_window_closes_when_its_error_is_a_third_of_what_it_is_to_find() -> None:
    """Rows a whole mean apart, a fifth to be found: 15 x 15 rows."""
    assert rows_to_close(Comparison(0.8), Expectation("cell", 1.0, 1.0, 0.0)) == pytest.approx(225, abs=2)
    assert rows_to_close(Comparison(0.4), Expectation("cell", 1.0, 1.0, 0.0)) == WINDOW_ROWS


def test_the_error_of_what_is_compared_with_does_not_average_out() -> None:
    assert rows_to_close(Comparison(0.8), Expectation("cell", 1.0, 1.0, 0.05**2)) == pytest.approx(514, abs=2)
    assert rows_to_close(Comparison(0.8), Expectation("cell", 1.0, 1.0, 0.07**2)) is None


def test_the_errors_of_many_cells_do() -> None:
    comparison = Comparison(0.8)
    for index in range(64):
        comparison.row(100, 100, Expectation(index, 1.0, 0.0, 0.1**2))
    assert comparison.last is not None


def test_one_bad_window_raises_nothing() -> None:
    comparison = Comparison(0.8)
    exact = Expectation("cell", 1.0, 0.0, 0.0)
    for window in range(1, RAISE_WINDOWS + 1):
        assert not comparison.is_raised
        for _ in range(WINDOW_ROWS):
            comparison.row(100, 70, exact)
        assert comparison.is_raised == (window == RAISE_WINDOWS)


def test_an_alarm_is_lifted_by_good_windows_and_not_by_fair_ones() -> None:
    alarm = Alarm(raise_after=2, lift_after=3)
    for bad, good, is_raised in [
        (True, False, False),
        (True, False, True),
        (False, False, True),
        (False, True, True),
        (False, True, True),
        (False, False, True),
        (False, True, True),
        (False, True, True),
        (False, True, False),
        (True, False, False),
    ]:
        alarm.window(bad=bad, good=good)
        assert alarm.is_raised == is_raised


def test_a_cell_is_usable_when_it_is_known_to_a_tenth() -> None:
    assert not is_usable(sums(63, 50))
    assert not is_usable(sums(64, 50, drafts=7))
    assert is_usable(sums(64, 40, 60))
    assert not is_usable(sums(64, 0, 0, 0, 100))


def test_a_cell_learns_on_until_it_is_well_known_or_for_long() -> None:
    assert not is_learned(sums(64, 20, 80))
    assert is_learned(sums(64, 45, 55))
    assert is_learned(sums(LEARNED_ROWS, 0, 0, 0, 0, 0, 0, 0, 0, 0, 100))


def test_recent_rows_are_the_last_ones() -> None:
    recent = Recent()
    for count in [50] * 1000 + [20] * 2 * RECENT_ROWS:
        recent.add(Acceptance(100, 100, count, (count,)), count)
    whole = Sums()
    recent.into(whole)
    assert whole.mean == pytest.approx(0.2)
    assert RECENT_ROWS <= whole.rows <= 2 * RECENT_ROWS


def test_buckets_are_named_by_their_tokens() -> None:
    bounds = (512, 2048)
    assert [bucket(tokens, bounds) for tokens in (0, 511, 512, 2047, 2048, 10**6)] == [0, 0, 1, 1, 2, 2]
    assert [bucket_name(index, bounds) for index in range(3)] == ["<512", "512-2047", ">=2048"]
