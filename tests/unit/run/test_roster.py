"""The roster: which slots are open, whatever comes and goes, and in whatever order it is told."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regen.run.fleet.roster import IDLE_SECONDS, MOST_NEVER_UP, Roster, Work

BUSY = Work(queued=1000, free_slots=0, engine_slots=8)
TAIL = Work(queued=0, free_slots=8, engine_slots=8)
LATER = IDLE_SECONDS + 1


def up(work: Work, *slots: int, rows: int = 8, **changed: object) -> Work:
    return replace(work, rows_held=dict.fromkeys(slots, rows), **changed)  # type: ignore[arg-type]


def grown(servers: int, fewest: int, most: int, engines: int) -> Roster:
    """So many engines of its own are up, and every slot that is open."""
    roster = Roster(servers, fewest, most)
    slots = range(servers, servers + engines)
    roster.look(BUSY, 0.0)
    for slot in slots:
        roster.placed(slot, 0.0)
        roster.look(up(BUSY, *range(servers), *slots[: slot - servers + 1]), 0.0)
    return roster


def test_a_fixed_number_is_open_from_the_first_look_on_and_stays() -> None:
    roster = Roster(0, 4, 4)
    roster.look(TAIL, 0.0)
    assert roster.open_slots == {0, 1, 2, 3}
    for slot in range(4):
        roster.placed(slot, 0.0)
    for now in (1.0, LATER, 3 * LATER):
        roster.look(up(TAIL, 0, 1, 2, 3, rows=0), now)
    roster.gone(1, 4 * LATER)
    roster.look(TAIL, 5 * LATER)
    roster.look(TAIL, 7 * LATER)
    assert roster.open_slots == {0, 1, 2, 3}
    assert not roster.to_release
    roster.lost(2, 8 * LATER)
    roster.look(BUSY, 9 * LATER)
    assert roster.open_slots == {0, 1, 3}


def test_one_slot_more_is_open_than_is_placed_up_to_the_most() -> None:
    roster = Roster(0, 1, 3)
    for engines, opened in enumerate(({0}, {0, 1}, {0, 1, 2}, {0, 1, 2})):
        roster.look(up(BUSY, *range(engines)), 0.0)
        roster.look(up(BUSY, *range(engines)), 0.0)
        assert roster.open_slots == opened
        assert roster.waiting == opened - set(range(engines))
        if engines < 3:
            roster.placed(engines, 0.0)


def test_the_fewest_are_open_at_once() -> None:
    roster = Roster(2, 5, 9)
    assert roster.open_slots == {0, 1}, "servers are there, whoever looks"
    roster.look(TAIL, 0.0)
    assert roster.open_slots == {0, 1, 2, 3, 4}


@pytest.mark.parametrize(
    ("work", "is_opened"),
    [
        (up(BUSY, 0), True),
        (up(BUSY, 0, queued=8, free_slots=8), False),
        (up(BUSY, 0, queued=9, free_slots=8), True),
        (replace(BUSY, queued=8), False),  # the one that starts will have room for them
        (replace(BUSY, queued=9), True),
        (up(BUSY, 0, seconds_left=59.0, start_seconds=60.0), False),
        (up(BUSY, 0, seconds_left=60.0, start_seconds=60.0), True),
        (up(BUSY, 0, seconds_left=1.0), True),
        (up(BUSY, 0, start_seconds=60.0), True),
        (up(BUSY, 0, is_comparing=True), False),
    ],
)
def test_nothing_is_opened_for_rows_that_have_room_or_too_late(work: Work, is_opened: bool) -> None:
    roster = Roster(0, 1, 8)
    roster.look(replace(BUSY, queued=1), 0.0)
    roster.placed(0, 0.0)
    roster.look(work, 1.0)
    assert roster.open_slots == ({0, 1} if is_opened else {0})


def test_idle_slots_are_released_the_highest_first_and_never_below_the_fewest() -> None:
    roster = grown(1, 3, 6, engines=4)
    assert roster.open_slots == {0, 1, 2, 3, 4, 5}
    work = replace(TAIL, rows_held={0: 0, 1: 0, 2: 3, 3: 0, 4: 0})
    roster.look(work, 100.0)
    roster.look(work, 99.0 + IDLE_SECONDS)
    assert roster.open_slots == {0, 1, 2, 3, 4, 5}
    assert not roster.to_release
    roster.look(work, 100.0 + IDLE_SECONDS)
    assert roster.open_slots == {0, 1, 2, 3, 4}, "nobody waits for the one without room"
    assert roster.to_release == {3, 4}, "two engines are kept: the one with rows, and another"
    roster.released(4, 140.0)
    roster.gone(3, 140.0)  # it died on its way out
    roster.look(work, 150.0 + IDLE_SECONDS)
    assert roster.open_slots == {0, 1, 2}
    assert not roster.to_release


def test_rows_that_come_for_a_moment_begin_the_wait_anew() -> None:
    roster = grown(0, 1, 2, engines=2)
    idle = replace(TAIL, rows_held={0: 8, 1: 0})
    roster.look(idle, 100.0)
    roster.look(replace(idle, queued=1), 120.0)
    roster.look(idle, 101.0 + IDLE_SECONDS)
    roster.look(replace(TAIL, rows_held={0: 8, 1: 1}), 160.0)
    roster.look(idle, 161.0)
    roster.look(idle, 160.0 + IDLE_SECONDS)
    assert not roster.to_release
    roster.look(idle, 161.0 + IDLE_SECONDS)
    assert roster.to_release == {1}


@pytest.mark.parametrize(("servers", "kept"), [(0, {0, 1}), (1, {0, 1}), (2, {0, 1})])
def test_two_replicas_are_kept_while_there_are_suspects(servers: int, kept: set[int]) -> None:
    roster = grown(servers, servers, servers + 3, engines=3)
    idle = up(TAIL, *range(servers + 3), rows=0, has_suspects=True)
    roster.look(idle, 100.0)
    roster.look(idle, 100.0 + LATER)
    assert roster.open_slots - roster.to_release == kept


def test_a_second_slot_is_opened_for_suspects_whatever_room_there_is() -> None:
    roster = grown(0, 1, 4, engines=1)
    idle = up(TAIL, 0)
    roster.look(idle, 100.0)
    roster.look(idle, 100.0 + LATER)
    assert roster.open_slots == {0}
    roster.look(replace(idle, has_suspects=True), 200.0)
    assert roster.open_slots == {0, 1}


def test_while_settings_are_compared_nothing_is_released_and_none_waits_long_but_for_its_next_engine() -> None:
    roster = grown(0, 1, 5, engines=3)
    assert roster.open_slots == {0, 1, 2, 3}
    roster.gone(1, 99.0)
    idle = up(TAIL, 0, 2, rows=0, is_comparing=True)
    for now in (100.0, 100.0 + IDLE_SECONDS - 1):
        roster.look(idle, now)
        assert roster.open_slots == {0, 1, 2}
        assert roster.waiting == {1}
        roster.pending(1, now)
    roster.look(idle, 100.0 + LATER)
    assert roster.open_slots == {0, 2}, "an engine that makes way would find its room taken"
    assert not roster.to_release
    roster.look(up(BUSY, 0, 2), 200.0)
    assert roster.open_slots == {0, 1, 2}
    roster.placed(1, 200.0)
    roster.look(up(BUSY, 0, 1, 2), 201.0)
    assert roster.open_slots == {0, 1, 2, 3}, "it is over, and the fleet grows on"


def test_of_several_that_wait_when_settings_are_compared_the_lowest_stay() -> None:
    roster = Roster(0, 2, 8)
    roster.placed(0, 0.0)
    for slot in (3, 5):
        roster.pending(slot, 0.0)
    roster.look(up(BUSY, 0, is_comparing=True), 1.0)
    assert roster.open_slots == {0, 3}


@pytest.mark.parametrize(
    ("fewest", "most", "has_suspects", "kept"),
    [(3, 5, False, {0}), (3, 5, True, {0, 1, 2}), (3, 3, False, {0, 1, 2}), (1, 5, True, {0, 1})],
)
def test_while_settings_are_compared_the_fewest_wait_for_a_while(
    fewest: int, most: int, has_suspects: bool, kept: set[int]
) -> None:
    roster = Roster(0, fewest, most)
    roster.look(replace(BUSY, has_suspects=has_suspects), 0.0)
    opened = roster.open_slots
    roster.placed(0, 1.0)
    comparing = up(BUSY, 0, is_comparing=True, has_suspects=has_suspects)
    roster.look(comparing, 2.0)
    assert roster.open_slots == opened
    roster.look(comparing, 2.0 + LATER)
    assert roster.open_slots == kept
    roster.look(up(BUSY, 0), 3.0 + LATER)
    assert roster.open_slots >= opened, "it is over"


def test_what_had_to_wait_for_room_may_then_be_without_rows_as_long_as_any() -> None:
    roster = Roster(0, 1, 2)
    roster.placed(0, 0.0)
    roster.pending(1, 0.0)
    roster.look(up(TAIL, 0), 0.0)
    roster.placed(1, IDLE_SECONDS - 1)
    roster.look(up(TAIL, 0, 1, rows=0), LATER)
    assert not roster.to_release


def test_what_was_released_is_opened_again_when_rows_came_back() -> None:
    roster = grown(0, 1, 2, engines=2)
    idle = up(TAIL, 0, 1, rows=0)
    roster.look(idle, 100.0)
    roster.look(idle, 100.0 + LATER)
    roster.released(1, 140.0)
    for now in (141.0, 141.0 + LATER):
        roster.placed(1, now)  # told before the driver had seen it leave
        roster.look(up(TAIL, 0, rows=0), now)
        assert roster.open_slots == {0}
    roster.look(up(TAIL, 0, queued=9), 200.0)
    assert roster.open_slots == {0, 1}
    assert not roster.to_release


def test_an_engine_that_is_to_leave_leaves_though_rows_came_back() -> None:
    roster = grown(0, 1, 3, engines=2)
    idle = up(TAIL, 0, 1, rows=0)
    roster.look(idle, 100.0)
    roster.look(idle, 100.0 + LATER)
    roster.look(up(BUSY, 0, 1), 132.0)
    assert roster.to_release == {1}
    assert roster.open_slots == {0, 1, 2}, "another takes its place"


def test_an_engine_that_is_to_leave_is_no_second_one_for_suspects() -> None:
    roster = grown(0, 1, 3, engines=2)
    idle = up(TAIL, 0, 1, rows=0)
    roster.look(idle, 100.0)
    roster.look(idle, 100.0 + LATER)
    assert roster.open_slots == {0, 1}
    roster.look(replace(idle, has_suspects=True), 132.0)
    assert roster.to_release == {1}
    assert roster.open_slots == {0, 1, 2}


def test_a_slot_whose_engine_ended_stays_open_and_is_waited_for() -> None:
    roster = grown(0, 1, 4, engines=2)
    roster.placed(2, 0.0)
    roster.gone(1, 1.0)
    roster.look(up(BUSY, 0), 2.0)
    assert roster.open_slots == {0, 1, 2}
    assert roster.waiting == {1}


def test_of_many_that_wait_for_room_one_goes_on_waiting() -> None:
    """Nodes that went with four engines come back one at a time, as they came."""
    roster = grown(0, 1, 8, engines=5)
    for slot in range(1, 5):
        roster.gone(slot, 10.0)
    work = up(BUSY, 0)
    roster.look(work, 11.0)
    assert roster.waiting == {1, 2, 3, 4, 5}
    roster.look(work, 11.0 + LATER)
    assert roster.waiting == {1}
    roster.pending(3, 50.0)  # said before the driver had seen that it is closed
    assert roster.waiting == {1}
    roster.placed(4, 50.0)  # it had found room meanwhile
    assert roster.open_slots == {0, 1, 4}


def test_one_that_would_be_up_too_late_waits_no_longer() -> None:
    roster = grown(0, 1, 4, engines=1)
    late = up(BUSY, 0, seconds_left=50.0, start_seconds=60.0)
    roster.look(late, 10.0)
    assert roster.open_slots == {0, 1}
    roster.look(late, 10.0 + LATER)
    assert roster.open_slots == {0}


def test_another_number_takes_the_place_of_a_lost_slot() -> None:
    roster = grown(0, 2, 4, engines=2)
    roster.lost(0, 1.0)
    roster.look(up(TAIL, 1), 2.0)
    assert roster.open_slots == {1, 2}
    roster.placed(0, 3.0)
    roster.pending(0, 3.0)
    roster.look(up(BUSY, 1), 3.0)
    assert 0 not in roster.open_slots


def test_a_fleet_in_which_no_engine_comes_up_is_not_tried_to_the_end() -> None:
    roster, tried = Roster(0, 1, 64), set[int]()
    for _ in range(64):
        roster.look(BUSY, 0.0)
        if not roster.open_slots:
            break
        slot = min(roster.open_slots)
        tried.add(slot)
        roster.placed(slot, 0.0)
        roster.look(BUSY, 0.0)
        roster.lost(slot, 0.0)
    assert len(tried) <= MOST_NEVER_UP + 1
    assert not roster.open_slots


def test_slots_that_are_lost_after_good_work_are_all_replaced() -> None:
    roster = Roster(0, 1, 6)
    for slot in range(6):
        roster.look(BUSY, 0.0)
        roster.placed(slot, 0.0)
        roster.look(up(BUSY, slot), 0.0)
        roster.lost(slot, 0.0)
    assert not roster.open_slots


def test_two_that_are_lost_together_after_good_work_are_replaced() -> None:
    roster = grown(0, 1, 6, engines=3)
    for slot in range(4):
        roster.lost(slot, 1.0)
    roster.look(BUSY, 2.0)
    assert roster.open_slots == {4}


def test_an_engine_that_comes_up_shows_that_others_may() -> None:
    roster = grown(0, 1, 8, engines=1)
    for slot in (1, 3, 5):
        roster.placed(slot, 1.0)
        roster.look(up(BUSY, *range(0, slot, 2)), 1.0)
        roster.lost(slot, 1.0)
        roster.look(up(BUSY, *range(0, slot, 2)), 1.0)
        roster.placed(slot + 1, 1.0)
        roster.look(up(BUSY, *range(0, slot + 2, 2)), 1.0)
    assert roster.open_slots == {0, 2, 4, 6, 7}


def test_the_one_that_waits_goes_on_waiting_where_it_is_one_of_the_fewest() -> None:
    roster = Roster(0, 2, 8)
    roster.placed(0, 0.0)
    roster.pending(3, 0.0)
    for now in (1.0, 1.0 + LATER):
        roster.look(up(TAIL, 0), now)
    assert roster.open_slots == {0, 3}


def test_a_server_that_is_lost_is_replaced_by_nobody_else_and_work_goes_on() -> None:
    roster = Roster(1, 1, 3)
    roster.look(replace(BUSY, queued=0), 0.0)
    assert roster.open_slots == {0}
    roster.lost(0, 1.0)
    roster.look(replace(BUSY, queued=1, seconds_left=1.0, start_seconds=60.0), 2.0)
    assert roster.open_slots == {1}, "somebody has to make the row"


def test_a_roster_that_takes_over_goes_on_with_what_it_is_told() -> None:
    roster = Roster(0, 1, 8)
    for slot in (3, 5):
        roster.placed(slot, 0.0)
    roster.pending(6, 0.0)
    roster.lost(0, 0.0)
    roster.lost(1, 0.0)
    assert roster.open_slots == {3, 5, 6}
    roster.look(up(BUSY, 3, 5), 1.0)
    assert roster.open_slots == {3, 5, 6}


def test_a_fixed_fleet_is_open_again_after_a_restart_however_many_are_lost() -> None:
    roster = Roster(0, 4, 4)
    roster.lost(0, 0.0)
    roster.lost(3, 0.0)
    roster.look(BUSY, 0.0)
    assert roster.open_slots == {1, 2}


# --- whatever the order ------------------------------------------------------------------------------

EVENTS = ("placed", "pending", "gone", "lost", "released", "look", "look", "look")
WORKS = st.builds(
    Work,
    queued=st.sampled_from([0, 0, 1, 7, 100]),
    free_slots=st.sampled_from([0, 4, 50]),
    rows_held=st.dictionaries(st.integers(0, 6), st.integers(0, 2)),
    engine_slots=st.just(8),
    has_suspects=st.booleans(),
    is_comparing=st.booleans(),
    seconds_left=st.sampled_from([None, 10.0, 1000.0]),
    start_seconds=st.sampled_from([None, 60.0]),
)


@settings(max_examples=300, deadline=None)
@given(data=st.data(), servers=st.integers(0, 2), fewest=st.integers(0, 3), more=st.integers(0, 4))
def test_the_bounds_hold_whatever_comes_in_whatever_order(
    data: st.DataObject, servers: int, fewest: int, more: int
) -> None:
    fewest, most = servers + fewest, servers + fewest + more
    slots = range(most)
    roster, lost, now = Roster(servers, fewest, most), set[int](), 0.0
    for _ in range(data.draw(st.integers(0, 40))):
        before = (roster.open_slots, roster.waiting, roster.to_release)
        event = data.draw(st.sampled_from(EVENTS if slots else ("look",)))
        now += data.draw(st.sampled_from([0.0, 1.0, 31.0]))
        if event == "look":
            work = data.draw(WORKS)
            roster.look(work, now)
            _check_step(roster, before, work, lost, servers, fewest, most)
        else:
            slot = data.draw(st.sampled_from(slots))
            getattr(roster, event)(slot, now)
            lost |= {slot} if event == "lost" else set()
        assert set(range(servers)) - lost <= roster.open_slots <= set(slots) - lost
        assert roster.to_release <= roster.open_slots
        assert not roster.to_release & set(range(servers))
        if fewest == most:
            assert not roster.to_release
    roster.look(replace(BUSY, seconds_left=1.0, start_seconds=60.0), now)
    is_given_up = roster._never_up >= MOST_NEVER_UP and fewest < most
    assert roster.open_slots or len(lost) == most or is_given_up, "rows, and nobody will come"


def _check_step(
    roster: Roster,
    before: tuple[frozenset[int], frozenset[int], frozenset[int]],
    work: Work,
    lost: set[int],
    servers: int,
    fewest: int,
    most: int,
) -> None:
    """What one look may open and release."""
    were_open, were_waiting, were_released = before
    opened, closed = roster.open_slots - were_open, were_open - roster.open_slots
    own = set(range(servers, most))
    servers_here = servers - len(lost & set(range(servers)))
    floor = max(fewest - servers, (2 - servers_here) * work.has_suspects, (1 - servers_here) * bool(work.queued))
    if work.is_comparing and not work.has_suspects and fewest < most:
        floor = min(floor, 1)
    staying = (roster.open_slots & own) - roster.to_release
    if roster._never_up < MOST_NEVER_UP or fewest == most:
        assert len(staying) >= min(floor, len(own - lost - roster.to_release)), "too few are open"
    if len(staying) > floor:
        assert len(opened) <= max(1, floor), "one at a time"
        if opened and len(staying) - len(opened) >= floor:
            assert work.queued > work.free_slots
            assert roster.waiting == opened, "another waits for room already"
            assert not work.ends_before_a_start
    assert closed <= were_waiting
    if work.is_comparing:
        assert not opened or len(staying) <= floor
        assert roster.to_release == were_released
    if newly := roster.to_release - were_released:
        assert not work.queued
        assert not any(work.rows_held.get(slot) for slot in newly)
        assert len(staying - roster.waiting) >= floor, "fewer are kept than must be"
