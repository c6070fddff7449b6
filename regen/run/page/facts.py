"""The facts of a run's page: from the store alone, or with what a living coordinator knows besides.

Counts nothing: outcomes, tokens and acceptance are `Totals`, times and troubles are `Tally`, both as the journal has
them; only what nobody can write down (what runs now, the ETA) comes from the coordinator, or from holder.json. Pure but
for `from_store`, which costs a replay, some hundred footers, and a row group of a few files for samples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import reduce
from operator import add

from regen import __version__
from regen.data.plan import open_plan, read_summary
from regen.data.plan_summary import SourceSummary
from regen.observe.page.facts import (
    Event,
    Fact,
    FaultFacts,
    Money,
    PageFacts,
    ProgressFacts,
    ReasonFacts,
    ReplicaFacts,
    SampleFacts,
    Seen,
    SourceFacts,
)
from regen.observe.price import cost
from regen.protocols import Storage
from regen.records import (
    ENDED_PHASES,
    Acceptance,
    CoordinatorStatus,
    Eta,
    EtaState,
    Phase,
    ReplicaStats,
    ReplicaTotals,
    SlotTally,
    SourceTotals,
    Status,
    Tally,
    Totals,
)
from regen.run.page.events import epoch, events
from regen.run.page.samples import sampled_rows
from regen.run.progress.run_facts import most_gpus
from regen.run.record import RunRecord, require_record
from regen.spec import EngineSpec, RunSpec
from regen.store.control import Record
from regen.store.history import Moment, read_history
from regen.store.holder import Holder, HolderState, read_holder
from regen.store.reopened import Reopened
from regen.store.replay import Replayed, replay
from regen.store.tally import newest_tally, tally_of

SAMPLES_OFF = "Switched off: prompts and answers are not shown."
SAMPLES_CHOSEN = "Committed rows from all over the run, of every source in turn; long texts are cut."


@dataclass(frozen=True, slots=True)
class About:
    """What does not change within a session. `planned` by source, in the plan's order, `rejected` by reason.

    `eval_rows` are those of the split that is not trained on.
    """

    spec: RunSpec
    url: str
    fingerprint: str
    planned: Mapping[str, int]
    rejected: Mapping[str, int]
    provenance: tuple[Fact, ...]
    eval_rows: int = 0
    is_planned: bool = True


@dataclass(frozen=True, slots=True)
class Known:
    """What the journal amounts to, and what is shown beside it. `history` is in the journal's order."""

    totals: Totals
    tally: Tally
    reopened: int = 0
    history: tuple[Seen, ...] = ()
    events: tuple[Event, ...] = ()
    samples: tuple[SampleFacts, ...] | None = None
    samples_note: str = SAMPLES_OFF


@dataclass(frozen=True, slots=True)
class Now:
    """What somebody who runs it knows. Rates by slot are in tokens a second, as engines sample them."""

    phase: str
    note: str = ""
    has_ended: bool = False
    eta: Eta = field(default_factory=lambda: Eta(EtaState.WARMING))
    tokens_per_second: float | None = None
    in_flight: int | None = None
    queued: int | None = None
    uncommitted: int | None = None
    deadline_seconds: float | None = None
    status: CoordinatorStatus | None = None
    rates: Mapping[int, float] = field(default_factory=dict)


def page_facts(about: About, known: Known, now: Now, at: float, is_live: bool = False) -> PageFacts:
    """All of it, at one moment (epoch seconds)."""
    return PageFacts(
        key=f"{about.fingerprint} {about.url}",
        name=about.spec.name,
        url=about.url,
        at=at,
        phase=now.phase,
        phase_note=now.note,
        is_live=is_live,
        has_ended=now.has_ended,
        progress=_progress(about, known, now),
        history=known.history,
        events=known.events,
        sources=tuple(_source(name, rows, known.totals) for name, rows in about.planned.items()),
        reasons=_reasons(about.rejected, known.totals),
        acceptance=reduce(add, (each.acceptance for each in known.totals.by_source.values()), Acceptance()),
        by_length=known.totals.by_length,
        replicas=_replicas(about, known, now),
        faults=_faults(known.tally, now),
        samples=known.samples,
        samples_note=known.samples_note,
        provenance=about.provenance,
        version=__version__,
    )


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run as its folder tells it."""

    about: About
    known: Known
    now: Now

    def page(self, at: datetime) -> PageFacts:
        return page_facts(self.about, self.known, self.now, at.timestamp())


def from_store(storage: Storage, with_samples: bool = True) -> StoredRun:
    """What the folder says, whoever runs it. Raises SpecError if there is no run, JournalDamaged, StoreError."""
    about, holder = read_about(storage), read_holder(storage)
    if not about.is_planned:
        return StoredRun(about, Known(Totals(), Tally()), _by_holder(holder))
    plan = open_plan(storage)
    replayed = replay(storage, plan.count, plan.settled())
    pending = len(replayed.reopened.pending)
    known = Known(
        totals=replayed.totals,
        tally=tally_of(newest_tally(replayed.records)),
        reopened=pending,
        history=seen(read_history(storage)),
        events=events(_told(replayed)),
        samples=sampled_rows(storage, current_rows(replayed.reopened)) if with_samples else None,
        samples_note=SAMPLES_CHOSEN if with_samples else SAMPLES_OFF,
    )
    is_finished = replayed.totals.done == plan.count and not pending
    return StoredRun(about, known, _by_holder(holder, is_finished))


def seen(moments: Iterable[Moment]) -> tuple[Seen, ...]:
    """The journal's moments as the page draws them."""
    return tuple(
        seen_at(at, moment.session, moment.totals, moment.tally)
        for moment in moments
        if (at := epoch(moment.at)) is not None
    )


def seen_at(at: float, session: str, totals: Totals, tally: Tally) -> Seen:
    acceptance = totals.acceptance
    troubles = {
        "engine restarts": tally.restarts,
        "stalls": tally.stalls,
        "failed attempts": tally.failed_attempts,
        "store errors": tally.store_errors,
        "coordinator restarts": tally.coordinator_restarts,
    }
    return Seen(at, session, totals.output_tokens, acceptance.drafts, acceptance.accepted, troubles)


def current_rows(reopened: Reopened) -> Callable[[int, int], bool]:
    """Whether a row of some round is the one that counts: (ordinal, round)."""
    return lambda ordinal, round_: ordinal in reopened.pending or round_ >= reopened.round_of(ordinal)


def read_about(storage: Storage, spec: RunSpec | None = None) -> About:
    """`spec` is a session's own, which may have another engine or another speculation than run.json.

    Raises SpecError if there is no run, JournalDamaged, StoreError.
    """
    record, summary = require_record(storage), read_summary(storage)
    if spec is not None:
        record = record.model_copy(update={"spec": spec})
    return _about(record, storage.url, None if summary is None else summary.sources)


def _about(record: RunRecord, url: str, sources: Sequence[SourceSummary] | None) -> About:
    """`sources` are the plan's, None before there is one."""
    rejected: Counter[str] = Counter()
    for source in sources or ():
        rejected.update(source.rejected)
    planned = {source.name: source.rows for source in sources or ()}
    return About(
        spec=record.spec,
        url=url,
        fingerprint=record.fingerprint,
        planned=planned,
        rejected=rejected,
        provenance=_provenance(record),
        eval_rows=sum(source.eval_rows for source in sources or ()),
        is_planned=sources is not None,
    )


def by_status(
    status: CoordinatorStatus, session: str, deadline_seconds: float | None, rates: Mapping[int, float]
) -> Now:
    """What a living coordinator says."""
    return Now(
        phase=status.phase.value,
        note=f"session {session}.",
        has_ended=status.phase in ENDED_PHASES,
        eta=status.eta if _goes_on(status) else Eta(EtaState.WARMING),
        tokens_per_second=status.useful_tokens_per_second,
        in_flight=status.in_flight,
        queued=status.queued,
        uncommitted=status.uncommitted_rows,
        deadline_seconds=deadline_seconds,
        status=status,
        rates=rates,
    )


def _goes_on(status: CoordinatorStatus) -> bool:
    """Until every row is made, and not only until what runs has ended: else nobody knows when there will be an end."""
    return status.phase in (Phase.RUNNING, Phase.ADOPTING) or status.eta.state is EtaState.FINISHED


def _by_holder(holder: Holder | None, is_finished: bool = False) -> Now:
    """What the last session wrote of itself: a killed one still says that it is running, and its beat stands still."""
    if holder is None:
        return Now("not begun", has_ended=True)
    beat = f"session {holder.session} on host {holder.host}, last heartbeat {holder.beat_at} by its own clock."
    if holder.state is not HolderState.RUNNING or is_finished:
        return Now("finished" if is_finished else holder.state.value, beat, has_ended=True)
    if (said := holder.progress) is None:
        return Now(holder.state.value, beat)
    return Now(
        phase=said.phase.value,
        note=beat,
        eta=Eta(EtaState.WARMING) if said.phase is Phase.DRAINING else said.eta,
        tokens_per_second=said.useful_tokens_per_second,
        in_flight=said.in_flight,
        queued=said.queued,
    )


def _told(replayed: Replayed) -> list[Record]:
    """All records that still matter, with what is known of the newest session."""
    known = (replayed.newest_claim, replayed.released)
    return [*(record for record in known if record is not None), *replayed.records]


def _progress(about: About, known: Known, now: Now) -> ProgressFacts:
    totals, gpu_seconds = known.totals, known.tally.gpu_seconds
    return ProgressFacts(
        planned=sum(about.planned.values()) if about.is_planned else None,
        done=totals.done,
        reopened=known.reopened,
        in_flight=now.in_flight,
        uncommitted=now.uncommitted,
        queued=now.queued,
        output_tokens=totals.output_tokens,
        tokens_per_second=now.tokens_per_second,
        eta=now.eta,
        deadline_seconds=now.deadline_seconds,
        engine_seconds=sum(slot.engine_seconds for slot in known.tally.slots.values()),
        gpu_seconds=gpu_seconds or None,
        money=_money(about.spec, gpu_seconds, now.eta),
    )


def _money(spec: RunSpec, gpu_seconds: float, eta: Eta) -> Money | None:
    """To go: every GPU of every replica, for as long as the ETA says."""
    if spec.price is None:
        return None
    hourly = spec.price.per_gpu_hour
    fleet_gpus = most_gpus(spec)
    bounds = (eta.low_seconds, eta.mid_seconds, eta.high_seconds)
    if eta.state is EtaState.FINISHED or not fleet_gpus:
        bounds = (0.0, 0.0, 0.0)
    low, mid, high = (None if seconds is None else cost(seconds * fleet_gpus, hourly) for seconds in bounds)
    return Money(spec.price.currency, cost(gpu_seconds, hourly), (low, mid, high))


def _source(name: str, planned: int, totals: Totals) -> SourceFacts:
    made = totals.by_source.get(name, SourceTotals())
    return SourceFacts(
        name=name,
        planned=planned,
        outcomes={status: rows for (source, status), rows in totals.outcomes.items() if source == name},
        prompt_tokens=made.prompt_tokens,
        output_tokens=made.output_tokens,
        generations=made.generations,
        lengths=made.lengths,
        acceptance=made.acceptance,
        labels={label.value: count for (source, label), count in totals.labels.items() if source == name},
    )


def _reasons(rejected: Mapping[str, int], totals: Totals) -> tuple[ReasonFacts, ...]:
    """Refusals of the plan, which no journal file has, and what became of rows that were sent."""
    planned = [ReasonFacts(Status.REJECTED, reason, rows) for reason, rows in rejected.items()]
    made = [ReasonFacts(status, reason, rows) for (status, reason), rows in totals.reasons.items()]
    return tuple(planned + made)


def _replicas(about: About, known: Known, now: Now) -> tuple[ReplicaFacts, ...]:
    """Every slot that is there from the first moment, or was ever opened."""
    opened = now.status.replicas if now.status is not None else ()
    slots = {*range(about.spec.engine.fewest_replicas), *known.totals.by_replica, *known.tally.slots, *opened}
    return tuple(_replica(slot, known, now) for slot in sorted(slots))


def _replica(slot: int, known: Known, now: Now) -> ReplicaFacts:
    made, tally = known.totals.by_replica.get(slot, ReplicaTotals()), known.tally.slots.get(slot, SlotTally())
    stats = now.status.replicas.get(slot) if now.status is not None else None
    speculation = now.status.speculation if now.status is not None else None
    return ReplicaFacts(
        slot=slot,
        state=_state(stats, slot, now) if stats else None,
        running_rows=stats.running_rows if stats else None,
        slots=stats.slots if stats else None,
        waiting=stats.counters.waiting if stats else None,
        tokens_per_second=now.rates.get(slot),
        kv_usage=stats.counters.kv_usage if stats else None,
        loop_lag_seconds=stats.loop_lag_seconds if stats else None,
        rows=sum(rows for (replica, _), rows in known.totals.replicas.items() if replica == slot),
        output_tokens=made.output_tokens,
        committed=made.acceptance,
        counted=stats.counters.acceptance if stats else None,
        arm=speculation.arms.get(slot) if speculation else None,
        verdict=speculation.verdicts.get(slot) if speculation else None,
        starts=tally.starts,
        restarts=tally.restarts,
        stalls=tally.stalls,
        preemptions=tally.preemptions,
        slot_seconds=tally.slot_seconds,
        engine=(stats.engine or None) if stats else None,
    )


def _state(stats: ReplicaStats, slot: int, now: Now) -> str:
    is_pending = now.status is not None and slot in now.status.pending_slots
    return "waits for a node" if is_pending else stats.state.value


def _faults(tally: Tally, now: Now) -> FaultFacts:
    status = now.status
    return FaultFacts(
        retries={str(reason): attempts for reason, attempts in tally.retries.items()},
        store_errors=tally.store_errors,
        coordinator_restarts=tally.coordinator_restarts,
        suspects=status.suspects if status is not None else None,
        notes=tuple(_wrong_now(status)) if status is not None else (),
    )


def _wrong_now(status: CoordinatorStatus) -> Iterator[str]:
    if status.store_error is not None:
        yield f"waiting for the store: {status.store_error}"
    if status.hung:
        yield f"nothing is heard from replica {', '.join(map(str, status.hung))}"
    yield from status.dismissed
    if status.error is not None:
        yield f"the run ends with an error: {status.error}"


def _fleet(engine: EngineSpec) -> str:
    own, servers = engine.own, len(engine.endpoints)
    parts = (
        [f"{own.max} with {engine.slots} slots each" if own.min == own.max else f"{own.min} to {own.max}"]
        if own.max
        else []
    )
    if servers:
        parts.append(f"{servers} {'server' if servers == 1 else 'servers'} that somebody else runs")
    return ", ".join(parts)


def _provenance(record: RunRecord) -> tuple[Fact, ...]:
    """What made the rows, as run.json has it."""
    spec, shaping = record.spec, record.shaping
    facts = [
        ("target", spec.target.model),
        ("target's commit", shaping.get("target.commit")),
        ("engine", shaping.get("engine.version")),
        ("replicas", _fleet(spec.engine)),
        ("draft", spec.speculation.draft_name if spec.speculation else "none: speculation is off"),
        *((f"sampling: {name}", f"{field['value']} ({field['from']})") for name, field in record.sampling.items()),
        ("template kwargs", spec.target.template_kwargs or None),
        ("fingerprint", record.fingerprint),
        ("regen", __version__),
    ]
    return tuple(Fact(name, str(value)) for name, value in facts if value is not None)
