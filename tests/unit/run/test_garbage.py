"""Garbage from one replica, over simulated runs: found when it is there, and never when it is not."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest

from regen.records import Label, WorkerId
from regen.run.fleet import garbage
from regen.run.fleet.garbage import BREAKER_ROWS, LATEST_ROWS, MARGIN_ROWS, Alarm, GarbageWatch

SICK = WorkerId(1, 0)


@dataclass(frozen=True, slots=True)
class Noticed:
    """An alarm, and which rows the sick replica had made from its first on."""

    alarm: Alarm
    sick_rows: tuple[int, ...]


def simulated(
    draw: random.Random,
    replicas: int,
    base: float,
    rows: int,
    slots: int = 16,
    sick_after: int | None = None,
    sick_share: float = 0.0,
) -> Noticed | None:
    """Exchange after exchange, each of some rows; `sick_after` rows of its own, one replica gives garbage."""
    watch, made, sick_rows = GarbageWatch(slots), [0] * replicas, []
    sick = SICK.slot if replicas > 1 else 0
    ordinal = 0
    while ordinal < rows:
        for slot in draw.sample(range(replicas), replicas):
            batch: list[tuple[int, Label | None]] = []
            for _ in range(draw.randint(0, 6)):
                share = base
                if slot == sick and sick_after is not None and made[slot] >= sick_after:
                    share = sick_share
                    sick_rows.append(ordinal)
                batch.append((ordinal, Label.LOOP if draw.random() < share else None))
                made[slot] += 1
                ordinal += 1
            if (alarm := watch.finished(WorkerId(slot, 0), batch)) is not None:
                return Noticed(alarm, tuple(sick_rows))
    return None


@pytest.mark.parametrize("base", [0.0, 0.01, 0.05, 0.2])
def test_healthy_runs_raise_no_alarm(base: float) -> None:
    for seed in range(60):
        replicas = (1, 2, 3, 8)[seed % 4]
        assert simulated(random.Random(seed), replicas, base, rows=1500) is None, (seed, replicas)


@pytest.mark.parametrize(
    ("replicas", "base", "share", "at_most"),
    [
        (8, 0.01, 1.0, 30),
        (8, 0.01, 0.5, 60),
        (8, 0.01, 0.2, 200),
        (3, 0.01, 1.0, 45),
        (3, 0.2, 1.0, 120),
        (2, 0.0, 1.0, 50),
        (1, 0.05, 1.0, 50),
        (1, 0.01, 0.6, 300),
    ],
)
def test_a_replica_that_turns_is_noticed_soon_and_its_rows_named(
    replicas: int, base: float, share: float, at_most: int
) -> None:
    for seed in range(20):
        noticed = simulated(random.Random(seed), replicas, base, rows=6000, sick_after=200, sick_share=share)
        assert noticed is not None
        assert noticed.alarm.worker.slot == (SICK.slot if replicas > 1 else 0)
        assert len(noticed.sick_rows) <= at_most
        named = set(noticed.alarm.doubtful)
        assert sum(row in named for row in noticed.sick_rows) >= 0.8 * len(noticed.sick_rows)


def test_all_of_its_garbage_is_named_and_little_more() -> None:
    noticed = simulated(random.Random(3), 8, 0.0, rows=6000, sick_after=200, sick_share=1.0)
    assert noticed is not None
    assert set(noticed.sick_rows) <= set(noticed.alarm.doubtful)
    assert len(noticed.alarm.doubtful) <= len(noticed.sick_rows) + MARGIN_ROWS
    assert f"loop {noticed.alarm.garbage}" in noticed.alarm.found


def test_a_replica_that_is_faulty_from_its_first_row_is_noticed() -> None:
    noticed = simulated(random.Random(5), 3, 0.01, rows=3000, sick_after=0, sick_share=1.0)
    assert noticed is not None
    assert noticed.alarm.worker == SICK
    assert set(noticed.sick_rows) <= set(noticed.alarm.doubtful)


def test_loops_that_reach_the_cap_together_raise_no_alarm() -> None:
    """All slots begin at once: after a stretch of good rows, every loop of the first batch ends in the same moment."""
    for seed in range(4):
        for share in (0.05, 0.2):
            assert _with_times(random.Random(seed), 4, 128, partial(_same, share), rows=6000) is None


def _same(share: float, ordinal: int) -> float:
    return share


def test_a_source_full_of_bad_rows_raises_no_alarm() -> None:
    def share(ordinal: int) -> float:
        return 0.6 if 2000 <= ordinal < 4000 else 0.01

    for seed in range(6):
        assert _with_times(random.Random(seed), 3, 16, share, rows=6000) is None


def _with_times(
    draw: random.Random, replicas: int, slots: int, share: Callable[[int], float], rows: int
) -> Alarm | None:
    """Rows in the order of the plan, which take their time: garbage until the cap, ten times as long as others."""
    watch = GarbageWatch(slots)
    running: list[tuple[float, int, int, Label | None]] = []

    def begin(slot: int, ordinal: int, now: float) -> None:
        is_bad = draw.random() < share(ordinal)
        seconds = 10.0 + 0.01 * draw.random() if is_bad else draw.uniform(0.5, 1.5)
        heapq.heappush(running, (now + seconds, ordinal, slot, Label.LOOP if is_bad else None))

    for ordinal in range(replicas * slots):
        begin(ordinal % replicas, ordinal, 0.0)
    ordinal = replicas * slots
    unsaid: dict[int, list[tuple[int, Label | None]]] = {slot: [] for slot in range(replicas)}
    said_at = 0.0
    while running:
        now, done, slot, label = heapq.heappop(running)
        unsaid[slot].append((done, label))
        if ordinal < rows:
            begin(slot, ordinal, now)
            ordinal += 1
        if now - said_at > 0.3:
            said_at = now
            for teller, batch in unsaid.items():
                if (alarm := watch.finished(WorkerId(teller, 0), batch)) is not None:
                    return alarm
                batch.clear()
    return None


def test_after_an_alarm_alone_what_comes_is_measured_against_itself() -> None:
    """A source may have turned, not the engine: a second engine with the same share is no finding."""
    draw = random.Random(1)
    watch = GarbageWatch(8)
    rows = [(ordinal, None) for ordinal in range(1000)]
    assert watch.finished(WorkerId(0, 0), rows) is None
    assert watch.finished(WorkerId(0, 0), [(1000 + i, Label.WALL) for i in range(60)]) is not None
    for start in range(2000, 6000, 10):
        batch = [(start + i, Label.WALL if draw.random() < 0.8 else None) for i in range(10)]
        assert watch.finished(WorkerId(0, 1), batch) is None


def test_a_replica_alone_from_its_first_row_is_the_breakers_business() -> None:
    watch = GarbageWatch(8)
    for ordinal in range(BREAKER_ROWS):
        assert watch.too_much_garbage(0.5) is None
        assert watch.finished(WorkerId(0, 0), [(ordinal, Label.EMPTY_ANSWER)]) is None
    error = watch.too_much_garbage(0.5)
    assert error is not None
    assert f"{BREAKER_ROWS} of the latest {BREAKER_ROWS} rows" in str(error)
    assert f"empty_answer {BREAKER_ROWS}" in str(error)
    assert watch.too_much_garbage(None) is None


def test_the_breaker_looks_at_the_latest_rows_only() -> None:
    watch = GarbageWatch(8)
    bad: list[tuple[int, Label | None]] = [(i, Label.LOOP) for i in range(150)]
    watch.finished(WorkerId(0, 0), bad)
    watch.finished(WorkerId(0, 0), [(1000 + i, None) for i in range(200)])
    assert watch.too_much_garbage(0.5) is None
    watch.finished(WorkerId(0, 0), [(2000 + i, None) for i in range(LATEST_ROWS)])
    assert watch.too_much_garbage(0.01) is None


def test_what_a_replaced_engine_made_does_not_count_against_the_next() -> None:
    watch = GarbageWatch(16)
    for ordinal in range(2000):
        watch.finished(WorkerId(0, 0), [(ordinal, None)])
        if ordinal < 7:
            watch.finished(WorkerId(1, 0), [(10_000 + ordinal, Label.LOOP)])
    watch.gone(WorkerId(1, 0))
    assert watch.finished(WorkerId(1, 1), [(20_000 + i, Label.LOOP if i < 1 else None) for i in range(20)]) is None


def test_memory_is_bounded_whatever_comes() -> None:
    draw = random.Random(2)
    watch = GarbageWatch(8)
    for start in range(0, 40_000, 100):
        watch.finished(WorkerId(0, 0), [(start + i, Label.LOOP if draw.random() < 0.05 else None) for i in range(100)])
        watch.finished(WorkerId(1, 0), [(start + i, None) for i in range(100)])
        assert watch.remembered < 1000


def test_a_stretch_that_nothing_decides_about_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "MOST_DOUBTFUL", 100)
    watch = GarbageWatch(8)
    watch.finished(WorkerId(0, 0), [(0, None)])
    for ordinal in range(1, 1000):
        assert watch.finished(WorkerId(1, 0), [(ordinal, Label.LOOP)]) is None, "nobody else has made anything"
        assert watch.remembered <= 100 + 2 * MARGIN_ROWS


def test_a_replica_that_is_garbage_from_the_start_and_quicker_than_all_others_ends_no_run() -> None:
    """Empty answers take no time: it has made hundreds before anybody else has made one."""
    watch = GarbageWatch(64)
    assert watch.finished(WorkerId(0, 0), [(row, Label.EMPTY_ANSWER) for row in range(300)]) is None
    assert watch.too_much_garbage(0.5, replicas=2) is None
    assert watch.too_much_garbage(0.5, replicas=1) is not None, "nobody else is there"
    for row in range(40):
        watch.finished(WorkerId(1, 0), [(1000 + row, None)])
    assert watch.too_much_garbage(0.5, replicas=2) is None
    more = [(300 + row, Label.EMPTY_ANSWER) for row in range(64)]
    assert watch.finished(WorkerId(0, 0), more) is not None, "and it is found out"
    for row in range(200):
        watch.finished(WorkerId(1 + row % 2, 0), [(2000 + row, None)])
    assert watch.too_much_garbage(0.5, replicas=2) is None, "what it has made counts for nothing any more"


def test_garbage_of_a_replica_that_has_left_ends_no_run_of_the_one_that_stays() -> None:
    watch = GarbageWatch(64)
    for row in range(40):
        watch.finished(WorkerId(1, 0), [(1000 + row, None)])
    watch.finished(WorkerId(0, 0), [(row, Label.EMPTY_ANSWER) for row in range(300)])
    watch.gone(WorkerId(0, 0))
    assert watch.too_much_garbage(0.5, replicas=1) is None


@pytest.mark.parametrize("is_alone", [True, False])
def test_the_others_are_those_that_are_there(is_alone: bool) -> None:
    """A third of garbage: where nobody else shows that it need not be, it may be the source."""
    watch, alarms = GarbageWatch(8), []
    for row in range(600):
        watch.finished(WorkerId(row % 2, 0), [(row, None)])
    if is_alone:
        watch.gone(WorkerId(1, 0))
    for row in range(90):
        alarms.append(watch.finished(WorkerId(0, 0), [(5000 + row, Label.LOOP if row % 3 == 0 else None)]))
        if not is_alone:
            watch.finished(WorkerId(1, 0), [(7000 + row, None)])
    assert any(alarms) is not is_alone


def test_garbage_of_all_replicas_ends_the_run_also_where_one_is_quickest() -> None:
    watch = GarbageWatch(64)
    for row in range(300):
        watch.finished(WorkerId(0, 0), [(row, Label.EMPTY_ANSWER)])
        if row % 8 == 0:
            watch.finished(WorkerId(1, 0), [(1000 + row, Label.EMPTY_ANSWER)])
    assert watch.too_much_garbage(0.5, replicas=3) is not None
