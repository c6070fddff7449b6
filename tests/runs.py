"""Small runs for tests: a spec over the fake engine and the toy target, begun in a temporary folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from regen.records import CoordinatorStatus
from regen.run.driver import Cluster, Driver
from regen.run.start import Begun, StartOptions, begin
from regen.spec import RunSpec, parse_spec
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


def begin_run(spec: RunSpec, **options: Any) -> Begun:
    return begin(spec, StartOptions(processes=1, **options), say=lambda text: None)


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
