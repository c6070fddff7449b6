"""Processor time of regen's parts, by wrapping their functions: a profile whose words are those of the project.

Each call is timed by its thread's own clock, without what other stages have called from it. What no stage covers is
the rest: whoever knows the whole tells it by difference. Coroutines are not wrapped, what they call is. Garbage
collection is a stage of its own, taken out of whatever it interrupts.
"""

from __future__ import annotations

import functools
import gc
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from regen import rows
from regen.data import plan as plans
from regen.observe.eta import Estimator
from regen.run.coordinator import Coordinator
from regen.run.fleet.garbage_duty import GarbageDuty
from regen.run.progress.duty import ProgressDuty
from regen.run.schedule import Schedule
from regen.store import journal as journals
from regen.store import totals
from regen.store.local import LocalStorage
from regen.store.parquet import RowsFile


class Stages:
    """Processor seconds by stage, each without the stages that it has called."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.calls: defaultdict[str, int] = defaultdict(int)
        self._inner = threading.local()
        self._collecting = 0.0

    def watch_garbage(self) -> None:
        gc.callbacks.append(self._collected)

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._collecting = time.thread_time()
            return
        took = time.thread_time() - self._collecting
        self.seconds["garbage collection"] += took
        self._inner.seconds = getattr(self._inner, "seconds", 0.0) + took

    def wrap(self, owner: Any, name: str, stage: str) -> None:
        setattr(owner, name, self.timed(stage, getattr(owner, name)))

    def timed(self, stage: str, inside: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(inside)
        def timed(*args: Any, **kwargs: Any) -> Any:
            return self.time(stage, lambda: inside(*args, **kwargs))

        return timed

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
    stages.watch_garbage()
    stages.wrap(rows, "from_bytes", "exchange: read rows")
    stages.wrap(Schedule, "report", "exchange: schedule")
    stages.wrap(ProgressDuty, "finished", "exchange: progress")
    stages.wrap(ProgressDuty, "listed", "exchange: progress")
    stages.wrap(ProgressDuty, "leased", "exchange: progress")
    stages.wrap(ProgressDuty, "tick", "tick: progress")
    stages.wrap(ProgressDuty, "_running", "ETA: rows in work")
    stages.wrap(Estimator, "estimate", "ETA: estimate")
    stages.wrap(Schedule, "tick", "tick: schedule")
    stages.wrap(Coordinator, "_keep_tally", "tick: tally")
    stages.wrap(Coordinator, "_look_after_fleet", "tick: fleet")
    stages.wrap(Coordinator, "_look_after_speculation", "tick: speculation")
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
