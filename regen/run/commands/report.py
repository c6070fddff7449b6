"""What committed rows say of acceptance: for `regen report`, in the middle of a run and after it.

Reads the journal's winning rows a row group at a time, lengths and counters only; answers are read for their length.
Degenerate rows, and single answers with such a label, are counted and left out of every figure.
Costs what `CommittedRows` costs and some 30 microseconds a generation; memory does not grow with the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from regen.data.plan import open_plan
from regen.protocols import Storage
from regen.records import Acceptance, Label, Origin, Status
from regen.run.record import require_record
from regen.speculative.acceptance import (
    AcceptanceCounts,
    Arm,
    Bucket,
    Cell,
    Measured,
    Tally,
    WeakSpot,
    bucket_json,
    weak_spots,
)
from regen.store.committed import CommittedRows

_GENERATION = "generations.list.element"
_OBSERVED = "observed.generations.list.element"
COLUMNS = (
    "source",
    "status",
    *(f"{_GENERATION}.{name}" for name in ("turn", "origin", "prompt_token_ids", "completion_token_ids", "labels")),
    "observed.engine",
    "observed.draft",
    *(f"{_OBSERVED}.{name}" for name in ("turn", "drafts", "drafted", "accepted", "accepted_by_position")),
)
_DIMENSIONS: tuple[tuple[str, Callable[[Cell], str | Bucket]], ...] = (
    ("source", lambda cell: cell.source),
    ("turn", lambda cell: cell.turn),
    ("prompt_tokens", lambda cell: cell.prompt_tokens),
    ("answer_tokens", lambda cell: cell.answer_tokens),
)


@dataclass(slots=True)
class Report:
    """`rows` are committed rows of `planned`, those that the plan has settled not among them.

    What is degenerate is in no other figure.
    """

    name: str
    url: str
    planned: int
    rows: int = 0
    degenerate_rows: int = 0
    degenerate_generations: int = 0
    counts: AcceptanceCounts = field(default_factory=AcceptanceCounts)

    @property
    def arms(self) -> list[ArmReport]:
        """One for each draft and engine, the one with the most drafts first."""
        return [ArmReport(arm, self.counts.of_arm(arm)) for arm in self.counts.arms]

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "url": self.url,
            "planned": self.planned,
            "rows": self.rows,
            "degenerate": {"rows": self.degenerate_rows, "generations": self.degenerate_generations},
            "drafts": [arm.to_json() for arm in self.arms],
        }


class ArmReport:
    """One draft on one engine: `tables` by dimension and value, and where it has most to gain."""

    def __init__(self, arm: Arm, counts: AcceptanceCounts) -> None:
        self.arm = arm
        self.total: Tally = counts.total
        self.tables: Mapping[str, Mapping[str | Bucket, Tally]] = {name: counts.by(key) for name, key in _DIMENSIONS}
        self.weak_spots: list[WeakSpot] = weak_spots(counts)

    def to_json(self) -> dict[str, Any]:
        """The value of a dimension stands under `value`: a source's name, or the ends of a range."""
        tables = {
            f"by_{name}": [
                {"value": bucket_json(value) if isinstance(value, Bucket) else value, **tally.to_json()}
                for value, tally in table.items()
            ]
            for name, table in self.tables.items()
        }
        spots = [spot.to_json() for spot in self.weak_spots]
        return {**self.arm._asdict(), "all": self.total.to_json(), **tables, "weak_spots": spots}


def report(storage: Storage) -> Report:
    """Read it all. Raises SpecError if there is no run, JournalDamaged, StoreError."""
    record, plan = require_record(storage), open_plan(storage)
    made = Report(record.spec.name, storage.url, plan.count)
    for table in CommittedRows(storage, plan.count).tables(COLUMNS):
        _count(made, table.combine_chunks())
    return made


def _count(made: Report, table: pa.Table) -> None:
    statuses = table["status"].to_pylist()
    made.rows += len(statuses)
    made.degenerate_rows += statuses.count(Status.DEGENERATE)
    for row, labels, seen in _generations(table):
        if statuses[row] == Status.DEGENERATE or any(Label(label).is_degenerate for label in labels):
            made.degenerate_generations += 1
        else:
            made.counts.add(seen)


def _generations(table: pa.Table) -> Iterator[tuple[int, list[str], Measured]]:
    """(row of the table, labels, what was measured) of every generation of the target."""
    sources = table["source"].to_pylist()
    engines, drafts = (pc.struct_field(table["observed"], name).to_pylist() for name in ("engine", "draft"))
    counters = _counters(pc.struct_field(table["observed"], "generations"))
    made = pc.list_flatten(table["generations"])
    rows = pc.list_parent_indices(table["generations"]).to_pylist()
    turns, origins, labels = (pc.struct_field(made, name).to_pylist() for name in ("turn", "origin", "labels"))
    prompts, answers = (
        pc.list_value_length(pc.struct_field(made, name)).to_pylist()
        for name in ("prompt_token_ids", "completion_token_ids")
    )
    for row, turn, origin, said, prompt, answer in zip(rows, turns, origins, labels, prompts, answers, strict=True):
        if origin == Origin.TARGET:
            seen = counters.get((row, turn))
            yield row, said, Measured(sources[row], turn, prompt, answer, engines[row], drafts[row], seen)


def _counters(observed: pa.ChunkedArray[Any]) -> dict[tuple[int, int], Acceptance]:
    """By row and turn; a generation without counters is not in it."""
    rows = pc.list_parent_indices(observed).to_pylist()
    seen = pc.list_flatten(observed)
    columns = (
        pc.struct_field(seen, name).to_pylist()
        for name in ("turn", "drafts", "drafted", "accepted", "accepted_by_position")
    )
    return {
        (row, turn): Acceptance(drafts, drafted, accepted, tuple(by_position or ()))
        for row, turn, drafts, drafted, accepted, by_position in zip(rows, *columns, strict=True)
        if drafts is not None
    }
