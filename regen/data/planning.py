"""Building the frozen plan: draft (read, normalise, identify), render the first prompt, judge, interleave, write.

Guarantees: deterministic (the digest depends on the spec, the bytes of the sources and the target, not on session,
machine, number of processes or names of temporaries); every source row becomes one planned row, accepted or refused
with stage and reason; nothing that a row holds stops planning. `plan.json` is created last and only if absent: that is
the commit, and a starter that loses uses the winner's plan. Memory: bounded; each source is spooled to a temporary
file. Costs: under 0.1 ms a row on one core, and rendering, which runs on `processes` cores.
"""

from __future__ import annotations

import errno
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Protocol, cast

import pyarrow.parquet as pq

from regen.data.decontamination import Benchmark, contaminated
from regen.data.drafting import Draft, Drafting
from regen.data.dry_render import Rendered, RenderJob
from regen.data.equal_rows import EqualRows
from regen.data.interleave import interleaved
from regen.data.normalize import Rules, normalize
from regen.data.plan import read_summary
from regen.data.plan_rows import RowValues, to_values
from regen.data.plan_summary import PLAN_KEY, PlanSummary, RejectedRow, SourceSummary
from regen.data.plan_writer import PlanWriter, RowGroupFile
from regen.data.profiles import with_reasoning
from regen.data.raw import SourceFile
from regen.data.rendering import CHUNK_ROWS, Renderer, RenderSetup
from regen.data.selection import LeftOut
from regen.data.sources import list_files, read_source
from regen.data.target import Target
from regen.data.text import DETAIL_CHARS, printable
from regen.errors import JournalDamaged, RowRefused, SourceError, StoreUnavailable
from regen.protocols import Storage
from regen.records import Refusal, Split, Stage
from regen.spec import DecontaminateSpec, RunSpec, SourceSpec

_EXAMPLE_CHARS = 300
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
PROMPT_TOO_LONG = "prompt_too_long"
LONGER_THAN_CONTEXT = "longer_than_context"
DUPLICATE = "duplicate"
CONTAMINATED = "contaminated"

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
    template), JournalDamaged (a plan is there and unreadable), StoreUnavailable (also where temporary files have no
    room), and what `storage` raises.
    """
    if (existing := read_summary(storage)) is not None:
        return existing
    with spooled(spec, target, processes, progress, NothingPlanned()) as spools:
        summary = _written(spools, storage, session)
    return _committed(summary, storage)


class Earlier(Protocol):
    """What a plan holds already that is extended."""

    def takes(self, row_id: str) -> bool:
        """Whether the row is new. Asked once for each row of the sources."""
        ...

    def prompt_tokens(self, source: str) -> int:
        """The sum over the first prompts of this source's accepted rows."""
        ...

    def contents(self) -> Iterator[bytes]:
        """The content digest of every accepted row; only asked for `rows.dedupe`."""
        ...


class NothingPlanned:
    """The `Earlier` of a plan that is made from nothing."""

    def takes(self, row_id: str) -> bool:
        return True

    def prompt_tokens(self, source: str) -> int:
        return 0

    def contents(self) -> Iterator[bytes]:
        return iter(())


@contextmanager
def spooled(
    spec: RunSpec, target: Target, processes: int, progress: Progress | None, earlier: Earlier
) -> Iterator[list[Spool]]:
    """The sources' new rows, each source in a temporary file that goes when the block ends."""
    spec = spec.model_copy(update={"target": with_reasoning(spec.target, target.profile, target.template_source)})
    setup = RenderSetup(
        target.folder,
        spec.target.trust_remote_code,
        spec.target.template_kwargs,
        spec.policies,
        target.eos_token_ids,
    )
    benchmarks = [_benchmark(part) for part in spec.rows.decontaminate]
    with _room_for_temporaries(), _spool_folder() as folder, Renderer(setup, processes) as renderer:
        planner = _SourcePlanner(spec, renderer, benchmarks, progress or (lambda source, rows: None), earlier)
        yield [
            planner.spool(source, Path(folder) / f"source-{number}.parquet")
            for number, source in enumerate(spec.sources)
        ]


def _spool_folder() -> tempfile.TemporaryDirectory[str]:
    try:
        return tempfile.TemporaryDirectory(prefix="regen-spool-")
    except OSError as error:
        raise _no_room(error) from error


@contextmanager
def _room_for_temporaries() -> Iterator[None]:
    """Plans are collected in temporary files, which may be as large as the sources."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        raise _no_room(error) from error


def _no_room(error: OSError) -> StoreUnavailable:
    where = tempfile.tempdir or "the folder for temporary files"
    return StoreUnavailable(
        f"{where}: planning cannot write there: {error.strerror or error}; set TMPDIR to a place with room,"
        " then the same command"
    )


@dataclass(frozen=True, slots=True)
class Spool:
    """One planned source on local disk, in its own order."""

    path: Path
    summary: SourceSummary

    def rows(self) -> Iterator[RowValues]:
        """A row group at a time: they are bounded in bytes."""
        with pq.ParquetFile(self.path) as file:
            for group in range(file.num_row_groups):
                yield from cast(list[RowValues], file.read_row_group(group).to_pylist())


class _SourcePlanner:
    """Plans one source after another; what it keeps between them is the content seen, for `rows.dedupe`."""

    def __init__(
        self,
        spec: RunSpec,
        renderer: Renderer,
        benchmarks: Sequence[Benchmark],
        progress: Progress,
        earlier: Earlier,
    ) -> None:
        self._spec = spec
        self._earlier = earlier
        self._renderer = renderer
        self._benchmarks = benchmarks
        self._progress = progress
        self._seen = EqualRows()
        for content in earlier.contents() if spec.rows.dedupe else ():
            self._seen.count(content)

    def spool(self, source: SourceSpec, path: Path) -> Spool:
        """Plan one source into a local file."""
        tally = _Tally(source.name)
        files = list_files(source)
        drafting = Drafting(self._spec, source, tally.left_out)
        file = RowGroupFile(path)
        for draft in self._judged(source, drafting):
            file.add(to_values(draft.row))
            tally.add(draft)
            if tally.rows % CHUNK_ROWS == 0:
                self._progress(source.name, tally.rows)
        file.close()
        self._progress(source.name, tally.rows)
        return Spool(path, tally.summary(files))

    def _judged(self, source: SourceSpec, drafting: Drafting) -> Iterator[Draft]:
        """Every draft with its first prompt's length, or refused; up to the first accepted row beyond the quota.

        That row and all after it are left out. What was rendered ahead changes nothing: decisions are taken in order.
        """
        quota = source.prompt_token_quota
        room = None if quota is None else quota - self._earlier.prompt_tokens(source.name)
        new = (draft for draft in drafting if self._earlier.takes(draft.row.row_id))
        for chunk, results in self._renderer.map(_chunks(new)):
            rendered = iter(results)
            for drafted in chunk:
                draft = self._decided(drafted, next(rendered)) if drafted.job is not None else drafted
                if not drafting.is_full and room is not None and draft.row.refusal is None:
                    drafting.is_full = draft.row.prompt_tokens > room
                if why := LeftOut.TOKEN_QUOTA if drafting.is_full else draft.left_out:
                    drafting.leave_out(why)
                    continue
                draft = self._unless_duplicate(draft)
                if room is not None and draft.row.refusal is None:
                    room -= draft.row.prompt_tokens
                yield draft

    def _decided(self, draft: Draft, rendered: Rendered) -> Draft:
        refusal = rendered.refusal or self._too_long(rendered) or self._contaminated(draft)
        native = () if refusal else rendered.native
        row = replace(draft.row, prompt_tokens=rendered.prompt_tokens, refusal=refusal, native=native)
        return replace(draft, row=row, notes=draft.notes + rendered.notes)

    def _too_long(self, rendered: Rendered) -> Refusal | None:
        limit, prompt_tokens = self._spec.rows.max_prompt_tokens, rendered.prompt_tokens
        if limit is not None and prompt_tokens > limit:
            detail = f"{prompt_tokens} tokens, rows.max_prompt_tokens is {limit}"
            return Refusal(Stage.LENGTH, PROMPT_TOO_LONG, detail)
        context = self._spec.engine.max_model_len
        if rendered.native and rendered.longest_tokens > context:
            detail = f"{rendered.longest_tokens} tokens with the answer, engine.max_model_len is {context}"
            return Refusal(Stage.LENGTH, LONGER_THAN_CONTEXT, detail)
        if not rendered.native and prompt_tokens >= context:
            detail = f"{prompt_tokens} tokens leave no room in engine.max_model_len, which is {context}"
            return Refusal(Stage.LENGTH, LONGER_THAN_CONTEXT, detail)
        return None

    def _contaminated(self, draft: Draft) -> Refusal | None:
        conversation = draft.row.conversation
        found = contaminated(self._benchmarks, conversation) if conversation and self._benchmarks else None
        return Refusal(Stage.NORMALIZE, CONTAMINATED, printable(found, DETAIL_CHARS)) if found else None

    def _unless_duplicate(self, draft: Draft) -> Draft:
        is_asked = self._spec.rows.dedupe and draft.row.refusal is None and not draft.is_copy
        if not is_asked or not self._seen.count(draft.content):
            return draft
        refusal = Refusal(Stage.NORMALIZE, DUPLICATE, "equal to a row accepted earlier (rows.dedupe)")
        return replace(draft, row=replace(draft.row, refusal=refusal, native=()))


def _chunks(drafts: Iterable[Draft]) -> Iterator[tuple[list[Draft], list[RenderJob]]]:
    remaining = iter(drafts)
    while chunk := list(islice(remaining, CHUNK_ROWS)):
        yield chunk, [draft.job for draft in chunk if draft.job is not None]


def _benchmark(part: DecontaminateSpec) -> Benchmark:
    """The questions of one benchmark; rows of it that are no conversation are not compared with.

    Raises SourceError where there is no other row: nothing would be left out, without a word.
    """
    has_questions, complaint = False, "it has no rows"
    benchmark = Benchmark(part.path, part.ngram_words if part.match == "ngram" else None)
    for raw in read_source(SourceSpec(name=part.path, path=part.path)):
        if raw.value is None:
            continue
        try:
            benchmark.add(normalize(raw.value, Rules()).conversation, printable(raw.location))
            has_questions = True
        except (RowRefused, RecursionError) as refusal:
            complaint = f"{printable(raw.location)}: {refusal}"
    if not has_questions:
        raise SourceError(f"rows.decontaminate: {part.path}: no question can be read from it ({complaint})")
    return benchmark


# --- counting and writing ------------------------------------------------------------------------


@dataclass(slots=True)
class _Tally:
    """One source's numbers, while it is planned."""

    name: str
    rows: int = 0
    accepted: int = 0
    native: int = 0
    changed: int = 0
    eval_rows: int = 0
    prompt_tokens: int = 0
    longest_prompt_tokens: int = 0
    turns: int = 0
    most_turns: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    first_rejected: dict[str, RejectedRow] = field(default_factory=dict)
    notes: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)

    def add(self, draft: Draft) -> None:
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
        self.native += bool(row.native)
        self.changed += bool(draft.notes)
        self.eval_rows += row.split is Split.EVAL
        turns = row.conversation.turns if row.conversation else 0
        self.turns += turns
        self.most_turns = max(self.most_turns, turns)
        self.notes.update(note.value for note in draft.notes)

    def summary(self, files: list[SourceFile]) -> SourceSummary:
        return SourceSummary(
            name=self.name,
            rows=self.rows,
            accepted=self.accepted,
            rejected=dict(sorted(self.rejected.items())),
            notes=dict(sorted(self.notes.items())),
            prompt_tokens=self.prompt_tokens,
            longest_prompt_tokens=self.longest_prompt_tokens,
            turns=self.turns,
            files=tuple(files),
            first_rejected=dict(sorted(self.first_rejected.items())),
            native=self.native,
            changed=self.changed,
            eval_rows=self.eval_rows,
            left_out=dict(sorted(self.left_out.items())),
            most_turns=self.most_turns,
        )


def _example(location: str, detail: str) -> RejectedRow:
    """Of a long location the end is kept: that is where the line is."""
    shown = location if len(location) <= _EXAMPLE_CHARS else "..." + location[3 - _EXAMPLE_CHARS :]
    return RejectedRow(shown, printable(detail, _EXAMPLE_CHARS))


def write_interleaved(spools: list[Spool], writer: PlanWriter) -> None:
    """Hand over the rows of all sources, in the order of a plan."""
    streams = [spool.rows() for spool in spools]
    for source in interleaved([spool.summary.rows for spool in spools]):
        writer.add(next(streams[source]))


def _written(spools: list[Spool], storage: Storage, session: str) -> PlanSummary:
    """The sources interleaved into parts; nothing is committed yet."""
    with PlanWriter(storage, session) as writer:
        write_interleaved(spools, writer)
        parts, digest = writer.finish()
    return PlanSummary(
        session=session,
        rows=sum(spool.summary.rows for spool in spools),
        refused=sum(spool.summary.rows - spool.summary.accepted for spool in spools),
        native=sum(spool.summary.native for spool in spools),
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
