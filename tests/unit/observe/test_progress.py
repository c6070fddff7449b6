"""Rates and rough estimates, from samples alone."""

from regen.observe.progress import Pace, Progress, Sample


def test_nothing_is_said_before_two_samples() -> None:
    pace = Pace()
    assert pace.progress(10) == Progress(None, None)
    pace.add(Sample(0, 0, 0))
    assert pace.progress(10) == Progress(None, None)


def test_rate_and_rest_follow_from_the_window() -> None:
    pace = Pace(window_seconds=10)
    for second in range(100):
        pace.add(Sample(second, 1000 if second < 80 else 1000 + (second - 79) * 50, 10 + second))
    assert pace.progress(5).tokens_per_second == 50
    assert pace.progress(0).rough_seconds_left == 0


def test_a_stall_is_no_estimate() -> None:
    pace = Pace(window_seconds=10)
    for second in range(30):
        pace.add(Sample(second, 500, 5))
    assert pace.progress(10) == Progress(0.0, None)


def test_a_replaced_engine_counts_from_zero_and_starts_the_window_anew() -> None:
    pace = Pace()
    pace.add(Sample(0, 5000, 5))
    pace.add(Sample(1, 100, 6))
    pace.add(Sample(2, 200, 7))
    assert pace.progress(1).tokens_per_second == 100
