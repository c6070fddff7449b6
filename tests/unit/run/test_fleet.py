"""Counts over engines that come and go."""

from dataclasses import replace

from regen.records import Acceptance, EngineCounters, ReplicaState, ReplicaStats, WorkerId
from regen.run.fleet import Fleet


def test_each_slot_is_taken_to_have_its_own_number_of_sequences_until_it_says_so() -> None:
    assert Fleet(3, (128, 8, 8).__getitem__).slots_to_come == 144


def said(tokens: int = 0, state: ReplicaState = ReplicaState.RUNNING, running: int = 0) -> ReplicaStats:
    return ReplicaStats(state, 8, running, 0.0, EngineCounters(output_tokens=tokens, running=running))


def test_a_replaced_engines_tokens_stay_counted() -> None:
    fleet = Fleet(2, lambda slot: 8)
    fleet.hear(WorkerId(0, 0), said(0))
    fleet.hear(WorkerId(0, 0), said(500))
    fleet.gone(0)
    fleet.hear(WorkerId(0, 1), said(20))
    fleet.hear(WorkerId(0, 1), said(50))
    assert fleet.sampled_tokens == 550
    assert fleet.paced_tokens == 530, "what the second engine had made when it was first heard is not this session's"


def test_a_warm_up_and_an_earlier_coordinators_tokens_pace_nothing() -> None:
    fleet = Fleet(1, lambda slot: 8)
    fleet.hear(WorkerId(0, 0), said(1000, ReplicaState.WARMING))
    fleet.hear(WorkerId(0, 0), said(3000, ReplicaState.WARMING))
    fleet.hear(WorkerId(0, 0), said(3100))
    assert fleet.paced_tokens == 0
    fleet.hear(WorkerId(0, 0), said(3200))
    assert fleet.paced_tokens == 100


def test_slots_that_work_and_those_that_will() -> None:
    fleet = Fleet(4, lambda slot: 8)
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
    fleet = Fleet(2, lambda slot: 8)
    assert fleet.accept_length is None
    for slot, (drafts, accepted) in enumerate([(100, 200), (300, 0)]):
        acceptance = Acceptance(drafts, 3 * drafts, accepted, (accepted, 0, 0))
        stats = said()
        fleet.hear(WorkerId(slot, 0), replace(stats, counters=replace(stats.counters, acceptance=acceptance)))
    assert fleet.accept_length == 1.5
