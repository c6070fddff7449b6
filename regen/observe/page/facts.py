"""All that the page shows, as plain values. None, and NaN, mean "not known" and are shown so; times are epoch seconds.

Whoever fills them in counts nothing anew: see `run/page/facts.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from regen.records import Acceptance, Eta, EtaState, SlotState, Status


@dataclass(frozen=True, slots=True)
class Fact:
    """A name and its value, both for people."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Money:
    """What the engines cost, so far and to go: low, middle and high. Nothing without a price in the spec."""

    currency: str
    so_far: float | None
    to_go: tuple[float | None, float | None, float | None]


@dataclass(frozen=True, slots=True)
class ProgressFacts:
    """`planned` is None until the run is planned. `done` rows have an outcome, `reopened` of them are wanted once more.

    `in_flight`, `uncommitted` and `queued` are None where nobody runs it. `engine_seconds` are those that engines
    were held, `gpu_seconds` those times their GPUs, None where they have none. `deadline_seconds` until `limits.hours`.
    """

    planned: int | None
    done: int
    reopened: int = 0
    in_flight: int | None = None
    uncommitted: int | None = None
    queued: int | None = None
    output_tokens: int = 0
    tokens_per_second: float | None = None
    eta: Eta = field(default_factory=lambda: Eta(EtaState.WARMING))
    deadline_seconds: float | None = None
    engine_seconds: float | None = None
    gpu_seconds: float | None = None
    money: Money | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """What the store said at one moment: sums since the run began. `troubles` by what they are (`restarts`).

    `at` is by the clock of whoever wrote it, and may go back: the order of moments is the order that they are given in.
    """

    at: float
    session: str
    output_tokens: int = 0
    drafts: int = 0
    accepted: int = 0
    troubles: Mapping[str, int] = field(default_factory=dict)


class EventKind(StrEnum):
    """What a moment of the run was. Each has its own letter and its own stroke in the charts."""

    SESSION = "session"
    DECISION = "decision"
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened. `at` is None where the store does not say when."""

    at: float | None
    kind: EventKind
    text: str


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """One source. `outcomes` by status; `lengths` counts rows by output tokens, by bucket of `length_buckets`."""

    name: str
    planned: int
    outcomes: Mapping[Status, int] = field(default_factory=dict)
    prompt_tokens: int = 0
    output_tokens: int = 0
    generations: int = 0
    lengths: tuple[int, ...] = ()
    acceptance: Acceptance = field(default_factory=Acceptance)
    labels: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReasonFacts:
    """Why rows are not ok: so many with this status and reason."""

    status: Status
    reason: str
    rows: int


@dataclass(frozen=True, slots=True)
class ReplicaFacts:
    """One slot over all its engines. What only a living engine can say is None where there is none.

    `counted` is what its engine counted since it started, warm-up included; `committed` that of committed rows.
    """

    slot: int
    state: str | None = None
    running_rows: int | None = None
    slots: int | None = None
    waiting: int | None = None
    tokens_per_second: float | None = None
    kv_usage: float | None = None
    loop_lag_seconds: float | None = None
    rows: int = 0
    output_tokens: int = 0
    committed: Acceptance = field(default_factory=Acceptance)
    counted: Acceptance | None = None
    arm: str | None = None
    verdict: str | None = None
    starts: int = 0
    restarts: int = 0
    stalls: int = 0
    preemptions: int = 0
    slot_seconds: Mapping[SlotState, float] = field(default_factory=dict)
    engine: str | None = None


@dataclass(frozen=True, slots=True)
class FaultFacts:
    """What went wrong and was dealt with, since the run began. `retries` are failed attempts by reason.

    `notes` are sentences on what is wrong now.
    """

    retries: Mapping[str, int] = field(default_factory=dict)
    store_errors: int = 0
    coordinator_restarts: int = 0
    suspects: int | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TurnFacts:
    """One message as it stands in the row. `cut` characters of its text are not shown; `about` is a line for people."""

    role: str
    text: str
    cut: int = 0
    about: str = ""
    is_answer: bool = False


@dataclass(frozen=True, slots=True)
class SampleFacts:
    """One committed row with what was asked and answered. `cut` of its messages are not shown."""

    row_id: str
    source: str
    location: str
    status: str
    reason: str
    output_tokens: int
    turns: tuple[TurnFacts, ...]
    cut: int = 0


@dataclass(frozen=True, slots=True)
class PageFacts:
    """One run at one moment.

    `key` tells runs apart. `phase` is the coordinator's word, or what holder.json says of the last session;
    `phase_note` explains it. `is_live`: the page is served by the run itself and will be asked for again.
    `samples` is None where they are switched off, and `samples_note` says why or how they were chosen.
    """

    key: str
    name: str
    url: str
    at: float
    phase: str
    progress: ProgressFacts
    phase_note: str = ""
    is_live: bool = False
    has_ended: bool = False
    history: tuple[Seen, ...] = ()
    events: tuple[Event, ...] = ()
    sources: tuple[SourceFacts, ...] = ()
    reasons: tuple[ReasonFacts, ...] = ()
    acceptance: Acceptance = field(default_factory=Acceptance)
    by_length: Mapping[int, Acceptance] = field(default_factory=dict)
    replicas: tuple[ReplicaFacts, ...] = ()
    faults: FaultFacts = FaultFacts()
    samples: tuple[SampleFacts, ...] | None = None
    samples_note: str = ""
    provenance: tuple[Fact, ...] = ()
    version: str = ""
