"""What an engine's scheduler does, written down by the engine itself: one source of figures for every arm.

A plugin of vLLM (`vllm.general_plugins`) that every process of vLLM loads when it is on the path; it does something
where the variable FOLDER names a folder. It wraps two methods of the scheduler, which is the same in all arms: offline
`LLM`, `AsyncLLM`, server and batch. Written per step: when it ended, its new tokens, the sequences in it, and how many
waited. Per finished request: when it came, was first scheduled and ended, its ids, how much of its prompt was cached.

Costs: some 20 us in a step of 50 ms with 32 sequences. vLLM's own statistics stay as the arm has them.
Built on vLLM 0.32's scheduler.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

FOLDER = "REGEN_BENCH_ENGINE_LOG"
FLUSH_SECONDS = 1.0


def environment(plugin: Path, log: Path) -> dict[str, str]:
    """What a process of vLLM is started with so that it loads this plugin. Makes the plugin's and the log's folder."""
    facts = plugin / "regen_bench_engine_log-0.dist-info"
    facts.mkdir(parents=True, exist_ok=True)
    log.mkdir(parents=True, exist_ok=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: regen-bench-engine-log\nVersion: 0\n")
    (facts / "entry_points.txt").write_text(f"[vllm.general_plugins]\nregen_bench_engine_log = {__name__}:install\n")
    repository = Path(__file__).resolve().parents[2]
    paths = [str(plugin), str(repository), os.environ.get("PYTHONPATH", "")]
    return {FOLDER: str(log), "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def install() -> None:
    """Called by vLLM in each of its processes, more than once in some."""
    if not (folder := os.environ.get(FOLDER)):
        return
    from vllm.v1.core.sched.scheduler import Scheduler

    if not hasattr(Scheduler, "regen_bench_log"):
        wrap(Scheduler, StepLog(Path(folder)))


def wrap(scheduler: Any, log: StepLog) -> None:
    """Let a class of schedulers write down what it does."""
    add, update = scheduler.add_request, scheduler.update_from_output

    def add_request(self: Any, request: Any) -> Any:
        log.came(request.request_id)
        return add(self, request)

    def update_from_output(self: Any, scheduled: Any, sampled: Any) -> Any:
        outputs = update(self, scheduled, sampled)
        if scheduled.num_scheduled_tokens:
            log.step(scheduled, outputs, len(self.waiting), is_last=not self.running)
        return outputs

    scheduler.regen_bench_log = log
    scheduler.add_request = add_request
    scheduler.update_from_output = update_from_output


class StepLog:
    """One file per process, written each second, and whenever nothing runs any more."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lines: list[str] = []
        self._flushed_at = 0.0
        self._came_at: dict[str, float] = {}
        self._open: dict[str, dict[str, Any]] = {}

    def came(self, request_id: str) -> None:
        self._came_at[request_id] = time.time()

    def step(self, scheduled: Any, outputs: Any, waiting: int, is_last: bool) -> None:
        now = time.time()
        for new in scheduled.scheduled_new_reqs:
            self._open.setdefault(new.req_id, self._begun(new, now))  # one that was preempted may come as new again
        made = [output for part in outputs.values() for output in part.outputs]
        for output in made:
            self._take(output, now)
        tokens = sum(len(output.new_token_ids) for output in made)
        self._write([now, tokens, len(scheduled.num_scheduled_tokens), waiting])
        if is_last or now - self._flushed_at > FLUSH_SECONDS:
            self._flush(now)

    def _begun(self, new: Any, now: float) -> dict[str, Any]:
        return {
            "came_at": self._came_at.pop(new.req_id, now),
            "scheduled_at": now,
            "cached_tokens": new.num_computed_tokens,
            "prompt": list(new.prompt_token_ids or ()),
            "completion": [],
        }

    def _take(self, output: Any, now: float) -> None:
        if (request := self._open.get(output.request_id)) is None:
            return
        request["completion"].extend(output.new_token_ids)
        if output.finish_reason is not None:
            del self._open[output.request_id]
            self._write({**request, "finished_at": now})

    def _write(self, value: object) -> None:
        self._lines.append(json.dumps(value, separators=(",", ":")) + "\n")

    def _flush(self, now: float) -> None:
        self._flushed_at = now
        with (self._folder / f"{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
            file.writelines(self._lines)
        self._lines.clear()
