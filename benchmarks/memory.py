"""`make bench-memory`: what coordinator and worker hold in memory over a million rows, one of which ends last.

The coordinator is the real one, over a real plan and a real journal on this disk; its replicas answer every lease with
a made-up row in the next exchange, except for one early row, which is held until all others are committed. The worker
is the real one, over the fake engine, and whoever it exchanges with settles every row at once; there, too, one early
row outlasts all others. Each runs in a process of its own. What is measured is resident memory, at each tenth of the
rows, after a garbage collection.

Costs some minutes on one core for a million rows, and a few hundred megabytes of disk.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.made_up import REPLICAS, SLOTS, copies, finished, planned, spec_of, write_plan
from regen import rows
from regen.data.template import load_template
from regen.engines.fake import FakeEngine
from regen.records import (
    Command,
    Completion,
    EngineCounters,
    ExchangeReply,
    ExchangeRequest,
    GenerationRequest,
    Lease,
    Phase,
    PlannedRow,
    ReplicaState,
    ReplicaStats,
    WorkerId,
)
from regen.run.coordinator import Coordinator
from regen.run.replica import build_parser
from regen.run.setup import WorkerSetup
from regen.run.start import StartOptions, begin
from regen.run.worker import Worker
from regen.spec import FakeEngineSpec

RESULTS = Path(__file__).parent / "results" / "memory.json"
TENTHS = 10
LAST_ROW, LAST_PROMPT = 5, "the last row"
# A process that is flat gains less than this between a fifth and all of its rows, whatever their number.
FLAT_MIB = 48.0


@dataclass(frozen=True, slots=True)
class Point:
    """Memory when so many rows were committed. `arrow_mib` is what Arrow has allocated of it."""

    rows: int
    resident_mib: float
    arrow_mib: float
    seconds: float


def main() -> None:
    arguments = parsed()
    if arguments.process:
        points = {"coordinator": coordinator_points, "worker": worker_points}[arguments.process](arguments.rows)
        print(json.dumps([asdict(point) for point in points]))
        return
    found = {
        "coordinator": in_a_process("coordinator", arguments.rows),
        "worker": in_a_process("worker", arguments.worker_rows or max(1000, arguments.rows // 10)),
    }
    report(found)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the coordinator's run")
    parser.add_argument("--worker-rows", type=int, help="rows of the worker; a tenth unless given")
    parser.add_argument("--process", choices=("coordinator", "worker"), help=argparse.SUPPRESS)
    return parser.parse_args()


def in_a_process(name: str, count: int) -> list[Point]:
    print(f"{name}: {count:,} rows", flush=True)
    command = [sys.executable, "-m", "benchmarks.memory", "--process", name, "--rows", str(count)]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return [Point(**values) for values in json.loads(said.splitlines()[-1])]


# --- a run -----------------------------------------------------------------------------------------------------------


def begun(folder: Path, count: int) -> WorkerSetup:
    """A run over the toy target with a plan of so many rows, which was written and not made: nothing was rendered."""
    source = folder / "rows.jsonl"
    source.write_text('{"prompt": "say something"}\n', encoding="utf-8")
    made = begin(spec_of(folder, source), StartOptions(processes=1), say=lambda text: None)
    write_plan(made.storage, map(planned_here, range(count)), count)
    return made.worker_setup


def planned_here(ordinal: int) -> PlannedRow:
    return planned(ordinal, LAST_PROMPT if ordinal == LAST_ROW else f"say {ordinal}")


class Watch:
    """Takes a point at each tenth of the rows."""

    def __init__(self, count: int) -> None:
        self.points: list[Point] = []
        self._count = count
        self._began_at = time.monotonic()

    def see(self, done: int) -> None:
        if done * TENTHS >= (len(self.points) + 1) * self._count:
            gc.collect()
            seconds = time.monotonic() - self._began_at
            self.points.append(Point(done, resident_mib(), pa.total_allocated_bytes() / 2**20, seconds))
            print(f"  {done:,} rows: {self.points[-1].resident_mib:.1f} MiB", file=sys.stderr, flush=True)


def resident_mib() -> float:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


# --- the coordinator -------------------------------------------------------------------------------------------------


def coordinator_points(count: int) -> list[Point]:
    with tempfile.TemporaryDirectory() as folder:
        setup = begun(Path(folder), count)
        return asyncio.run(_coordinated(setup, count))


async def _coordinated(setup: WorkerSetup, count: int) -> list[Point]:
    coordinator, watch = Coordinator(setup.run), Watch(count - 1)
    replicas = [asyncio.ensure_future(_replica(coordinator, setup, slot, count)) for slot in range(REPLICAS)]
    while (status := await coordinator.status()).phase not in (Phase.FINISHED, Phase.FAILED):
        watch.see(status.totals.done)
        await asyncio.sleep(0.05)
    await asyncio.gather(*replicas)
    if status.error is not None:
        raise status.error
    assert status.totals.done == count, f"{status.totals.done} of {count} rows are done"
    return watch.points


async def _replica(coordinator: Coordinator, setup: WorkerSetup, slot: int, count: int) -> None:
    """Answers all leases in the next exchange but the last row's, which waits for all others."""
    running: dict[int, Lease] = {}
    awaiting: set[int] = set()
    command, seq = Command.WAIT, 0
    while command is not Command.STOP:
        seq += 1
        is_last = (await coordinator.status()).totals.done >= count - 1
        ready = [lease for ordinal, lease in running.items() if ordinal != LAST_ROW or is_last]
        for lease in ready:
            del running[lease.row.ordinal]
        request = ExchangeRequest(
            worker=WorkerId(slot, 0),
            session=setup.run.session,
            seq=seq,
            running=tuple(running),
            awaiting=tuple(awaiting),
            finished=rows.to_bytes(copies(_PATTERN, ready)) if ready else b"",
            failed=(),
            free_slots=4 * SLOTS - len(running),
            stats=ReplicaStats(ReplicaState.RUNNING, SLOTS, len(running), 0.0, EngineCounters(), "fake", "off"),
        )
        awaiting.update(lease.row.ordinal for lease in ready)
        reply = await coordinator.exchange(request)
        command = reply.command
        awaiting.difference_update(reply.settled)
        running.update((lease.row.ordinal, lease) for lease in reply.leases)
        await asyncio.sleep(0 if reply.leases else 0.02)


_ANSWER = tuple(range(97, 122)) * 2
_PATTERN = finished("say something", bytes(_ANSWER).decode("ascii"), range(40), _ANSWER)


# --- the worker ------------------------------------------------------------------------------------------------------


def worker_points(count: int) -> list[Point]:
    with tempfile.TemporaryDirectory() as folder:
        setup = begun(Path(folder), 10)
        return asyncio.run(_worked(setup, count))


class LateEngine(FakeEngine):
    """The fake engine, with one prompt that it answers when it is told to."""

    def __init__(self, setup: WorkerSetup, late_prompt: str) -> None:
        spec = setup.run.spec.engine
        assert isinstance(spec, FakeEngineSpec)
        super().__init__(spec, None, setup.worker)
        self.others_are_done = asyncio.Event()
        self._late = tuple(late_prompt.encode("ascii"))

    async def generate(self, request: GenerationRequest, on_tokens: Callable[[int], None]) -> Completion:
        ids = request.prompt_token_ids
        if any(ids[start : start + len(self._late)] == self._late for start in range(len(ids))):
            await self.others_are_done.wait()
        return await super().generate(request, on_tokens)


async def _worked(setup: WorkerSetup, count: int) -> list[Point]:
    engine = LateEngine(setup, LAST_PROMPT)
    watch = Watch(count - 1)
    leases, done = (Lease(planned_here(ordinal), 0, 1) for ordinal in range(count)), 0

    async def exchange(request: ExchangeRequest) -> ExchangeReply:
        nonlocal done
        finished: list[Any] = rows.from_bytes(request.finished)["ordinal"].to_pylist() if request.finished else []
        assert not request.failed, request.failed
        done += len(finished)
        watch.see(done)
        if done >= count - 1:
            engine.others_are_done.set()
        given = tuple(lease for _, lease in zip(range(request.free_slots), leases, strict=False))
        return ExchangeReply(Command.STOP if done == count else Command.WORK, (*finished, *request.awaiting), (), given)

    target = setup.run.spec.target
    template = load_template(setup.model_folder, target.trust_remote_code, target.template_kwargs, control_as_text=True)
    await Worker(setup, engine, template, exchange, lambda: build_parser(setup.answers, template)).run()
    return watch.points


# --- what was found --------------------------------------------------------------------------------------------------


def report(found: dict[str, list[Point]]) -> None:
    result = {
        "settings": {"replicas": REPLICAS, "slots": SLOTS, "last_row": LAST_ROW, "flat_mib": FLAT_MIB},
        "machine": {
            "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "platform": platform.platform(),
            "python": platform.python_version(),
            "pyarrow": pa.__version__,
        },
        "growth_mib": {name: growth_mib(points) for name, points in found.items()},
        "points": {name: [asdict(point) for point in points] for name, points in found.items()},
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")
    print("\n".join(table(found)))
    print(f"written to {RESULTS}")
    if grown := [name for name, points in found.items() if growth_mib(points) > FLAT_MIB]:
        raise SystemExit(f"not flat: {', '.join(grown)}")


def growth_mib(points: Sequence[Point]) -> float:
    """From a fifth of the rows, when everything has been used once, to all of them."""
    return points[-1].resident_mib - points[1].resident_mib


def table(found: dict[str, list[Point]]) -> Iterator[str]:
    for name, points in found.items():
        yield ""
        yield f"{name:<12}  {'rows':>9}  {'resident MiB':>12}  {'Arrow MiB':>9}  {'seconds':>8}"
        for point in points:
            memory = f"{point.resident_mib:>12.1f}  {point.arrow_mib:>9.1f}"
            yield f"{'':<12}  {point.rows:>9,}  {memory}  {point.seconds:>8.1f}"
        yield f"{'':<12}  grown by {growth_mib(points):+.1f} MiB from a fifth of the rows to all"


if __name__ == "__main__":
    main()
