"""The guard over simulated replicas: silent over noise, and how soon it notices. docs/speculation.md has more runs."""

from __future__ import annotations

import pytest

from regen.spec import SpeculationSpec
from regen.speculative.guard import Guard, GuardVerdict, ReplicaVerdict
from tests.simulated_acceptance import GSM8K, LOOKUP, MT_BENCH, Drafter, Fault, SimulatedRun, healthy

SPECULATION = {
    False: SpeculationSpec(method="eagle3", draft="head", num_tokens=3),
    True: SpeculationSpec(method="ngram", num_tokens=4),
}
REPLICAS, SLOTS = 2, 8


def told(drafter: Drafter, rows: int, fault: Fault = healthy) -> list[tuple[int, ReplicaVerdict]]:
    """(drafts of that replica so far, change) of every change to something else than healthy."""
    guard = Guard(SPECULATION[drafter.on_matches], range(REPLICAS))
    for slot in range(REPLICAS):
        guard.engine_started(slot, 0.0, True, None)
    changes = []
    for now, reading in enumerate(SimulatedRun(drafter, 7, REPLICAS, SLOTS, rows, fault).readings()):
        guard.counters(reading.replica, now, reading.output_tokens, reading.total)
        for source, prompt_tokens, acceptance in reading.finished:
            guard.generation(reading.replica, source, prompt_tokens, acceptance)
        changes += [
            (reading.total.drafts, change)
            for change in guard.changes(now)
            if change.verdict is not GuardVerdict.HEALTHY
        ]
    return changes


@pytest.mark.parametrize("drafter", [Drafter(GSM8K), Drafter(MT_BENCH, concentration=4.0), LOOKUP])
def test_healthy_drafts_raise_nothing(drafter: Drafter) -> None:
    assert told(drafter, rows=4_000) == []


@pytest.mark.parametrize(("drafter", "begins", "within"), [(Drafter(GSM8K), 50_000, 12_000), (LOOKUP, 15_000, 20_000)])
def test_a_collapse_is_noticed_soon(drafter: Drafter, begins: int, within: int) -> None:
    changes = told(drafter, 1_500, lambda replica, drafts: 0.0 if replica == 1 and drafts >= begins else 1.0)
    assert [(change.slot, change.verdict) for _, change in changes] == [(1, GuardVerdict.COLLAPSED)]
    assert begins < changes[0][0] < begins + within


def test_a_decay_of_three_tenths_is_noticed() -> None:
    begins = 250_000
    changes = told(Drafter(GSM8K), 6_000, lambda replica, drafts: 0.7 if replica == 1 and drafts >= begins else 1.0)
    assert [(change.slot, change.verdict) for _, change in changes] == [(1, GuardVerdict.DECAYED)]
    assert begins < changes[0][0] < begins + 200_000
