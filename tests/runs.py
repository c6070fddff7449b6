"""Small runs for tests: a spec over the fake engine and the toy target, begun in a temporary folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from regen.data.target import resolve_target
from regen.records import CoordinatorStatus
from regen.run.driver import Cluster, Driver
from regen.run.speculation.preflight import examine
from regen.run.start import Begun, StartOptions, begin
from regen.spec import RunSpec, SpeculationSpec, parse_spec
from regen.speculative.evidence import Severity
from regen.store.storage import open_storage
from tests.heads import eagle3
from tests.toy_target import build_toy_target

NOT_DETERMINED = ("observed",)


def conversations(count: int) -> list[dict[str, Any]]:
    """Rows of several shapes: one prompt; two turns with old answers; a system prompt."""
    shapes = (
        lambda number: {"prompt": f"say {number}"},
        lambda number: {
            "messages": [
                {"role": "user", "content": f"question {number}"},
                {"role": "assistant", "content": "OLD ANSWER"},
                {"role": "user", "content": "and then?"},
            ]
        },
        lambda number: {
            "conversations": [
                {"from": "system", "value": "Be brief."},
                {"from": "human", "value": f"name {number} things"},
                {"from": "gpt", "value": "OLD ANSWER"},
            ]
        },
    )
    return [shapes[number % len(shapes)](number) for number in range(count)]


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def make_spec(folder: Path, rows: int | list[dict[str, Any]] = 30, **sections: Any) -> RunSpec:
    """A spec in `folder`; `sections` are merged over quick defaults (`engine={"replicas": 2}`)."""
    target = build_toy_target(folder / "target")
    source = folder / "rows.jsonl"
    if not source.exists():
        write_jsonl(source, conversations(rows) if isinstance(rows, int) else rows)
    raw: dict[str, Any] = {
        "name": "test",
        "output": str(folder / "run"),
        "target": {"model": str(target)},
        "engine": {"kind": "fake", "slots": 8, "max_model_len": 2048, "answer_tokens": 12},
        "sampling": {"max_tokens": 100, "seed": 7},
        "sources": [{"name": "rows", "path": str(source)}],
        "checkpoint": {"interval_seconds": 0.3, "rows_per_shard": 7},
        "metrics": {"port": None},
    }
    for name, section in sections.items():
        raw[name] = {**raw.get(name, {}), **section} if isinstance(section, dict) else section
    return parse_spec(raw, origin="test")


def begin_run(spec: RunSpec, said: list[str] | None = None, **options: Any) -> Begun:
    """`said` gets the lines for a person."""
    return begin(spec, StartOptions(processes=1, **options), say=([] if said is None else said).append)


async def drive(cluster: Cluster, begun: Begun) -> CoordinatorStatus:
    """The driver over this cluster until the run ends."""
    return await Driver(cluster, begun.worker_setup, watch=lambda status: None, log=lambda text: None).run()


def shard_table(run_folder: Path) -> pa.Table:
    """All sealed rows, in order."""
    paths = sorted((run_folder / "shards").glob("*.parquet"))
    return pa.concat_tables([pq.read_table(path) for path in paths])


def determined(run_folder: Path) -> list[dict[str, Any]]:
    """The determined columns of all sealed rows."""
    return shard_table(run_folder).drop_columns(list(NOT_DETERMINED)).to_pylist()


def with_draft(spec: RunSpec, folder: Path, **changes: Any) -> RunSpec:
    """The spec with an EAGLE-3 head on, which is not made for the toy target: what preflight says of it is accepted."""
    draft = folder / "head"
    if not draft.exists():
        eagle3().write(draft)
    section = {"method": "eagle3", "draft": str(draft), "num_tokens": 3, "calibrate": "off", **changes}
    given = SpeculationSpec.model_validate(section)
    findings = examine(
        spec.model_copy(update={"speculation": given}), resolve_target(spec.target), open_storage(spec.output)
    )
    refused = sorted({finding.code for finding in findings if finding.severity is Severity.REFUSE})
    return spec.model_copy(update={"speculation": SpeculationSpec.model_validate({**section, "accept": refused})})
