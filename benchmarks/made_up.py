"""What the benchmarks without engines share: a spec over the toy target, a plan that was written and not rendered, and
finished rows that nobody has made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from regen import rows
from regen.data.plan_rows import to_values
from regen.data.plan_summary import PLAN_KEY, PlanSummary, SourceSummary
from regen.data.plan_writer import PlanWriter
from regen.protocols import Storage
from regen.records import (
    Conversation,
    FinishReason,
    Generation,
    Lease,
    Message,
    Observed,
    ObservedGeneration,
    Origin,
    OutputRow,
    PlannedRow,
    Role,
    Sampling,
    Status,
)
from regen.spec import RunSpec, parse_spec
from tests.toy_target import build_toy_target

REPLICAS, SLOTS = 4, 64
SAMPLING = Sampling(64, 0.6, 1.0, 0, 0.0, 0.0, 0.0, 1.0, (), (1,))


def spec_of(folder: Path, source: Path) -> RunSpec:
    return parse_spec(
        {
            "name": "memory",
            "output": str(folder / "run"),
            "target": {"model": str(build_toy_target(folder / "target"))},
            "engine": {
                "kind": "fake",
                "replicas": REPLICAS,
                "slots": SLOTS,
                "max_model_len": 2048,
                "answer_tokens": 12,
                "stall_timeout_seconds": 86_400,  # a row that is held back says nothing until all others are done
            },
            "sampling": {"max_tokens": 64, "seed": 7},
            "sources": [{"name": "rows", "path": str(source)}],
            "checkpoint": {"interval_seconds": 0.5, "max_bytes": 2**20},
            "metrics": {"port": None},
        },
        origin="memory",
    )


def row_id(ordinal: int) -> str:
    return f"{ordinal:032x}"


def planned(ordinal: int, text: str, prompt_tokens: int = 40) -> PlannedRow:
    conversation = Conversation((Message(Role.USER, text), Message(Role.ASSISTANT, None)))
    return PlannedRow(ordinal, row_id(ordinal), "rows", f"rows.jsonl:{ordinal}", None, conversation, prompt_tokens)


def write_plan(storage: Storage, planned_rows: Iterable[PlannedRow], count: int) -> None:
    """So many rows, in place of the plan that is there."""
    with PlanWriter(storage, "large") as writer:
        for row in planned_rows:
            writer.add(to_values(row))
        parts, digest = writer.finish()
    one_source = SourceSummary("rows", count, count, {}, {}, 0, count, 0, ())
    storage.replace(PLAN_KEY, PlanSummary("large", count, 0, digest, parts, (one_source,)).to_json())


def finished(asked: str, answer: str, prompt_ids: Sequence[int], answer_ids: Sequence[int], cap: int = 64) -> pa.Table:
    """One row, to be copied. `cap` of its answer's tokens."""
    generation = Generation(
        0,
        Origin.TARGET,
        tuple(prompt_ids),
        tuple(answer_ids),
        answer,
        answer,
        FinishReason.STOP,
        None,
        SAMPLING,
        cap,
        7,
    )
    row = OutputRow(
        ordinal=0,
        row_id="",
        source="rows",
        location="rows.jsonl:1",
        source_id=None,
        status=Status.OK,
        round=0,
        messages=(Message(Role.USER, asked), Message(Role.ASSISTANT, answer)),
        generations=(generation,),
        observed=Observed(0, "s", 1, "fake", None, "f", (ObservedGeneration(0, None, 0.0, 0.0, 0.0),)),
    )
    return rows.to_table([row])


def copies(pattern: pa.Table, leases: Sequence[Lease]) -> pa.Table:
    """The one finished row as often as there are leases, with the ordinals and ids of these."""
    ids = [lease.row.row_id for lease in leases]
    ordinals = [lease.row.ordinal for lease in leases]
    table = pattern.take([0] * len(leases))
    return with_columns(table, rows.SCHEMA, {"ordinal": ordinals, "row_id": ids, "digest": ids})


def with_columns(table: pa.Table, schema: pa.Schema, columns: Mapping[str, Sequence[Any]]) -> pa.Table:
    for name, values in columns.items():
        field = schema.field(name)
        table = table.set_column(schema.get_field_index(name), field, pa.array(values, field.type))
    return table
