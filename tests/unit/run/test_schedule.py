"""The schedule: each promise of its docstring, then a model of workers and a coordinator that lose answers and die."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from regen.ordinals import OrdinalSet
from regen.records import FailedAttempt, WorkerId
from regen.run.schedule import HUNG_SECONDS, SILENT_SECONDS, Orders, Report, Schedule
from regen.store.journal import Journal
from tests.memory_storage import MemoryStorage
from tests.unit.store.journals import claim_of, opened, table_of

ONE, OTHER = WorkerId(0, 0), WorkerId(1, 0)


def schedule(size: int = 10, **options: Any) -> Schedule:
    return Schedule(OrdinalSet(size), attempts_allowed=2, **options)


def report(worker: WorkerId = ONE, seq: int = 1, free_slots: int = 0, **lists: Any) -> Report:
    given = {"running": (), "awaiting": (), "finished": (), "failed": (), **lists}
    return Report(worker=worker, seq=seq, free_slots=free_slots, **given)


def leased(orders: Orders) -> list[int]:
    return [grant.ordinal for grant in orders.grants]


def test_leases_follow_the_plan_and_skip_what_is_done() -> None:
    made = Schedule(OrdinalSet(5, [0, 2]), attempts_allowed=1)
    assert leased(made.report(report(free_slots=9), now=0)) == [1, 3, 4]


def test_a_session_for_some_rows_leases_these_alone_and_ends_with_them() -> None:
    made = Schedule(OrdinalSet(8, [5]), attempts_allowed=2, only=[2, 5, 7])
    assert (made.left, made.plan_left) == (2, 7)
    assert leased(made.report(report(free_slots=9), now=0)) == [2, 7]
    made.report(report(seq=2, running=(7,), finished=(2,)), now=1)
    made.committed([2])
    assert leased(made.report(report(WorkerId(0, 1), free_slots=9), now=2)) == [7], "what comes back goes out again"
    assert not made.is_finished
    made.committed([7])
    assert (made.is_finished, made.plan_left) == (True, 5)


def test_no_row_is_leased_twice_while_it_is_held() -> None:
    made = schedule()
    first = leased(made.report(report(ONE, free_slots=4), now=0))
    second = leased(made.report(report(OTHER, free_slots=9), now=0))
    assert sorted(first + second) == list(range(10))


def test_a_lost_reply_leaks_nothing() -> None:
    made = schedule(size=4)
    lost = leased(made.report(report(free_slots=3), now=0))
    again = leased(made.report(report(seq=2, free_slots=4), now=1))
    assert sorted(again) == sorted({*lost, 3})


def test_the_same_exchange_twice_changes_nothing() -> None:
    made = schedule(size=6)
    made.report(report(free_slots=3), now=0)
    twice = report(seq=2, running=(1, 2), finished=(0,), free_slots=1)
    once = made.report(twice, now=1)
    again = made.report(twice, now=1)
    assert once.accepted == {0}
    assert again.accepted == frozenset()
    assert leased(once) == leased(again) == [3]
    assert made.received == 1


def test_the_same_exchange_again_gets_the_same_rows_whatever_came_back_meanwhile() -> None:
    made = schedule(size=9)
    asked = report(seq=1, free_slots=3)
    first = leased(made.report(asked, now=0))
    lost = leased(made.report(report(OTHER, free_slots=2), now=0))
    made.worker_gone(OTHER)  # its rows stand first in the queue
    again = made.report(asked, now=1)
    assert (leased(again), again.is_repeat) == (first, True)
    assert leased(made.report(report(WorkerId(1, 1), free_slots=2), now=1)) == lost


def test_a_dead_incarnation_is_handed_nothing_whatever_of_it_arrives_late() -> None:
    made = schedule(size=4)
    made.report(report(ONE, free_slots=2), now=0)
    made.worker_gone(ONE)
    assert made.report(report(ONE, seq=2, running=(0, 1), free_slots=4), now=1) == Orders(superseded=True)
    assert leased(made.report(report(OTHER, free_slots=4), now=1)) == [0, 1, 2, 3]


def test_a_restarted_coordinator_that_hears_of_a_death_first_does_not_wait_for_the_dead() -> None:
    made = schedule(size=2, expected_slots=(0, 1), adopt_until=100.0)
    made.worker_gone(WorkerId(0, 3))
    assert made.report(report(WorkerId(0, 3), running=(0,), free_slots=1), now=1).superseded
    assert leased(made.report(report(OTHER, free_slots=2), now=1)) == [0, 1]
    assert not made.report(report(WorkerId(0, 4), free_slots=1), now=2).superseded


def test_the_death_of_an_older_incarnation_ends_no_wait_for_its_successor() -> None:
    made = schedule(size=3, expected_slots=(0, 1), adopt_until=100.0)
    made.report(report(WorkerId(1, 1), free_slots=1), now=0)
    made.worker_gone(WorkerId(1, 0))
    assert leased(made.report(report(WorkerId(1, 1), seq=2, free_slots=1), now=1)) == [], "slot 0 was not heard yet"


def test_of_two_thousand_rows_in_flight_a_restart_runs_none_twice() -> None:
    """Seven replicas with 300 rows each, a third of them finished: received, or sent and lost with the coordinator."""
    storage, slots, each = MemoryStorage(), range(7), 300
    journal = opened(storage, plan_rows=3000)
    made = Schedule(journal.done, attempts_allowed=3)
    held = {slot: leased(made.report(report(WorkerId(slot, 0), free_slots=each), now=0)) for slot in slots}
    ended = {slot: held[slot][: each // 3] for slot in slots}
    for slot in slots:
        running = tuple(held[slot][each // 3 :])
        made.report(report(WorkerId(slot, 0), seq=2, running=running, finished=tuple(ended[slot])), now=1)
    journal.publish(table_of(*ended[0], *ended[1]))

    restarted = Journal(storage, "s1", 3000)
    restarted.replay(())
    restarted.resume_own(claim_of("s1"))
    made = Schedule(restarted.done, attempts_allowed=3, expected_slots=slots, adopt_until=15.0)
    given: list[int] = []
    for slot in slots:
        running, awaiting = tuple(held[slot][each // 3 :]), tuple(ended[slot])
        orders = made.report(
            report(WorkerId(slot, 0), seq=3, running=running, awaiting=awaiting, free_slots=200), now=2
        )
        given += leased(orders)
        assert sorted(orders.settled) == (ended[slot] if slot < 2 else [])
        assert list(orders.resend) == ([] if slot < 2 else ended[slot])
    in_flight = {ordinal for slot in slots for ordinal in held[slot]}
    assert len(in_flight) == 2100
    assert given, "the last replica to be heard is handed rows"
    assert not in_flight & set(given)


def test_an_older_exchange_of_the_same_worker_changes_nothing() -> None:
    made = schedule()
    made.report(report(seq=5, free_slots=2), now=0)
    assert made.report(report(seq=4, finished=(7,), free_slots=9), now=1) == Orders()
    assert made.in_flight == 2


def test_an_older_incarnation_is_told_to_stop_and_its_rows_go_elsewhere() -> None:
    made = schedule(size=3)
    made.report(report(WorkerId(0, 0), free_slots=3), now=0)
    newer = made.report(report(WorkerId(0, 1), free_slots=3), now=1)
    assert leased(newer) == [0, 1, 2]
    assert made.report(report(WorkerId(0, 0), seq=9, finished=(0,)), now=2).superseded


def test_a_row_is_settled_only_when_it_is_committed() -> None:
    made = schedule(size=2)
    made.report(report(free_slots=2), now=0)
    assert made.report(report(seq=2, running=(1,), finished=(0,)), now=1).settled == ()
    made.committed([0])
    assert made.report(report(seq=3, running=(1,), awaiting=(0,)), now=2).settled == (0,)


def test_rows_count_as_received_until_they_are_committed() -> None:
    rows = schedule()
    rows.report(report(free_slots=2), now=0.0)
    rows.report(report(seq=2, running=(1,), finished=(0,)), now=1.0)
    assert rows.received == 1
    rows.committed([0])
    assert (rows.received, rows.left) == (0, 9)


def test_a_restarted_coordinator_adopts_what_is_running_and_asks_for_what_it_lost() -> None:
    made = schedule(size=4, expected_slots=(0, 1), adopt_until=100.0)
    early = made.report(report(ONE, seq=7, running=(0,), awaiting=(1,), free_slots=5), now=1)
    assert early.resend == (1,)
    assert leased(early) == [], "nothing is handed out before every replica was heard"
    late = made.report(report(OTHER, seq=7, running=(3,), free_slots=5), now=2)
    assert leased(late) == [2]
    sent = made.report(report(ONE, seq=8, running=(0,), finished=(1,), free_slots=5), now=3)
    assert sent.accepted == {1}
    assert leased(sent) == []


def test_adoption_ends_without_a_replica_that_never_speaks() -> None:
    made = schedule(size=2, expected_slots=(0, 1), adopt_until=15.0)
    assert leased(made.report(report(ONE, free_slots=2), now=14)) == []
    assert made.is_adopting(14)
    assert leased(made.report(report(ONE, seq=2, free_slots=2), now=15)) == [0, 1]


def test_a_failed_attempt_is_tried_again_and_then_given_up() -> None:
    made = schedule(size=1)
    made.report(report(free_slots=1), now=0)
    failed = (FailedAttempt(0, "engine_error", "x"),)
    retried = made.report(report(seq=2, failed=failed, free_slots=1), now=1)
    assert [(grant.ordinal, grant.attempt) for grant in retried.grants] == [(0, 2)]
    last = made.report(report(seq=3, failed=failed, free_slots=1), now=2)
    assert [(row.ordinal, row.attempts, row.reason) for row in last.exhausted] == [(0, 2, "engine_error")]
    assert leased(last) == []


def test_a_dead_replica_costs_its_rows_no_attempt() -> None:
    made = schedule(size=2)
    made.report(report(ONE, free_slots=2), now=0)
    made.worker_gone(ONE)
    orders = made.report(report(OTHER, free_slots=2), now=1)
    assert [(grant.ordinal, grant.attempt) for grant in orders.grants] == [(0, 1), (1, 1)]


def test_rows_already_received_survive_the_death_of_their_replica() -> None:
    made = schedule(size=2)
    made.report(report(ONE, free_slots=2), now=0)
    made.report(report(ONE, seq=2, running=(1,), finished=(0,)), now=1)
    made.worker_gone(ONE)
    assert leased(made.report(report(OTHER, free_slots=2), now=2)) == [1]


def test_a_silent_replica_loses_its_rows_and_the_first_result_wins() -> None:
    made = schedule(size=1)
    made.report(report(ONE, free_slots=1), now=0)
    assert made.tick(SILENT_SECONDS) == ()
    assert made.tick(SILENT_SECONDS + 1) == (0,)
    assert leased(made.report(report(OTHER, free_slots=1), now=40)) == [0]
    back = made.report(report(ONE, seq=2, finished=(0,)), now=41)
    assert back.accepted == {0}
    assert made.report(report(OTHER, seq=2, running=(0,)), now=42).settled == (0,)


def test_nothing_is_handed_out_while_nothing_may_be_leased() -> None:
    made = schedule()
    assert leased(made.report(report(free_slots=5), now=0, may_lease=False)) == []
    assert leased(made.report(report(seq=2, free_slots=2), now=1)) == [0, 1]


def test_grants_that_never_left_go_back() -> None:
    made = schedule(size=3)
    made.report(report(free_slots=2), now=0)
    made.take_back(ONE, [0, 1])
    assert leased(made.report(report(OTHER, free_slots=3), now=1)) == [0, 1, 2]


def test_what_an_older_engine_gives_back_late_stays_with_its_successor() -> None:
    """Rows are read from the plan between grant and lease: with the store away that takes a minute."""
    made = schedule(size=2)
    made.report(report(free_slots=2), now=0)
    made.worker_gone(ONE)
    assert leased(made.report(report(WorkerId(0, 1), free_slots=2), now=1)) == [0, 1]
    made.take_back(ONE, [0, 1])
    assert leased(made.report(report(OTHER, free_slots=2), now=2)) == []


def test_a_failed_attempt_that_a_restarted_coordinator_hears_of_first_is_leased_once() -> None:
    made = schedule(size=3, expected_slots=(0, 1), adopt_until=10.0)
    made.report(report(ONE, failed=(FailedAttempt(0, "x", ""),)), now=0)
    assert sorted(leased(made.report(report(OTHER, free_slots=3), now=0))) == [0, 1, 2]


def test_a_failed_attempt_told_twice_counts_once() -> None:
    made = schedule(size=1)
    made.report(report(free_slots=1), now=0)
    told = report(seq=2, failed=(FailedAttempt(0, "x", ""),))
    assert made.report(told, now=1).exhausted == made.report(told, now=1).exhausted == ()


def test_after_a_restart_whoever_has_no_engine_is_not_waited_for() -> None:
    made = schedule(expected_slots=range(64), adopt_until=15.0)
    assert not made.report(report(free_slots=2), now=0.0).grants
    made.expect({0, 1})
    assert made.is_adopting(1.0), "the other one has not spoken"
    made.report(report(OTHER, running=(0, 1)), now=1.5)
    assert not made.is_adopting(1.5)
    assert leased(made.report(report(seq=2, free_slots=2), now=2.0)) == [2, 3]


def test_an_engine_that_came_after_a_restart_is_not_waited_for() -> None:
    made = schedule(expected_slots=range(8), adopt_until=15.0)
    made.expect({0, 1})
    made.expect({0, 1, 5})
    made.worker_gone(OTHER)
    made.report(report(), now=1.0)
    assert not made.is_adopting(1.0), "it holds nothing from before"


def test_a_process_that_says_nothing_any_more_is_hung_until_it_is_replaced() -> None:
    made = schedule(size=2)
    made.report(report(ONE, free_slots=1), now=0)
    assert made.hung(HUNG_SECONDS) == ()
    assert made.hung(HUNG_SECONDS + 1) == (0,)
    made.worker_gone(ONE)
    assert made.hung(HUNG_SECONDS + 1) == ()


class Fleet(RuleBasedStateMachine):
    """Workers that finish, fail, die and lose answers, over a coordinator that commits and forgets."""

    SIZE, SLOTS = 12, 3

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.committed: set[int] = set()
        self.schedule = Schedule(OrdinalSet(self.SIZE), attempts_allowed=10**6)
        self.seq = dict.fromkeys(range(self.SLOTS), 0)
        self.incarnation = dict.fromkeys(range(self.SLOTS), 0)
        self.running: dict[int, set[int]] = {slot: set() for slot in range(self.SLOTS)}
        self.unsent: dict[int, set[int]] = {slot: set() for slot in range(self.SLOTS)}
        self.awaiting: dict[int, set[int]] = {slot: set() for slot in range(self.SLOTS)}
        self.buffer: set[int] = set()
        self.work_begun = dict.fromkeys(range(self.SIZE), 0)
        self.deaths_of_workers = 0

    slots = st.integers(0, SLOTS - 1)

    @rule(slot=slots, free=st.integers(0, 4), is_lost=st.booleans())
    def exchange(self, slot: int, free: int, is_lost: bool) -> None:
        self.seq[slot] += 1
        orders = self.schedule.report(
            Report(
                WorkerId(slot, self.incarnation[slot]),
                self.seq[slot],
                tuple(self.running[slot]),
                tuple(self.awaiting[slot]),
                tuple(self.unsent[slot]),
                (),
                free,
            ),
            self.now,
        )
        assert not orders.superseded
        self.buffer |= orders.accepted
        self.awaiting[slot] |= self.unsent[slot]
        self.unsent[slot] = set()
        if is_lost:
            return
        for ordinal in orders.settled:
            self.awaiting[slot].discard(ordinal)
            self.running[slot].discard(ordinal)
        self.unsent[slot] |= set(orders.resend)
        self.awaiting[slot] -= set(orders.resend)
        for grant in orders.grants:
            self.running[slot].add(grant.ordinal)
            self.work_begun[grant.ordinal] += 1

    @rule(slot=slots)
    def finish(self, slot: int) -> None:
        if self.running[slot]:
            ordinal = min(self.running[slot])
            self.running[slot].remove(ordinal)
            self.unsent[slot].add(ordinal)

    @rule()
    def commit(self) -> None:
        assert not self.buffer & self.committed, "a row was received although it is committed"
        self.committed |= self.buffer
        self.schedule.committed(self.buffer)
        self.buffer = set()

    @rule(slot=slots)
    def kill_worker(self, slot: int) -> None:
        self.schedule.worker_gone(WorkerId(slot, self.incarnation[slot]))
        self.deaths_of_workers += 1
        self.incarnation[slot] += 1
        self.seq[slot] = 0
        self.running[slot], self.unsent[slot], self.awaiting[slot] = set(), set(), set()

    @rule()
    def kill_coordinator(self) -> None:
        self.buffer = set()
        self.schedule = Schedule(
            OrdinalSet(self.SIZE, self.committed), 10**6, expected_slots=range(self.SLOTS), adopt_until=float("inf")
        )

    @rule(seconds=st.floats(0, 5))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def nothing_is_held_twice(self) -> None:
        held = [ordinal for slot in range(self.SLOTS) for ordinal in self.running[slot] | self.unsent[slot]]
        assert len(held) == len(set(held))

    @invariant()
    def work_is_repeated_only_for_dead_workers(self) -> None:
        if not self.deaths_of_workers:
            assert max(self.work_begun.values()) <= 1

    def teardown(self) -> None:
        for _ in range(6):
            for slot in range(self.SLOTS):
                self.exchange(slot, self.SIZE, False)
            for slot in range(self.SLOTS):
                while self.running[slot]:
                    self.finish(slot)
            for slot in range(self.SLOTS):
                self.exchange(slot, self.SIZE, False)
            self.commit()
        assert self.committed == set(range(self.SIZE))
        assert self.schedule.is_finished


TestFleet = Fleet.TestCase
TestFleet.settings = settings(max_examples=1000, stateful_step_count=60, deadline=None, derandomize=True)
