"""What is different now from what was planned: source files, and rows.

Resuming never reads sources; this is for saying what changed before a run goes on. Memory of `plan_changes`: the ids of
both plans, about 100 bytes a row.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from regen.data.plan_summary import PlanSummary, SourceSummary
from regen.data.raw import SourceFile
from regen.data.sources import file_digest, is_files, list_files, source_paths
from regen.errors import SourceError
from regen.protocols import Plan
from regen.records import PlannedRow
from regen.spec import RunSpec, SourceSpec

_EXAMPLES = 5


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """One file (or dataset) that is not what was planned; `what` is a sentence's end: `has 120 bytes, had 100`."""

    source: str
    path: str
    what: str


@dataclass(frozen=True, slots=True)
class RowChanges:
    """Rows of one kind of change: how many, and the first few as (row id, location)."""

    count: int
    examples: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class PlanChanges:
    """A diff by row ids. `newly_invalid` are refused now and were not there, or not refused, before."""

    added: RowChanges
    removed: RowChanges
    newly_invalid: RowChanges
    newly_valid: RowChanges

    def __bool__(self) -> bool:
        return any(part.count for part in (self.added, self.removed, self.newly_invalid, self.newly_valid))


def changed_files(summary: PlanSummary, spec: RunSpec) -> list[ChangedFile]:
    """Source files that differ from those planned: by size first, by digest (which reads them) where sizes agree."""
    planned = {source.name: source for source in summary.sources}
    return [
        change
        for source in spec.sources
        if source.name in planned
        for change in _changed_in(source, planned[source.name])
    ]


def plan_changes(plan: Plan, new_plan: Plan) -> PlanChanges:
    """What planning the sources again would add, take away, and no longer (or now) accept."""
    accepted, refused = _ids(plan)
    new_accepted, new_refused = _ids(new_plan)
    known, new_known = accepted | refused, new_accepted | new_refused
    return PlanChanges(
        added=_changes(new_plan, new_accepted - known),
        removed=_changes(plan, known - new_known),
        newly_invalid=_changes(new_plan, new_refused - refused),
        newly_valid=_changes(new_plan, new_accepted & refused),
    )


def _changed_in(source: SourceSpec, planned: SourceSummary) -> list[ChangedFile]:
    before = {file.path: file for file in planned.files}
    try:
        now = list_files(source) if not is_files(source) else None
        paths = [file.path for file in now] if now is not None else [str(path) for path in source_paths(source)]
    except SourceError as error:
        return [ChangedFile(source.name, source.path, f"cannot be found now: {error}")]
    changes = [ChangedFile(source.name, path, "is new") for path in paths if path not in before]
    changes += [ChangedFile(source.name, path, "is gone") for path in before if path not in paths]
    known = [before[path] for path in paths if path in before]
    differences = ((file, _difference(file, now)) for file in known)
    return changes + [ChangedFile(source.name, file.path, what) for file, what in differences if what]


def _difference(file: SourceFile, now: Iterable[SourceFile] | None) -> str | None:
    """`now` holds a dataset's identity; for files it is None and the disk is asked."""
    if now is not None:
        return None if file in now else "has another fingerprint"
    path = Path(file.path)
    size = path.stat().st_size
    if size != file.size_bytes:
        return f"has {size} bytes, had {file.size_bytes}"
    return None if file_digest(path) == file.digest else "has the same size and another content"


def _ids(plan: Plan) -> tuple[set[bytes], set[bytes]]:
    """(accepted, refused) ids."""
    accepted: set[bytes] = set()
    refused: set[bytes] = set()
    for row in plan.scan():
        (refused if row.refusal else accepted).add(bytes.fromhex(row.row_id))
    return accepted, refused


def _changes(plan: Plan, ids: set[bytes]) -> RowChanges:
    return RowChanges(len(ids), tuple((row.row_id, row.location) for row in _first(plan, ids)))


def _first(plan: Plan, ids: set[bytes]) -> list[PlannedRow]:
    found: list[PlannedRow] = []
    wanted = min(_EXAMPLES, len(ids))
    rows = plan.scan() if wanted else iter(())
    while len(found) < wanted:
        row = next(rows)
        if bytes.fromhex(row.row_id) in ids:
            found.append(row)
    return found
