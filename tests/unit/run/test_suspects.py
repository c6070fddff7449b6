"""Suspects: who is cleared, who is condemned, at how many engines' cost. Mostly through the schedule that owns them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regen.ordinals import OrdinalSet
from regen.records import Death, FailedAttempt, Toll, WorkerId
from regen.run.fleet.restarts import FREE_DEATHS, LONGEST_PAUSE_SECONDS, Restarts
from regen.run.fleet.suspects import Suspects
from regen.run.schedule import HUNG_SECONDS, SILENT_SECONDS, Exhausted, Report, Schedule
from regen.store.control import SuspectRows

DIED, STALLED = Death(False, "EngineDied: x"), Death(True, "EngineStalled: x")


class Fleet:
    """Workers over a schedule: each runs what it is given; an engine dies when the test says so."""

    def __init__(self, rows: int, slots: int = 1, room: int = 10, has_worked: bool = True, **options: Any) -> None:
        self.rows, self.slots, self.room, self.has_worked, self.options = rows, slots, room, has_worked, options
        self.now = 0.0
        self.running: dict[int, list[int]] = {slot: [] for slot in range(slots)}
        self.unsent: dict[int, list[int]] = {slot: [] for slot in range(slots)}
        self.incarnation, self.seq = [0] * slots, 0
        self.done: set[int] = set()
        self.condemned: dict[int, Exhausted] = {}
        self.deaths = 0
        self.closed: set[int] = set()
        self.record: SuspectRows | None = None
        self.schedule = self._schedule()

    @property
    def open(self) -> list[int]:
        return [slot for slot in range(self.slots) if slot not in self.closed]

    def _schedule(self, **options: Any) -> Schedule:
        suspects = Suspects(frozenset(self.open), self.has_worked)
        done = OrdinalSet(self.rows, self.done | self.condemned.keys())
        return Schedule(done, attempts_allowed=3, suspects=suspects, **self.options, **options)

    def exchange(self, slot: int, **lists: Any) -> list[int]:
        """What the slot is leased."""
        self.seq += 1
        room = max(0, self.room - len(self.running[slot]))
        worker = WorkerId(slot, self.incarnation[slot])
        given: dict[str, Any] = {
            "running": tuple(self.running[slot]),
            "awaiting": (),
            "finished": tuple(self.unsent[slot]),
        }
        given = {"failed": (), "free_slots": room, **given, **lists}
        orders = self.schedule.report(Report(worker=worker, seq=self.seq, **given), self.now)
        self.unsent[slot] = []
        self.done |= orders.accepted
        self.schedule.committed(orders.accepted)
        leased = [grant.ordinal for grant in orders.grants]
        assert not set(leased) & (self.done | self.condemned.keys())
        self.running[slot] += leased
        suspected = [row for row in leased if row in self.schedule._suspects]
        assert not suspected or suspected == self.running[slot], "suspects run with nobody else"
        return leased

    def finish(self, slot: int, *ordinals: int) -> None:
        for ordinal in ordinals or tuple(self.running[slot]):
            self.running[slot].remove(ordinal)
            self.unsent[slot].append(ordinal)

    def die(self, slot: int, death: Death | None = DIED) -> Toll:
        self.deaths += death is not None
        farewell = self.schedule.worker_gone(WorkerId(slot, self.incarnation[slot]), death)
        self.incarnation[slot] += 1
        self.running[slot], self.unsent[slot] = [], []
        for row in farewell.exhausted:
            assert row.ordinal not in self.condemned
            self.condemned[row.ordinal] = row
        self.write()
        self.schedule.committed([row.ordinal for row in farewell.exhausted])
        return farewell.toll

    def write(self) -> None:
        self.record = self.schedule.changed_suspects("s1") or self.record

    def restart_coordinator(self) -> None:
        self.schedule = self._schedule(expected_slots=self.open, adopt_until=float("inf"))
        if self.record is not None:
            self.schedule.restore_suspects(self.record, "s1")

    def close(self, slot: int) -> None:
        """Its engine has left, or its node has gone: nobody is to blame."""
        self.die(slot, None)
        self.closed.add(slot)
        self.schedule.slot_closed(slot)

    def open_again(self, slot: int) -> None:
        self.closed.discard(slot)
        self.schedule.slot_opened(slot)

    def come_and_go(self, choose: Callable[[list[int]], int]) -> None:
        """A slot opens or closes; one is always open."""
        slot = choose(list(range(self.slots)))
        if slot in self.closed:
            self.open_again(slot)
        elif len(self.open) > 1:
            self.close(slot)

    def run(
        self,
        killers: Collection[int],
        choose: Callable[[list[int]], int],
        may_restart: bool = False,
        may_change: bool = False,
    ) -> None:
        """To the end: `choose` draws one of the things that can happen next; killers end their engine, some time."""
        for step in range(100 * self.rows + 500):
            if len(self.done) + len(self.condemned) == self.rows:
                return
            if may_restart and step % 7 == 6 and choose([0, 1]):
                self.restart_coordinator()
            if may_change and step % 5 == 4 and choose([0, 1]):
                self.come_and_go(choose)
            slot = choose(self.open)
            deadly = [row for row in self.running[slot] if row in killers]
            harmless = [row for row in self.running[slot] if row not in killers]
            what = choose([0, *([1] if harmless else []), *([2] if deadly else [])])
            if what == 2:
                self.die(slot)
            elif what == 1:
                self.finish(slot, choose(harmless))
            else:
                self.exchange(slot)
        raise AssertionError(f"not at its end: {len(self.done)} of {self.rows} done, {self.schedule.suspects} suspects")


@settings(max_examples=300, deadline=None)
@given(data=st.data(), rows=st.integers(1, 40), slots=st.integers(1, 3), seed=st.integers(0, 2**32))
def test_whatever_dies_in_whatever_order_killers_are_condemned_and_nobody_else(
    data: st.DataObject, rows: int, slots: int, seed: int
) -> None:
    killers = data.draw(st.sets(st.integers(0, rows - 1), max_size=4))
    fleet = Fleet(rows, slots, room=rows)
    fleet.exchange(0)  # all of them are in one engine
    fleet.run(killers, random.Random(seed).choice)
    assert fleet.condemned.keys() == killers
    assert {row.attempts for row in fleet.condemned.values()} <= {2}
    assert fleet.deaths <= len(killers) * (math.ceil(math.log2(rows)) + 2) + 1
    assert fleet.schedule.is_finished
    assert fleet.schedule.suspects == 0


@settings(max_examples=200, deadline=None)
@given(data=st.data(), rows=st.integers(1, 30), slots=st.integers(1, 3), seed=st.integers(0, 2**32))
def test_a_coordinator_that_dies_meanwhile_goes_on_telling_them_apart(
    data: st.DataObject, rows: int, slots: int, seed: int
) -> None:
    killers = data.draw(st.sets(st.integers(0, rows - 1), max_size=3))
    fleet = Fleet(rows, slots, room=data.draw(st.integers(2, 8)))
    fleet.run(killers, random.Random(seed).choice, may_restart=True)
    assert fleet.condemned.keys() == killers


@settings(max_examples=200, deadline=None)
@given(
    data=st.data(),
    rows=st.integers(1, 30),
    slots=st.integers(2, 4),
    seed=st.integers(0, 2**32),
    may_restart=st.booleans(),
)
def test_slots_that_open_and_close_meanwhile_condemn_nobody_else_and_keep_nobody_waiting(
    data: st.DataObject, rows: int, slots: int, seed: int, may_restart: bool
) -> None:
    killers = data.draw(st.sets(st.integers(0, rows - 1), max_size=3))
    fleet = Fleet(rows, slots, room=data.draw(st.integers(2, 8)))
    for slot in data.draw(st.sets(st.integers(1, slots - 1))):
        fleet.close(slot)
    fleet.run(killers, random.Random(seed).choice, may_restart, may_change=True)
    assert fleet.condemned.keys() == killers
    assert fleet.schedule.suspects == 0


def bisected(fleet: Fleet, killer: int, slot: int = 0) -> int:
    """The slot's engines die of this row until it has killed alone; how many of them."""
    for deaths in range(1, 20):
        while killer not in fleet.running[slot]:
            fleet.exchange(slot)
            if killer not in fleet.running[slot]:
                fleet.finish(slot)
        if fleet.running[slot] == [killer]:
            fleet.die(slot)
            return deaths
        fleet.die(slot)
    raise AssertionError("it was never alone")


def test_suspects_come_in_halves_the_youngest_first_and_with_nobody_else() -> None:
    fleet = Fleet(30)
    assert fleet.exchange(0) == list(range(10))
    fleet.die(0)
    assert fleet.exchange(0) == [5, 6, 7, 8, 9]
    assert fleet.exchange(0) == [], "there is room, and the half runs alone"
    fleet.finish(0)
    assert fleet.exchange(0) == [0, 1, 2, 3, 4]
    fleet.finish(0)
    assert fleet.exchange(0) == list(range(10, 20))


def test_the_other_slots_go_on_with_ordinary_rows() -> None:
    fleet = Fleet(30, slots=2)
    fleet.exchange(0)
    fleet.die(0)
    assert fleet.exchange(1) == list(range(10, 20))
    assert fleet.exchange(0) == [5, 6, 7, 8, 9]


def test_an_idle_slot_takes_suspects_when_there_is_nothing_else() -> None:
    fleet = Fleet(10, slots=2)
    fleet.exchange(0)
    fleet.die(0)
    assert fleet.exchange(1) == [5, 6, 7, 8, 9]
    assert fleet.exchange(0) == [0, 1, 2, 3, 4]


def test_the_suspects_of_a_slot_that_is_lost_are_run_by_another_when_it_is_empty() -> None:
    fleet = Fleet(40, slots=2)
    fleet.exchange(0)
    fleet.exchange(1)
    fleet.die(0)
    fleet.schedule.slot_lost(0)
    fleet.finish(1, 10, 11)
    assert fleet.exchange(1) == [], "it ends what it has first"
    fleet.finish(1)
    assert fleet.exchange(1) == [5, 6, 7, 8, 9]


def test_the_suspects_of_a_slot_that_closes_are_run_by_another() -> None:
    fleet = Fleet(40, slots=2)
    fleet.exchange(0)
    fleet.exchange(1)
    fleet.die(0)
    fleet.finish(1)
    assert fleet.exchange(1) == list(range(20, 30)), "they are for the slot that they died on"
    fleet.finish(1)
    fleet.close(0)
    assert fleet.exchange(1) == [5, 6, 7, 8, 9]


def test_one_open_slot_is_enough_to_condemn_and_two_are_asked_for_where_two_are_open() -> None:
    for is_closed in (True, False):
        fleet = Fleet(3, slots=2)
        if is_closed:
            fleet.close(1)
        fleet.exchange(0)
        fleet.finish(0, 0, 1)
        fleet.exchange(0)
        fleet.die(0)
        assert fleet.exchange(0) == ([2] if is_closed else [])
        if is_closed:
            fleet.die(0)
        assert fleet.condemned.keys() == ({2} if is_closed else set())


def test_a_slot_that_opens_is_the_second_witness_and_is_not_kept_waiting_for_the_first() -> None:
    fleet = Fleet(100, slots=2)
    fleet.close(1)
    fleet.exchange(0)
    assert bisected(fleet, killer=9) == 5
    fleet.open_again(1)
    assert 9 not in fleet.exchange(0), "it has killed here"
    fleet.exchange(1)
    fleet.finish(1)
    assert fleet.exchange(1) == [9]
    fleet.finish(1)
    fleet.exchange(1)
    assert 9 in fleet.done
    assert fleet.schedule._suspects._distrusted == {0}


def test_a_distrusted_slot_is_trusted_when_the_other_one_closes() -> None:
    suspects = distrusting()
    suspects.closed(1)
    suspects.died(0, [1, 2, 3], DIED, unblamed=9)
    assert len(suspects) == 3


def test_a_lost_slot_does_not_open() -> None:
    suspects = Suspects(frozenset({0, 1}), has_worked=True)
    suspects.lost(1)
    suspects.opened(1)
    suspects.died(0, [5], DIED, unblamed=0)
    suspects.listed(0, {5})
    assert len(suspects.died(0, [5], DIED, unblamed=0).condemned) == 1


def test_one_random_kill_condemns_nobody_and_costs_no_attempt() -> None:
    fleet = Fleet(1)
    fleet.exchange(0)
    fleet.die(0)
    assert fleet.exchange(0) == [0]
    fleet.finish(0)
    fleet.exchange(0)
    assert fleet.done == {0}
    assert not fleet.condemned


def test_the_second_solo_kill_is_on_another_slot_that_finishes_rows() -> None:
    fleet = Fleet(100, slots=2)
    fleet.exchange(0)
    fleet.exchange(1)
    assert bisected(fleet, killer=9) == 5
    assert fleet.exchange(0) != [9], "it has killed here"
    assert fleet.exchange(1) == []
    fleet.finish(1, fleet.running[1][0])
    assert fleet.exchange(1) == [], "the other slot takes nothing more, until it is empty"
    fleet.finish(1)
    assert fleet.exchange(1) == [9]
    toll = fleet.die(1)
    assert (toll.narrows, toll.condemned) == (True, 1)
    (row,) = fleet.condemned.values()
    assert (row.ordinal, row.attempts, row.reason) == (9, 2, "kills_engine")
    assert row.detail == ("2 engines died with this row alone: replica 0: EngineDied: x; replica 1: EngineDied: x")


def test_a_replica_that_dies_of_everything_is_found_out_and_its_rows_are_no_suspects_any_more() -> None:
    fleet = Fleet(100, slots=2)
    fleet.exchange(0)
    fleet.exchange(1)
    while fleet.schedule._suspects.blamed == 0:
        fleet.die(0)
        fleet.exchange(0)
    fleet.finish(1)
    fleet.exchange(1)  # shown to work, and empty: the row that killed alone
    (row,) = fleet.running[1]
    fleet.finish(1)
    fleet.exchange(1)
    assert row in fleet.done
    assert fleet.schedule.suspects == len(fleet.running[0]), "only what is on trial there now"
    before = fleet.deaths
    for _ in range(20):
        fleet.exchange(0)
        assert not fleet.die(0).narrows
        fleet.finish(1)
        fleet.exchange(1)
    assert fleet.deaths == before + 20
    assert not fleet.condemned


def test_a_lone_replica_that_has_never_worked_condemns_nobody() -> None:
    fleet = Fleet(3, room=2, has_worked=False)
    tolls = []
    for _ in range(12):
        fleet.exchange(0)
        assert fleet.running[0]
        tolls.append(fleet.die(0))
    assert not fleet.condemned
    assert not any(toll.narrows for toll in tolls[6:]), "from some time on a death tells nothing, and counts"


def test_a_lone_replica_that_worked_once_and_dies_of_everything_condemns_nobody_while_there_are_others() -> None:
    fleet = Fleet(50, room=4)
    fleet.exchange(0)
    fleet.finish(0)
    for _ in range(30):
        fleet.exchange(0)
        fleet.die(0)
    assert not fleet.condemned


def test_a_row_that_hangs_its_engine_twice_is_stalled() -> None:
    fleet = Fleet(1)
    for _ in range(2):
        fleet.exchange(0)
        fleet.die(0, STALLED)
    assert fleet.condemned[0].reason == "stalled"


def test_an_attempt_that_fails_by_itself_clears_a_row_in_company_and_not_alone() -> None:
    fleet = Fleet(4, room=4)
    fleet.exchange(0)
    fleet.die(0)
    assert fleet.exchange(0) == [2, 3]
    fleet.running[0] = [3]
    fleet.exchange(0, failed=(FailedAttempt(2, "engine_error", ""),))
    assert fleet.schedule.suspects == 3
    fleet.running[0] = []
    fleet.exchange(0, failed=(FailedAttempt(3, "stalled", ""),))
    assert fleet.schedule.suspects == 3
    assert fleet.running[0] == [3], "it may have hung the engine: it stays alone"


def test_an_engine_that_was_told_to_leave_blames_nobody() -> None:
    fleet = Fleet(20)
    fleet.exchange(0)
    fleet.die(0, None)
    assert fleet.exchange(0) == list(range(10))
    assert fleet.schedule.suspects == 0


def test_a_death_told_twice_counts_once_and_is_answered_alike() -> None:
    fleet = Fleet(8)
    fleet.exchange(0)
    assert fleet.die(0) == Toll(suspects=8)
    fleet.exchange(0)
    once = fleet.schedule.worker_gone(WorkerId(0, 1), DIED)
    again = fleet.schedule.worker_gone(WorkerId(0, 1), DIED)
    assert once.toll == again.toll == Toll(narrows=True, suspects=8)


def test_a_silent_slot_that_comes_back_has_its_rows_and_nobody_is_suspected() -> None:
    fleet = Fleet(40, slots=2)
    fleet.exchange(0)
    fleet.now = SILENT_SECONDS + 1
    fleet.schedule.tick(fleet.now)
    assert fleet.schedule.suspects == 10
    assert fleet.exchange(1) == list(range(10, 20)), "its rows wait for it"
    fleet.running[0].remove(3)  # its answer was lost
    assert fleet.exchange(0) == [3]
    assert fleet.schedule.suspects == 0


def test_rows_that_have_hung_a_process_are_told_apart_when_it_was_killed() -> None:
    fleet = Fleet(40, slots=2)
    fleet.exchange(0)
    for fleet.now in (SILENT_SECONDS + 1, HUNG_SECONDS + 1):
        fleet.schedule.tick(fleet.now)
    fleet.die(0)
    assert fleet.exchange(0) == [5, 6, 7, 8, 9]
    fleet.now += SILENT_SECONDS + 1
    fleet.schedule.tick(fleet.now)
    assert fleet.die(0).narrows
    assert fleet.exchange(0) == [8, 9] or fleet.running[0] == [7, 8, 9]


def test_rows_that_are_done_are_no_suspects_for_the_next_session() -> None:
    fleet = Fleet(20, room=8)
    fleet.exchange(0)
    fleet.die(0)
    fleet.exchange(0)
    fleet.finish(0, 4, 5)
    fleet.exchange(0)
    fleet.restart_coordinator()
    assert fleet.schedule.suspects == 6
    fleet.running[0], fleet.incarnation[0] = [], 1
    assert fleet.exchange(0) in ([6, 7], [0, 1, 2, 3])


def test_a_session_for_other_rows_keeps_the_suspects_for_the_next() -> None:
    fleet = Fleet(20, room=4)
    fleet.exchange(0)
    fleet.die(0)
    pilot = Schedule(OrdinalSet(20), 3, only=[10, 11], suspects=Suspects(frozenset({0}), True))
    assert fleet.record is not None
    pilot.restore_suspects(fleet.record, "s2")
    report = Report(WorkerId(0, 0), 1, (), (), (), (), 8)
    assert [grant.ordinal for grant in pilot.report(report, 0).grants] == [10, 11]
    pilot.worker_gone(WorkerId(0, 0), DIED)
    after = pilot.changed_suspects("s2")
    assert after is not None
    assert sorted(row for group in after.groups for row in group.rows) == [0, 1, 2, 3, 10, 11]


def test_a_session_for_some_rows_leases_suspects_among_them_apart() -> None:
    fleet = Fleet(20, room=4)
    fleet.exchange(0)
    fleet.die(0)
    pilot = Schedule(OrdinalSet(20), 3, only=[0, 2, 3, 9], suspects=Suspects(frozenset({0, 1}), True))
    assert fleet.record is not None
    pilot.restore_suspects(fleet.record, "s2")
    ordinary = pilot.report(Report(WorkerId(1, 0), 1, (), (), (), (), 8), 0)
    assert [grant.ordinal for grant in ordinary.grants] == [9]
    apart = pilot.report(Report(WorkerId(0, 0), 1, (), (), (), (), 8), 0)
    assert [grant.ordinal for grant in apart.grants] == [2, 3]


def test_a_second_solo_kill_on_the_same_slot_condemns_nobody_while_there_is_another_slot() -> None:
    suspects = Suspects(frozenset({0, 1}), has_worked=True)
    suspects.died(0, [5], DIED, unblamed=9)
    suspects.listed(0, {5})  # as a restarted coordinator hears it
    suspects.finished(0, 7)
    assert suspects.died(0, [5], DIED, unblamed=9).condemned == ()


def distrusting() -> Suspects:
    """Slot 0 died of a row that slot 1 has finished."""
    suspects = Suspects(frozenset({0, 1}), has_worked=True)
    suspects.died(0, [5], DIED, unblamed=9)
    suspects.finished(1, 5)
    return suspects


def test_deaths_of_a_slot_that_was_found_out_blame_nobody_in_this_session() -> None:
    record = distrusting().record("s1")
    for session, suspected in (("s1", 0), ("s2", 3)):
        restored = Suspects(frozenset({0, 1}), has_worked=True)
        restored.restore(record, session, lambda row: True)
        restored.died(0, [1, 2, 3], DIED, unblamed=9)
        assert len(restored) == suspected


def test_a_slot_that_was_found_out_is_trusted_again_when_an_engine_of_it_has_proven_itself() -> None:
    suspects = distrusting()
    made = Schedule(OrdinalSet(40), 3, suspects=suspects, proven_rows=4)
    rows = [grant.ordinal for grant in made.report(Report(WorkerId(0, 0), 1, (), (), (), (), 8), 0).grants]
    for seq, finished in ((2, rows[:3]), (3, rows[3:4])):
        assert suspects._distrusted == {0}
        made.report(Report(WorkerId(0, 0), seq, tuple(rows[4:]), (), tuple(finished), (), 0), 0)
    assert suspects._distrusted == set()
    assert made.worker_gone(WorkerId(0, 0), DIED).toll == Toll(is_proven=True, suspects=4, has_worked=True)


def test_attempts_outlive_the_coordinator() -> None:
    made = Schedule(OrdinalSet(3), attempts_allowed=3, failures={0: 2})
    assert made.changed_failures() == {}
    report = Report(WorkerId(0, 0), 1, (), (), (), (), 1)
    assert [grant.attempt for grant in made.report(report, 0).grants] == [3]
    last = made.report(Report(WorkerId(0, 0), 2, (), (), (), (FailedAttempt(0, "x", ""),), 0), 1)
    assert [row.attempts for row in last.exhausted] == [3]
    made.committed([0])
    assert made.changed_failures() == {0: 0}
    assert made.changed_failures() == {}


# --- restarts --------------------------------------------------------------------------------------

NARROWING, PLAIN, PROVEN = Toll(narrows=True), Toll(), Toll(is_proven=True)


def test_deaths_use_up_the_restarts_and_those_that_tell_suspects_apart_do_not() -> None:
    restarts = Restarts(2)
    assert all(restarts.died(NARROWING) for _ in range(FREE_DEATHS))
    assert restarts.left == 2
    assert restarts.died(NARROWING)
    assert restarts.died(PLAIN)
    assert not restarts.died(NARROWING)


def test_good_work_gives_the_restarts_back() -> None:
    restarts = Restarts(1)
    assert all(restarts.died(PROVEN) for _ in range(50))
    assert not restarts.died(PLAIN)


def test_outages_of_a_server_are_bounded_only_while_nothing_is_made_in_between() -> None:
    restarts, worked = Restarts(2), Toll(has_worked=True)
    assert all(restarts.died(worked, is_outage=True) for _ in range(50))
    assert restarts.died(PLAIN, is_outage=True)
    assert not restarts.died(PLAIN, is_outage=True)
    own = Restarts(1)
    assert own.died(worked)
    assert not own.died(worked)


@pytest.mark.parametrize("toll", [NARROWING, PLAIN, PROVEN])
def test_no_restarts_are_no_restarts(toll: Toll) -> None:
    assert not Restarts(0).died(toll)


def test_engines_that_were_taken_away_use_up_nothing_but_time() -> None:
    restarts = Restarts(0)
    pauses = [restarts.was_taken(PLAIN) for _ in range(9)]
    assert pauses == [1, 2, 4, 8, 16, 32, 64, LONGEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS]
    assert restarts.was_taken(PROVEN) == 1, "an engine that did its work begins anew"
    assert restarts.was_taken(PLAIN) == 2
    assert not restarts.died(PLAIN)
