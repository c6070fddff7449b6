"""The end of a run: who gets rows that wait elsewhere, or are made where all is slow."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from regen.ordinals import OrdinalSet
from regen.records import Death, FailedAttempt, SourceTotals, WorkerId
from regen.run.last_rows import LONGEST_MARK_SECONDS, MARK_SECONDS, LastRows
from regen.run.longest_first import is_due, longest_first, mean_tokens, reach
from regen.run.schedule import SILENT_SECONDS, Orders, Report, Schedule

ONE, OTHER, THIRD = WorkerId(0, 0), WorkerId(1, 0), WorkerId(2, 0)


def report(worker: WorkerId, seq: int, running: dict[int, int], free_slots: int = 0, slots: int = 2) -> Report:
    """`running`: tokens so far by row."""
    return Report(worker, seq, tuple(running), (), (), (), free_slots, tuple(running.values()), slots)


def leased(orders: Orders) -> list[int]:
    return [grant.ordinal for grant in orders.grants]


def test_a_row_that_waits_goes_to_a_replica_with_nothing_to_do() -> None:
    made = Schedule(OrdinalSet(3), attempts_allowed=1)
    assert leased(made.report(report(ONE, 1, {}, free_slots=3), now=0)) == [0, 1, 2]
    made.report(report(ONE, 2, {0: 5, 1: 5, 2: 0}), now=1)
    assert leased(made.report(report(OTHER, 1, {}, free_slots=3), now=1)) == [2]
    assert made.report(report(ONE, 3, {0: 9, 1: 9, 2: 0}), now=2).settled == (2,), "it is taken from where it waited"
    assert leased(made.report(report(ONE, 4, {0: 9, 1: 9}, free_slots=1), now=3)) == []


def test_nothing_goes_elsewhere_while_there_is_a_queue_or_where_tokens_are_not_known() -> None:
    made = Schedule(OrdinalSet(4), attempts_allowed=1)
    made.report(report(ONE, 1, {}, free_slots=3), now=0)
    made.report(Report(ONE, 2, (0, 1, 2), (), (), (), 0), now=1)
    assert leased(made.report(report(OTHER, 1, {}, free_slots=1), now=1)) == [3]
    assert leased(made.report(report(THIRD, 1, {}, free_slots=1), now=1)) == []


def test_a_lost_answer_leaves_a_moved_row_where_it_was() -> None:
    made = Schedule(OrdinalSet(3), attempts_allowed=1)
    made.report(report(ONE, 1, {}, free_slots=3), now=0)
    made.report(report(ONE, 2, {0: 5, 1: 5, 2: 0}), now=1)
    assert leased(made.report(report(OTHER, 1, {}, free_slots=3), now=1)) == [2]
    made.report(report(OTHER, 2, {}, free_slots=0), now=2)  # it never heard of the row
    assert made.report(report(ONE, 3, {0: 9, 1: 9, 2: 0}), now=2).settled == ()


def slow_and_fast() -> Schedule:
    """Slot 0 makes a token where slots 1 and 2 make ten; all rows are leased, two to each, and slot 1 is done."""
    made = Schedule(OrdinalSet(6), attempts_allowed=1)
    for worker in (ONE, OTHER, THIRD):
        made.report(report(worker, 1, {}, free_slots=2), now=0)
    rows = {ONE: (0, 1), OTHER: (2, 3), THIRD: (4, 5)}
    for seq in range(2, 26):
        now = float(seq - 1)
        for worker, listed in rows.items():
            tokens = int(1 + now * (1 if worker is ONE else 10))
            made.report(report(worker, seq, dict.fromkeys(listed, tokens)), now)
    return made


def test_rows_of_a_slow_replica_are_made_twice_at_the_end_and_the_first_result_wins() -> None:
    made = slow_and_fast()
    orders = made.report(Report(OTHER, 26, (), (), (2, 3), (), 2, (), 2), now=30.0)
    assert sorted(leased(orders)) == [0, 1]
    assert made.report(report(ONE, 26, {0: 40, 1: 40}), now=31.0).settled == (), "the slow one may still be first"
    done = made.report(Report(OTHER, 27, (1,), (), (0,), (), 0, (300,), 2), now=60.0)
    assert done.accepted == {0}
    assert made.report(report(ONE, 27, {0: 60, 1: 60}), now=61.0).settled == (0,)


def test_rows_that_are_made_twice_are_not_suspects_when_one_of_their_replicas_dies() -> None:
    made = slow_and_fast()
    assert sorted(leased(made.report(Report(OTHER, 26, (), (), (2, 3), (), 2, (), 2), now=30.0))) == [0, 1]
    assert made.worker_gone(ONE, Death(is_stall=False, told="gone")).exhausted == ()
    assert made.suspects == 0, "the other replica has them, and lives"
    assert made.report(report(OTHER, 27, {0: 300, 1: 300}), now=60.0).settled == ()


def test_rows_that_are_made_twice_are_not_suspects_when_one_of_their_replicas_falls_silent() -> None:
    made = slow_and_fast()
    made.report(Report(OTHER, 26, (), (), (2, 3), (), 2, (), 2), now=30.0)
    made.report(report(OTHER, 27, {0: 300, 1: 300}), now=50.0)
    made.report(report(THIRD, 26, {4: 300, 5: 300}), now=50.0)
    assert made.tick(now=24.0 + SILENT_SECONDS + 1) == (0,)
    assert made.suspects == 0


def test_an_attempt_that_fails_while_another_replica_makes_the_row_is_not_its_last() -> None:
    made = slow_and_fast()  # one attempt is allowed
    made.report(Report(OTHER, 26, (), (), (2, 3), (), 2, (), 2), now=30.0)
    gave_up = Report(ONE, 26, (1,), (), (), (FailedAttempt(0, "stalled", "no token"),), 0, (40,), 2)
    assert made.report(gave_up, now=31.0).exhausted == ()
    assert made.report(Report(OTHER, 27, (1,), (), (0,), (), 0, (300,), 2), now=60.0).accepted == {0}


def test_a_moved_row_that_has_begun_where_it_waited_is_left_there() -> None:
    made = Schedule(OrdinalSet(3), attempts_allowed=1)
    made.report(report(ONE, 1, {}, free_slots=3), now=0)
    made.report(report(ONE, 2, {0: 5, 1: 5, 2: 0}), now=1)
    assert leased(made.report(report(OTHER, 1, {}, free_slots=3), now=1)) == [2]
    assert made.report(report(ONE, 3, {0: 9, 1: 9, 2: 7}), now=2).settled == ()


def test_a_row_that_is_made_anew_on_its_slot_makes_it_no_slower() -> None:
    last = LastRows()
    for now in map(float, range(int(2 * MARK_SECONDS + LONGEST_MARK_SECONDS))):
        made = int(1 + 10 * now)
        last.listed(0, (0, 10), (made, 5000 if now < MARK_SECONDS + 1 else made), 4, now)
        for slot in (1, 2):
            last.listed(slot, (slot, 10 + slot), (made, made), 4, now)
    assert not last.is_slow(0)


def test_a_replica_that_is_slow_no_more_is_not_given_the_rows_that_it_has() -> None:
    last, slow = LastRows(), 1
    for now in map(float, range(int(2 * MARK_SECONDS))):
        slow = int(1 + now)
        for slot in range(3):
            last.listed(slot, (slot,), (slow if slot == 0 else 10 * slow,), 4, now)
    looked_at = 2 * MARK_SECONDS - 0.5
    assert last.is_slow(0)
    assert list(last.late(1, float("inf"), looked_at)) == [], "its row would end sooner"
    for tenth in range(1, 6):
        last.listed(0, (0,), (slow + 100 * tenth,), 4, looked_at + tenth / 10)
    assert not last.is_slow(0)
    assert list(last.late(0, 0.0, looked_at + 0.5)) == []


def test_no_row_is_with_more_than_two() -> None:
    made = slow_and_fast()
    made.report(Report(OTHER, 26, (), (), (2, 3), (), 2, (), 2), now=30.0)
    assert leased(made.report(Report(THIRD, 26, (), (), (4, 5), (), 2, (), 2), now=40.0)) == []


def test_a_slow_replica_gets_the_last_rows_of_those_that_are_lined_up_and_none_that_others_end_sooner() -> None:
    last = LastRows()
    for now in map(float, range(int(2 * MARK_SECONDS) + 1)):
        last.listed(0, (0,), (int(1 + now),), 4, now)
        last.listed(1, (1,), (int(1 + 10 * now),), 4, now)
        last.listed(2, (2,), (int(1 + 10 * now),), 4, now)
    assert (last.is_slow(0), last.is_slow(1)) == (True, False)
    assert last.is_better_left(0, queued=10)
    assert not last.is_better_left(0, queued=1000)
    assert not last.is_better_left(1, queued=10)
    last.listed(0, (), (), 4, 2 * MARK_SECONDS)
    assert not last.is_better_left(0, queued=10), "one with nothing to do gets what there is"


def test_a_pause_between_two_portions_is_no_slow_replica_and_a_long_silence_is() -> None:
    last = LastRows()
    for now in map(float, range(0, 60)):
        for slot, row in enumerate((10, 20, 30)):
            # Sixteen tokens every eight seconds; from second 32 on slot 0 gets none.
            at = min(now, 32.0) if slot == 0 else now
            last.listed(slot, (row,), (1 + int(at) // 8 * 16,), 4, now)
            assert not last.is_slow(slot)
    for now in map(float, range(60, 130)):
        for slot, row in enumerate((10, 20, 30)):
            last.listed(slot, (row,), (65 if slot == 0 else 1 + int(now) // 8 * 16,), 4, now)
    assert [last.is_slow(slot) for slot in range(3)] == [True, False, False]


def test_an_idle_replica_gets_no_more_rows_than_it_asks_for() -> None:
    made = Schedule(OrdinalSet(4), attempts_allowed=1)
    made.report(report(ONE, 1, {}, free_slots=4), now=0)
    made.report(report(ONE, 2, {0: 5, 1: 5, 2: 0, 3: 0}), now=1)
    assert len(leased(made.report(report(OTHER, 1, {}, free_slots=1), now=1))) == 1


def test_what_a_replica_said_before_it_stopped_telling_tokens_counts_no_more() -> None:
    made = Schedule(OrdinalSet(3), attempts_allowed=1)
    made.report(report(ONE, 1, {}, free_slots=3), now=0)
    made.report(report(ONE, 2, {0: 5, 1: 5, 2: 0}), now=1)
    made.report(Report(ONE, 3, (0, 1, 2), (), (), (), 0), now=2)  # draining: nobody knows what waits there
    assert leased(made.report(report(OTHER, 1, {}, free_slots=1), now=2)) == []


def test_rows_that_are_lined_up_come_first_and_are_leased_once() -> None:
    made = Schedule(OrdinalSet(8, [6]), attempts_allowed=1)
    assert leased(made.report(report(ONE, 1, {}, free_slots=2), now=0)) == [0, 1]
    assert made.rest() == [2, 3, 4, 5, 7]
    made.line_up([7, 3, 0], 100.0)
    assert leased(made.report(Report(OTHER, 1, (), (), (), (), 9), now=0)) == [7, 3, 2, 4, 5]
    assert made.not_begun == 0


def test_engines_get_few_rows_ahead_once_the_longest_come_first() -> None:
    made = Schedule(OrdinalSet(100), attempts_allowed=1)
    made.line_up(range(100), 100.0)
    assert len(leased(made.report(report(ONE, 1, {}, free_slots=50, slots=40), now=0))) == 42


def source(tokens: int, lengths: tuple[int, ...]) -> SourceTotals:
    return SourceTotals(0, tokens, sum(lengths), lengths)


def test_rows_of_long_sources_come_first_and_those_of_unknown_ones_with_them() -> None:
    by_source = {"short": source(100, (0, 0, 10)), "long": source(900, (0, 0, 0, 10))}
    rows = [(0, "short", 1), (1, "long", 1), (2, "unheard of", 1), (3, "short", 1), (4, "long", 1)]
    order, mean = longest_first(rows, by_source, slots=4)
    assert order == [1, 2, 4, 0, 3]
    assert mean == (3 * 90 + 2 * 10) / 5
    assert mean_tokens(by_source) == 50


def test_a_source_that_varies_much_comes_before_one_of_longer_rows_that_do_not() -> None:
    by_source = {"steady": source(60_000, (*(0,) * 17, 100)), "varied": source(40_000, (*(0,) * 11, 50, *(0,) * 9, 50))}
    assert mean_tokens({"": by_source["steady"]}) > mean_tokens({"": by_source["varied"]})
    assert longest_first([(0, "steady", 1), (1, "varied", 1)], by_source, slots=1000)[0] == [1, 0]


def test_a_row_of_many_turns_is_taken_for_a_long_one() -> None:
    lengths = (*(0,) * 11, 50, *(0,) * 9, 50)
    by_source = {"chat": replace(source(60_000, lengths), generations=200), "other": source(60_000, lengths)}
    order, mean = longest_first([(0, "chat", 1), (1, "chat", 2), (2, "other", 1), (3, "chat", 6)], by_source, slots=9)
    assert order == [3, 1, 2, 0], "two turns are usual in a chat: such a row is as long as one of the others"
    assert mean == 600 * (0.5 + 1 + 1 + 3) / 4


def test_few_rows_of_a_source_do_not_tell_that_it_never_varies() -> None:
    known = source(10_000, (*(0,) * 11, 50, *(0,) * 9, 50))
    one = {"known": known, "new": source(600, (*(0,) * 17, 1))}
    many = {"known": known, "new": source(600_000, (*(0,) * 17, 1000))}
    assert reach(one, 1000)["new"] > 1.2 * reach(many, 1000)["new"]


def test_the_longest_of_many_rows_in_work_is_longer_than_of_few() -> None:
    by_source = {"one": source(10_000, (*(0,) * 11, 50, *(0,) * 9, 50))}
    assert reach(by_source, 10_000)["one"] > reach(by_source, 10)["one"] > math.log(600)


def test_the_plans_order_stays_until_what_is_left_takes_no_longer_than_a_long_row() -> None:
    by_source = {"one": source(1000, (*(0,) * 12, 10))}  # 100 tokens each, none of 128 or more
    assert not is_due(1000, 100, {})
    assert not is_due(1000, 0, by_source)
    assert is_due(100, 100, by_source)
    assert not is_due(1000, 100, by_source)


class Ends(RuleBasedStateMachine):
    """Few rows, tokens told, replicas of different speed: whatever goes where, every row is accepted once."""

    SIZE, SLOTS = 12, 3

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.schedule = Schedule(OrdinalSet(self.SIZE), attempts_allowed=10**6)
        self.seq, self.incarnation = [0] * self.SLOTS, [0] * self.SLOTS
        self.tokens: list[dict[int, int]] = [{} for _ in range(self.SLOTS)]
        self.unsent: list[set[int]] = [set() for _ in range(self.SLOTS)]
        self.awaiting: list[set[int]] = [set() for _ in range(self.SLOTS)]
        self.accepted: set[int] = set()

    slots = st.integers(0, SLOTS - 1)

    @rule(slot=slots, free=st.integers(0, 4), is_lost=st.booleans())
    def exchange(self, slot: int, free: int, is_lost: bool) -> None:
        self.seq[slot] += 1
        orders = self.schedule.report(
            Report(
                WorkerId(slot, self.incarnation[slot]),
                self.seq[slot],
                tuple(self.tokens[slot]),
                tuple(self.awaiting[slot]),
                tuple(self.unsent[slot]),
                (),
                free,
                tuple(self.tokens[slot].values()),
                2,
            ),
            self.now,
        )
        assert not orders.accepted & self.accepted, "a row was accepted twice"
        self.accepted |= orders.accepted
        self.awaiting[slot] |= self.unsent[slot]
        self.unsent[slot] = set()
        if is_lost:
            return
        for ordinal in orders.settled:
            self.awaiting[slot].discard(ordinal)
            self.tokens[slot].pop(ordinal, None)
        for grant in orders.grants:
            assert grant.ordinal not in self.tokens[slot]
            self.tokens[slot][grant.ordinal] = 0

    @rule(seconds=st.floats(0, 12), count=st.integers(1, 3))
    def work(self, seconds: float, count: int) -> None:
        """The first two rows of a slot get tokens."""
        self.now += seconds
        for slot, rows in enumerate(self.tokens):
            for ordinal in list(rows)[:2]:
                rows[ordinal] += int(seconds * count * (1, 10, 10)[slot])

    @rule(slot=slots)
    def finish(self, slot: int) -> None:
        if self.tokens[slot]:
            ordinal = next(iter(self.tokens[slot]))
            del self.tokens[slot][ordinal]
            self.unsent[slot].add(ordinal)

    @rule()
    def line_up(self) -> None:
        self.schedule.line_up(reversed(self.schedule.rest()), 10.0)

    @rule()
    def commit(self) -> None:
        self.schedule.committed(self.accepted)

    @rule(slot=slots)
    def kill_worker(self, slot: int) -> None:
        self.schedule.worker_gone(WorkerId(slot, self.incarnation[slot]))
        self.incarnation[slot] += 1
        self.seq[slot] = 0
        self.tokens[slot], self.unsent[slot], self.awaiting[slot] = {}, set(), set()

    @invariant()
    def no_row_is_with_more_than_two(self) -> None:
        for ordinal in range(self.SIZE):
            assert sum(ordinal in rows for rows in self.tokens) <= 2

    def teardown(self) -> None:
        for _ in range(8):
            for slot in range(self.SLOTS):
                self.exchange(slot, self.SIZE, False)
            for slot in range(self.SLOTS):
                while self.tokens[slot]:
                    self.finish(slot)
            for slot in range(self.SLOTS):
                self.exchange(slot, self.SIZE, False)
            self.commit()
        assert self.accepted == set(range(self.SIZE))
        assert self.schedule.is_finished


TestEnds = Ends.TestCase
TestEnds.settings = settings(max_examples=200, stateful_step_count=50, deadline=None, derandomize=True)
