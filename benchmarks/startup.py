"""`make bench-startup`: from the command to the first token, and where it goes; `regen run` beside offline `LLM.chat`.

`regen run` is the real command in a fresh run folder, on the Ray cluster that it starts itself; its stages are those
that its report.json has (`session.start`), on one axis with the moment at which this script started it. `chat` is a
child of this script with the same model and engine arguments: one prompt and one token, which it has when the call is
back. Each is started anew `--times` times, in turn. A start is some 20 to 30 s on a CPU, alone on two cores.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from benchmarks.throughput import ENGINE_ARGS, MAX_MODEL_LEN, SLOTS, machine, make_rows, regen_spec, run_process

RESULTS = Path(__file__).parent / "results" / "startup.json"
ROWS = 160
FIRST_TOKEN = "first token"


@dataclass(frozen=True, slots=True)
class Stage:
    """`began` is in seconds since the process was started."""

    where: str
    name: str
    began: float
    seconds: float

    @property
    def ended(self) -> float:
        return self.began + self.seconds


def main() -> None:
    options = parse_options()
    model = Path(options.model).resolve()
    if options.chat_arm:
        chat_arm(model, Path(options.chat_arm))
        return
    began = time.monotonic()
    found: dict[str, list[list[Stage]]] = {"regen": [], "chat": []}
    for number in range(options.times):
        for arm, measure in (("regen", measure_regen), ("chat", measure_chat)):
            with tempfile.TemporaryDirectory(prefix="regen-startup-") as scratch:
                stages = measure(model, Path(scratch))
            found[arm].append(stages)
            print(f"{number}  {arm:<6} first token after {first_token(stages):.1f} s", flush=True)
    result = {**summary(found), "machine": machine(), "took_seconds": time.monotonic() - began}
    options.out.parent.mkdir(exist_ok=True)
    options.out.write_text(json.dumps(result, indent=2) + "\n")
    print("\n".join(table(result)))
    print(f"written to {options.out}, after {result['took_seconds']:.0f} s")


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="From the command to the first token, and where it goes.")
    parser.add_argument("--model", default=".models/smollm2", help="the target's folder (default: %(default)s)")
    parser.add_argument("--times", type=int, default=3, help="starts of each (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--chat-arm", metavar="FOLDER", help=argparse.SUPPRESS)
    return parser.parse_args()


# --- the two commands ------------------------------------------------------------------------------------------------


def measure_regen(model: Path, scratch: Path) -> list[Stage]:
    source, run, spec = scratch / "rows.jsonl", scratch / "run", scratch / "spec.yaml"
    source.write_text(
        "".join(json.dumps({"id": str(n), "prompt": text}) + "\n" for n, text in enumerate(make_rows(ROWS)))
    )
    settings = regen_spec(model, source, run)
    spec.write_text(yaml.safe_dump({**settings, "sampling": {"max_tokens": 1, "temperature": 0}}))
    # Every row is one token, so that all are `truncated`; that is no rejection, and the exit code is 0.
    process = run_process([sys.executable, "-m", "regen", "run", str(spec)], scratch / "log.txt")
    return timeline(json.loads((run / "report.json").read_text())["session"]["start"], process.began_at)


def measure_chat(model: Path, scratch: Path) -> list[Stage]:
    command = [sys.executable, "-m", "benchmarks.startup", "--model", str(model), "--chat-arm", str(scratch)]
    process = run_process(command, scratch / "log.txt")
    return timeline(json.loads((scratch / "chat.json").read_text()), process.began_at)


def chat_arm(model: Path, scratch: Path) -> None:
    """The child process of `measure_chat`."""
    marks = [("", time.time())]
    from vllm import LLM, SamplingParams

    marks.append(("imports", time.time()))
    llm = LLM(model=str(model), max_model_len=MAX_MODEL_LEN, max_num_seqs=SLOTS, **ENGINE_ARGS)
    marks.append(("engine", time.time()))
    conversation: Any = [{"role": "user", "content": make_rows(1)[0]}]
    llm.chat([conversation], SamplingParams(temperature=0, max_tokens=1), use_tqdm=False)
    marks.append((FIRST_TOKEN, time.time()))
    stages = [
        {"where": "chat", "name": name, "began_at": began, "seconds": ended - began}
        for (_, began), (name, ended) in pairwise(marks)
    ]
    (scratch / "chat.json").write_text(json.dumps(stages))


# --- the result ------------------------------------------------------------------------------------------------------


def timeline(told: Sequence[Mapping[str, Any]], started_at: float) -> list[Stage]:
    """What processes have said of their stages, on one axis, with what nobody said: before a process's first stage."""
    stages = list[Stage]()
    known_until = 0.0
    for one in told:
        began = one["began_at"] - started_at
        if not any(stage.where == one["where"] for stage in stages):
            stages.append(Stage(one["where"], "process", known_until, max(0.0, began - known_until)))
        stages.append(Stage(one["where"], one["name"], began, one["seconds"]))
        known_until = max(known_until, stages[-1].ended)
    return stages


def first_token(stages: Sequence[Stage]) -> float:
    """Seconds from the command's start. Ends the benchmark where no engine has said that it had one."""
    ends = [stage.ended for stage in stages if stage.name == FIRST_TOKEN]
    if not ends:
        sys.exit("no stage is called 'first token': the run has told nothing of its start, so there is no result")
    return min(ends)


def summary(found: Mapping[str, Sequence[Sequence[Stage]]]) -> dict[str, Any]:
    """Of each arm the start whose first token came at the median; the ratio is of these."""
    middle = {arm: sorted(starts, key=first_token)[len(starts) // 2] for arm, starts in found.items()}
    seconds = {arm: [first_token(stages) for stages in starts] for arm, starts in found.items()}
    medians = {arm: statistics.median(times) for arm, times in seconds.items()}
    return {
        "first_token_seconds": seconds,
        "ratio": medians["regen"] / medians["chat"],
        "stages": {arm: [asdict(stage) for stage in stages] for arm, stages in middle.items()},
    }


def table(result: Mapping[str, Any]) -> Iterator[str]:
    for arm, stages in result["stages"].items():
        yield ""
        yield f"{arm:<12} {'stage':<24} {'began':>8} {'seconds':>8}"
        for stage in stages:
            yield f"{stage['where']:<12} {stage['name']:<24} {stage['began']:>8.2f} {stage['seconds']:>8.2f}"
    yield ""
    yield f"first token of regen over that of LLM.chat: {result['ratio']:.2f}"


if __name__ == "__main__":
    main()
