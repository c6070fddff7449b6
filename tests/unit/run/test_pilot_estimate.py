"""What a sample says of the whole run: means by source, a range of hours, and silence where nothing is known."""

from __future__ import annotations

import pytest

from regen.run.commands.pilot_estimate import Estimate, Pace, Stratum, estimate

HALF_FULL = Pace(tokens=3600, seconds=36.0, busy_seconds=72.0)  # 100 tokens a second; 2 of 4 slots, 50 each


def made(strata: list[Stratum], pace: Pace | None = None, gpus: float = 0, price: float | None = None) -> Estimate:
    return estimate(strata, pace, slots=4, gpus=gpus, gpu_hour_price=price)


def test_each_source_goes_by_its_own_mean() -> None:
    found = made([Stratum(1000, [10, 30]), Stratum(10, [1000, 1000])])
    assert (found.rows, found.tokens) == (1010, 1000 * 20 + 10 * 1000)


def test_a_source_without_answers_goes_by_the_others() -> None:
    assert made([Stratum(100, [10, 10]), Stratum(50, [])]).tokens == 1500
    assert made([Stratum(50, [])]).tokens is None


def test_hours_lie_between_full_slots_and_how_the_sample_went() -> None:
    found = made([Stratum(3600, [100, 100])], HALF_FULL)
    assert found.hours == pytest.approx((0.5, 1.0))


def test_a_sample_that_filled_the_slots_gives_one_figure() -> None:
    found = made([Stratum(3600, [100, 100])], Pace(3600, 36.0, 4 * 36.0))
    assert found.hours == pytest.approx((1.0, 1.0))


def test_cost_needs_gpus_and_a_price() -> None:
    strata = [Stratum(3600, [100, 100])]
    assert made(strata, HALF_FULL, gpus=8, price=2.5).cost == pytest.approx((10.0, 20.0))
    assert made(strata, HALF_FULL, gpus=8).gpu_hours == pytest.approx((4.0, 8.0))
    assert made(strata, HALF_FULL, gpus=8).cost is None
    assert made(strata, HALF_FULL, price=2.5).cost is None
    assert made(strata, None, gpus=8, price=2.5).hours is None


def test_a_spread_is_told_only_where_rows_can_tell_it() -> None:
    assert made([Stratum(100, [10])]).tokens_give_or_take is None
    assert made([Stratum(1, [10])]).tokens_give_or_take == 0
    assert made([Stratum(2, [10, 90])]).tokens_give_or_take == 0, "every row was seen"
    # n = 2 of 100, variance 200: 1.96 * sqrt(0.98 * 100^2 * 200 / 2)
    assert made([Stratum(100, [10, 30])]).tokens_give_or_take == pytest.approx(1.96 * 989.949, rel=1e-4)
