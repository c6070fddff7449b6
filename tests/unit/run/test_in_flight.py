"""How many rows a replica gives its engine while the cache is short of room."""

from __future__ import annotations

from itertools import pairwise

from regen.run.fleet.in_flight import TOLERATED_WASTE, EngineLoad, InFlight

HELD_PER_ROW = 100


class Engine:
    """What an engine would say of itself: each look finds a window's tokens more."""

    def __init__(self, slots: int = 64) -> None:
        self.control = InFlight(slots)
        self.made, self.set_back = 0, 0
        self.look(0, given=slots, running=slots)

    def look(
        self, set_back: int, given: int, running: int, kv_usage: float = 0.95, windows: float = 1.0, more: bool = True
    ) -> int | None:
        self.made += round(0.5 * given * HELD_PER_ROW * windows)
        self.set_back += set_back
        load = EngineLoad(running, kv_usage, self.made, self.set_back)
        self.control.look(load, given, given * HELD_PER_ROW, more)
        return self.control.limit

    def pressed(self, given: int, running: int) -> int | None:
        """Twice as much is computed again as is tolerated."""
        return self.look(round(2 * TOLERATED_WASTE * 0.5 * given), given, running)


def test_there_is_no_limit_before_anything_is_computed_again() -> None:
    engine = Engine()
    assert [engine.look(0, given=80, running=64, kv_usage=1.0) for _ in range(50)] == [None] * 50


def test_a_little_waste_is_no_reason() -> None:
    engine = Engine()
    assert engine.look(round(0.9 * TOLERATED_WASTE * 0.5 * 80), given=80, running=40) is None


def test_much_waste_limits_to_less_than_what_had_room() -> None:
    assert Engine().pressed(given=80, running=40) == 36


def test_a_look_that_comes_when_a_wave_has_ended_does_not_limit_to_what_is_left() -> None:
    engine = Engine()
    for _ in range(9):
        engine.look(0, given=80, running=44, windows=0.1)
    assert engine.pressed(given=80, running=4) == 40, "of 44 and 4"


def test_waste_is_counted_in_tokens_and_not_in_rows() -> None:
    few, many = Engine(), Engine()
    for engine, held_per_row in ((few, 10), (many, 1000)):
        load = EngineLoad(40, 1.0, engine.made + 40_000, preemptions=40)
        engine.control.look(load, 80, 80 * held_per_row, has_more=True)
    assert few.control.limit is None, "forty sequences of ten tokens each"
    assert many.control.limit is not None, "forty of a thousand"


def test_a_limit_falls_again_only_when_it_has_shown() -> None:
    engine = Engine()
    engine.pressed(given=80, running=40)
    assert [engine.pressed(given, running=36) for given in (60, 50, 40)] == [36] * 3
    assert engine.pressed(given=36, running=30) == 32


def test_it_never_falls_below_one_row() -> None:
    engine = Engine()
    engine.pressed(given=80, running=2)
    for _ in range(200):
        limit = engine.control.limit
        assert limit is not None
        engine.pressed(given=max(limit, 1), running=1)
    assert engine.control.limit == 1
    for _ in range(20):
        engine.look(0, given=1, running=1)
    assert engine.control.limit > 1, "and comes back from there"


def test_it_rises_slowly_and_ends_at_the_slots() -> None:
    engine = Engine()
    limits = [engine.pressed(given=80, running=20)]
    while limits[-1] is not None and len(limits) < 200:
        limits.append(engine.look(0, given=limits[-1], running=limits[-1]))
    numbers = [limit for limit in limits if limit is not None]
    assert len(numbers) < 200, "it recovers"
    assert numbers == sorted(numbers)
    assert max(after / before for before, after in pairwise(numbers)) < 1.12
    assert numbers[-1] > 60


def test_it_rises_faster_where_the_cache_has_room() -> None:
    full, roomy = Engine(), Engine()
    for engine, usage in ((full, 0.95), (roomy, 0.5)):
        engine.pressed(given=80, running=40)
        for _ in range(4):
            engine.look(0, given=36, running=36, kv_usage=usage)
    assert full.control.limit is not None
    assert roomy.control.limit is None or roomy.control.limit > full.control.limit + 10


def test_a_limit_that_nothing_waits_for_stays() -> None:
    engine = Engine()
    engine.pressed(given=80, running=40)
    assert [engine.look(0, given=10, running=10, more=False) for _ in range(20)] == [36] * 20


def test_it_is_not_judged_before_the_rows_have_moved() -> None:
    engine = Engine()
    assert engine.look(40, given=80, running=40, windows=0.5) is None
    assert engine.look(40, given=80, running=40, windows=0.6) is not None


def test_an_engine_that_counts_from_zero_again_begins_anew() -> None:
    engine = Engine()
    engine.pressed(given=80, running=40)
    engine.made, engine.set_back = 0, 0
    assert engine.look(0, given=36, running=36, windows=0.1) == 36
    assert engine.pressed(given=36, running=30) == 32
