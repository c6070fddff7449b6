"""`make bench-coordinator`: what one coordinator costs without engines: rows a second, and exchanges of a large fleet.

The coordinator is the real one, over a real plan (prompts of 2 KB) and a real journal on this disk. Its replicas answer
every lease in their next exchange with a made-up row of 8 KB of text (2,000 ids). What is measured is processor time,
by stage: the stages' functions are wrapped, each with its thread's own clock, without what other stages called from it.
`made-up replicas` is no part of regen.

`rows`: a run from its plan to its shards, in one process: what replicas cost is told and left out. `fleet`: the
coordinator in a process of its own (remote_coordinator.py), and many replicas, each heard once a second; first their
rows go on, then each exchange ends a few of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import resource
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from benchmarks.made_up import copies, finished, planned, spec_of, write_plan
from benchmarks.remote_coordinator import RemoteCoordinator, remote_coordinator
from benchmarks.stages import Stages, watched
from regen import rows
from regen.protocols import Storage
from regen.records import (
    Command,
    EngineCounters,
    ExchangeReply,
    ExchangeRequest,
    Lease,
    Phase,
    ReplicaState,
    ReplicaStats,
    WorkerId,
)
from regen.run.coordinator import Coordinator
from regen.run.schedule import SILENT_SECONDS
from regen.run.session import seal_run
from regen.run.setup import WorkerSetup
from regen.run.start import StartOptions, begin
from regen.spec import RunSpec
from regen.store.storage import open_storage

RESULTS = Path(__file__).parent / "results" / "coordinator.json"
PROMPT, ANSWER = "tell me of this " * 128, "so it goes " * 745
ROWS_SLOTS, WARMUP_ROWS = 64, 600
ENDS = 4  # rows of a replica that end between two exchanges


# --- a run -----------------------------------------------------------------------------------------------------------


def begun(folder: Path, count: int, prompt: str, replicas: int, slots: int, stages: Stages) -> WorkerSetup:
    source = folder / "rows.jsonl"
    source.write_text('{"prompt": "say something"}\n', encoding="utf-8")
    spec = sized(spec_of(folder, source), replicas, slots)
    made = begin(spec, StartOptions(processes=1), say=lambda text: None)
    stages.time("plan: write", lambda: write_large_plan(made.storage, count, prompt))
    return made.worker_setup


def write_large_plan(storage: Storage, count: int, prompt: str) -> None:
    write_plan(storage, (planned(ordinal, f"{ordinal} {prompt}", 512) for ordinal in range(count)), count)


def sized(spec: RunSpec, replicas: int, slots: int) -> RunSpec:
    engine = spec.engine.model_copy(update={"replicas": replicas, "slots": slots})
    checkpoint = spec.checkpoint.model_copy(update={"interval_seconds": 5.0, "max_bytes": 256 * 2**20})
    return spec.model_copy(update={"engine": engine, "checkpoint": checkpoint})


class Exchanging(Protocol):
    async def exchange(self, request: ExchangeRequest) -> ExchangeReply: ...


class Replica:
    """Says what it holds; `end` says how many rows have ended by its next exchange."""

    def __init__(self, setup: WorkerSetup, slot: int, slots: int, end: Callable[[int], int], stages: Stages) -> None:
        self.setup, self.slots, self.end, self.stages = setup, slots, end, stages
        self.worker, self.seq = WorkerId(slot, 0), 0
        self.running: dict[int, Lease] = {}
        self.awaiting: set[int] = set()
        self.command = Command.WAIT
        self.row = finished(PROMPT, ANSWER, range(512), range(2000), 4096)

    async def exchange(self, coordinator: Exchanging) -> int:
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
            finished=rows.to_bytes(copies(self.row, ready)) if ready else b"",
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
    _run_once(WARMUP_ROWS, Stages())  # what is imported or set up at first use is none of a row's
    stages = Stages()
    watched(stages)
    seconds, cpu = _run_once(count, stages)
    wall = sum(seconds.values())
    replicas = stages.seconds.pop("made-up replicas")
    made = cpu["run"] - replicas
    known = sum(spent for name, spent in stages.seconds.items() if name not in ("plan: write", "seal"))
    stages.seconds["event loop, threads, all else"] = made - known
    return {
        "rows": count,
        "rows_per_second_end_to_end": count / wall,
        "cores_busy": sum(cpu.values()) / wall,
        "wall_seconds_plan": seconds["plan"],
        "wall_seconds_run": seconds["run"],
        "wall_seconds_seal": seconds["seal"],
        "replicas_cpu_seconds": replicas,
        "rows_per_cpu_second_plan": count / cpu["plan"],
        "rows_per_cpu_second_run": count / made,
        "rows_per_cpu_second_seal": count / cpu["seal"],
        "rows_per_cpu_second_end_to_end": count / (sum(cpu.values()) - replicas),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "microseconds_a_row": {name: 1e6 * spent / count for name, spent in stages.seconds.items()},
    }


def _run_once(count: int, stages: Stages) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds on the clock, and of the processor, of a plan, its run and its shards."""
    clocks = list[tuple[float, float]]()
    with tempfile.TemporaryDirectory() as folder:
        setup = begun(Path(folder), 1, PROMPT, 8, ROWS_SLOTS, Stages())
        storage = plans_storage(setup)
        clocks.append((time.monotonic(), time.process_time()))
        stages.time("plan: write", lambda: write_large_plan(storage, count, PROMPT))
        clocks.append((time.monotonic(), time.process_time()))
        asyncio.run(all_rows(setup, 8, ROWS_SLOTS, stages))
        clocks.append((time.monotonic(), time.process_time()))
        stages.time("seal", lambda: seal_run(storage, setup.run))
        clocks.append((time.monotonic(), time.process_time()))
    wall, cpu = zip(*clocks, strict=True)
    names = ("plan", "run", "seal")
    return (
        {name: after - before for name, (before, after) in zip(names, pairwise(wall), strict=True)},
        {name: after - before for name, (before, after) in zip(names, pairwise(cpu), strict=True)},
    )


def plans_storage(setup: WorkerSetup) -> Storage:
    return open_storage(setup.run.run_url, setup.run.spec.store)


# --- a large fleet ----------------------------------------------------------------------------------------------------


def measure_fleet(replicas: int, slots: int, rounds: int) -> dict[str, Any]:
    """The coordinator in a process of its own; all replicas here, each heard once a second."""
    held = slots + slots // 4
    count = replicas * held + ENDS * replicas * (rounds + 2)
    with tempfile.TemporaryDirectory() as folder:
        setup = begun(Path(folder), count, "say something", replicas, slots, Stages())
        with remote_coordinator(setup.run, Path(folder) / "coordinator.sock") as remote:
            return asyncio.run(fleet_rounds(remote, setup, replicas, slots, rounds))


async def fleet_rounds(
    remote: RemoteCoordinator, setup: WorkerSetup, replicas: int, slots: int, rounds: int
) -> dict[str, Any]:
    await remote.connect()
    empty = await remote.spent()
    fleet = [Replica(setup, slot, slots, lambda held: 0, Stages()) for slot in range(replicas)]
    while not all(len(replica.running) >= slots for replica in fleet):  # a round that leases costs ten times as much
        for replica in fleet:
            await replica.exchange(remote)
    full = await remote.spent()
    quiet = await paced(remote, fleet, rounds)
    for replica in fleet:
        replica.end = lambda held: min(held, ENDS)
    busy = await paced(remote, fleet, rounds)
    return {
        "replicas": replicas,
        "slots": slots,
        "rounds": rounds,
        "rows_in_work": sum(len(replica.running) for replica in fleet),
        "mib_before_any_row": empty.resident_mib,
        "mib_with_all_rows_in_work": full.resident_mib,
        "peak_mib": (await remote.spent()).peak_mib,
        "quiet": quiet,
        "ends_of_four_rows": busy,
    }


async def paced(remote: RemoteCoordinator, fleet: list[Replica], rounds: int) -> dict[str, Any]:
    """Every replica is heard once a second, `rounds` times; what the coordinator's process spent on it."""
    before, began = await remote.spent(), time.monotonic()
    for number in range(rounds):
        for replica in fleet:
            await replica.exchange(remote)
        await asyncio.sleep(max(0.0, began + number + 1 - time.monotonic()))
    after, seconds = await remote.spent(), time.monotonic() - began
    if seconds / rounds > SILENT_SECONDS / 2:
        print(f"a round took {seconds / rounds:.0f} s: replicas were taken for silent, so these figures say nothing")
    exchanges = rounds * len(fleet)
    cpu = after.cpu_seconds - before.cpu_seconds
    stages = {name: 1e3 * (spent - before.stages.get(name, 0.0)) / exchanges for name, spent in after.stages.items()}
    stages["event loop, threads, all else"] = 1e3 * cpu / exchanges - sum(stages.values())
    return {
        "seconds_a_round": seconds / rounds,
        "milliseconds_of_processor_an_exchange": 1e3 * cpu / exchanges,
        "milliseconds": {name: spent for name, spent in stages.items() if spent >= 0.001},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--replicas", type=int, default=1000)
    parser.add_argument("--slots", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--what", choices=("rows", "fleet"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    began = time.monotonic()
    found = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    if arguments.what in (None, "rows"):
        found["rows"] = told("rows", measure_rows(arguments.rows), "microseconds_a_row")
    if arguments.what in (None, "fleet"):
        found["fleet"] = fleet = measure_fleet(arguments.replicas, arguments.slots, arguments.rounds)
        told("fleet", {name: value for name, value in fleet.items() if not isinstance(value, dict)}, "")
        for name in ("quiet", "ends_of_four_rows"):
            told(f"fleet: {name}", fleet[name], "milliseconds")
    found["machine"] = {
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "pyarrow": pa.__version__,
    }
    arguments.out.parent.mkdir(exist_ok=True)
    arguments.out.write_text(json.dumps(found, indent=2) + "\n")
    print(f"written to {arguments.out} after {time.monotonic() - began:.0f} s")


def told(name: str, found: dict[str, Any], parts: str) -> dict[str, Any]:
    print(name)
    for what, value in found.items():
        if what != parts:
            print(f"  {what:<36} {value:>14,.2f}")
    stages: dict[str, float] = found.get(parts, {})
    for what, value in sorted(stages.items(), key=lambda part: -part[1]):
        print(f"    {what:<34} {value:>14,.3f} {parts.replace('_', ' ')}  {value / sum(stages.values()):>5.0%}")
    return found


if __name__ == "__main__":
    main()
