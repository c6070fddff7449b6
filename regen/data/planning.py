"""Building the frozen plan: read, normalise, identify, render the first prompt, interleave, write.

Guarantees: deterministic (the digest depends on the spec, the bytes of the sources and the target, not on session,
machine, number of processes or names of temporaries); every source row becomes one planned row, accepted or refused
with stage and reason; nothing that a row holds stops planning. `plan.json` is created last and only if absent: that is
the commit, and a starter that loses uses the winner's plan. Memory: bounded; each source is spooled to a temporary
file. Costs: under 0.1 ms a row on one core, and rendering, which runs on `processes` cores.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import cast

import pyarrow.parquet as pq

from regen.data.equal_rows import EqualRows
from regen.data.interleave import interleaved
from regen.data.normalize import Note, content_digest, normalize, numbered, row_key, unreadable_row_key
from regen.data.plan import read_summary
from regen.data.plan_rows import RowValues, to_values
from regen.data.plan_summary import PLAN_KEY, PlanSummary, RejectedRow, SourceSummary
from regen.data.plan_writer import GROUP_ROWS, PlanWriter, RowGroupFile
from regen.data.raw import RawRow, SourceFile
from regen.data.rendering import CHUNK_ROWS, UNEXPECTED, Rendered, Renderer, RenderJob, first_prompt
from regen.data.sources import list_files, read_source
from regen.data.target import Target
from regen.data.text import DETAIL_CHARS, printable
from regen.errors import JournalDamaged, RowRefused
from regen.protocols import Storage
from regen.records import PlannedRow, Refusal, Stage
from regen.spec import RunSpec, SourceSpec

_EXAMPLE_CHARS = 300
PROMPT_TOO_LONG = "prompt_too_long"
LONGER_THAN_CONTEXT = "longer_than_context"
DUPLICATE = "duplicate"

Progress = Callable[[str, int], None]
"""Called with a source's name and how many of its rows are planned so far."""


def build_plan(
    spec: RunSpec,
    target: Target,
    storage: Storage,
    session: str,
    processes: int,
    progress: Progress | None = None,
) -> PlanSummary:
    """Plan every source and commit the plan under `storage`, or return the plan that is there already.

    `processes` is how many render prompts (1: this one). Raises SourceError, SpecError (the target's tokenizer or
    template), JournalDamaged (a plan is there and unreadable), and what `storage` raises.
    """
    if (existing := read_summary(storage)) is not None:
        return existing
    arguments = (target.folder, spec.target.trust_remote_code, spec.target.template_kwargs, processes)
    with tempfile.TemporaryDirectory(prefix="regen-spool-") as folder, Renderer(*arguments) as renderer:
        planner = _SourcePlanner(spec, renderer, progress or (lambda source, rows: None))
        spools = [
            planner.spool(source, Path(folder) / f"source-{number}.parquet")
            for number, source in enumerate(spec.sources)
        ]
        summary = _written(spools, storage, session)
    return _committed(summary, storage)


@dataclass(frozen=True, slots=True)
class _Spool:
    """One planned source on local disk, in its own order."""

    path: Path
    summary: SourceSummary

    def rows(self) -> Iterator[RowValues]:
        with pq.ParquetFile(self.path) as file:
            for batch in file.iter_batches(batch_size=GROUP_ROWS):
                yield from cast(list[RowValues], batch.to_pylist())


@dataclass(frozen=True, slots=True)
class _Draft:
    """A row on its way: `content` is the conversation's digest, empty where there is none."""

    row: PlannedRow
    content: bytes = b""
    notes: tuple[Note, ...] = ()


class _SourcePlanner:
    """Plans one source after another; what it keeps between them is the content seen, for `rows.dedupe`."""

    def __init__(self, spec: RunSpec, renderer: Renderer, progress: Progress) -> None:
        self._spec = spec
        self._renderer = renderer
        self._progress = progress
        self._seen = EqualRows()

    def spool(self, source: SourceSpec, path: Path) -> _Spool:
        """Plan one source into a local file."""
        tally = _Tally()
        files = list_files(source)
        file = RowGroupFile(path)
        for draft in self._judged(_drafts(source)):
            file.add(to_values(draft.row))
            tally.add(draft)
            if tally.rows % CHUNK_ROWS == 0:
                self._progress(source.name, tally.rows)
        file.close()
        self._progress(source.name, tally.rows)
        return _Spool(path, tally.summary(source.name, files))

    def _judged(self, drafts: Iterable[_Draft]) -> Iterator[_Draft]:
        """Every draft with its first prompt's length, or refused."""
        for chunk, results in self._renderer.map(_chunks(drafts)):
            rendered = iter(results)
            for draft in chunk:
                yield draft if draft.row.refusal else self._decided(draft, next(rendered))

    def _decided(self, draft: _Draft, rendered: Rendered) -> _Draft:
        refusal = rendered.refusal or self._too_long(rendered.prompt_tokens) or self._duplicate(draft.content)
        row = replace(draft.row, prompt_tokens=rendered.prompt_tokens, refusal=refusal)
        return _Draft(row, draft.content, draft.notes)

    def _too_long(self, prompt_tokens: int) -> Refusal | None:
        limit = self._spec.rows.max_prompt_tokens
        if limit is not None and prompt_tokens > limit:
            detail = f"{prompt_tokens} tokens, rows.max_prompt_tokens is {limit}"
            return Refusal(Stage.LENGTH, PROMPT_TOO_LONG, detail)
        context = self._spec.engine.max_model_len
        if prompt_tokens >= context:
            detail = f"{prompt_tokens} tokens leave no room in engine.max_model_len, which is {context}"
            return Refusal(Stage.LENGTH, LONGER_THAN_CONTEXT, detail)
        return None

    def _duplicate(self, content: bytes) -> Refusal | None:
        if self._spec.rows.dedupe and self._seen.count(content):
            return Refusal(Stage.NORMALIZE, DUPLICATE, "equal to a row accepted earlier (rows.dedupe)")
        return None


# --- one raw row ---------------------------------------------------------------------------------


def _drafts(source: SourceSpec) -> Iterator[_Draft]:
    """Raw rows normalised and identified, in order."""
    equal = EqualRows()
    for raw in read_source(source):
        yield _draft(source, raw, equal)


def _draft(source: SourceSpec, raw: RawRow, equal: EqualRows) -> _Draft:
    if raw.value is None:
        reason, detail = raw.error or (UNEXPECTED, "")
        return _refused(source, raw, Refusal(Stage.LOAD, reason, detail), equal)
    try:
        normalized = normalize(raw.value, source.format, source.system_prompt)
        content = content_digest(normalized.conversation)
        key = row_key(source.name, normalized.typed_id, content)
    except RowRefused as error:
        return _refused(source, raw, Refusal(Stage.NORMALIZE, error.reason, error.detail), equal)
    except Exception as error:
        return _refused(source, raw, Refusal(Stage.NORMALIZE, UNEXPECTED, type(error).__name__), equal)
    row = PlannedRow(
        ordinal=0,
        row_id=numbered(key, equal.count(key)),
        source=source.name,
        location=printable(raw.location),
        source_id=normalized.source_id,
        conversation=normalized.conversation,
        prompt_tokens=0,
    )
    return _Draft(row, content, normalized.notes)


def _refused(source: SourceSpec, raw: RawRow, refusal: Refusal, equal: EqualRows) -> _Draft:
    key = unreadable_row_key(source.name, raw.identity())
    shown = Refusal(refusal.stage, str(refusal.reason), printable(refusal.detail, DETAIL_CHARS))
    row = PlannedRow(
        ordinal=0,
        row_id=numbered(key, equal.count(key)),
        source=source.name,
        location=printable(raw.location),
        source_id=None,
        conversation=None,
        prompt_tokens=0,
        refusal=shown,
    )
    return _Draft(row)


def _chunks(drafts: Iterable[_Draft]) -> Iterator[tuple[list[_Draft], list[RenderJob]]]:
    remaining = iter(drafts)
    while chunk := list(islice(remaining, CHUNK_ROWS)):
        jobs = [first_prompt(draft.row.conversation) for draft in chunk if draft.row.conversation is not None]
        yield chunk, jobs


# --- counting and writing ------------------------------------------------------------------------


@dataclass(slots=True)
class _Tally:
    """One source's numbers, while it is planned."""

    rows: int = 0
    accepted: int = 0
    prompt_tokens: int = 0
    longest_prompt_tokens: int = 0
    turns: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    first_rejected: dict[str, RejectedRow] = field(default_factory=dict)
    notes: Counter[str] = field(default_factory=Counter)

    def add(self, draft: _Draft) -> None:
        row = draft.row
        self.rows += 1
        if row.refusal is not None:
            self.rejected[row.refusal.reason] += 1
            if row.refusal.reason not in self.first_rejected:
                self.first_rejected[row.refusal.reason] = _example(row.location, row.refusal.detail)
            return
        self.accepted += 1
        self.prompt_tokens += row.prompt_tokens
        self.longest_prompt_tokens = max(self.longest_prompt_tokens, row.prompt_tokens)
        self.turns += row.conversation.turns if row.conversation else 0
        self.notes.update(note.value for note in draft.notes)

    def summary(self, name: str, files: list[SourceFile]) -> SourceSummary:
        return SourceSummary(
            name=name,
            rows=self.rows,
            accepted=self.accepted,
            rejected=dict(sorted(self.rejected.items())),
            notes=dict(sorted(self.notes.items())),
            prompt_tokens=self.prompt_tokens,
            longest_prompt_tokens=self.longest_prompt_tokens,
            turns=self.turns,
            files=tuple(files),
            first_rejected=dict(sorted(self.first_rejected.items())),
        )


def _example(location: str, detail: str) -> RejectedRow:
    """Of a long location the end is kept: that is where the line is."""
    shown = location if len(location) <= _EXAMPLE_CHARS else "..." + location[3 - _EXAMPLE_CHARS :]
    return RejectedRow(shown, printable(detail, _EXAMPLE_CHARS))


def _written(spools: list[_Spool], storage: Storage, session: str) -> PlanSummary:
    """The sources interleaved into parts; nothing is committed yet."""
    streams = [spool.rows() for spool in spools]
    with PlanWriter(storage, session) as writer:
        for source in interleaved([spool.summary.rows for spool in spools]):
            writer.add(next(streams[source]))
        parts, digest = writer.finish()
    return PlanSummary(
        session=session,
        rows=sum(spool.summary.rows for spool in spools),
        refused=sum(spool.summary.rows - spool.summary.accepted for spool in spools),
        digest=digest,
        parts=parts,
        sources=tuple(spool.summary for spool in spools),
    )


def _committed(summary: PlanSummary, storage: Storage) -> PlanSummary:
    """The plan that counts: this one, or that of another starter that was quicker."""
    if storage.create(PLAN_KEY, summary.to_json()):
        return summary
    winner = read_summary(storage)
    if winner is None:
        raise JournalDamaged(f"{storage.url}/{PLAN_KEY} was there a moment ago and is gone")
    return winner
