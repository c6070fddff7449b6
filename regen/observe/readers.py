"""How each number of the table is read from a snapshot. Pure.

Counters are read from what was published, standing values from the status. Every label comes from a closed set: the
plan's sources, replica slots up to the highest that was ever opened, the spec's draft positions, and enums.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum

from regen import length_buckets
from regen.observe.price import cost
from regen.observe.snapshot import Snapshot
from regen.records import (
    WORKING_STATES,
    Acceptance,
    EtaState,
    Label,
    Phase,
    ReplicaState,
    ReplicaStats,
    ReplicaTotals,
    RetryReason,
    SlotState,
    SlotTally,
    SourceTotals,
    Status,
)

NAN = float("nan")
LABEL_LENGTH = 100
_DIGEST_BYTES = 6
_LONGEST_WHOLE = LABEL_LENGTH - 2 * _DIGEST_BYTES - 1
# Of the gate and of the guard.
VERDICTS = ("unknown", "healthy", "undecided", "dead", "absent", "off_profile", "garbage", "collapsed", "decayed")

Sample = tuple[tuple[str, ...], float]
Reader = Callable[[Snapshot], Iterable[Sample]]


# --- shapes ----------------------------------------------------------------------------------------


def one(value: Callable[[Snapshot], float | None]) -> Reader:
    """A single number; None becomes NaN."""
    return lambda snapshot: [((), _known(value(snapshot)))]


def by_replica(value: Callable[[ReplicaStats], float | None]) -> Reader:
    """From what each replica last said of itself."""
    return lambda snapshot: [
        ((str(slot),), _known(value(snapshot.status.replicas[slot])))
        for slot in snapshot.slots
        if slot in snapshot.status.replicas
    ]


def by_slot(value: Callable[[SlotTally], float]) -> Reader:
    """From what was counted of each replica slot since the run began."""
    return lambda snapshot: [
        ((str(slot),), value(snapshot.status.tally.slots.get(slot, SlotTally()))) for slot in snapshot.slots
    ]


def by_maker(value: Callable[[ReplicaTotals], float]) -> Reader:
    """From the committed rows that each replica has made."""
    return lambda snapshot: [
        ((str(slot),), value(snapshot.published.by_replica.get(slot, ReplicaTotals()))) for slot in snapshot.slots
    ]


def by_source(value: Callable[[SourceTotals], float]) -> Reader:
    """From the committed rows of each source."""
    return lambda snapshot: [
        ((label_of(source),), value(snapshot.published.by_source.get(source, SourceTotals())))
        for source in snapshot.planned
    ]


def is_now(value: Callable[[Snapshot], StrEnum], members: type[StrEnum]) -> Reader:
    """1 for the member that holds now, 0 for the others."""
    return lambda snapshot: [((member.value,), float(member is value(snapshot))) for member in members]


# --- rows ------------------------------------------------------------------------------------------


def info(snapshot: Snapshot) -> Iterator[Sample]:
    facts = snapshot.facts
    yield tuple(label_of(text) for text in (facts.name, facts.version, facts.target, facts.draft)), 1.0


def rows_planned(snapshot: Snapshot) -> Iterator[Sample]:
    for source, count in snapshot.planned.items():
        yield (label_of(source),), count


def rows_remaining(snapshot: Snapshot) -> Iterator[Sample]:
    outcomes = snapshot.status.totals.outcomes
    for source, planned in snapshot.planned.items():
        yield (label_of(source),), planned - sum(outcomes.get((source, status), 0) for status in Status)


def rows_done(snapshot: Snapshot) -> Iterator[Sample]:
    for source in snapshot.planned:
        for status in Status:
            yield (label_of(source), status.value), snapshot.published.outcomes.get((source, status), 0)


def rows_standing(snapshot: Snapshot) -> Iterator[Sample]:
    for source in snapshot.planned:
        for status in Status:
            yield (label_of(source), status.value), snapshot.status.totals.outcomes.get((source, status), 0)


def rows_by_replica(snapshot: Snapshot) -> Iterator[Sample]:
    for slot in snapshot.slots:
        for status in Status:
            yield (str(slot), status.value), snapshot.published.replicas.get((slot, status), 0)


def labelled(snapshot: Snapshot) -> Iterator[Sample]:
    for source in snapshot.planned:
        for label in Label:
            yield (label_of(source), label.value), snapshot.published.labels.get((source, label), 0)


def retries(snapshot: Snapshot) -> Iterator[Sample]:
    for reason in RetryReason:
        yield (reason.value,), snapshot.status.tally.retries.get(reason, 0)


# One an octave, by the last length that each holds; the open one comes on top.
ROW_TOKENS_LIMITS = tuple(length_buckets.lowest(index) - 1 for index in range(1, length_buckets.COUNT, 2))


def row_tokens(snapshot: Snapshot) -> Iterator[tuple[tuple[str, ...], list[tuple[str, float]], float]]:
    """By source: rows with at most so many output tokens, and the sum of their tokens."""
    for source in snapshot.planned:
        totals = snapshot.published.by_source.get(source, SourceTotals())
        buckets = [
            (str(float(limit)), float(sum(totals.lengths[: 2 * octave + 1])))
            for octave, limit in enumerate(ROW_TOKENS_LIMITS)
        ]
        yield (label_of(source),), [*buckets, ("+Inf", float(sum(totals.lengths)))], float(totals.output_tokens)


# --- time and money --------------------------------------------------------------------------------


def eta_seconds(snapshot: Snapshot) -> Iterator[Sample]:
    eta = snapshot.status.eta
    for bound, seconds in (("low", eta.low_seconds), ("mid", eta.mid_seconds), ("high", eta.high_seconds)):
        yield (bound,), _known(seconds)


def gpu_seconds(snapshot: Snapshot) -> float:
    return snapshot.status.tally.gpu_seconds


def cost_so_far(snapshot: Snapshot) -> Iterator[Sample]:
    price = snapshot.facts.price_per_gpu_hour
    yield (snapshot.facts.currency,), NAN if price is None else cost(gpu_seconds(snapshot), price)


def cost_to_go(snapshot: Snapshot) -> Iterator[Sample]:
    facts, eta = snapshot.facts, snapshot.status.eta
    seconds = 0.0 if eta.state is EtaState.FINISHED or not facts.gpus else _known(eta.mid_seconds)
    price = facts.price_per_gpu_hour
    yield (facts.currency,), NAN if price is None else cost(seconds * snapshot.engines_held * facts.gpus, price)


# --- speculation -----------------------------------------------------------------------------------


def accept_length(acceptance: Acceptance | None) -> float | None:
    """None before any step, and where nothing is counted."""
    return acceptance.accept_length if acceptance is not None else None


def accepted_at(snapshot: Snapshot) -> Iterator[Sample]:
    for slot in snapshot.slots:
        counts = snapshot.published.by_replica.get(slot, ReplicaTotals()).acceptance.accepted_by_position
        for position in range(snapshot.facts.positions):
            yield (str(slot), str(position)), counts[position] if position < len(counts) else 0


def verdicts(snapshot: Snapshot) -> Iterator[Sample]:
    for slot in snapshot.slots:
        for verdict in VERDICTS:
            yield (str(slot), verdict), float(snapshot.status.speculation.verdicts.get(slot, "unknown") == verdict)


def speculating(snapshot: Snapshot) -> Iterator[Sample]:
    for slot in snapshot.slots:
        yield (str(slot),), float(snapshot.status.speculation.arms.get(slot, "off") != "off")


# --- replicas --------------------------------------------------------------------------------------


def replica_states(snapshot: Snapshot) -> Iterator[Sample]:
    for slot in snapshot.slots:
        for state in ReplicaState:
            stats = snapshot.status.replicas.get(slot)
            yield (str(slot), state.value), float(stats is not None and stats.state is state)


def slot_seconds(snapshot: Snapshot) -> Iterator[Sample]:
    for slot in snapshot.slots:
        spent = snapshot.status.tally.slots.get(slot, SlotTally()).slot_seconds
        for state in SlotState:
            yield (str(slot), state.value), spent.get(state, 0.0)


def is_up(stats: ReplicaStats) -> float:
    return float(stats.state in WORKING_STATES)


def phase(snapshot: Snapshot) -> Phase:
    return snapshot.status.phase


def eta_state(snapshot: Snapshot) -> EtaState:
    return snapshot.status.eta.state


# --- labels ----------------------------------------------------------------------------------------


def label_of(text: str) -> str:
    """Any text as a label's value: bounded, and UTF-8. Two texts stay two: what is changed gets a digest of all of it,
    and what is cut is longer than what is not.
    """
    shown = text.encode("utf-8", "backslashreplace").decode("utf-8")
    if shown == text and len(text) <= _LONGEST_WHOLE:
        return text
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).hexdigest()
    return f"{shown[: LABEL_LENGTH - 1 - len(digest)]}-{digest}"


def _known(value: float | None) -> float:
    return NAN if value is None or math.isnan(value) else value
