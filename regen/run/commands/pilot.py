"""`regen pilot`: a sample of the plan on the run's own engines, and what it tells of the whole run.

    begin -> sample -> a session that leases the sample and ends when it is committed -> figures -> page

The rows are ordinary rows of the run: `regen run` goes on with the others, and a pilot that is repeated finds them done
and starts no engine. The page is made from the store alone, and can be made again at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any

from regen.data.plan import open_plan
from regen.data.template import load_template
from regen.errors import SourceError
from regen.observe.pilot_page import AnswerView, Fact, Piece, PilotView, RowView, SourceView, TokenKind
from regen.protocols import ChatTemplate, Storage
from regen.records import Acceptance, CoordinatorStatus, Generation, OutputRow, Status, StepTrace
from regen.run.commands.pilot_estimate import Estimate, Pace, Stratum, estimate
from regen.run.commands.pilot_sample import draw
from regen.run.commands.pilot_tokens import drafts_always, token_kinds, token_texts
from regen.run.progress.run_facts import gpus_per_replica
from regen.run.session import generation_times
from regen.run.setup import Purpose
from regen.run.speculation.chosen import standing_choice
from regen.run.start import Begun, StartOptions, begin
from regen.spec import RunSpec
from regen.store.committed import CommittedRows
from regen.store.pilot_files import PilotSession, read_sessions, read_steps, write_session

# So much of each answer and prompt is on the page.
SHOWN_TOKENS = 2000
SHOWN_PROMPT_TOKENS = 1000
_LOST = (Status.REJECTED, Status.FAILED)
# With fewer rows of a source, its figures are anecdotes.
FEW_ROWS = 10

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Pilot:
    """A pilot as far as it is made: `done` of `wanted` rows are committed."""

    wanted: int
    done: int
    estimate: Estimate
    view: PilotView

    @property
    def is_complete(self) -> bool:
        return self.done == self.wanted

    def to_json(self) -> dict[str, Any]:
        whole = self.estimate
        return {
            "wanted": self.wanted,
            "done": self.done,
            "rows": whole.rows,
            "tokens": whole.tokens,
            "tokens_give_or_take": whole.tokens_give_or_take,
            "hours": whole.hours,
            "gpu_hours": whole.gpu_hours,
            "cost": whole.cost,
            "sources": [
                {
                    "source": one.source,
                    "rows": one.rows,
                    "sampled": one.sampled,
                    "done": one.done,
                    "truncated": one.truncated,
                    "degenerate": one.degenerate,
                    "partial": one.partial,
                    "no_answer": one.lost,
                    "tokens_per_row": one.tokens[0] if one.tokens else None,
                    "accept_length": one.accept_length,
                }
                for one in self.view.sources
            ],
        }


def begin_pilot(spec: RunSpec, options: StartOptions, rows: int, say: Say) -> Begun:
    """As `start.begin`, for a session that makes a sample of `rows` rows. Raises SourceError: nothing to sample."""
    begun = begin(spec, replace(options, purpose=Purpose.PILOT), say)
    sample = draw(open_plan(begun.storage).to_make, rows)
    if not sample:
        raise SourceError("the plan has no row for the target to make: there is nothing to try")
    run = replace(begun.worker_setup.run, pilot_rows=sample)
    return replace(begun, worker_setup=replace(begun.worker_setup, run=run))


def rows_left(begun: Begun) -> int:
    """How many rows of the sample are not committed. Raises JournalDamaged, StoreError."""
    winners = CommittedRows(begun.storage, begun.plan_summary.rows).winners
    return sum(winners.number_of(ordinal) is None for ordinal in begun.worker_setup.run.pilot_rows)


def note_session(begun: Begun, last: CoordinatorStatus) -> None:
    """How long a session of the pilot has worked, from its first request to its last finished row."""
    first, latest = generation_times(last.replicas)
    if first is not None and latest is not None:
        session = begun.worker_setup.run.session
        write_session(begun.storage, PilotSession(session, max(0.0, latest - first)))


def read_pilot(begun: Begun, gpu_hour_price: float | None) -> Pilot:
    """What the store has of this sample. Raises JournalDamaged, StoreError.

    `gpu_hour_price` None: the spec's, if it has one.
    """
    storage, spec, sample = begun.storage, begun.worker_setup.run.spec, begun.worker_setup.run.pilot_rows
    plan = open_plan(storage)
    rows = sorted(CommittedRows(storage, plan.count).rows(sample), key=lambda row: row.ordinal)
    sampled = {row.ordinal: row.source for row in plan.rows(sample)}
    to_make = {one.name: one.accepted - one.native for one in plan.summary.sources}
    sources = tuple(_source(name, to_make[name], sampled.values(), rows) for name in plan.sources)
    pace = _pace(rows, read_sessions(storage))
    strata = [
        Stratum(to_make[name], [_tokens(row) for row in rows if row.source == name and row.status not in _LOST])
        for name in plan.sources
    ]
    if gpu_hour_price is None and spec.price is not None:
        gpu_hour_price = spec.price.per_gpu_hour
    fleet = _fleet(spec, rows)
    whole = estimate(strata, pace, fleet.slots, fleet.gpus, gpu_hour_price)
    view = PilotView(
        title=f"Pilot of {spec.name}",
        facts=tuple(_facts(storage, spec, len(sample), rows)),
        outlook=tuple(_outlook(whole, fleet.gpus, gpu_hour_price)),
        notes=tuple(_notes(storage, sources, spec, rows, len(sample), pace, fleet)),
        sources=sources,
        rows=tuple(_Views(begun).rows(rows)),
    )
    return Pilot(len(sample), len(rows), whole, view)


# --- figures ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Fleet:
    """What the figures are for: `engines` of our own, `slots` of servers, too."""

    engines: int
    slots: int
    gpus: float


def _fleet(spec: RunSpec, rows: Sequence[OutputRow]) -> _Fleet:
    """The spec's number of engines; of a range as many as have made the sample."""
    engine, servers = spec.engine, range(len(spec.engine.endpoints))
    made = {row.observed.replica for row in rows}.difference(servers)
    engines = max(engine.own.min, min(len(made), engine.own.max), 0 if servers else 1)
    slots = sum(map(engine.slots_of, servers)) + engines * engine.slots
    return _Fleet(engines, slots, engines * gpus_per_replica(spec))


def _source(name: str, to_make: int, sampled: Iterable[str], rows: Sequence[OutputRow]) -> SourceView:
    own = [row for row in rows if row.source == name]
    statuses = [row.status for row in own]
    lengths = [_tokens(row) for row in own if row.status not in _LOST]
    return SourceView(
        source=name,
        rows=to_make,
        sampled=sum(source == name for source in sampled),
        done=len(own),
        truncated=statuses.count(Status.TRUNCATED),
        degenerate=statuses.count(Status.DEGENERATE),
        lost=sum(map(statuses.count, _LOST)),
        partial=statuses.count(Status.PARTIAL),
        tokens=(fmean(lengths), median(lengths), max(lengths)) if lengths else None,
        accept_length=_acceptance(own).accept_length,
    )


def _tokens(row: OutputRow) -> int:
    return sum(len(made.completion_token_ids) for made in row.generations)


def _acceptance(rows: Iterable[OutputRow]) -> Acceptance:
    """Of all answers but the degenerate, which are easy to draft."""
    total = Acceptance()
    for row in rows:
        bad = {made.turn for made in row.generations if any(label.is_degenerate for label in made.labels)}
        for seen in row.observed.generations:
            if seen.acceptance is not None and seen.turn not in bad:
                total += seen.acceptance
    return total


def _pace(rows: Iterable[OutputRow], sessions: Sequence[PilotSession]) -> Pace | None:
    """Of rows that were made in sessions of which it is known how long they took."""
    seconds = {one.session: one.seconds for one in sessions}
    measured = [row for row in rows if row.observed.session in seconds]
    if not measured:
        return None
    busy = sum(one.first_token_seconds + one.decode_seconds for row in measured for one in row.observed.generations)
    made_in = {row.observed.session for row in measured}
    return Pace(sum(map(_tokens, measured)), sum(seconds[session] for session in made_in), busy)


# --- words -----------------------------------------------------------------------------------------


def _facts(storage: Storage, spec: RunSpec, wanted: int, rows: Sequence[OutputRow]) -> Iterator[Fact]:
    yield Fact("run", storage.url)
    yield Fact("target", spec.target.model)
    yield Fact("rows", f"{len(rows):,} of {wanted:,} sampled rows are committed; they count toward the run")
    for engine, draft in sorted({(row.observed.engine, row.observed.draft or "") for row in rows}):
        yield Fact("engine", f"{engine}, {f'draft {draft}' if draft else 'no speculation'}")
    yield Fact("cap", f"{spec.sampling.max_tokens:,} tokens an answer")


def _outlook(whole: Estimate, gpus: float, price: float | None) -> Iterator[Fact]:
    yield Fact("rows", f"{whole.rows:,} for the target to make")
    if whole.tokens is None:
        yield Fact("tokens", "not known: no row of the sample has an answer")
        return
    spread = whole.tokens_give_or_take
    within = "too few rows of a source to say how sure" if spread is None else f"give or take {spread:,.0f} (95 %)"
    yield Fact("output tokens", f"{whole.tokens:,.0f}, {within}")
    yield Fact("hours", "not known: no session has measured it" if whole.hours is None else _range(whole.hours))
    if whole.gpu_hours is not None:
        yield Fact("GPU hours", f"{_range(whole.gpu_hours)} on {gpus:g} GPUs")
    elif not gpus:
        yield Fact("GPU hours", "none: the spec reserves no GPU (engine.gpus_per_replica)")
    if whole.cost is not None:
        yield Fact("cost", f"{_range(whole.cost)} at {price:g} a GPU hour")
    elif gpus:
        yield Fact("cost", "give --gpu-hour-price to see it")


def _range(ends: tuple[float, float]) -> str:
    low, high = (f"{end:,.2f}" if end < 10 else f"{end:,.0f}" for end in ends)
    return low if low == high else f"{low} to {high}"


def _notes(
    storage: Storage,
    sources: Sequence[SourceView],
    spec: RunSpec,
    rows: Sequence[OutputRow],
    wanted: int,
    pace: Pace | None,
    fleet: _Fleet,
) -> Iterator[str]:
    if pace is not None and pace.seconds > 0:
        yield (
            f"Hours: the longer end goes on as the sample did, {pace.tokens / pace.seconds:,.0f} tokens a second with"
            f" {pace.busy_seconds / pace.seconds:,.1f} of {fleet.slots:,} slots at work on average. The shorter end"
            " has all slots full and no sequence slower for it: an engine comes near that only where the sample had"
            " filled it. Starting engines and planning come on top."
        )
    if not spec.engine.is_fixed:
        own, engines = spec.engine.own, fleet.engines
        yield f"Hours and cost are for a fleet like the pilot's, of {engines} where {own.min} to {own.max} may be."
    if few := [one.source for one in sources if 0 < one.done < min(FEW_ROWS, one.rows)]:
        yield f"Fewer than {FEW_ROWS} rows, little to go by: {', '.join(few)}."
    if len(rows) < wanted:
        yield f"The pilot was stopped early: {wanted - len(rows):,} rows are missing here, the longer ones more likely."
    is_open = spec.speculation is not None and spec.speculation.calibrate != "off"
    if is_open and standing_choice(storage, spec) is None:
        yield "A pilot does not calibrate: a run that finds speculation slower than none goes on without it."


# --- answers ---------------------------------------------------------------------------------------


class _Views:
    """Rows for the page: text by token, and how each token came as far as that is known."""

    def __init__(self, begun: Begun) -> None:
        self._run = begun.worker_setup.run
        self._steps = read_steps(begun.storage)
        target, folder = self._run.spec.target, begun.worker_setup.model_folder
        self._template: ChatTemplate = load_template(folder, target.trust_remote_code, target.template_kwargs)

    def rows(self, rows: Iterable[OutputRow]) -> Iterator[RowView]:
        for row in rows:
            answers = tuple(self._answer(row, made) for made in row.generations)
            yield RowView(row.row_id, row.source, row.location, row.status.value, row.reason or "", answers)

    def _answer(self, row: OutputRow, made: Generation) -> AnswerView:
        seen = next((one.acceptance for one in row.observed.generations if one.turn == made.turn), None)
        trace = self._steps.get((row.ordinal, row.round, made.turn))
        kinds, note = self._kinds(made, seen, trace, row)
        prompt = made.prompt_token_ids[-SHOWN_PROMPT_TOKENS:]
        return AnswerView(
            turn=made.turn,
            prompt_tokens=len(made.prompt_token_ids),
            prompt=self._template.text_with_special_tokens(prompt),
            is_prompt_cut=len(prompt) < len(made.prompt_token_ids),
            tokens=len(made.completion_token_ids),
            pieces=tuple(self._pieces(made, kinds)),
            finish=made.finish_reason.value if made.finish_reason else "unknown",
            labels=tuple(label.value for label in made.labels),
            accept_length=seen.accept_length if seen else None,
            note=note,
        )

    def _kinds(
        self, made: Generation, seen: Acceptance | None, trace: StepTrace | None, row: OutputRow
    ) -> tuple[list[TokenKind], str]:
        tokens = len(made.completion_token_ids)
        sampled = [TokenKind.SAMPLED] * tokens
        if row.observed.draft is None:
            return sampled, ""
        if trace is None:
            absent = "the engine has counted nothing" if seen is None else "its steps were not kept, only their sums"
            return sampled, f"Drafts are not told apart: {absent}."
        speculation = self._run.spec.speculation
        kinds = token_kinds(tokens, trace, speculation is not None and drafts_always(speculation.method))
        if kinds is None:
            return sampled, (
                f"Drafts are not told apart: {len(trace.accepted):,} steps drafted and {sum(trace.accepted):,} tokens"
                " were accepted, but other steps drafted nothing, and where those stood is not known."
            )
        return kinds, ""

    def _pieces(self, made: Generation, kinds: Sequence[TokenKind]) -> Iterator[Piece]:
        ids = made.completion_token_ids
        ends = made.sampling.stop_token_ids if made.sampling else ()
        texts = token_texts(ids[:SHOWN_TOKENS], self._template.text_with_special_tokens)
        for place, (text, kind) in enumerate(zip(texts, kinds, strict=False)):
            is_masked = made.loss_mask is not None and not made.loss_mask[place]
            closes = place == len(ids) - 1 and ids[place] in ends
            yield Piece(text, TokenKind.MASKED if is_masked else kind, closes)
