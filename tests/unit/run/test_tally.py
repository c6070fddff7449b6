"""The tally: what was published never falls, never counts twice, and goes on in the next coordinator and session."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regen.records import (
    EngineCounters,
    FailedAttempt,
    ReplicaState,
    ReplicaStats,
    RetryReason,
    SlotState,
    Tally,
    WorkerId,
)
from regen.run.progress.tally import RunningTally, restarted, sequences
from regen.store import control
from regen.store.control import RunTally, Standing
from regen.store.tally import newest_tally, tally_of

SLOTS, SEQUENCES = 3, 4


def counters(output: int, prompt: int = 0, hits: int = 0, preemptions: int = 0) -> EngineCounters:
    return EngineCounters(output_tokens=output, prompt_tokens=prompt, prefix_hit_tokens=hits, preemptions=preemptions)


def read_back(record: RunTally) -> RunTally:
    """As the next coordinator finds it."""
    found = control.from_json(json.loads(json.dumps(control.to_json(record))), "test")
    assert isinstance(found, RunTally)
    return found


def told(tally: RunningTally) -> Tally:
    return tally_of(read_back(tally.record()))


# --- any order of events -------------------------------------------------------------------------

slots = st.integers(0, SLOTS - 1)
steps = st.one_of(
    st.tuples(st.just("sample"), slots, st.integers(0, 50)),
    st.tuples(st.just("old reading"), slots, st.integers(1, 50)),
    st.tuples(st.just("replace"), slots, st.booleans()),
    st.tuples(st.just("told twice"), slots, st.just(0)),
    st.tuples(st.just("fail"), slots, st.sampled_from(["stalled", "engine_error", "never heard of"])),
    st.tuples(st.just("store"), st.just(0), st.integers(0, 3)),
    st.tuples(st.just("tick"), slots, st.integers(1, 20)),
    st.tuples(st.just("publish"), st.just(0), st.just(0)),
    st.tuples(st.just("restart"), st.just(0), st.just(0)),
    st.tuples(st.just("session"), st.just(0), st.just(0)),
)


class World:
    """Engines that count, coordinators that hear of it and end, and what has truly happened."""

    def __init__(self) -> None:
        self.session, self.now, self.store_failures = 0, 0.0, 0
        self.published: list[RunTally] = []
        self.true: Counter[str] = Counter()
        self.seconds: Counter[tuple[int, SlotState]] = Counter()
        self.coordinator = RunningTally("s0", ())
        self.engines = {slot: (WorkerId(slot, 0), 0) for slot in range(SLOTS)}
        self.coordinators = 0
        self._begin_coordinator(())

    def _begin_coordinator(self, records: tuple[RunTally, ...]) -> None:
        self.coordinators += 1
        self.store_failures = 0
        self.coordinator = RunningTally(f"s{self.session}", records)
        self.coordinator.look(self.now, {})
        for slot in range(SLOTS):
            self._say(slot)

    def _say(self, slot: int) -> None:
        worker, sampled = self.engines[slot]
        self.coordinator.heard(worker, counters(sampled, 2 * sampled, sampled, sampled // 2))

    def do(self, step: tuple[str, int, object]) -> None:
        what, slot, value = step
        worker, sampled = self.engines[slot]
        match what:
            case "sample":
                self.engines[slot] = (worker, sampled + int(str(value)))
                self.true["sampled"] += int(str(value))
                self._say(slot)
            case "old reading":
                self.coordinator.heard(worker, counters(max(0, sampled - int(str(value)))))
                if worker.incarnation:
                    self.coordinator.heard(replace(worker, incarnation=worker.incarnation - 1), counters(10**6))
            case "replace":
                self._replace(slot, bool(value))
            case "told twice":
                if worker.incarnation:
                    self.coordinator.gone(replace(worker, incarnation=worker.incarnation - 1), True)
            case "fail":
                reason = str(value)
                self.coordinator.failed(slot, [FailedAttempt(1, reason, "")])
                self.true["other" if reason == "never heard of" else reason] += 1
                self.true["stalls"] += reason == "stalled"
            case "store":
                self.store_failures += int(str(value))
                for _ in range(2):  # each tick tells it
                    self.coordinator.store_failed(self.store_failures)
                self.true["store_errors"] += int(str(value))
            case "tick":
                self.now += int(str(value)) / 5
                self.coordinator.look(self.now, {slot: {SlotState.BUSY: 3, SlotState.STARVED: 1}})
                self.seconds[slot, SlotState.BUSY] += 3 * int(str(value)) / 5  # type: ignore[assignment]
            case "publish":
                self.publish()
            case "restart":
                self.true["coordinator_restarts"] += 1
                self.published += map(read_back, restarted(f"s{self.session}", self.published))
                self._begin_coordinator((self.published[-1],))
            case "session":
                self.session += 1
                self.engines = {one: (WorkerId(one, 0), 0) for one in range(SLOTS)}
                self.true["starts"] += SLOTS
                self._begin_coordinator(tuple(self.published[-1:]))

    def _replace(self, slot: int, is_stall: bool) -> None:
        worker, _ = self.engines[slot]
        for _ in range(2):  # calls are repeated
            self.coordinator.gone(worker, is_stall)
        self.true["stalls"] += is_stall
        self.true["starts"] += 1
        self.true["restarts"] += 1
        self.engines[slot] = (WorkerId(slot, worker.incarnation + 1), 0)
        self._say(slot)

    def publish(self) -> None:
        self.published.append(read_back(self.coordinator.record()))


def flat(tally: Tally) -> Counter[str]:
    """All counts by name, for comparing."""
    found: Counter[str] = Counter()
    for slot, one in tally.slots.items():
        for name in ("sampled_tokens", "computed_prompt_tokens", "prefix_hit_tokens", "preemptions", "starts"):
            found[f"{slot} {name}"] = getattr(one, name)
        found[f"{slot} restarts"], found[f"{slot} stalls"] = one.restarts, one.stalls
        found[f"{slot} engine"] = round(one.engine_seconds * 10)
        for state, seconds in one.slot_seconds.items():
            found[f"{slot} {state}"] = round(seconds * 10)
    found.update({f"retry {reason}": count for reason, count in tally.retries.items()})
    found["store"], found["coordinator"] = tally.store_errors, tally.coordinator_restarts
    return found


@given(st.lists(steps, max_size=40))
def test_what_was_published_never_falls(history: list[tuple[str, int, object]]) -> None:
    world = World()
    for step in history:
        world.do(step)
    world.publish()
    before: Counter[str] = Counter()
    for record in world.published:
        now = flat(tally_of(record))
        assert all(now[name] >= count for name, count in before.items())
        before = now


@given(st.lists(steps, max_size=40))
def test_nothing_is_lost_or_counted_twice_where_all_was_published(history: list[tuple[str, int, object]]) -> None:
    world = World()
    world.true["starts"] = SLOTS
    for step in history:
        if step[0] in ("restart", "session"):
            world.publish()
        world.do(step)
    world.publish()

    found = tally_of(world.published[-1])
    sums = {
        "sampled": sum(slot.sampled_tokens for slot in found.slots.values()),
        "starts": sum(slot.starts for slot in found.slots.values()),
        "restarts": sum(slot.restarts for slot in found.slots.values()),
        "stalls": sum(slot.stalls for slot in found.slots.values()),
        "store_errors": found.store_errors,
        "coordinator_restarts": found.coordinator_restarts,
        **{reason.value: count for reason, count in found.retries.items()},
    }
    assert {name: count for name, count in sums.items() if count} == +world.true
    for slot, one in found.slots.items():
        assert one.computed_prompt_tokens == one.prefix_hit_tokens == one.sampled_tokens
        lost_at_most = 0.1 * world.coordinators + 1e-6  # tenths are cut off when a coordinator takes over
        busy = world.seconds[slot, SlotState.BUSY]
        assert busy - lost_at_most <= one.slot_seconds[SlotState.BUSY] <= busy + 1e-6
        assert one.engine_seconds == pytest.approx(busy / 3, abs=lost_at_most)


@given(st.lists(steps, max_size=30), st.lists(steps, max_size=10))
def test_a_coordinator_that_was_lost_counts_again_what_engines_still_tell(
    history: list[tuple[str, int, object]], unpublished: list[tuple[str, int, object]]
) -> None:
    """Tokens of engines that live on are in their next reading: they are not lost with a coordinator."""
    world = World()
    for step in history:
        world.do(step)
    world.publish()
    before = flat(tally_of(world.published[-1]))
    for step in unpublished:
        if step[0] == "sample":
            world.do(step)
    world.do(("restart", 0, 0))
    world.publish()
    after = flat(tally_of(world.published[-1]))
    sampled = sum(int(str(value)) for what, _, value in unpublished if what == "sample")
    names = [f"{slot} sampled_tokens" for slot in range(SLOTS)]
    assert sum(after[name] for name in names) == sum(before[name] for name in names) + sampled


# --- single events -------------------------------------------------------------------------------


def test_engines_that_were_never_heard_were_started() -> None:
    tally = RunningTally("s1", ())
    tally.heard(WorkerId(0, 0), counters(5))
    tally.heard(WorkerId(0, 3), counters(7))
    tally.gone(WorkerId(1, 1), is_stall=True)

    found = told(tally).slots
    assert (found[0].starts, found[0].restarts, found[0].sampled_tokens) == (4, 3, 12)
    assert (found[1].starts, found[1].restarts, found[1].stalls) == (2, 1, 1)


def test_a_process_that_says_nothing_is_a_stall_once() -> None:
    tally = RunningTally("s1", ())
    tally.heard(WorkerId(0, 0), counters(5))
    tally.hung([0])
    tally.hung([0])
    assert told(tally).slots[0].stalls == 1
    tally.heard(WorkerId(0, 1), counters(0))
    tally.hung([0])
    assert told(tally).slots[0].stalls == 2


def test_only_trouble_is_news_and_only_until_it_was_told() -> None:
    tally = RunningTally("s1", ())
    tally.heard(WorkerId(0, 0), counters(5))
    tally.look(0.0, {0: {SlotState.BUSY: 4}})
    tally.look(9.0, {0: {SlotState.BUSY: 4}})
    assert [tally.has_news] == [False]

    troubles: tuple[Callable[[], None], ...] = (
        lambda: tally.failed(0, [FailedAttempt(1, "engine_error", "")]),
        lambda: tally.gone(WorkerId(0, 0), is_stall=True),
        lambda: tally.heard(WorkerId(0, 1), counters(0)),
        lambda: tally.store_failed(1),
    )
    for cause in troubles:
        cause()
        assert [tally.has_news] == [True]
        record = tally.record()
        assert [tally.has_news, RunningTally("s1", [record]).has_news] == [False, False]


def test_every_reason_of_a_failed_attempt_is_one_of_a_closed_set() -> None:
    tally = RunningTally("s1", ())
    tally.failed(0, [FailedAttempt(1, reason, "") for reason in (*RetryReason, "finished_oddly", "")])
    assert told(tally).retries == {**dict.fromkeys(RetryReason, 1), RetryReason.OTHER: 3}


def test_another_session_goes_on_from_the_sums_with_new_engines() -> None:
    tally = RunningTally("s1", ())
    tally.heard(WorkerId(0, 4), counters(100))
    again = RunningTally("s2", [tally.record()])
    again.heard(WorkerId(0, 0), counters(30))

    assert told(again).slots[0].sampled_tokens == 130
    assert (told(again).slots[0].starts, told(again).slots[0].restarts) == (6, 4)


def test_slots_of_an_earlier_session_are_kept_with_fewer_replicas() -> None:
    tally = RunningTally("s1", ())
    for slot in range(8):
        tally.heard(WorkerId(slot, 0), counters(10))
    assert set(told(RunningTally("s2", [tally.record()])).slots) == set(range(8))


def test_a_tally_stands_alone_in_the_journal_and_is_small() -> None:
    """What a footer grows by, with eight replicas in the middle of a long run."""
    tally = RunningTally("0123456789ab", ())
    for slot in range(8):
        tally.heard(WorkerId(slot, 3), counters(123_456_789, 223_456_789, 100_000_000, 12_345))
        tally.look(0.0, {})
        tally.look(160_000.0, {slot: dict.fromkeys(SlotState, 43)})
    tally.failed(0, [FailedAttempt(1, reason, "") for reason in RetryReason])
    record = tally.record()

    assert Standing().after([replace(record, store_errors=1), record]).records == (record,)
    assert len(json.dumps(control.to_json(record), separators=(",", ":"))) < 2000


# --- what sequences do ---------------------------------------------------------------------------


def replica(state: ReplicaState, running: int = 0, waiting: int = 0) -> ReplicaStats:
    return ReplicaStats(state, SEQUENCES, running, 0.0, EngineCounters(running=running, waiting=waiting))


@pytest.mark.parametrize(
    ("stats", "has_queue", "may_lease", "expected"),
    [
        (replica(ReplicaState.STARTING), True, True, {SlotState.STARTING: 4}),
        (replica(ReplicaState.WARMING, running=3), True, True, {SlotState.STARTING: 4}),
        (replica(ReplicaState.STOPPED), True, True, {SlotState.GONE: 4}),
        (replica(ReplicaState.RUNNING, running=4), True, True, {SlotState.BUSY: 4}),
        (replica(ReplicaState.RUNNING, running=9), True, True, {SlotState.BUSY: 4}),
        (replica(ReplicaState.RUNNING, running=1), True, True, {SlotState.BUSY: 1, SlotState.STARVED: 3}),
        (replica(ReplicaState.RUNNING, running=1), True, False, {SlotState.BUSY: 1, SlotState.HELD_BACK: 3}),
        (replica(ReplicaState.RUNNING, running=1), False, True, {SlotState.BUSY: 1, SlotState.NO_ROWS: 3}),
        (replica(ReplicaState.RUNNING), False, False, {SlotState.NO_ROWS: 4}),
        (replica(ReplicaState.DRAINING, running=2), True, True, {SlotState.BUSY: 2, SlotState.NO_ROWS: 2}),
        # The engine has requests and does not take them: for want of memory, not of rows.
        (replica(ReplicaState.RUNNING, running=1, waiting=2), True, True, {SlotState.BUSY: 3, SlotState.STARVED: 1}),
    ],
)
def test_what_each_sequence_does(
    stats: ReplicaStats, has_queue: bool, may_lease: bool, expected: dict[SlotState, int]
) -> None:
    found = sequences(stats, has_queue, may_lease)
    assert {state: count for state, count in found.items() if count} == expected
    assert sum(found.values()) == SEQUENCES


def test_seconds_are_times_sequences_and_an_engine_that_is_gone_costs_nothing() -> None:
    tally = RunningTally("s1", ())
    tally.look(100.0, {0: {SlotState.BUSY: 4}})  # nothing is known of the time before
    tally.look(102.0, {0: {SlotState.BUSY: 3, SlotState.STARVED: 1}, 1: {SlotState.GONE: 4}})
    tally.look(103.5, {0: {SlotState.NO_ROWS: 4}, 1: {SlotState.STARTING: 4}})

    found = told(tally).slots
    assert found[0].engine_seconds == pytest.approx(3.5)
    assert {state: seconds for state, seconds in found[0].slot_seconds.items() if seconds} == {
        SlotState.BUSY: 6.0,
        SlotState.STARVED: 2.0,
        SlotState.NO_ROWS: 6.0,
    }
    assert found[1].engine_seconds == pytest.approx(1.5)
    assert found[1].slot_seconds[SlotState.GONE] == 8.0


def test_gpu_seconds_are_those_of_each_session_s_own_gpus() -> None:
    tally = RunningTally("s1", ())
    for now in (0.0, 10.0):
        tally.look(now, {0: {SlotState.BUSY: 4}, 1: {SlotState.GONE: 4}}, gpus=lambda slot: 8)
    again = RunningTally("s2", [tally.record()])
    for now in (50.0, 55.0):
        again.look(now, {0: {SlotState.STARTING: 4}}, gpus=lambda slot: 0.5)

    assert told(again).slots[0].gpu_seconds == pytest.approx(82.5)
    assert told(again).slots[0].engine_seconds == pytest.approx(15)
    assert told(again).slots[1].gpu_seconds == 0


def test_nothing_published_is_an_empty_tally() -> None:
    assert tally_of(newest_tally(())) == Tally()
