"""How each arm is run: its command, its clock, and what of its answers it has delivered.

Every arm gets the same rows, engine arguments and sampling, and an engine that writes its own log (engine_log.py).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import yaml

from benchmarks.peers.rows import Row
from benchmarks.process_groups import ArmFailed, Span, run
from benchmarks.throughput import ENGINE_ARGS, MAX_MODEL_LEN, SLOTS, regen_spec

ARM_TIMEOUT_SECONDS = 400
# The client's own default: more than slots, so that the server always has some that wait.
SPECULATORS_CONCURRENCY = 64


@dataclass(frozen=True, slots=True)
class Job:
    """What all arms of one set are given."""

    model: Path
    rows: Sequence[Row]
    cap_tokens: int
    speculators: Path


@dataclass(frozen=True, slots=True)
class Place:
    """Where one arm runs: its own scratch folder, the variables of its processes, and the server, if it has one."""

    scratch: Path
    variables: Mapping[str, str]
    url: str | None


@dataclass(frozen=True, slots=True)
class Ran:
    """One arm's run. `clock` is its own, from first request to last answer, where it tells one."""

    process: Span
    clock: Span | None
    answers: int


def run_regen(job: Job, place: Place) -> Ran:
    """The real command: in process, or against the place's server."""
    source, spec, folder = place.scratch / "rows.jsonl", place.scratch / "spec.yaml", place.scratch / "run"
    source.write_text("".join(json.dumps(_source_row(n, row)) + "\n" for n, row in enumerate(job.rows)))
    spec.write_text(yaml.safe_dump(spec_of(job, place, source, folder)))
    process = run(
        [sys.executable, "-m", "regen", "run", str(spec)],
        place.scratch / "log.txt",
        place.variables,
        ARM_TIMEOUT_SECONDS,
    )
    session = json.loads((folder / "report.json").read_text())["session"]
    shards = [pq.read_table(path, columns=["generations"]) for path in sorted((folder / "shards").glob("*.parquet"))]
    answers = sum(len(row["generations"]) for shard in shards for row in shard.to_pylist())
    return Ran(process, Span(session["first_generation_at"], session["last_generation_at"]), answers)


def spec_of(job: Job, place: Place, source: Path, folder: Path) -> dict[str, Any]:
    """The spec of a regen arm."""
    spec = regen_spec(job.model, source, folder)
    spec["sampling"] = {"max_tokens": job.cap_tokens, "temperature": 0}
    if place.url:
        endpoints = [{"url": place.url}]
        spec["engine"] = {"kind": "openai", "slots": SLOTS, "max_model_len": MAX_MODEL_LEN, "endpoints": endpoints}
    return spec


def run_child(name: str, job: Job, place: Place) -> Ran:
    """One of children.py."""
    described = {
        "model": str(job.model),
        "engine": {**ENGINE_ARGS, "max_model_len": MAX_MODEL_LEN, "max_num_seqs": SLOTS},
        "slots": SLOTS,
        "max_tokens": job.cap_tokens,
        "rows": [asdict(row) for row in job.rows],
    }
    (place.scratch / "job.json").write_text(json.dumps(described))
    process = run(
        [sys.executable, "-m", "benchmarks.peers.children", name, str(place.scratch)],
        place.scratch / "log.txt",
        place.variables,
        ARM_TIMEOUT_SECONDS,
    )
    done = json.loads((place.scratch / "done.json").read_text())
    clock = None if name == "ray_data" else Span(done["began_at"], done["ended_at"])
    return Ran(process, clock, done["answers"])


def run_speculators(job: Job, place: Place) -> Ran:
    """The regeneration client of the speculators project, against the place's server."""
    source, found = place.scratch / "rows.jsonl", place.scratch / "found.jsonl"
    source.write_text(
        "".join(json.dumps({"id": str(n), "prompt": row.turns[0]}) + "\n" for n, row in enumerate(job.rows))
    )
    command = [sys.executable, "-m", "speculators", "regenerate-responses"]
    command += ["--endpoint", f"{place.url}/v1/chat/completions", "--model", str(job.model)]
    command += ["--dataset", str(source), "--outfile", str(found), "--concurrency", str(SPECULATORS_CONCURRENCY)]
    command += ["--max-tokens", str(job.cap_tokens), "--sampling-params", json.dumps({"temperature": 0})]
    paths = [str(job.speculators), place.variables["PYTHONPATH"]]  # on the path of no other arm
    variables = {**place.variables, "PYTHONPATH": os.pathsep.join(paths), "HF_HOME": str(place.scratch / "hf")}
    process = run(command, place.scratch / "log.txt", variables, ARM_TIMEOUT_SECONDS)
    return Ran(process, None, len(found.read_text().splitlines()))


def run_batch(job: Job, place: Place) -> Ran:
    """vLLM's own batch runner."""
    source, found = place.scratch / "batch.jsonl", place.scratch / "found.jsonl"
    source.write_text("".join(json.dumps(_batch_line(job, n, row)) + "\n" for n, row in enumerate(job.rows)))
    command = [sys.executable, "-m", "vllm.entrypoints.openai.run_batch", "-i", str(source), "-o", str(found)]
    process = run([*command, *engine_flags(job.model)], place.scratch / "log.txt", place.variables, ARM_TIMEOUT_SECONDS)
    answered = [json.loads(line) for line in found.read_text().splitlines()]
    return Ran(process, None, sum(1 for answer in answered if not answer["error"]))


def server_command(model: Path, port: int) -> list[str]:
    """vLLM's own server; its console script does not start beside the CPU build."""
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", str(port)]
    return [*command, *engine_flags(model)]


def engine_flags(model: Path) -> list[str]:
    """The engine arguments of all arms, as vLLM's commands take them."""
    values = {"model": model, **ENGINE_ARGS, "max_model_len": MAX_MODEL_LEN, "max_num_seqs": SLOTS}
    flags: list[str] = []
    for name, value in values.items():
        flags += [f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)])
    return flags


def missing(name: str, job: Job) -> str | None:
    """Why an arm cannot be run here, as far as files tell."""
    if name == "speculators" and not (job.speculators / "speculators").is_dir():
        return f"the package speculators is not in {job.speculators} (make bench-peers installs it there)"
    return None


def _source_row(number: int, row: Row) -> dict[str, Any]:
    """Answers stand where the target is to speak: regen makes each anew."""
    if len(row.turns) == 1 and row.system is None:
        return {"id": str(number), "prompt": row.turns[0]}
    answered = row.messages(("Yes.",) * len(row.turns))
    return {"id": str(number), "messages": answered}


def _batch_line(job: Job, number: int, row: Row) -> dict[str, Any]:
    body = {"model": str(job.model), "messages": row.messages(), "temperature": 0, "max_tokens": job.cap_tokens}
    return {"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions", "body": body}


def _child(name: str) -> Callable[[Job, Place], Ran]:
    return lambda job, place: run_child(name, job, place)


ARMS: dict[str, Callable[[Job, Place], Ran]] = {
    "chat": _child("chat"),
    "regen": run_regen,
    "server": run_regen,
    "speculators": run_speculators,
    "run_batch": run_batch,
    "ray_data": _child("ray_data"),
    "chained": _child("chained"),
    "regen_turns": run_regen,
    "lockstep": _child("lockstep"),
}
# They share one server within a round, which forgets its prefixes in between.
ON_A_SERVER = ("server", "speculators")

__all__ = ["ARMS", "ON_A_SERVER", "ArmFailed", "Job", "Place", "Ran", "missing", "server_command"]
