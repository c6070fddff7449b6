from regen.observe.rate import RecentRate


def test_nothing_is_said_before_tokens_came() -> None:
    rate = RecentRate()
    assert rate.per_second is None
    rate.add(0.0, 0)
    rate.add(60.0, 0)
    assert rate.per_second is None


def test_it_is_that_of_the_window_and_falls_to_zero_in_a_stall() -> None:
    rate = RecentRate(window_seconds=10)
    for second in range(101):
        rate.add(second, 1000 + 50 * second)
    assert rate.per_second == 50.0
    rate.add(105.0, 6000)
    assert rate.per_second == 25.0
    rate.add(120.0, 6000)
    assert rate.per_second == 0.0


def test_a_count_that_falls_begins_anew() -> None:
    rate = RecentRate()
    rate.add(0.0, 5000)
    rate.add(1.0, 10)
    assert rate.per_second is None
    rate.add(2.0, 20)
    assert rate.per_second == 10.0


def test_memory_is_a_sample_a_second() -> None:
    rate = RecentRate(window_seconds=10)
    for tick in range(1000):
        rate.add(tick * 0.1, tick)
    assert len(rate._samples) < 15
