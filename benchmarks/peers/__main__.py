"""`make bench-peers`: regen against the limit and against its peers, in one run.

Two sets of rows. Short prompts: offline `LLM.chat` (the limit), `regen run` in process and against a server, the
regeneration client of speculators against that server, vLLM's `run_batch`, and Ray Data's vLLM processor. Conversations
of three turns with shared system prompts: one engine that is given each next turn at once (the limit), `regen run`, and
`LLM.chat` in lock step.

Each round runs every arm once, in an order that rotates, each arm a process of its own. All figures come from one
source, the scheduler's own log (engine_log.py); an arm that was not asked just the same prompts has none. Ratios are of
pairs within a round, with a 95 % t interval of their logarithms. What cannot be run is skipped, with the reason.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers import table
from benchmarks.peers.arms import ARMS, ON_A_SERVER, ArmFailed, Job, Place, missing, server_command
from benchmarks.peers.comparing import comparisons
from benchmarks.peers.cutting import between, parse_log
from benchmarks.peers.engine_log import environment
from benchmarks.peers.figures import Decode, Render, Unfair, checked, figures, same_answers
from benchmarks.peers.ordering import groups
from benchmarks.peers.rows import conversations, short_rows
from benchmarks.process_groups import post, serving
from benchmarks.throughput import CAP_TOKENS, DEFAULT_ROWS, ENGINE_ARGS, MAX_MODEL_LEN, SLOTS, machine

RESULTS = Path(__file__).parents[1] / "results" / "peers.json"
TURN_CAP_TOKENS = 128
SETS = {
    "short": ("chat", "regen", "server", "speculators", "run_batch", "ray_data"),
    "turns": ("chained", "regen_turns", "lockstep"),
}
# Without them there is nothing to compare: their failure ends the benchmark.
NEEDED = ("chat", "regen", "chained", "regen_turns")


@dataclass(slots=True)
class Bench:
    """What one invocation knows so far."""

    jobs: dict[str, Job]
    arms: list[str]
    render: Render
    decode: Decode
    rounds: list[dict[str, dict[str, Any]]] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)

    def job_of(self, arm: str) -> Job:
        return next(self.jobs[name] for name, arms in SETS.items() if arm in arms)

    def skip(self, arm: str, reason: str) -> None:
        """Ends the benchmark where the arm is needed."""
        if arm in NEEDED:
            sys.exit(f"{arm}: {reason}")
        self.skipped[arm] = reason
        self.arms.remove(arm)
        print(f"skipped from now on: {arm}: {reason}", flush=True)


def main() -> None:
    options = parse_options()
    began_at = time.time()
    bench = prepare(options)
    for number in range(options.rounds):
        bench.rounds.append(run_round(bench, number))
        minutes = (time.time() - began_at) / 60
        left = minutes / (number + 1) * (options.rounds - number - 1)
        print(f"round {number} done after {minutes:.1f} minutes, some {left:.0f} are left", flush=True)
        report(bench, options, minutes)
    compared = comparisons(bench.rounds)
    print("\n".join(table.table(bench.rounds, compared, bench.skipped)))
    print(f"{(time.time() - began_at) / 60:.1f} minutes; written to {options.out}")


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="regen against the limit and against its peers.")
    known = [arm for arms in SETS.values() for arm in arms]
    parser.add_argument("--model", default=".models/smollm2", help="the target's folder (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=6, help="each runs every arm once (default: %(default)s)")
    parser.add_argument(
        "--rows", type=int, default=DEFAULT_ROWS, help="short prompts, at most 320 (default: %(default)s)"
    )
    parser.add_argument("--conversations", type=int, default=128, help="of three turns (default: %(default)s)")
    parser.add_argument("--arms", default=",".join(known), help="some of: %(default)s")
    parser.add_argument("--speculators", type=Path, default=Path(".cache/peers"), help="folder with that package")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the result as JSON (default: %(default)s)")
    options = parser.parse_args()
    options.arms = options.arms.split(",")
    if unknown := set(options.arms) - set(known):
        parser.error(f"--arms: {', '.join(sorted(unknown))} is none of {', '.join(known)}")
    if options.rounds < 1:
        parser.error("--rounds must be at least 1, and 2 for ratios: one pair has no interval")
    return options


def prepare(options: argparse.Namespace) -> Bench:
    from transformers import AutoTokenizer

    model = Path(options.model).resolve()
    tokenizer = AutoTokenizer.from_pretrained(str(model))
    jobs = {
        "short": Job(model, short_rows(options.rows), CAP_TOKENS, options.speculators.resolve()),
        "turns": Job(model, conversations(options.conversations), TURN_CAP_TOKENS, options.speculators.resolve()),
    }

    def render(messages: list[dict[str, str]]) -> tuple[int, ...]:
        return tuple(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))

    def decode(ids: tuple[int, ...]) -> str:
        return str(tokenizer.decode(ids, skip_special_tokens=True))

    bench = Bench(jobs, list(options.arms), render, decode)
    for arm in options.arms:
        if reason := missing(arm, bench.job_of(arm)):
            bench.skip(arm, reason)
    return bench


def run_round(bench: Bench, number: int) -> dict[str, dict[str, Any]]:
    """Every arm once; arms that have failed are skipped from then on."""
    found: dict[str, dict[str, Any]] = {}
    answers: dict[str, Any] = {}
    for arms in SETS.values():
        for group in groups([arm for arm in arms if arm in bench.arms], ON_A_SERVER, number):
            with tempfile.TemporaryDirectory(prefix="regen-peers-") as scratch:
                run_group(bench, number, group, Path(scratch), found, answers)
        base = arms[0]
        for arm in arms:
            if arm in answers and base in answers:
                found[arm]["same_answers"] = same_answers(answers[arm], answers[base])
    return found


def run_group(
    bench: Bench,
    number: int,
    group: Sequence[str],
    scratch: Path,
    found: dict[str, dict[str, Any]],
    answers: dict[str, Any],
) -> None:
    log = scratch / "engine-log"
    variables = environment(scratch / "plugin", log)
    with ExitStack() as stack:
        url = None
        if group[0] in ON_A_SERVER:
            try:
                url = stack.enter_context(server(bench.job_of(group[0]).model, scratch, variables))
            except ArmFailed as error:
                for arm in group:
                    bench.skip(arm, str(error))
                return
        for arm in group:
            try:
                found[arm], answers[arm] = run_arm(bench, arm, Place(folder(scratch / arm), variables, url), log)
            except (ArmFailed, Unfair, OSError) as error:
                bench.skip(arm, f"round {number}: {error}")
                continue
            print(table.progress(number, arm, found[arm]), flush=True)


@contextmanager
def server(model: Path, scratch: Path, variables: dict[str, str]) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    url = f"http://127.0.0.1:{port}"
    developer = {**variables, "VLLM_SERVER_DEV_MODE": "1"}  # it may be told to forget its prefixes
    with serving(server_command(model, port), scratch / "server.txt", developer, url):
        yield url


def run_arm(bench: Bench, arm: str, place: Place, log_folder: Path) -> tuple[dict[str, Any], Any]:
    job = bench.job_of(arm)
    if place.url:
        post(f"{place.url}/reset_prefix_cache")
    ran = ARMS[arm](job, place)
    lines = (line for path in sorted(log_folder.glob("*.jsonl")) for line in path.read_text().splitlines())
    log = between(parse_log(lines), ran.process.began_at, ran.process.ended_at)
    rows = checked(log, job.rows, ran.answers, job.cap_tokens, bench.render, bench.decode)
    return figures(rows, log, ran.process, ran.clock, SLOTS).to_json(), rows


def folder(path: Path) -> Path:
    path.mkdir()
    return path


def report(bench: Bench, options: argparse.Namespace, minutes: float) -> None:
    """Written anew after each round, so that a run that is broken off leaves what it has."""
    result = {
        "comparisons": comparisons(bench.rounds),
        "skipped": bench.skipped,
        "settings": {
            "rounds": len(bench.rounds),
            "rows": options.rows,
            "cap_tokens": CAP_TOKENS,
            "conversations": options.conversations,
            "turn_cap_tokens": TURN_CAP_TOKENS,
            "slots": SLOTS,
            "max_model_len": MAX_MODEL_LEN,
            "engine_args": ENGINE_ARGS,
            "sampling": "greedy",
            "speculation": None,
        },
        "machine": machine(),
        "minutes": round(minutes, 1),
        "rounds": bench.rounds,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
