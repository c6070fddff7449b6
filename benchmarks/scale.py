"""`make bench-scale ROWS=1000000`: what each command costs as a run grows, in processor time and peak memory.

Of each number of rows a run is laid down: the parts of its plan as PlanWriter writes them, its journal by the real
Journal, with small rows, a thousand to a file. All rows are done but a hundred. Then each step runs in a process of
its own: `resume` is from the command's first look at the folder to a coordinator that leases, the rest what the
commands do. Laying down is not measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.memory import made_up, planned, spec_of
from regen.data.plan import open_plan
from regen.data.plan_rows import SCHEMA, to_table, to_values
from regen.data.plan_summary import PLAN_KEY, PlanPart, PlanSummary, SourceSummary
from regen.data.sources import file_digest
from regen.protocols import Storage
from regen.records import ENDED_PHASES, Lease, Phase
from regen.rows import SCHEMA as SCHEMA_OF_ROWS
from regen.run.commands.check import check
from regen.run.coordinator import Coordinator
from regen.run.look import look
from regen.run.session import seal_complete
from regen.run.start import StartOptions, begin, resume
from regen.store.control import Claim, Released, ReleaseReason
from regen.store.journal import Journal
from regen.store.machine import utc_now
from regen.store.storage import open_storage

RESULTS = Path(__file__).parent / "results" / "scale.json"
PART_ROWS, FILE_ROWS, UNDONE = 10_000, 1000, 100


def lay_down(folder: Path, count: int) -> str:
    source = folder / "rows.jsonl"
    source.write_text('{"prompt": "say something"}\n', encoding="utf-8")
    made = begin(spec_of(folder, source), StartOptions(processes=1), say=lambda text: None)
    storage = made.storage
    storage.delete(PLAN_KEY)
    write_plan(storage, folder, count)
    write_journal(storage, count)
    return storage.url


def write_plan(storage: Storage, folder: Path, count: int) -> None:
    """One part's rows again and again, with ordinals and ids of their own."""
    pattern = to_table([to_values(planned(ordinal)) for ordinal in range(PART_ROWS)])
    parts = []
    for number, first in enumerate(range(0, count, PART_ROWS)):
        rows = min(PART_ROWS, count - first)
        ordinals = range(first, first + rows)
        table = pattern.slice(0, rows)
        table = table.set_column(0, SCHEMA.field("ordinal"), pa.array(ordinals, pa.int64()))
        table = table.set_column(1, SCHEMA.field("row_id"), pa.array([f"{ordinal:032x}" for ordinal in ordinals]))
        path = folder / "part.parquet"
        pq.write_table(table, path, compression="zstd", row_group_size=512)
        key = f"plan/large/part-{number:05d}.parquet"
        parts.append(PlanPart(key, rows, path.stat().st_size, file_digest(path)))
        storage.replace(key, path)
    source = SourceSummary("rows", count, count, {}, {}, 0, count, 0, ())
    storage.replace(PLAN_KEY, PlanSummary("large", count, 0, "0" * 32, tuple(parts), (source,)).to_json())


def write_journal(storage: Storage, count: int) -> None:
    journal = Journal(storage, "laid-down", count)
    journal.replay(())
    journal.claim(Claim("laid-down", "nowhere", 1, 1, utc_now()))
    example = planned(0)
    for first in range(0, count - UNDONE, FILE_ROWS):
        ordinals = range(first, min(first + FILE_ROWS, count - UNDONE))
        leases = [Lease(_with(example, ordinal), 0, 1) for ordinal in ordinals]
        journal.publish(made_up(leases))
    journal.publish(SCHEMA_OF_ROWS.empty_table(), [Released("laid-down", ReleaseReason.DRAINED, utc_now())])


def _with(row: Any, ordinal: int) -> Any:
    return type(row)(ordinal, f"{ordinal:032x}", row.source, row.location, None, row.conversation, row.prompt_tokens)


# --- steps -----------------------------------------------------------------------------------------------------------


def resumed(url: str) -> None:
    begun = resume(url, StartOptions(processes=1), say=lambda text: None)
    asyncio.run(_led(begun.worker_setup.run))


async def _led(setup: Any) -> None:
    coordinator = Coordinator(setup)
    while (status := await coordinator.status()).phase is Phase.REPLAYING:
        await asyncio.sleep(0.05)
    assert status.left == UNDONE, f"{status.phase}, {status.left} rows left: {status.error}"
    await coordinator.drain(0)
    while (await coordinator.status()).phase not in ENDED_PHASES:
        await asyncio.sleep(0.05)
    await coordinator.close()


def read_plan(url: str) -> None:
    assert not list(open_plan(open_storage(url)).settled())


STEPS: dict[str, Callable[[str], object]] = {
    "plan: open, look for settled rows": read_plan,
    "resume": resumed,
    "status": lambda url: look(open_storage(url)),
    "seal": lambda url: seal_complete(open_storage(url)),
    "verify": lambda url: check(open_storage(url)),
}


def one_step(step: str, url: str) -> dict[str, float]:
    wall, cpu = time.monotonic(), time.process_time()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    STEPS[step](url)
    return {
        "cpu_seconds": time.process_time() - cpu,
        "wall_seconds": time.monotonic() - wall,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "peak_mib_before": before / 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--steps", nargs="+", default=list(STEPS), choices=list(STEPS))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.url:
        print(json.dumps(one_step(arguments.steps[0], arguments.url)))
        return
    found: dict[str, dict[str, dict[str, float]]] = {step: {} for step in arguments.steps}
    for count in arguments.rows:
        with tempfile.TemporaryDirectory() as folder:
            url = lay_down(Path(folder), count)
            for step in arguments.steps:
                found[step][str(count)] = seen = in_a_process(step, url)
                cost = f"{seen['cpu_seconds']:>8.2f} s of processor time  {seen['peak_mib']:>8.0f} MiB at most"
                print(f"{count:>12,} rows  {step:<34} {cost}", flush=True)
    machine = {
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "pyarrow": pa.__version__,
    }
    arguments.results.parent.mkdir(exist_ok=True)
    arguments.results.write_text(json.dumps({"machine": machine, "steps": found}, indent=2) + "\n")
    print(f"written to {arguments.results}")


def in_a_process(step: str, url: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.scale", "--steps", step, "--url", url]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    found: dict[str, float] = json.loads(said.splitlines()[-1])
    return found


if __name__ == "__main__":
    main()
