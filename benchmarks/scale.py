"""`make bench-scale ROWS=1000000`: what each command costs as a run grows, measured on the commands themselves.

Of each number of rows a source is written and a run folder laid down by the real classes (large_run.py), with as many
journal files as a run of 48 hours has (5,760 of a million rows). Every step is `python -m regen ...` as a process of
its own, measured from outside with its children (processes.py):

    plan                the source planned anew, every prompt rendered by a target of bytes
    run, resume         with half of the rows done, until new rows are published; then SIGTERM. On Ray, fake engine
    status              with half of the rows done, again with all
    verify, seal, verify, export, report   with all rows done

Beyond `FULL_ROWS` rows only `run`, `resume` and `status` are measured, and with --plan also `plan`.
The growth is the exponent between two sizes ten times apart: 1.0 is linear, and start-up makes it less.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml

from benchmarks.large_run import LargeRun, lay_down_plan, make_rows, with_source
from benchmarks.processes import Cost, measured
from regen.store.files import JournalFiles

RESULTS = Path(__file__).parent / "results" / "scale.json"
FULL_ROWS = 1_000_000
COORDINATOR = "ray::Coordinator"
COMPLETE = frozenset({0})

Costs = dict[str, Cost]


class Commands:
    """The steps of one folder, each told when it has ended."""

    def __init__(self, run: LargeRun, wanted: Sequence[str] | None) -> None:
        self._run, self._wanted = run, wanted
        self._folder = run.source.parent
        self._spec = self._folder / "spec.yaml"
        self._spec.write_text(yaml.safe_dump(run.spec.model_dump(mode="json", exclude_unset=True)), encoding="utf-8")
        self.costs: Costs = {}

    def is_wanted(self, *steps: str) -> bool:
        return self._wanted is None or any(step in self._wanted for step in steps)

    def plan(self) -> None:
        self._step("plan", "plan", str(self._spec), "--json")

    def until_new_rows(self, step: str) -> None:
        what = str(self._spec) if step == "run" else self._run.spec.output
        self._step(step, step, what, until=_new_rows(self._run), word=COORDINATOR)

    def of_run(self, step: str, command: str, *options: str, codes: frozenset[int] = COMPLETE) -> None:
        self._step(step, command, self._run.spec.output, *options, codes=codes)

    def export(self) -> None:
        self.of_run("export", "export", "--to", "speculators", "--out", str(self._folder / "exported"))

    def _step(
        self,
        step: str,
        *arguments: str,
        until: Callable[[], bool] | None = None,
        word: str | None = None,
        codes: frozenset[int] = COMPLETE,
    ) -> None:
        if not self.is_wanted(step):
            return
        output = self._folder / "said.txt"
        cost = measured([sys.executable, "-m", "regen", *arguments], output, until, word)
        if cost.exit_code is not None and cost.exit_code not in codes:
            raise SystemExit(f"{step} ended with {cost.exit_code}:\n{output.read_text(errors='replace')[-2000:]}")
        self.costs[step] = cost
        print(_line(self._run.count, step, cost), flush=True)


def _new_rows(run: LargeRun) -> Callable[[], bool]:
    """Whether a file with rows was published since now."""
    files = JournalFiles(run.storage)
    number = _length(files)

    def come() -> bool:
        nonlocal number
        while files.exists(number):
            if files.read_footer(number).rows:
                return True
            number += 1
        return False

    return come


def _length(files: JournalFiles) -> int:
    return 1 + max((file.number for file in files.listed()), default=-1)


def measure(folder: Path, count: int, wanted: Sequence[str] | None, with_plan: bool) -> Costs:
    """All steps at one size."""
    run = with_source(folder, count)
    is_full = count <= FULL_ROWS
    commands = Commands(run, wanted)
    if is_full or with_plan:
        commands.plan()
    began = time.monotonic()
    lay_down_plan(run)
    make_rows(run, count // 2, with_digests=is_full)
    _say_laid_down(count, began)
    commands.of_run("status, half", "status")
    commands.until_new_rows("run")
    commands.until_new_rows("resume")
    if is_full and commands.is_wanted("status", "verify", "seal", "verify, sealed", "export", "report"):
        began = time.monotonic()
        make_rows(run, count)
        _say_laid_down(count, began)
        commands.of_run("status", "status")
        commands.of_run("verify", "verify")
        commands.of_run("seal", "seal")
        commands.of_run("verify, sealed", "verify")
        commands.export()
        commands.of_run("report", "report")
    return commands.costs


def _say_laid_down(count: int, began: float) -> None:
    print(f"{count:>12,} rows  (laid down in {time.monotonic() - began:.0f} s)", flush=True)


# --- what was found --------------------------------------------------------------------------------------------------


def growth(smaller: tuple[int, float], larger: tuple[int, float]) -> float:
    """The exponent p of cost ~ rows ** p, from (rows, cost) of two sizes."""
    return math.log(larger[1] / smaller[1]) / math.log(larger[0] / smaller[0])


def growths(costs: Mapping[int, Cost]) -> dict[str, float]:
    """By size, the growth of processor time since the size before."""
    sizes = sorted(costs)
    return {
        str(larger): growth((smaller, costs[smaller].cpu_seconds), (larger, costs[larger].cpu_seconds))
        for smaller, larger in pairwise(sizes)
    }


def by_step(found: Mapping[int, Costs]) -> dict[str, dict[int, Cost]]:
    steps = dict.fromkeys(step for costs in found.values() for step in costs)
    return {step: {count: costs[step] for count, costs in found.items() if step in costs} for step in steps}


def table(found: Mapping[int, Costs]) -> Iterator[str]:
    titles = f"{'seconds':>9} {'CPU s':>9} {'growth':>7} {'MiB':>7} {'of all':>7} {'coordinator':>11}"
    yield f"{'step':<16} {'rows':>12} {titles}"
    for step, costs in by_step(found).items():
        exponents = growths(costs)
        for count, cost in sorted(costs.items()):
            exponent = f"{exponents[str(count)]:.2f}" if str(count) in exponents else ""
            times = f"{cost.seconds:>9.1f} {cost.cpu_seconds:>9.1f} {exponent:>7}"
            named = f"{cost.named_mib:>11.0f}" if cost.named_mib else ""
            yield f"{step:<16} {count:>12,} {times} {cost.largest_mib:>7.0f} {cost.together_mib:>7.0f} {named}".rstrip()


def _line(count: int, step: str, cost: Cost) -> str:
    times = f"{cost.seconds:>8.1f} s  {cost.cpu_seconds:>8.1f} s of processor time"
    named = f", coordinator {cost.named_mib:.0f}" if cost.named_mib else ""
    return f"{count:>12,} rows  {step:<16} {times}  {cost.largest_mib:>6.0f} MiB{named}"


def to_json(found: Mapping[int, Costs], took_seconds: float) -> dict[str, Any]:
    return {
        "machine": {
            "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "platform": platform.platform(),
            "python": platform.python_version(),
            "pyarrow": pa.__version__,
        },
        "took_seconds": took_seconds,
        "steps": {
            step: {
                "costs": {str(count): asdict(cost) for count, cost in costs.items()},
                "growth_of_cpu_seconds": growths(costs),
            }
            for step, costs in by_step(found).items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000, 10_000_000])
    parser.add_argument("--steps", nargs="+", help="only these, such as verify or 'verify, sealed'")
    parser.add_argument("--plan", action="store_true", help="measure `plan` at every size: at 10^7 half an hour")
    parser.add_argument("--folder", type=Path, help="where run folders are laid down, each removed afterwards")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    began, found = time.monotonic(), dict[int, Costs]()
    for count in arguments.rows:
        with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="regen-scale-") as folder:
            found[count] = measure(Path(folder), count, arguments.steps, arguments.plan)
    print("\n".join(table(found)))
    arguments.out.parent.mkdir(exist_ok=True)
    took = time.monotonic() - began
    arguments.out.write_text(json.dumps(to_json(found, took), indent=2) + "\n")
    print(f"written to {arguments.out} after {took:.0f} s")


if __name__ == "__main__":
    main()
