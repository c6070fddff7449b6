"""Counts over engines that come and go."""

from dataclasses import replace

from regen.records import Acceptance, EngineCounters, ReplicaState, ReplicaStats, WorkerId
from regen.run.fleet.fleet import Fleet


def fleet_of(replicas: int) -> Fleet:
    fleet = Fleet(lambda slot: 8)
    fleet.opened(frozenset(range(replicas)))
    return fleet


def test_each_slot_is_taken_to_have_its_own_number_of_sequences_until_it_says_so() -> None:
    fleet = Fleet((128, 8, 8).__getitem__)
    fleet.opened(frozenset(range(3)))
    assert fleet.slots_to_come == 144


def said(tokens: int = 0, state: ReplicaState = ReplicaState.RUNNING, running: int = 0) -> ReplicaStats:
    return ReplicaStats(state, 8, running, 0.0, EngineCounters(output_tokens=tokens, running=running))


def test_a_replaced_engines_tokens_stay_counted() -> None:
    fleet = fleet_of(2)
    fleet.hear(WorkerId(0, 0), said(0))
    fleet.hear(WorkerId(0, 0), said(500))
    fleet.gone(0)
    fleet.hear(WorkerId(0, 1), said(20))
    fleet.hear(WorkerId(0, 1), said(50))
    assert fleet.sampled_tokens == 550
    assert fleet.paced_tokens == 530, "what the second engine had made when it was first heard is not this session's"


def test_a_warm_up_and_an_earlier_coordinators_tokens_pace_nothing() -> None:
    fleet = fleet_of(1)
    fleet.hear(WorkerId(0, 0), said(1000, ReplicaState.WARMING))
    fleet.hear(WorkerId(0, 0), said(3000, ReplicaState.WARMING))
    fleet.hear(WorkerId(0, 0), said(3100))
    assert fleet.paced_tokens == 0
    fleet.hear(WorkerId(0, 0), said(3200))
    assert fleet.paced_tokens == 100


def test_slots_that_work_and_those_that_will() -> None:
    fleet = fleet_of(4)
    assert (fleet.busy, fleet.slots, fleet.slots_to_come) == (0, 0, 32)
    fleet.hear(WorkerId(0, 0), said(0, running=5))
    fleet.hear(WorkerId(1, 0), said(0, ReplicaState.DRAINING, running=2))
    fleet.hear(WorkerId(2, 0), said(0, ReplicaState.WARMING, running=3))
    assert (fleet.busy, fleet.slots, fleet.slots_to_come) == (7, 16, 32)
    fleet.gone(0)
    fleet.lost(3)
    assert (fleet.busy, fleet.slots, fleet.slots_to_come) == (2, 8, 24)
    assert fleet.stats[0].state is ReplicaState.STOPPED


def test_accept_length_comes_from_raw_counters() -> None:
    fleet = fleet_of(2)
    assert fleet.accept_length is None
    for slot, (drafts, accepted) in enumerate([(100, 200), (300, 0)]):
        acceptance = Acceptance(drafts, 3 * drafts, accepted, (accepted, 0, 0))
        stats = said()
        fleet.hear(WorkerId(slot, 0), replace(stats, counters=replace(stats.counters, acceptance=acceptance)))
    assert fleet.accept_length == 1.5


def test_a_slot_that_was_closed_is_released_and_one_that_died_is_gone() -> None:
    fleet = fleet_of(4)
    for slot in range(3):
        fleet.hear(WorkerId(slot, 0), said(100, running=2))
    fleet.gone(0)
    fleet.gone(1)
    fleet.opened(frozenset({0, 2}))
    states = [fleet.stats[slot].state for slot in range(4)]
    stopped, released = ReplicaState.STOPPED, ReplicaState.RELEASED
    assert states == [stopped, released, ReplicaState.RUNNING, released]
    assert fleet.sampled_tokens == 300, "what it has made stays counted"
    assert (fleet.busy, fleet.slots_to_come) == (2, 16)


def test_a_lost_slot_looks_like_a_fault_whenever_it_is_heard_that_it_is_closed() -> None:
    fleet = fleet_of(2)
    fleet.lost(1)
    fleet.opened(frozenset({0}))
    assert fleet.stats[1].state is ReplicaState.STOPPED


def test_a_slot_opened_again_starts_and_counts_on() -> None:
    fleet = fleet_of(2)
    fleet.hear(WorkerId(1, 0), said(100))
    fleet.opened(frozenset({0}))
    assert fleet.has_heard(1)
    fleet.opened(frozenset({0, 1}))
    assert fleet.stats[1].state is ReplicaState.STARTING
    assert not fleet.has_heard(1), "nothing is held there before its process speaks"
    fleet.hear(WorkerId(1, 1), said(0))
    fleet.hear(WorkerId(1, 1), said(30))
    assert fleet.sampled_tokens == 130


def test_a_slot_that_waits_for_a_node_is_no_part_of_what_is_ahead() -> None:
    fleet = fleet_of(2)
    fleet.opened(frozenset({0, 1, 2}), frozenset({1, 2}))
    assert fleet.slots_to_come == 8
    fleet.opened(frozenset({0, 1, 2}), frozenset({2}))
    assert fleet.slots_to_come == 16
    assert fleet.stats.keys() == {0, 1, 2}


def test_a_slot_that_nobody_has_opened_here_is_heard() -> None:
    """An earlier coordinator has."""
    fleet = fleet_of(1)
    fleet.hear(WorkerId(5, 2), said(10))
    fleet.gone(7)
    assert fleet.stats.keys() == {0, 5, 7}
    assert fleet.is_newest(WorkerId(5, 2))
    assert not fleet.is_newest(WorkerId(5, 1))
