"""`make bench-check`: are the benchmarks as good as they were? Exit code 1 with what got worse, and by how much.

Short forms of the benchmarks are run, and their ratios compared with the recorded ones (`results/check.json`, written
with `--record`). Never a time: what is compared is a ratio of two figures of the same run, or processor time over that
of a fixed piece of work done beside it on the same machine. What may be worse by how much stands in `MEASURES`, and
nowhere else. What seems worse is measured once more, and the better of both counts; what got better passes.

Each benchmark is a process, and what is compared is read from the JSON that it writes: a key that is not there ends
the check with its name. Some minutes on two cores; with `--engine` pairs of real engines as well.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

RESULTS = Path(__file__).parent / "results" / "check.json"
SMALL, LARGE = "10000", "100000"
TAIL_SCENARIO = "4, one slow, 400 rows"
TIMEOUT_SECONDS = 3600
CALIBRATION_ROWS = 80_000
CALIBRATIONS = 5


class Against(Enum):
    """What makes a ratio of a figure."""

    NOTHING = "it is one already"
    FIXED_WORK = "a time, over that of the fixed work"


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A short form: a module's arguments, but for where it is to write."""

    name: str
    arguments: tuple[str, ...]
    needs_engine: bool = False


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure at `path` in what `benchmark` wrote; of a list, an element is named by its `arm`.

    `over`: the path of the figure that it is divided by. `is_rate`: its inverse is taken. So what is compared is
    better when it is lower, and `allowed` is what it may be of what was recorded.
    """

    name: str
    benchmark: str
    path: tuple[str, ...]
    allowed: float
    over: tuple[str, ...] | None = None
    against: Against = Against.NOTHING
    is_rate: bool = False


BENCHMARKS = (
    Benchmark("tail", ("--only", TAIL_SCENARIO)),
    Benchmark("coordinator", ("--rows", "5000", "--replicas", "100", "--rounds", "20")),
    Benchmark("scale", ("--rows", SMALL, LARGE, "--steps", "verify", "seal", "export")),
    Benchmark("throughput", ("--pairs", "2", "--rows", "64"), needs_engine=True),
)


def _of_coordinator(name: str, *path: str, is_rate: bool = False) -> Measure:
    return Measure(f"coordinator: {name}", "coordinator", path, 1.6, against=Against.FIXED_WORK, is_rate=is_rate)


def _of_scale(step: str) -> Measure:
    large, small = (("steps", step, "costs", size, "cpu_seconds") for size in (LARGE, SMALL))
    return Measure(f"scale: {step}, 10^5 rows over 10^4", "scale", large, 1.4, over=small)


# The simulation is the same whenever it is run: only a change of the schedule moves it. Processor time moves by some
# tenths with what else the machine does, even over that of the fixed work. A stage that is twice as dear, and cost that
# grows with the square of rows, is beyond that.
MEASURES = (
    Measure("tail: time over the least possible", "tail", ("results", TAIL_SCENARIO, "regen", "ratio"), 1.01),
    _of_coordinator("a row of the plan", "rows", "plan_rows_per_cpu_second", is_rate=True),
    _of_coordinator("a row of the run", "rows", "rows_per_cpu_second", is_rate=True),
    _of_coordinator("a row sealed", "rows", "microseconds_a_row", "seal"),
    _of_coordinator("an exchange", "fleet", "milliseconds_an_exchange"),
    *(_of_scale(step) for step in ("verify", "seal", "export")),
    Measure("engine: LLM.chat over regen", "throughput", ("ratio", "ratio"), 1.04, is_rate=True),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """One measure now and as it was recorded. `recorded` None: it was not."""

    name: str
    now: float
    recorded: float | None
    allowed: float

    @property
    def is_worse(self) -> bool:
        """Beyond what is allowed."""
        return self.recorded is not None and self.now > self.recorded * self.allowed


class MissingFigure(Exception):
    """A benchmark has not written what is compared."""


def main() -> None:
    options = parse_options()
    began = time.monotonic()
    try:
        now = measured(chosen(options), options)
        if options.record:
            record(options.recorded, now)
            return
        if not options.recorded.exists():
            sys.exit(f"{options.recorded}: nothing is recorded yet; `make bench-check RECORD=1` writes it")
        recorded = json.loads(options.recorded.read_text())["ratios"]
        if doubtful := [one for one in chosen(options) if one.name in worse_benchmarks(now, recorded)]:
            print("worse than allowed: once more, and the better of both counts")
            now = better_of(now, measured(doubtful, options))
    except MissingFigure as error:
        sys.exit(str(error))
    verdicts = compare(now, recorded)
    print("\n".join(table(verdicts)))
    print(f"after {time.monotonic() - began:.0f} s")
    if any(one.is_worse for one in verdicts):
        sys.exit(1)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare the benchmarks' ratios with the recorded ones.")
    parser.add_argument("--record", action="store_true", help="write what is found instead of comparing it")
    parser.add_argument("--only", action="append", choices=[one.name for one in BENCHMARKS], help="may be repeated")
    parser.add_argument("--engine", action="store_true", help="throughput with real engines, too")
    parser.add_argument("--model", default=".models/smollm2", help="the folder of its target (default: %(default)s)")
    parser.add_argument("--recorded", type=Path, default=RESULTS)
    return parser.parse_args()


def chosen(options: argparse.Namespace) -> list[Benchmark]:
    if options.only:
        return [one for one in BENCHMARKS if one.name in options.only]
    return [one for one in BENCHMARKS if options.engine or not one.needs_engine]


# --- running them ----------------------------------------------------------------------------------------------------


def measured(benchmarks: Iterable[Benchmark], options: argparse.Namespace) -> dict[str, float]:
    """Every measure of these, by its name. Fixed work before and after: the better counts. Raises MissingFigure."""
    now = dict[str, float]()
    before = fixed_work_seconds()
    for benchmark in benchmarks:
        arguments = [*benchmark.arguments, *(("--model", options.model) if benchmark.needs_engine else ())]
        found = written_by(benchmark.name, arguments)
        after = fixed_work_seconds()
        own = [one for one in MEASURES if one.benchmark == benchmark.name]
        now |= {one.name: value(one, found, min(before, after)) for one in own}
        before = after
    return now


def written_by(name: str, arguments: Sequence[str]) -> Any:
    """Its JSON. Ends the check when it fails."""
    with tempfile.TemporaryDirectory(prefix="regen-bench-check-") as folder:
        out = Path(folder) / "found.json"
        command = [sys.executable, "-m", f"benchmarks.{name}", *arguments, "--out", str(out)]
        print(" ".join(command[1:-2]), flush=True)
        ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
        if ended.returncode:
            sys.exit(f"{name}: exit code {ended.returncode}\n{(ended.stdout + ended.stderr)[-4000:]}")
        return json.loads(out.read_text())


def fixed_work_seconds() -> float:
    """Processor seconds of what stages mostly do: rows of text, sorted and compressed; and Python's own work."""
    draw = random.Random(1)
    numbers = [draw.getrandbits(60) for _ in range(CALIBRATION_ROWS)]
    keys, texts = pa.array(numbers), pa.array([f"{number:x} " * 16 for number in numbers])
    return min(_once(keys, texts) for _ in range(CALIBRATIONS))


def _once(keys: pa.Int64Array, texts: pa.StringArray) -> float:
    began = time.thread_time()
    taken = texts.take(pc.sort_indices(keys))
    pa.compress(b"".join(buffer for buffer in taken.buffers() if buffer), codec="zstd")
    for text in taken.to_pylist():
        str(text).split()
    return time.thread_time() - began


# --- comparing -------------------------------------------------------------------------------------------------------


def value(measure: Measure, found: Any, fixed_work: float) -> float:
    """What is compared: lower is better. Raises MissingFigure."""
    figure = at(found, measure.benchmark, measure.path)
    if measure.is_rate:
        figure = 1 / figure
    if measure.over is not None:
        figure /= at(found, measure.benchmark, measure.over)
    return figure / fixed_work if measure.against is Against.FIXED_WORK else figure


def at(found: Any, benchmark: str, path: Sequence[str]) -> float:
    """The number there. Raises MissingFigure: there is none, or it is no positive one."""
    here = found
    for key in path:
        if isinstance(here, list):
            here = next((one for one in here if isinstance(one, dict) and one.get("arm") == key), None)
        else:
            here = here.get(key) if isinstance(here, dict) else None
    if not isinstance(here, int | float) or not here > 0:
        raise MissingFigure(
            f"{benchmark}: its JSON has no positive number at {' / '.join(path)} (found {here!r}):"
            " benchmarks/check.py and the benchmark do not fit"
        )
    return float(here)


def compare(
    now: Mapping[str, float], recorded: Mapping[str, float], measures: Iterable[Measure] = MEASURES
) -> list[Verdict]:
    """Of those that were measured."""
    there = (one for one in measures if one.name in now)
    return [Verdict(one.name, now[one.name], recorded.get(one.name), one.allowed) for one in there]


def worse_benchmarks(
    now: Mapping[str, float], recorded: Mapping[str, float], measures: Sequence[Measure] = MEASURES
) -> set[str]:
    """Those with a measure that got worse."""
    worse = {verdict.name for verdict in compare(now, recorded, measures) if verdict.is_worse}
    return {one.benchmark for one in measures if one.name in worse}


def better_of(now: Mapping[str, float], again: Mapping[str, float]) -> dict[str, float]:
    """What else a machine does can make a figure worse, and never better."""
    return {name: min(figure, again.get(name, figure)) for name, figure in now.items()}


def table(verdicts: Sequence[Verdict]) -> Iterator[str]:
    width = max(len(one.name) for one in verdicts)
    yield f"{'':<{width}}  {'recorded':>10}  {'now':>10}  {'now/recorded':>12}  {'allowed':>7}"
    for one in verdicts:
        if one.recorded is None:
            yield f"{one.name:<{width}}  {'none':>10}  {one.now:>10.4g}  {'':>12}  {one.allowed:>7.2f}  not recorded"
            continue
        times = one.now / one.recorded
        end = "  WORSE" if one.is_worse else ""
        yield f"{one.name:<{width}}  {one.recorded:>10.4g}  {one.now:>10.4g}  {times:>12.3f}  {one.allowed:>7.2f}{end}"
    worse = [one for one in verdicts if one.is_worse]
    yield f"{len(worse)} of {len(verdicts)} got worse" if worse else "nothing got worse"


def record(path: Path, now: Mapping[str, float]) -> None:
    """Ratios of benchmarks that were not run stay as they are."""
    before = json.loads(path.read_text())["ratios"] if path.exists() else {}
    made = {
        "recorded_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "platform": platform.platform(),
        "ratios": {**before, **now},
    }
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(made, indent=2) + "\n")
    print(f"{len(now)} ratios written to {path}")


if __name__ == "__main__":
    main()
