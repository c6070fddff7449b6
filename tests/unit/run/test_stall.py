"""The stall clock: only tokens count, waiting is not stalling, idle is not stalling."""

from regen.run.fleet.stall import StallClock


def test_idle_is_not_stalled() -> None:
    clock = StallClock(10)
    assert not clock.is_stalled(10_000)


def test_a_busy_replica_without_a_token_is_stalled() -> None:
    clock = StallClock(10)
    clock.submitted(1, now=100)
    assert not clock.is_stalled(110)
    assert clock.is_stalled(110.1)


def test_the_clock_of_a_replica_starts_when_it_becomes_busy() -> None:
    clock = StallClock(10)
    clock.submitted(1, now=0)
    clock.tokens(1, now=1)
    clock.ended(1)
    clock.submitted(2, now=500)
    assert not clock.is_stalled(509)


def test_a_row_that_waits_for_a_slot_is_not_stalled() -> None:
    clock = StallClock(10)
    clock.submitted(1, now=0)
    clock.submitted(2, now=0)
    for now in range(0, 100, 5):
        clock.tokens(1, now=now)
    assert clock.stalled_rows(100) == ()
    assert not clock.is_stalled(100)


def test_a_row_overtaken_by_a_later_one_is_on_the_clock() -> None:
    clock = StallClock(10)
    clock.submitted(1, now=0)
    clock.submitted(2, now=0)
    clock.tokens(2, now=20)
    assert clock.stalled_rows(30) == ()
    clock.tokens(2, now=30)
    assert clock.stalled_rows(30.1) == (1,)


def test_a_row_that_stops_in_the_middle_is_stalled_while_others_go_on() -> None:
    clock = StallClock(10)
    clock.submitted(1, now=0)
    clock.submitted(2, now=0)
    clock.tokens(1, now=1)
    clock.tokens(2, now=11.5)
    assert clock.stalled_rows(11.5) == (1,)
    assert not clock.is_stalled(12)


def test_giving_up_a_row_is_no_progress() -> None:
    clock = StallClock(10)
    clock.submitted(1, now=0)
    clock.submitted(2, now=0)
    clock.ended(1)
    assert clock.is_stalled(10.5)
