"""`make bench-coordinator`: what one coordinator costs without engines: rows a second, and exchanges of a large fleet.

The coordinator is the real one, over a real plan (prompts of 2 KB) and a real journal on this disk. Its replicas answer
every lease in their next exchange with a made-up row of 8 KB of text (2,000 ids). What is measured is processor time,
by stage: the stages' functions are wrapped, each with its thread's own clock, without what other stages called from it.
`made-up replicas` is no part of regen.

`rows`: a run from its plan to its shards. `fleet`: many replicas whose rows go on; each exchange ends a few of them.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import platform
import resource
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.memory import SAMPLING, spec_of
from regen import rows
from regen.data import plan as plans
from regen.data.plan_rows import to_values
from regen.data.plan_summary import PLAN_KEY, PlanSummary, SourceSummary
from regen.data.plan_writer import PlanWriter
from regen.records import (
    Command,
    Conversation,
    EngineCounters,
    ExchangeRequest,
    FinishReason,
    Generation,
    Lease,
    Message,
    Observed,
    ObservedGeneration,
    Origin,
    OutputRow,
    Phase,
    PlannedRow,
    ReplicaState,
    ReplicaStats,
    Role,
    Status,
    WorkerId,
)
from regen.run.coordinator import Coordinator
from regen.run.fleet.garbage_duty import GarbageDuty
from regen.run.progress.duty import ProgressDuty
from regen.run.schedule import Schedule
from regen.run.session import seal_run
from regen.run.setup import WorkerSetup
from regen.run.start import StartOptions, begin
from regen.spec import RunSpec
from regen.store import journal as journals
from regen.store import totals
from regen.store.local import LocalStorage
from regen.store.parquet import RowsFile

RESULTS = Path(__file__).parent / "results" / "coordinator.json"
PROMPT, ANSWER = "tell me of this " * 128, "so it goes " * 745
ROWS_SLOTS = 64
ENDS = 4  # rows of a replica that end between two exchanges


class Stages:
    """Processor seconds by stage, each without the stages that it has called."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.calls: defaultdict[str, int] = defaultdict(int)
        self._inner = threading.local()

    def wrap(self, owner: Any, name: str, stage: str) -> None:
        inside = getattr(owner, name)

        @functools.wraps(inside)
        def timed(*args: Any, **kwargs: Any) -> Any:
            return self.time(stage, lambda: inside(*args, **kwargs))

        setattr(owner, name, timed)

    def time(self, stage: str, act: Callable[[], Any]) -> Any:
        began, before = time.thread_time(), getattr(self._inner, "seconds", 0.0)
        self._inner.seconds = 0.0
        try:
            return act()
        finally:
            took = time.thread_time() - began
            self.seconds[stage] += took - self._inner.seconds
            self.calls[stage] += 1
            self._inner.seconds = before + took


def watched(stages: Stages) -> None:
    stages.wrap(rows, "from_bytes", "exchange: read rows")
    stages.wrap(Schedule, "report", "exchange: schedule")
    stages.wrap(ProgressDuty, "finished", "exchange: progress")
    stages.wrap(ProgressDuty, "listed", "exchange: progress")
    stages.wrap(ProgressDuty, "tick", "tick")
    stages.wrap(GarbageDuty, "finished", "exchange: garbage")
    stages.wrap(Coordinator, "_take_in", "exchange: take in, other")
    stages.wrap(Schedule, "committed", "commit: schedule")
    stages.wrap(plans.RunPlan, "rows", "lease: read the plan")
    stages.wrap(journals.Journal, "prepare", "journal: prepare, other")
    stages.wrap(journals, "_checked", "journal: sort")
    stages.wrap(totals, "count", "journal: count")
    stages.wrap(journals, "content_digest", "journal: digest of rows")
    stages.wrap(journals, "encode_rows", "journal: Parquet, digest of file")
    stages.wrap(RowsFile, "__init__", "journal: read back")
    stages.wrap(LocalStorage, "create", "journal: write, sync")
    stages.wrap(pa, "concat_tables", "commit: concatenate")
    stages.wrap(Coordinator, "_status", "status")


# --- a run -----------------------------------------------------------------------------------------------------------


def planned(ordinal: int, prompt: str) -> PlannedRow:
    conversation = Conversation((Message(Role.USER, f"{ordinal} {prompt}"), Message(Role.ASSISTANT, None)))
    return PlannedRow(ordinal, f"{ordinal:032x}", "rows", f"rows.jsonl:{ordinal}", None, conversation, 512)


def begun(folder: Path, count: int, prompt: str, replicas: int, slots: int, stages: Stages) -> WorkerSetup:
    source = folder / "rows.jsonl"
    source.write_text('{"prompt": "say something"}\n', encoding="utf-8")
    spec = sized(spec_of(folder, source), replicas, slots)
    made = begin(spec, StartOptions(processes=1), say=lambda text: None)
    stages.time("plan: write", lambda: write_plan(made.storage, count, prompt))
    return made.worker_setup


def write_plan(storage: Any, count: int, prompt: str) -> None:
    with PlanWriter(storage, "large") as writer:
        for ordinal in range(count):
            writer.add(to_values(planned(ordinal, prompt)))
        parts, digest = writer.finish()
    one_source = SourceSummary("rows", count, count, {}, {}, 0, count, 0, ())
    storage.replace(PLAN_KEY, PlanSummary("large", count, 0, digest, parts, (one_source,)).to_json())


def sized(spec: RunSpec, replicas: int, slots: int) -> RunSpec:
    engine = spec.engine.model_copy(update={"replicas": replicas, "slots": slots})
    checkpoint = spec.checkpoint.model_copy(update={"interval_seconds": 5.0, "max_bytes": 256 * 2**20})
    return spec.model_copy(update={"engine": engine, "checkpoint": checkpoint})


def pattern() -> pa.Table:
    ids = tuple(range(2000))
    generation = Generation(
        0, Origin.TARGET, tuple(range(512)), ids, ANSWER, ANSWER, FinishReason.STOP, None, SAMPLING, 4096, 7
    )
    row = OutputRow(
        ordinal=0,
        row_id="",
        source="rows",
        location="rows.jsonl:1",
        source_id=None,
        status=Status.OK,
        round=0,
        messages=(Message(Role.USER, PROMPT), Message(Role.ASSISTANT, ANSWER)),
        generations=(generation,),
        observed=Observed(0, "s", 1, "fake", None, "f", (ObservedGeneration(0, None, 0.0, 0.0, 0.0),)),
    )
    return rows.to_table([row])


def made_up(one: pa.Table, leases: Sequence[Lease]) -> bytes:
    table = one.take([0] * len(leases))
    changed: dict[str, pa.Array[Any]] = {
        "ordinal": pa.array([lease.row.ordinal for lease in leases], pa.int64()),
        "row_id": pa.array([lease.row.row_id for lease in leases], pa.string()),
        "digest": pa.array([lease.row.row_id for lease in leases], pa.string()),
    }
    for name, values in changed.items():
        table = table.set_column(table.schema.get_field_index(name), rows.SCHEMA.field(name), values)
    return rows.to_bytes(table)


class Replica:
    """Says what it holds; `end` says how many rows have ended by its next exchange."""

    def __init__(self, setup: WorkerSetup, slot: int, slots: int, end: Callable[[int], int], stages: Stages) -> None:
        self.setup, self.slots, self.end, self.stages = setup, slots, end, stages
        self.worker, self.seq = WorkerId(slot, 0), 0
        self.running: dict[int, Lease] = {}
        self.awaiting: set[int] = set()
        self.command = Command.WAIT
        self.row = pattern()

    async def exchange(self, coordinator: Coordinator) -> int:
        """Once; how many rows were leased."""
        request = self.stages.time("made-up replicas", self._request)
        reply = await coordinator.exchange(request)
        self.command = reply.command
        self.awaiting.difference_update(reply.settled)
        self.running.update((lease.row.ordinal, lease) for lease in reply.leases)
        return len(reply.leases)

    def _request(self) -> ExchangeRequest:
        self.seq += 1
        ready = [self.running.pop(ordinal) for ordinal in list(self.running)[: self.end(len(self.running))]]
        request = ExchangeRequest(
            worker=self.worker,
            session=self.setup.run.session,
            seq=self.seq,
            running=tuple(self.running),
            awaiting=tuple(self.awaiting),
            finished=made_up(self.row, ready) if ready else b"",
            failed=(),
            free_slots=self.slots + self.slots // 4 - len(self.running),
            stats=ReplicaStats(
                ReplicaState.RUNNING, self.slots, len(self.running), 0.0, EngineCounters(), "fake", "off"
            ),
            running_tokens=(self.seq,) * len(self.running),
        )
        self.awaiting.update(lease.row.ordinal for lease in ready)
        return request


async def all_rows(setup: WorkerSetup, replicas: int, slots: int, stages: Stages) -> None:
    coordinator = Coordinator(setup.run)
    all_replicas = [Replica(setup, slot, slots, lambda held: held, stages) for slot in range(replicas)]

    async def live(replica: Replica) -> None:
        while replica.command is not Command.STOP:
            await asyncio.sleep(0 if await replica.exchange(coordinator) else 0.02)

    await asyncio.gather(*map(live, all_replicas))
    status = await coordinator.status()
    assert status.phase is Phase.FINISHED, f"{status.phase}: {status.error}"


def measure_rows(count: int) -> dict[str, Any]:
    stages = Stages()
    with tempfile.TemporaryDirectory() as folder:
        setup = begun(Path(folder), count, PROMPT, 8, ROWS_SLOTS, stages)
        watched(stages)
        wall, cpu = time.monotonic(), time.process_time()
        asyncio.run(all_rows(setup, 8, ROWS_SLOTS, stages))
        wall, cpu = time.monotonic() - wall, time.process_time() - cpu
        written = stages.seconds["plan: write"]
        known = sum(stages.seconds.values()) - written
        stages.seconds["event loop, threads, all else"] = cpu - known
        replicas = stages.seconds.pop("made-up replicas")
        stages.time("seal", lambda: seal_run(plans_storage(setup), setup.run))
        return {
            "rows": count,
            "wall_seconds": wall,
            "run_cpu_seconds": cpu - replicas,
            "replicas_cpu_seconds": replicas,
            "rows_per_cpu_second": count / (cpu - replicas),
            "plan_rows_per_cpu_second": count / written,
            "end_to_end_rows_per_cpu_second": count / (cpu - replicas + written + stages.seconds["seal"]),
            "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "microseconds_a_row": {name: 1e6 * spent / count for name, spent in stages.seconds.items()},
        }


def plans_storage(setup: WorkerSetup) -> Any:
    from regen.store.storage import open_storage

    return open_storage(setup.run.run_url, setup.run.spec.store)


# --- a large fleet ----------------------------------------------------------------------------------------------------


async def quiet_milliseconds(coordinator: Coordinator, fleet: list[Replica], rounds: int, stages: Stages) -> float:
    """An exchange in which nothing has ended, as most of a large fleet's are."""
    cpu, made = time.process_time(), stages.seconds["made-up replicas"]
    for _ in range(rounds):
        for replica in fleet:
            await replica.exchange(coordinator)
    spent = time.process_time() - cpu - (stages.seconds["made-up replicas"] - made)
    return 1e3 * spent / (rounds * len(fleet))


async def fleet_rounds(setup: WorkerSetup, replicas: int, slots: int, rounds: int, stages: Stages) -> dict[str, Any]:
    coordinator = Coordinator(setup.run)
    fleet = [Replica(setup, slot, slots, lambda held: 0, stages) for slot in range(replicas)]
    while not all(replica.running for replica in fleet):
        for replica in fleet:
            await replica.exchange(coordinator)
        await asyncio.sleep(0.01)
    quiet = await quiet_milliseconds(coordinator, fleet, rounds, stages)
    for replica in fleet:
        replica.end = lambda held: min(held, ENDS)
    watched(stages)
    cpu, made = time.process_time(), stages.seconds["made-up replicas"]
    for _ in range(rounds):
        for replica in fleet:
            await replica.exchange(coordinator)
    cpu = time.process_time() - cpu
    made = stages.seconds.pop("made-up replicas") - made
    await coordinator.close()
    exchanges = rounds * replicas
    return {
        "replicas": replicas,
        "slots": slots,
        "exchanges": exchanges,
        "rows": ENDS * exchanges,
        "milliseconds_a_quiet_exchange": quiet,
        "milliseconds_an_exchange": 1e3 * (cpu - made) / exchanges,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "milliseconds": {name: 1e3 * spent / exchanges for name, spent in stages.seconds.items() if spent},
    }


def measure_fleet(replicas: int, slots: int, rounds: int) -> dict[str, Any]:
    stages = Stages()
    count = replicas * (slots + slots // 4) + ENDS * replicas * (rounds + 1)
    with tempfile.TemporaryDirectory() as folder:
        setup = begun(Path(folder), count, "say something", replicas, slots, Stages())
        return asyncio.run(fleet_rounds(setup, replicas, slots, rounds, stages))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--replicas", type=int, default=1000)
    parser.add_argument("--slots", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--what", choices=("rows", "fleet"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    found = json.loads(arguments.results.read_text()) if arguments.results.exists() else {}
    if arguments.what in (None, "rows"):
        found["rows"] = told("rows", measure_rows(arguments.rows), "microseconds_a_row")
    if arguments.what in (None, "fleet"):
        fleet = measure_fleet(arguments.replicas, arguments.slots, arguments.rounds)
        found["fleet"] = told("fleet", fleet, "milliseconds")
    found["machine"] = {
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "pyarrow": pa.__version__,
    }
    arguments.results.parent.mkdir(exist_ok=True)
    arguments.results.write_text(json.dumps(found, indent=2) + "\n")
    print(f"written to {arguments.results}")


def told(name: str, found: dict[str, Any], parts: str) -> dict[str, Any]:
    print(name)
    for what, value in found.items():
        if what != parts:
            print(f"  {what:<36} {value:>14,.2f}")
    for what, value in sorted(found[parts].items(), key=lambda part: -part[1]):
        print(f"    {what:<34} {value:>14,.3f} {parts.replace('_', ' ')}")
    return found


if __name__ == "__main__":
    main()
