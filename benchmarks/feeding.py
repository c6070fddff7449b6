"""`make bench-feeding`: how well a replica's engine is fed, on the real engine.

Three measurements, each in a process of its own: a run over one replica on one event loop (`LocalCluster`), with every
step of the engine written down.

- `slots`: short answers, five times as many rows as slots, a cache with room for all. Share of slot-seconds in which a
  sequence is decoded, and share of steps with a free slot that no request waits for, until the last row is leased.
- `pressure`: long answers that start together over a cache that holds a third of them. Output tokens per second with
  the limit of rows in flight and without it (switched off in the child process), in interleaved pairs.
- `order`: rows that share eight long system prompts, over a cache that does not hold all: share of prompt tokens found
  in the prefix cache, in the plan's order.

What is timed goes from the first full step to the last row's lease: ramp and tail have no share in it. The whole is
beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.throughput import QUESTIONS, TOPICS, log_ratio_interval, machine, run_process
from regen.records import CoordinatorStatus, EngineCounters, ExchangeReply, ExchangeRequest
from regen.run.driver import Driver
from regen.run.fleet.in_flight import InFlight
from regen.run.local import LocalCluster, LocalCoordinator
from regen.run.setup import RunSetup
from regen.run.start import StartOptions, begin
from regen.spec import parse_spec

RESULTS = Path(__file__).parent / "results" / "feeding.json"
SLOTS = 32
MAX_MODEL_LEN = 1024
# A cache is made small by its number of blocks: on a CPU, vLLM takes its size in whole GiB.
BLOCK_TOKENS = 32
ENGINE_ARGS: dict[str, Any] = {
    "enforce_eager": True,
    "max_num_batched_tokens": 4096,
    "seed": 0,
    "block_size": BLOCK_TOKENS,
}
ROOMY_TOKENS = SLOTS * MAX_MODEL_LEN
SYSTEM_PROMPTS, SYSTEM_WORDS = 8, 300


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the engine: when it ended, what ran and waited in it, and the totals by then."""

    at: float
    running: int
    waiting: int
    kv_usage: float
    output_tokens: int
    preemptions: int


@dataclass(frozen=True, slots=True)
class Fed:
    """What steps show. Fed is the time from the first step that had all slots or requests that wait, to the last lease.

    `busy_share` is of slot-seconds, `starved_step_share` of steps in that time; `ramp_steps` came before it.
    """

    rows: int
    output_tokens: int
    seconds: float
    tokens_per_second: float
    fed_seconds: float
    fed_tokens_per_second: float
    busy_share: float
    starved_step_share: float
    ramp_steps: int
    preemptions_per_row: float
    kv_usage_mean: float
    prefix_hit_share: float
    loop_lag_seconds_worst: float


def summarise(steps: Sequence[Step], slots: int, last_lease_at: float, rows: int, last: EngineCounters) -> Fed:
    """A first step's time is not known, only its end: it is where a clock begins."""
    first, final = steps[0], steps[-1]
    ramp_steps = next((n for n, step in enumerate(steps) if step.running >= slots or step.waiting), 0)
    fed = [step for step in steps[ramp_steps:] if step.at <= last_lease_at] or [final]
    spans = [after.at - before.at for before, after in pairwise(fed)]
    fed_seconds, seconds = sum(spans), final.at - first.at
    busy = sum(span * min(1.0, step.running / slots) for span, step in zip(spans, fed[1:], strict=False))
    usage = sum(span * step.kv_usage for span, step in zip(spans, fed[1:], strict=False))
    starved = sum(1 for step in fed[1:] if step.running < slots and not step.waiting)
    return Fed(
        rows=rows,
        output_tokens=final.output_tokens - first.output_tokens,
        seconds=seconds,
        tokens_per_second=(final.output_tokens - first.output_tokens) / max(seconds, 1e-9),
        fed_seconds=fed_seconds,
        fed_tokens_per_second=(fed[-1].output_tokens - fed[0].output_tokens) / max(fed_seconds, 1e-9),
        busy_share=busy / max(fed_seconds, 1e-9),
        starved_step_share=starved / max(1, len(fed) - 1),
        ramp_steps=ramp_steps,
        preemptions_per_row=final.preemptions / max(1, rows),
        kv_usage_mean=usage / max(fed_seconds, 1e-9),
        prefix_hit_share=last.prefix_hit_tokens / max(1, last.prompt_tokens),
        loop_lag_seconds_worst=0.0,
    )


# --- the child -------------------------------------------------------------------------------------------------------


class WatchedCoordinator(LocalCoordinator):
    """Notes when rows were leased last, and how late the worker's loop was at worst."""

    last_lease_at = 0.0
    worst_lag_seconds = 0.0

    async def exchange(self, request: ExchangeRequest) -> ExchangeReply:
        if request.running:
            self.worst_lag_seconds = max(self.worst_lag_seconds, request.stats.loop_lag_seconds)
        reply = await super().exchange(request)
        if reply.leases:
            self.last_lease_at = time.monotonic()
        return reply


class WatchedCluster(LocalCluster):
    """A cluster over such a coordinator."""

    async def start_coordinator(self, setup: RunSetup) -> LocalCoordinator:
        self.coordinator = self.watched = WatchedCoordinator(setup)
        return self.coordinator


def child(spec_path: Path, answer: Path, is_limited: bool) -> None:
    """One run, to its end; `answer` gets what its steps show."""
    import regen.engines.vllm as vllm_engine

    steps: list[Step] = []
    last: list[EngineCounters] = [EngineCounters()]
    plain_step = vllm_engine._Totals.add_step

    def add_step(totals: Any, stats: Any, engine_index: int) -> None:
        plain_step(totals, stats, engine_index)
        last[0] = now = totals.counters
        steps.append(Step(time.monotonic(), now.running, now.waiting, now.kv_usage, now.output_tokens, now.preemptions))

    spec = parse_spec(json.loads(spec_path.read_text()), origin=str(spec_path))
    begun = begin(spec, StartOptions(), say=lambda text: None)
    cluster = WatchedCluster()

    async def drive() -> CoordinatorStatus:
        return await Driver(cluster, begun.worker_setup, lambda status: None, lambda text: None).run()

    look = InFlight.look if is_limited else lambda *told, **named: None
    with mock.patch.object(vllm_engine._Totals, "add_step", add_step), mock.patch.object(InFlight, "look", look):
        status = asyncio.run(drive())
    begun_rows = [step for step in steps if step.running]
    found = summarise(begun_rows, spec.engine.slots, cluster.watched.last_lease_at, status.session_rows, last[0])
    lag = cluster.watched.worst_lag_seconds
    answer.write_text(json.dumps({**asdict(found), "loop_lag_seconds_worst": lag}))


# --- the measurements -----------------------------------------------------------------------------------------------


def measure(
    model: Path,
    sources: dict[str, list[dict[str, Any]]],
    cap_tokens: int,
    cache_tokens: int,
    is_limited: bool = True,
    slots: int = SLOTS,
) -> Fed:
    with tempfile.TemporaryDirectory(prefix="regen-feeding-") as folder:
        scratch = Path(folder)
        for name, rows in sources.items():
            (scratch / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        spec = {
            "name": "feeding",
            "output": str(scratch / "run"),
            "target": {"model": str(model)},
            "engine": {
                "kind": "vllm",
                "slots": slots,
                "max_model_len": MAX_MODEL_LEN,
                "args": {**ENGINE_ARGS, "num_gpu_blocks_override": cache_tokens // BLOCK_TOKENS},
            },
            "sampling": {"max_tokens": cap_tokens, "temperature": 0.8, "seed": 1},
            "sources": [{"name": name, "path": str(scratch / f"{name}.jsonl")} for name in sources],
            "metrics": {"port": None},
        }
        (scratch / "spec.json").write_text(json.dumps(spec))
        mode = "on" if is_limited else "off"
        command = [sys.executable, "-m", "benchmarks.feeding", "--child", str(scratch), "--limit", mode]
        run_process(command, scratch / "log.txt")
        return Fed(**json.loads((scratch / "found.json").read_text()))


def questions(count: int) -> list[dict[str, Any]]:
    prompts = [question.format(topic=topic) for topic in TOPICS for question in QUESTIONS]
    return [{"id": str(number), "prompt": prompts[number % len(prompts)]} for number in range(count)]


def stories(count: int) -> list[dict[str, Any]]:
    """Prompts with long answers."""
    return [
        {"id": str(number), "prompt": f"Write a long story about {TOPICS[number % len(TOPICS)]}, chapter {number}."}
        for number in range(count)
    ]


def with_system_prompts(count: int, first: int) -> list[dict[str, Any]]:
    """Each of the system prompts for a stretch of rows, as data sets have them mixed: drawn anew for each row."""
    draw = random.Random(first)
    words = [topic.split()[-1] for topic in TOPICS]
    prompts = [
        " ".join([f"You are assistant number {number}.", *random.Random(number).choices(words, k=SYSTEM_WORDS)])
        for number in range(SYSTEM_PROMPTS)
    ]
    return [
        {
            "id": str(first + number),
            "messages": [
                {"role": "system", "content": draw.choice(prompts)},
                {"role": "user", "content": questions(count)[number]["prompt"]},
            ],
        }
        for number in range(count)
    ]


def measure_slots(model: Path, rows: int) -> dict[str, Any]:
    found = measure(model, {"prompts": questions(rows)}, 48, ROOMY_TOKENS)
    print(f"slots     busy {found.busy_share:.1%}, starved steps {found.starved_step_share:.2%}, {told(found)}")
    return asdict(found)


def measure_pressure(model: Path, rows: int, pairs: int, cache_tokens: int, cap_tokens: int) -> dict[str, Any]:
    found: list[dict[str, Any]] = []
    for number in range(pairs):
        arms = (True, False) if number % 2 == 0 else (False, True)
        pair = {}
        for is_limited in arms:
            name = "limited" if is_limited else "unlimited"
            pair[name] = measure(model, {"stories": stories(rows)}, cap_tokens, cache_tokens, is_limited)
            print(f"pressure  pair {number}  {name:<9}  {told(pair[name])}", flush=True)
        ratio = pair["limited"].fed_tokens_per_second / pair["unlimited"].fed_tokens_per_second
        whole = pair["limited"].tokens_per_second / pair["unlimited"].tokens_per_second
        found.append({"ratio": ratio, "whole_ratio": whole, **{name: asdict(one) for name, one in pair.items()}})
        print(f"pressure  pair {number}  ratio {ratio:.3f}, of the whole {whole:.3f}", flush=True)
    ratios = [pair["ratio"] for pair in found]
    interval = asdict(log_ratio_interval(ratios)) if pairs > 1 else None
    settings = {"rows": rows, "slots": SLOTS, "cap_tokens": cap_tokens, "cache_tokens": cache_tokens}
    return {"ratio": interval, "settings": settings, "pairs": found}


def measure_order(model: Path, rows: int) -> dict[str, Any]:
    """A cache for 32 short answers and about three of the eight system prompts."""
    sources = {"first": with_system_prompts(rows // 2, 0), "second": with_system_prompts(rows // 2, 10**6)}
    found = measure(model, sources, 24, 6000, slots=8)
    print(f"order     {found.prefix_hit_share:.1%} of prompt tokens found in the prefix cache, {told(found)}")
    return asdict(found)


def told(found: Fed) -> str:
    return (
        f"{found.fed_tokens_per_second:.1f} tok/s (whole {found.tokens_per_second:.1f}),"
        f" {found.preemptions_per_row:.2f} preemptions a row, cache {found.kv_usage_mean:.0%} full,"
        f" {found.seconds:.0f} s"
    )


def main() -> None:
    options = parse_options()
    if options.child:
        child(Path(options.child) / "spec.json", Path(options.child) / "found.json", options.limit == "on")
        return
    model, began = Path(options.model).resolve(), time.monotonic()
    found: dict[str, Any] = {}
    if "slots" in options.measure:
        found["slots"] = measure_slots(model, 5 * SLOTS)
    if "order" in options.measure:
        found["order"] = measure_order(model, options.rows)
    if "pressure" in options.measure:
        found["pressure"] = measure_pressure(model, options.rows, options.pairs, options.cache_tokens, options.cap)
    found |= {"machine": machine(), "seconds": time.monotonic() - began}
    out = Path(options.out)
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(found, indent=2) + "\n")
    print(f"written to {os.path.relpath(out)}, after {found['seconds'] / 60:.0f} minutes")


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="How well a replica's engine is fed.")
    parser.add_argument("--model", default=".models/smollm2", help="the target's folder (default: %(default)s)")
    parser.add_argument("--measure", nargs="+", default=["slots", "order", "pressure"], help="which (default: all)")
    parser.add_argument("--rows", type=int, default=160, help="rows of order and pressure (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=6, help="pairs of pressure (default: %(default)s)")
    parser.add_argument("--cap", type=int, default=384, help="longest answer of pressure (default: %(default)s)")
    parser.add_argument("--cache-tokens", type=int, default=3000, help="pressure's cache (default: %(default)s)")
    parser.add_argument("--out", default=str(RESULTS), help="results (default: %(default)s)")
    parser.add_argument("--child", metavar="FOLDER", help=argparse.SUPPRESS)
    parser.add_argument("--limit", default="on", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
