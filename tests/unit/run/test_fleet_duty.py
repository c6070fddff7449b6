"""What is opened and closed, as events come in any order that a restart brings about."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from regen.ordinals import OrdinalSet
from regen.records import EngineCounters, Places, ReplicaState, ReplicaStats, WorkerId
from regen.run.fleet.duty import PENDING_SECONDS, FleetDuty, Moves, Outlook
from regen.run.fleet.roster import IDLE_SECONDS
from regen.run.schedule import Report, Schedule
from regen.spec import FakeEngineSpec

NONE = frozenset[int]()
QUIET = Outlook(is_comparing=False, seconds_left=None)


def duty(replicas: object, **engine: Any) -> FleetDuty:
    return FleetDuty(FakeEngineSpec.model_validate({"kind": "fake", "slots": 4, "replicas": replicas, **engine}))


def schedule(rows: int = 100) -> Schedule:
    return Schedule(OrdinalSet(rows), 3)


def up(state: ReplicaState = ReplicaState.RUNNING) -> ReplicaStats:
    return ReplicaStats(state, 4, 0, 0.0, EngineCounters())


def listed(slot: int, *running: int, free: int = 0, seq: int = 1) -> Report:
    return Report(WorkerId(slot, 0), seq, running, (), (), (), free)


def test_a_fixed_number_is_open_from_the_first_look_on() -> None:
    fleet = duty(3)
    fleet.look(schedule(), QUIET, 0.0)
    assert fleet.open_slots == {0, 1, 2}
    assert not fleet.pending_slots, "Ray takes its time also where there is room"
    fleet.look(schedule(), QUIET, PENDING_SECONDS)
    assert fleet.pending_slots == {0, 1, 2}
    fleet.told(Places(placed=frozenset({0, 1, 2})), PENDING_SECONDS)
    fleet.look(schedule(), QUIET, PENDING_SECONDS)
    assert not fleet.pending_slots


def test_one_slot_more_than_is_placed_is_open_and_waits_at_once() -> None:
    fleet, rows = duty("auto"), schedule()
    assert fleet.look(rows, QUIET, 0.0) == Moves(NONE, NONE, NONE)
    assert fleet.open_slots == {0}
    fleet.hear(WorkerId(0, 0), up(), 1.0)
    fleet.look(rows, QUIET, 1.0)
    assert fleet.open_slots == {0, 1}
    assert fleet.pending_slots == {1}
    assert fleet.fleet.slots_to_come == 4, "it may never come"
    fleet.told(Places(frozenset({0, 1})), 2.0)
    assert fleet.look(rows, QUIET, 2.0) == Moves(frozenset({1}), NONE, NONE)
    assert fleet.open_slots == {0, 1, 2}
    assert fleet.pending_slots == {2}


def test_rows_that_engines_have_room_for_open_nothing() -> None:
    fleet, rows = duty("auto"), schedule(rows=9)
    for slot in (0, 1):
        fleet.hear(WorkerId(slot, 0), up(), 0.0)
        rows.report(listed(slot, free=4), 0.0)
    fleet.look(rows, QUIET, 0.0)
    assert rows.queued == 1
    assert fleet.open_slots == {0, 1}, "each takes a row more than it has sequences"


def test_slots_that_a_cache_has_no_room_for_take_no_rows() -> None:
    fleet, rows = duty("auto"), schedule(rows=9)
    for slot in (0, 1):
        fleet.hear(WorkerId(slot, 0), replace(up(), row_limit=2), 0.0)
        rows.report(listed(slot, free=3), 0.0)
    fleet.look(rows, QUIET, 0.0)
    assert fleet.open_slots == {0, 1, 2}


def test_who_had_no_rows_for_long_is_told_to_leave_and_its_slot_closes_when_it_has() -> None:
    fleet, rows = duty("auto"), schedule(rows=4)
    for slot in (0, 1):
        fleet.hear(WorkerId(slot, 0), up(), 0.0)
    rows.report(listed(0, free=4), 0.0)
    fleet.look(rows, QUIET, 0.0)
    assert not fleet.is_to_leave(1)
    fleet.look(rows, QUIET, IDLE_SECONDS)
    assert fleet.is_to_leave(1)
    assert not fleet.is_to_leave(0)
    assert fleet.open_slots == {0, 1}
    fleet.gone(WorkerId(1, 0), is_released=True, now=40.0)
    assert fleet.look(rows, QUIET, 40.0) == Moves(NONE, frozenset({1}), NONE)
    assert fleet.fleet.stats[1].state is ReplicaState.RELEASED


def test_nobody_leaves_while_settings_are_compared() -> None:
    fleet, rows = duty("auto"), schedule(rows=4)
    for slot in (0, 1):
        fleet.hear(WorkerId(slot, 0), up(), 0.0)
    rows.report(listed(0, free=4), 0.0)
    for now in (0.0, IDLE_SECONDS, 2 * IDLE_SECONDS):
        fleet.look(rows, Outlook(is_comparing=True, seconds_left=None), now)
    assert not fleet.is_to_leave(1)


def test_what_an_older_engine_of_a_slot_does_changes_nothing() -> None:
    fleet, rows = duty("auto"), schedule()
    fleet.hear(WorkerId(0, 1), up(), 0.0)
    fleet.gone(WorkerId(0, 0), is_released=True, now=1.0)
    fleet.look(rows, QUIET, 1.0)
    assert 0 in fleet.open_slots
    assert fleet.fleet.stats[0].state is ReplicaState.RUNNING


def test_one_that_has_left_closes_its_slot_also_where_nobody_knows_that_it_was_told_to() -> None:
    """A coordinator that took over has forgotten."""
    fleet, rows = duty({"min": 0, "max": 8}), schedule(rows=4)
    fleet.told(Places(placed=frozenset({0, 3})), 0.0)
    rows.report(listed(0, free=4), 0.0)
    fleet.hear(WorkerId(0, 0), up(), 0.0)
    fleet.look(rows, QUIET, 0.0)
    assert fleet.open_slots == {0, 3}
    fleet.gone(WorkerId(3, 2), is_released=True, now=1.0)
    fleet.look(rows, QUIET, 1.0)
    assert fleet.open_slots == {0}


def test_a_lost_slot_is_told_once_and_another_takes_its_place() -> None:
    fleet, rows = duty({"min": 1, "max": 8}), schedule()
    fleet.hear(WorkerId(0, 0), up(), 0.0)
    fleet.look(rows, QUIET, 0.0)
    fleet.gone(WorkerId(0, 0), is_released=False, now=1.0)
    for now in (1.0, 2.0):
        fleet.told(Places(lost=frozenset({0})), now)
    moves = fleet.look(rows, QUIET, 2.0)
    assert moves.lost == {0}
    assert fleet.open_slots >= {1}
    assert 0 not in fleet.open_slots
    assert fleet.fleet.stats[0].state is ReplicaState.STOPPED
    assert fleet.look(rows, QUIET, 3.0).lost == NONE


def test_servers_are_open_from_the_first_moment() -> None:
    endpoints = [{"url": "http://a:1"}, {"url": "http://b:1"}]
    assert duty("auto", endpoints=endpoints).open_slots == {0, 1}


def test_slots_that_were_lost_before_this_coordinator_may_have_been_up_and_are_replaced() -> None:
    fleet, rows = duty({"min": 1, "max": 4}), schedule()
    fleet.told(Places(lost=frozenset({0, 1})), 0.0)
    fleet.look(rows, QUIET, 0.0)
    assert fleet.open_slots == {2}
    fleet.told(Places(lost=frozenset({0, 1, 2})), 1.0)
    fleet.look(rows, QUIET, 1.0)
    assert fleet.open_slots == {3}
    fleet.told(Places(lost=frozenset({0, 1, 2, 3})), 2.0)
    fleet.look(rows, QUIET, 2.0)
    assert not fleet.open_slots
