"""What a person is shown of a run: one value, whoever looks. Pure.

The command that runs it makes it of the coordinator's status; `regen status` makes it of the store alone
(run/commands/watch.py). None is what the one who looks does not know: it is not drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from regen.observe.price import Price
from regen.records import (
    CoordinatorStatus,
    Eta,
    Phase,
    ReplicaState,
    SpeculationStatus,
    Status,
    Tally,
    engines_acceptance,
)

# The gate's words and the guard's (speculative/gate.py, verdicts.py).
_WORST_FIRST = (
    "garbage",
    "dead",
    "collapsed",
    "absent",
    "off_profile",
    "decayed",
    "undecided",
    "unknown",
    "healthy",
)


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """One replica slot. `is_pending`: no node has room for its engine yet."""

    slot: int
    state: ReplicaState
    running_rows: int
    slots: int
    is_pending: bool = False


@dataclass(frozen=True, slots=True)
class TerminalFacts:
    """Rows are counts of the plan; `uncommitted_rows` are finished and not published yet.

    `phase` is a `Phase`, or what the store says of the last session. `left` rows are still to be made, for the first
    time or again. `accept_length` is of the engines as they are, where those are heard, else of all committed rows.
    `verdict` is the worst of any engine. `heartbeat_age_seconds` is by the watcher's own clock: since when the holder's
    heartbeat has not moved. `note` is a sentence about what cannot be seen now.
    """

    name: str
    phase: str
    planned: int | None
    left: int
    outcomes: Mapping[Status, int] = field(default_factory=dict)
    session: str = ""
    session_seconds: float | None = None
    in_flight: int | None = None
    queued: int | None = None
    uncommitted_rows: int | None = None
    uncommitted_bytes: int | None = None
    reopened: int = 0
    suspects: int = 0
    eta: Eta | None = None
    tokens_per_second: float | None = None
    output_tokens: int = 0
    accept_length: float | None = None
    speculation: str = "off"
    verdict: str | None = None
    engines: tuple[EngineFacts, ...] = ()
    tally: Tally = field(default_factory=Tally)
    commits: int = 0
    last_commit_age_seconds: float | None = None
    store_error: str | None = None
    cost_so_far: float | None = None
    currency: str = ""
    decisions: tuple[str, ...] = ()
    dismissed: tuple[str, ...] = ()
    metrics_url: str | None = None
    coordinator: str = ""
    heartbeat_age_seconds: float | None = None
    note: str = ""

    @property
    def done(self) -> int:
        """Rows that have their outcome."""
        return (self.planned or 0) - self.left

    @property
    def share(self) -> float | None:
        """Of the plan, 0 to 1; None before there is a plan."""
        return None if self.planned is None else self.done / self.planned if self.planned else 1.0

    @property
    def retries(self) -> int:
        return self.tally.failed_attempts

    @property
    def restarts(self) -> int:
        return self.tally.restarts

    @property
    def stalls(self) -> int:
        return self.tally.stalls

    def engines_in(self, *states: ReplicaState) -> int:
        return sum(engine.state in states and not engine.is_pending for engine in self.engines)


def facts_of(status: CoordinatorStatus, name: str, session: str = "", price: Price | None = None) -> TerminalFacts:
    """What the coordinator's status shows. While it replays, nothing is known of the plan."""
    is_replaying = status.phase is Phase.REPLAYING and not status.planned
    return TerminalFacts(
        name=name,
        session=session,
        phase=status.phase.value,
        planned=None if is_replaying else status.planned,
        left=status.left,
        outcomes=status.totals.by_status(),
        session_seconds=status.session_seconds,
        in_flight=status.in_flight,
        queued=status.queued,
        uncommitted_rows=status.uncommitted_rows,
        uncommitted_bytes=status.uncommitted_bytes,
        reopened=status.reopened,
        suspects=status.suspects,
        eta=status.eta if status.phase is Phase.RUNNING else None,
        tokens_per_second=status.useful_tokens_per_second,
        output_tokens=status.totals.output_tokens,
        accept_length=accept_length_now(status) or status.totals.acceptance.accept_length,
        speculation=status.speculation.phase,
        verdict=worst_verdict(status.speculation),
        engines=tuple(
            EngineFacts(slot, stats.state, stats.running_rows, stats.slots, slot in status.pending_slots)
            for slot, stats in sorted(status.replicas.items())
        ),
        tally=status.tally,
        commits=status.commits,
        last_commit_age_seconds=status.last_commit_age_seconds if status.commits else None,
        store_error=status.store_error,
        cost_so_far=None if price is None else price.so_far(status.tally),
        currency="" if price is None else price.currency,
        decisions=status.speculation.decisions,
        dismissed=status.dismissed,
        metrics_url=status.metrics_url,
        coordinator=status.incarnation,
    )


def accept_length_now(status: CoordinatorStatus) -> float | None:
    """Over all replicas since their engines started; None without speculation or before its first step."""
    return engines_acceptance(status.replicas.values()).accept_length


def worst_verdict(speculation: SpeculationStatus) -> str | None:
    """The worst verdict on any engine that speculates; None where none does."""
    ranks = {verdict: rank for rank, verdict in enumerate(_WORST_FIRST)}
    judged = (
        verdict
        for slot, verdict in speculation.verdicts.items()
        if speculation.phase != "off" and speculation.arms.get(slot) != "off"
    )
    return min(judged, key=lambda verdict: ranks.get(verdict, 0), default=None)
