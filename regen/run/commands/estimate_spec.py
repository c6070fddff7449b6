"""`regen estimate`'s hands: what the plan and the run folder tell of a run that is to come, and the estimate in words.

The plan is the frozen one if the folder has it, else the one that the sources give now, which writes nothing. Reads the
journal's counts, no rows: seconds for a run that is there, as long as `regen plan` for one that is not.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from regen.data.plan import open_plan, read_summary
from regen.data.plan_summary import PlanSummary
from regen.data.target import resolve_target
from regen.observe.estimate_table import EstimateView, Line
from regen.observe.terminal import size
from regen.protocols import Storage
from regen.records import SlotState, Status, Tally, Totals
from regen.run.commands.estimate import (
    ASSUMED_OFF,
    ASSUMED_SPREAD,
    BYTES_PER_FILE,
    Basis,
    Estimate,
    FullSpeed,
    Range,
    Resources,
    SourceEstimate,
    SourceFacts,
    SpeedBasis,
    estimate,
)
from regen.run.progress.remaining import Grouping, earlier_lengths, left_by_source
from regen.run.progress.run_facts import gpus_per_replica
from regen.run.speculation.chosen import choice_among
from regen.run.start import dry_plan
from regen.spec import RunSpec
from regen.store.control import Record, RunClosed
from regen.store.layout import JOURNAL
from regen.store.replay import replay
from regen.store.storage import open_storage
from regen.store.tally import newest_tally, tally_of

_GONE = (SlotState.STARTING, SlotState.GONE, SlotState.RELEASED)


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What the command line says. `tokens_per_second` is of all replicas; `gpu_hour_price` None: the spec's."""

    tokens_per_second: float | None = None
    answer_tokens: float | None = None
    gpu_hour_price: float | None = None


@dataclass(frozen=True, slots=True)
class Disk:
    """Bytes of the whole run. The journal and the shards hold the same rows until `regen clean --journal`."""

    plan: int
    journal: float
    shards: float

    @property
    def peak(self) -> float:
        return self.plan + self.journal + self.shards

    def text(self) -> str:
        """For people."""
        plan, journal, shards, peak = (size(round(part)) for part in (self.plan, self.journal, self.shards, self.peak))
        return f"{peak}: plan {plan}, journal {journal}, shards {shards}"


@dataclass(frozen=True, slots=True)
class Fleet:
    """The run with so many replicas from beginning to end: servers, and engines of our own."""

    replicas: int
    held: Resources
    speed: FullSpeed | None
    found: Estimate


@dataclass(frozen=True, slots=True)
class SpecEstimate:
    """The estimate of one spec. `is_frozen`: of the plan in the run folder. `needs` says what would tell more.

    `fleets` is one, or two where the spec leaves the number of engines open: the fewest and the most.
    """

    spec: RunSpec
    is_frozen: bool
    native: int
    fleets: tuple[Fleet, ...]
    disk: Disk | None
    assumed_answer_tokens: float | None

    @property
    def found(self) -> Estimate:
        """With the fewest replicas."""
        return self.fleets[0].found

    @property
    def speed(self) -> FullSpeed | None:
        """Of the fewest replicas."""
        return self.fleets[0].speed

    @property
    def currency(self) -> str | None:
        return self.spec.price.currency if self.spec.price is not None else None

    def needs(self) -> Iterator[str]:
        """What is missing for a figure, and how to get it."""
        found = self.found
        if not found.left:
            return
        if found.output_tokens is None:
            yield "tokens: no row is made yet; `regen pilot SPEC` makes a sample, or assume --answer-tokens N"
        if self.speed is None:
            yield "hours: no speed is known; `regen calibrate` or `regen pilot` measures it, or say --tokens-per-second"
        elif found.output_tokens is not None and found.hours is None:
            yield "hours: too few rows are made to say how long rows are; `regen pilot SPEC` makes more"
        if found.gpu_hours is not None and found.cost is None:
            yield "cost: no price is known; set price.per_gpu_hour, or give --gpu-hour-price"

    def notes(self) -> Iterator[str]:
        """What the figures rest on."""
        by_basis = Counter(one.basis for one in self.found.sources if one.left)
        if by_basis[Basis.ASSUMED]:
            yield (
                f"ASSUMED: {self.assumed_answer_tokens:g} tokens an answer in {by_basis[Basis.ASSUMED]} sources, as"
                f" --answer-tokens says (lognormal, sigma {ASSUMED_SPREAD:g}, cut at the cap); the range is for"
                f" {ASSUMED_OFF:g} times less and more. A pilot knows better."
            )
        if by_basis[Basis.OTHERS]:
            yield f"{by_basis[Basis.OTHERS]} sources have no row yet, and go by the others' answers."
        if self.assumed_answer_tokens is not None and by_basis[Basis.MADE]:
            yield "Sources of which rows are made go by these, not by --answer-tokens."
        for fleet in self.fleets:
            if fleet.speed is not None:
                yield _speed_note(fleet.speed, fleet.held)
        yield from self._server_notes()
        yield "Not in it: starting engines, warm-ups, calibration, failed attempts, stalls."

    def _server_notes(self) -> Iterator[str]:
        servers = len(self.spec.engine.endpoints)
        if not servers:
            return
        yield f"{_counted(servers, 'server')} of somebody else: their GPUs and what they cost are not in it."
        if self.speed is not None and self.speed.basis is SpeedBasis.CALIBRATED:
            yield "Their speed is not calibrated, and not in it either: with them it takes less."

    def view(self) -> EstimateView:
        """For a terminal."""
        return EstimateView(
            title=f"Estimate of {self.spec.name}",
            sources=tuple(map(_line, self.found.sources)),
            facts=tuple(self._facts()),
            needs=tuple(self.needs()),
            notes=tuple(self.notes()),
        )

    def _facts(self) -> Iterator[tuple[str, str]]:
        found, rows = self.found, sum(source.rows for source in self.found.sources)
        done = f", {rows - found.left:,} of them are done" if rows > found.left else ""
        native = f"; {self.native:,} native rows pass through" if self.native else ""
        yield "rows", f"{rows:,} for the target to make{done}{native}"
        yield "plan", "the frozen one" if self.is_frozen else "as the sources are now"
        yield "prompt tokens", f"{_short(found.prompt_tokens)}"
        yield "output tokens", f"{_range(found.output_tokens)}, at most {_short(found.most_output_tokens)}"
        for fleet in self.fleets:
            yield from self._fleet_facts(fleet, f", {_counted(fleet.replicas, 'replica')}" if self.fleets[1:] else "")
        yield "disk", "not known" if self.disk is None else self.disk.text()

    def _fleet_facts(self, fleet: Fleet, which: str) -> Iterator[tuple[str, str]]:
        found = fleet.found
        unit, hours = _time(found.hours)
        yield unit + which, hours
        if fleet.held.gpus:
            yield f"GPU hours{which}", f"{_range(found.gpu_hours)} on {fleet.held.gpus:g} GPUs"
            yield f"cost{which}", f"{_range(found.cost)} {self.currency or ''}".rstrip()

    def to_json(self) -> dict[str, Any]:
        """For machines. Ranges are {low, mid, high}; null: not known, and `needs` says why.

        What depends on the number of replicas is that of the fewest, and in `fleets` that of each.
        """
        found = self.found
        return {
            "name": self.spec.name,
            "is_frozen": self.is_frozen,
            "rows": sum(source.rows for source in found.sources),
            "rows_left": found.left,
            "native": self.native,
            "prompt_tokens": round(found.prompt_tokens),
            "output_tokens": _json(found.output_tokens),
            "most_output_tokens": found.most_output_tokens,
            **_fleet_json(self.fleets[0]),
            "fleets": [_fleet_json(fleet) for fleet in self.fleets],
            "currency": self.currency,
            "row_bytes": found.row_bytes,
            "disk_bytes": None if self.disk is None else {**asdict(self.disk), "peak": self.disk.peak},
            "sources": [asdict(source) for source in found.sources],
            "needs": list(self.needs()),
            "notes": list(self.notes()),
        }


def estimate_spec(spec: RunSpec, given: Assumptions, processes: int) -> SpecEstimate:
    """Raises SpecError, SourceError, JournalDamaged, StoreError."""
    storage = open_storage(spec.output, spec.store)
    summary = read_summary(storage)
    if summary is None:
        with dry_plan(spec, resolve_target(spec.target), processes) as planned:
            return estimate_plan(spec, given, planned.summary)
    replayed = replay(storage, summary.rows, open_plan(storage).settled())
    return _estimated(spec, given, summary, storage, replayed.totals, replayed.records)


def estimate_plan(spec: RunSpec, given: Assumptions, summary: PlanSummary) -> SpecEstimate:
    """Of a plan of which nothing is made."""
    return _estimated(spec, given, summary, None, Totals(outcomes=_settled(summary)), ())


def _estimated(
    spec: RunSpec,
    given: Assumptions,
    summary: PlanSummary,
    storage: Storage | None,
    totals: Totals,
    records: Sequence[Record],
) -> SpecEstimate:
    """`storage` None: the plan is not frozen, and nothing is made."""
    sources = source_facts(spec, summary, totals)
    stored = None if storage is None else _stored(storage, totals, records)
    fleets = []
    for engines in _own_engines(spec):
        held, speed = _held(spec, given, engines), known_speed(spec, given, totals, records, engines)
        found = estimate(sources, speed, held, given.answer_tokens, None if stored is None else stored.row_bytes)
        fleets.append(Fleet(len(spec.engine.endpoints) + engines, held, speed, found))
    disk = _disk(spec, summary, fleets[0].found, stored)
    return SpecEstimate(spec, storage is not None, summary.native, tuple(fleets), disk, given.answer_tokens)


def _held(spec: RunSpec, given: Assumptions, engines: int) -> Resources:
    """What a fleet with so many engines of our own holds."""
    price = given.gpu_hour_price
    if price is None and spec.price is not None:
        price = spec.price.per_gpu_hour
    return Resources(spec.engine.slots_with(engines), gpus_per_replica(spec) * engines, price)


def _own_engines(spec: RunSpec) -> list[int]:
    """The fewest and the most; with none at all and no server, nothing is ever made."""
    fewest = spec.engine.own.min if spec.engine.endpoints else max(1, spec.engine.own.min)
    return sorted({fewest, max(fewest, spec.engine.own.max)})


def source_facts(spec: RunSpec, summary: PlanSummary, totals: Totals) -> list[SourceFacts]:
    """What plan and totals say of each source."""
    groups = Grouping().groups(summary.sources, spec, None)
    caps = {name: group.cap_tokens for name, group in groups.items()}
    lengths: dict[str, list[tuple[int, int]]] = {}
    for name, tokens, rows in earlier_lengths(totals, caps):
        lengths.setdefault(name, []).append((tokens, rows))
    left = left_by_source(summary.sources, totals)
    facts = []
    for source in summary.sources:
        made = totals.by_source.get(source.name)
        facts.append(
            SourceFacts(
                name=source.name,
                rows=source.accepted - source.native,
                left=left[source.name],
                turns=groups[source.name].turns,
                cap_tokens=caps[source.name],
                first_prompt_tokens=source.prompt_tokens / max(1, source.accepted),
                made_rows=0 if made is None else sum(made.lengths),
                made_prompt_tokens=0 if made is None else made.prompt_tokens,
                made_output_tokens=0 if made is None else made.output_tokens,
                lengths=lengths.get(source.name, ()),
            )
        )
    return facts


def _settled(summary: PlanSummary) -> Counter[tuple[str, Status]]:
    """What the plan itself has decided, as totals count it."""
    counts = Counter[tuple[str, Status]]()
    for source in summary.sources:
        counts[source.name, Status.REJECTED] = source.rows - source.accepted
        counts[source.name, Status.NATIVE] = source.native
    return counts


def known_speed(
    spec: RunSpec, given: Assumptions, totals: Totals, records: Sequence[Record], engines: int
) -> FullSpeed | None:
    """Of a fleet with so many engines of our own. What is calibrated is these alone: servers have no arms."""
    if given.tokens_per_second is not None:
        return FullSpeed(Range(*[given.tokens_per_second] * 3), SpeedBasis.GIVEN)
    choice = choice_among(records, spec)
    for figures in choice.arms if choice is not None and engines else ():
        if choice is not None and figures["arm"] == choice.arm:
            one = Range(figures["low"], figures["tokens_per_second"], figures["high"])
            return FullSpeed(one.times(engines), SpeedBasis.CALIBRATED)
    return measured_speed(tally_of(newest_tally(records)), totals, spec.engine.slots_with(engines))


def measured_speed(tally: Tally, totals: Totals, slots: int) -> FullSpeed | None:
    """From slots as they went, empty ones too, to slots that were all at work and none slower for it."""
    seconds = Counter[SlotState]()
    for slot in tally.slots.values():
        seconds.update(slot.slot_seconds)
    busy, there = seconds[SlotState.BUSY], sum(took for state, took in seconds.items() if state not in _GONE)
    if not busy or not totals.output_tokens:
        return None
    low, high = (slots * totals.output_tokens / took for took in (there, busy))
    return FullSpeed(Range(low, math.sqrt(low * high), high), SpeedBasis.MEASURED)


@dataclass(frozen=True, slots=True)
class _Stored:
    """The journal as it is: what a row in it takes, files apart, and how many files there are."""

    row_bytes: float
    files: int


def _stored(storage: Storage, totals: Totals, records: Sequence[Record]) -> _Stored | None:
    """None: nothing is made, or the run is closed, and its journal may be gone."""
    if any(isinstance(record, RunClosed) for record in records):
        return None
    rows, files = sum(sum(made.lengths) for made in totals.by_source.values()), list(storage.list(JOURNAL))
    if not rows:
        return None
    stored = sum(file.size for file in files)
    return _Stored(max(0.0, stored - len(files) * BYTES_PER_FILE) / rows, len(files))


def _disk(spec: RunSpec, summary: PlanSummary, found: Estimate, stored: _Stored | None) -> Disk | None:
    """A file in the journal for each interval to come; where hours are not known these are left out."""
    if found.row_bytes is None:
        return None
    rows = sum(source.rows for source in found.sources) * found.row_bytes
    plan = sum(part.bytes for part in summary.parts)
    settled = plan * (1 - sum(source.rows for source in found.sources) / max(1, summary.rows))
    intervals = 0.0 if found.hours is None else found.hours.mid * 3600 / spec.checkpoint.interval_seconds
    files = (stored.files if stored is not None else 0) + min(intervals, found.left)
    shards = math.ceil(summary.rows / spec.checkpoint.rows_per_shard)
    return Disk(plan, rows + files * BYTES_PER_FILE, rows + settled + shards * BYTES_PER_FILE)


# --- words -----------------------------------------------------------------------------------------


def _speed_note(speed: FullSpeed, held: Resources) -> str:
    rate = _range(speed.tokens_per_second)
    said = {
        SpeedBasis.GIVEN: "as --tokens-per-second says",
        SpeedBasis.CALIBRATED: "as calibration has measured it",
        SpeedBasis.MEASURED: "as the sessions so far have gone",
    }[speed.basis]
    return f"Speed: {rate} output tokens a second over all {held.slots:,} slots, {said}."


def _line(source: SourceEstimate) -> Line:
    if not source.left:
        return Line(source.name, "0", "", "", "", "")
    basis = "" if source.basis is None else source.basis.value
    mean = "" if source.output_tokens_per_row is None else f"{source.output_tokens_per_row:,.0f}"
    output = "" if source.output_tokens is None else _short(source.output_tokens)
    return Line(source.name, f"{source.left:,}", _short(source.prompt_tokens), mean, output, basis)


def _time(hours: Range | None) -> tuple[str, str]:
    if hours is not None and hours.high < 1:
        return "minutes", _range(hours.times(60))
    return "hours", _range(hours)


def _range(found: Range | None) -> str:
    if found is None:
        return "not known"
    low, mid, high = map(_short, (found.low, found.mid, found.high))
    return mid if low == high else f"{mid} ({low} to {high})"


def _short(value: float) -> str:
    """Three figures, and a word for the size."""
    for unit, name in ((1e9, " billion"), (1e6, " million")):
        if value >= unit:
            return f"{value / unit:.3g}{name}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _fleet_json(fleet: Fleet) -> dict[str, Any]:
    speed, found = fleet.speed, fleet.found
    return {
        "replicas": fleet.replicas,
        "gpus": fleet.held.gpus,
        "tokens_per_second": None if speed is None else _json(speed.tokens_per_second),
        "speed_basis": None if speed is None else speed.basis.value,
        "hours": _json(found.hours),
        "gpu_hours": _json(found.gpu_hours),
        "cost": _json(found.cost),
    }


def _json(found: Range | None) -> dict[str, float] | None:
    return None if found is None else asdict(found)
