"""Another head on rows of a run: what it would have been accepted, beside what the run recorded for the same answers.

    sample -> preflight of the head -> one engine -> the stored prompts again -> figures by source

The engine is the spec's own; of a run over servers alone, its first server, with the head that it runs.

Writes nothing into the run. The run may be unfinished, or be running; then the two engines share the machine. Costs one
engine start and the sampled answers once more. At temperature 0 the answers are the stored ones, up to ties of the
engine's arithmetic; how many came out identical is counted.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from regen.data.plan import open_plan
from regen.data.target import Target, identity, resolve_target
from regen.errors import ExitCode, FingerprintDrift, SpecError
from regen.protocols import Storage
from regen.records import Acceptance, Completion, EngineInfo, FinishReason, Generation, Origin, OutputRow
from regen.run.commands.answer_again import Result, answer_again
from regen.run.commands.sample import sample_rows
from regen.run.held import control_records
from regen.run.record import RunRecord, engine_version, require_record
from regen.run.replica import build_engine
from regen.run.setup import WorkerSetup
from regen.run.speculation.preflight import examine, require_healthy
from regen.run.speculation.wanted import wanted_speculation
from regen.run.start import aside_setup, own_engine
from regen.spec import RunSpec, SpeculationSpec, TargetSpec, parse_spec, with_absolute_paths
from regen.speculative.acceptance import Difference, Pair, Tally, Verdict, difference, verdict
from regen.speculative.gate_causes import Trouble, causes_of

Say = Callable[[str], None]
# Nothing is calibrated, gated or watched here; a spec with servers takes no other words for it.
_OF_SERVERS = {"calibrate": "off", "gate": "warn", "guard": "warn"}


@dataclass(frozen=True, slots=True)
class Stored:
    """One committed generation: what is asked for again, and what was recorded of it."""

    source: str
    generation: Generation
    draft: str | None
    engine: str
    acceptance: Acceptance | None


@dataclass(frozen=True, slots=True)
class SourceComparison:
    """Generations of one source (None: all) that were answered again.

    `recorded` and `now` tally the same generations; `identical` of their answers have the stored ids.
    """

    source: str | None
    generations: int
    identical: int
    recorded: Tally
    now: Tally
    difference: Difference | None

    def to_json(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "generations": self.generations,
            "identical": self.identical,
            "recorded": self.recorded.to_json(),
            "now": self.now.to_json(),
            "difference": self.difference.to_json() if self.difference else None,
        }


@dataclass(frozen=True, slots=True)
class Evaluation:
    """`recorded_by` counts the sampled generations by draft and engine; `unanswered` those without a result, by reason.

    `temperature` is the highest among them. `degenerate` answers looped this time: they are in no figure.
    """

    speculation: SpeculationSpec
    engine: EngineInfo
    rows: int
    temperature: float
    recorded_by: dict[tuple[str | None, str], int]
    unanswered: dict[str, int]
    degenerate: int
    sources: tuple[SourceComparison, ...]
    total: SourceComparison
    verdict: Verdict

    @property
    def title(self) -> str:
        """The head and how it was run, for people."""
        head = self.speculation
        return f"{head.draft} ({head.method}, {head.num_tokens} tokens) on {self.engine.engine}"

    @property
    def exit_code(self) -> ExitCode:
        """A dead head ends as one that preflight refuses; a head that nothing can be said of is a failure."""
        codes = {Verdict.DEAD: ExitCode.PREFLIGHT, Verdict.NO_COUNTERS: ExitCode.FAILED}
        return codes.get(self.verdict, ExitCode.OK)

    def remarks(self) -> Iterator[str]:
        """What the table does not say, for people; the verdict last, with what may be its causes."""
        for (draft, engine), count in self.recorded_by.items():
            yield f"recorded: {count:,} answers with {draft or 'no speculation'} on {engine}"
        for reason, count in self.unanswered.items():
            yield f"not answered: {count:,} ({reason})"
        if self.degenerate:
            yield f"degenerate: {self.degenerate:,} answers looped this time and are in no figure"
        yield _said(self.verdict, self.total.now)
        if self.verdict is Verdict.DEAD:
            for cause in causes_of(Trouble.DEAD, self.speculation, self.temperature):
                yield f"  perhaps {cause}"

    def to_json(self) -> dict[str, Any]:
        return {
            "draft": self.speculation.draft,
            "method": self.speculation.method,
            "num_tokens": self.speculation.num_tokens,
            "engine": self.engine.engine,
            "rows": self.rows,
            "recorded_by": [
                {"draft": draft, "engine": engine, "generations": count}
                for (draft, engine), count in self.recorded_by.items()
            ],
            "unanswered": self.unanswered,
            "degenerate": self.degenerate,
            "verdict": self.verdict.value,
            "all": self.total.to_json(),
            "sources": [source.to_json() for source in self.sources],
        }


def evaluate(storage: Storage, draft: str, options: dict[str, Any], rows_per_source: int, say: Say) -> Evaluation:
    """`options` are further fields of `speculation`; `num_tokens` is the run's own unless it is among them.

    Raises SpecError, PreflightRefused, FingerprintDrift where the target is not the run's any more, EngineError,
    StoreError.
    """
    record = require_record(storage)
    spec = _with_head(record.spec, wanted_speculation(control_records(storage), record), draft, options)
    target = resolve_target(_at_recorded_commit(spec, record))
    _require_same_target(record, target, storage)
    assert spec.speculation is not None
    require_healthy(examine(spec, target, storage), say)
    _say_other_engine(record, spec, say)
    rows = sample_rows(storage, open_plan(storage).count, rows_per_source)
    stored = [one for row in rows for one in _stored(row)]
    if not stored:
        raise SpecError(f"{storage.url} holds no committed answers yet: there is nothing to evaluate a head on")
    setup = own_engine(aside_setup(record.model_copy(update={"spec": spec}), target, storage.url, "evaluate"))
    _say_whose_head(setup, say)
    engine = build_engine(setup)
    info, results = asyncio.run(answer_again(engine, spec.engine, [one.generation for one in stored], say))
    return _evaluation(spec.speculation, info, len(rows), stored, results)


def _with_head(spec: RunSpec, wanted: SpeculationSpec | None, draft: str, options: dict[str, Any]) -> RunSpec:
    """The run's spec with another speculation. Nothing else of the run's own speculation belongs to this head."""
    own = {"num_tokens": wanted.num_tokens} if wanted is not None else {}
    section = {**(_OF_SERVERS if spec.engine.endpoints else {}), **own, **options, "draft": draft}
    if not section.get("num_tokens"):
        raise SpecError("--num-tokens is missing: the run has no speculation to take it from")
    raw = spec.model_dump(mode="json")
    if spec.engine.own.max:
        raw["engine"]["endpoints"] = []  # an engine of our own can be started with any head
    given = parse_spec({**raw, "speculation": section}, origin="regen evaluate")
    return with_absolute_paths(given)


def _say_whose_head(setup: WorkerSetup, say: Say) -> None:
    endpoint = setup.run.spec.engine.endpoint_of(setup.worker.slot)
    if endpoint is not None:
        say(f"note: {endpoint.url} runs whatever head it was started with: nothing switches it from here")


def _at_recorded_commit(spec: RunSpec, record: RunRecord) -> TargetSpec:
    """A branch on the hub may have moved on since the run was begun."""
    commit = str(record.shaping.get("target.commit"))
    is_local = commit.startswith("local:")
    return spec.target if is_local else spec.target.model_copy(update={"revision": commit})


def _require_same_target(record: RunRecord, target: Target, storage: Storage) -> None:
    for name, value in identity(target).items():
        if record.shaping.get(name) != value:
            raise FingerprintDrift(
                f"{name} is {value}, and {storage.url} was made with {record.shaping.get(name)}: a head would be"
                f" compared over two targets. Put the target back that the run was begun with ({target.model})"
            )


def _say_other_engine(record: RunRecord, spec: RunSpec, say: Say) -> None:
    now, then = engine_version(spec), record.shaping.get("engine.version")
    if now != then:
        say(f"note: the run was begun with engine {then}, this is {now}: answers may differ")


def _stored(row: OutputRow) -> Iterator[Stored]:
    """The target's own answers that are answers."""
    seen = {one.turn: one.acceptance for one in row.observed.generations}
    for made in row.generations:
        if made.origin is Origin.TARGET and not any(label.is_degenerate for label in made.labels):
            yield Stored(row.source, made, row.observed.draft, row.observed.engine, seen.get(made.turn))


def _evaluation(
    speculation: SpeculationSpec, info: EngineInfo, rows: int, stored: Sequence[Stored], results: Sequence[Result]
) -> Evaluation:
    answered = [(one, result) for one, result in zip(stored, results, strict=True) if isinstance(result, Completion)]
    whole = [(one, made) for one, made in answered if made.finish_reason is not FinishReason.REPETITION]
    sources = sorted({one.source for one, _ in whole})
    total = _comparison(None, whole)
    return Evaluation(
        speculation=speculation,
        engine=info,
        rows=rows,
        temperature=max(one.generation.sampling.temperature for one in stored if one.generation.sampling),
        recorded_by=dict(Counter((one.draft, one.engine) for one in stored).most_common()),
        unanswered=dict(Counter(_reason(result) for result in results if not isinstance(result, Completion))),
        degenerate=len(answered) - len(whole),
        sources=tuple(_comparison(source, [pair for pair in whole if pair[0].source == source]) for source in sources),
        total=total,
        verdict=verdict(total.now),
    )


def _comparison(source: str | None, answered: Sequence[tuple[Stored, Completion]]) -> SourceComparison:
    return SourceComparison(
        source=source,
        generations=len(answered),
        identical=sum(one.generation.completion_token_ids == made.token_ids for one, made in answered),
        recorded=_tally((one.acceptance, len(one.generation.completion_token_ids)) for one, _ in answered),
        now=_tally((made.acceptance, len(made.token_ids)) for _, made in answered),
        difference=difference(Pair(one.acceptance, made.acceptance) for one, made in answered),
    )


def _said(found: Verdict, now: Tally) -> str:
    length = "unknown" if now.accept_length is None else f"{now.accept_length:.3f}"
    match found:
        case Verdict.DEAD:
            return (
                f"this head is dead: accept length {length} over {now.drafts:,} drafts. Speculation with it is slower"
                " than none. What to look at, the likeliest first:"
            )
        case Verdict.NO_COUNTERS:
            return f"nothing can be said: the engine gave no counters for {now.absent:,} answers. Absent is not zero"
        case Verdict.TOO_FEW_DRAFTS:
            return f"undecided: accept length {length} over {now.drafts:,} drafts only; take more --rows"
        case Verdict.ALIVE:
            return f"this head drafts: accept length {length} over {now.drafts:,} drafts"


def _tally(seen: Iterable[tuple[Acceptance | None, int]]) -> Tally:
    tally = Tally()
    for acceptance, tokens in seen:
        tally.add(acceptance, tokens)
    return tally


def _reason(result: Result) -> str:
    return str(getattr(result, "reason", type(result).__name__))
