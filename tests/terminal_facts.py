"""Facts of a run for tests of what is drawn of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from regen.observe.terminal_facts import EngineFacts, TerminalFacts
from regen.records import Eta, EtaState, ReplicaState, RetryReason, SlotTally, Status, Tally

FULL = TerminalFacts(
    name="my-run",
    session="5e55",
    phase="running",
    planned=100_000,
    left=58_700,
    outcomes={Status.OK: 41_000, Status.TRUNCATED: 200, Status.REJECTED: 100},
    session_seconds=3723.0,
    in_flight=1020,
    queued=57_000,
    uncommitted_rows=1234,
    uncommitted_bytes=12_345_678,
    suspects=3,
    eta=Eta(EtaState.ESTIMATING, 10_200.0, 12_000.0, 15_000.0),
    tokens_per_second=12_345.6,
    output_tokens=20_000_000,
    accept_length=2.31,
    speculation="decided",
    verdict="healthy",
    engines=tuple(
        EngineFacts(slot, ReplicaState.RUNNING if slot < 4 else ReplicaState.STARTING, 250 if slot < 4 else 0, 256)
        for slot in range(6)
    ),
    tally=Tally({0: SlotTally(restarts=1)}, {RetryReason.STALLED: 12}, store_errors=2),
    commits=400,
    last_commit_age_seconds=12.0,
    cost_so_far=12.3,
    currency="EUR",
)
UNKNOWN = TerminalFacts(name="my-run", phase="replaying", planned=None, left=0)


def facts(**changes: Any) -> TerminalFacts:
    """The full ones with changes."""
    return replace(FULL, **changes)
