"""How many rows are kept ready: a quarter, or as many as end at once."""

from __future__ import annotations

from regen.run.fleet.lookahead import Lookahead


def after(*ended_at: float) -> Lookahead:
    lookahead = Lookahead()
    for now in ended_at:
        lookahead.ended(now)
    return lookahead


def test_a_quarter_of_the_slots_before_anything_has_ended() -> None:
    assert after().rows(32) == 8
    assert after().rows(1) == 1


def test_a_quarter_where_rows_end_one_by_one() -> None:
    assert after(*range(100, 200)).rows(32) == 8


def test_as_many_as_ended_at_once() -> None:
    assert after(*([100.1] * 20)).rows(32) == 20


def test_a_wave_across_two_stretches_is_one() -> None:
    assert after(*([100.49] * 12), *([100.51] * 12)).rows(32) == 24


def test_two_waves_are_not_one() -> None:
    assert after(*([100.1] * 12), *([103.1] * 12)).rows(32) == 12


def test_never_more_than_as_many_again() -> None:
    assert after(*([100.1] * 500)).rows(32) == 32


def test_a_wave_of_long_ago_is_forgotten() -> None:
    assert after(*([100.1] * 20), *range(200, 330)).rows(32) == 8
