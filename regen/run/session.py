"""One session of a begun run: drive it, then seal what is complete and write the report file.

The only place that knows signals: SIGTERM and Ctrl-C drain, a second one ends the drain at once.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from regen.data.plan import open_plan
from regen.observe.exposition import plain_values
from regen.observe.snapshot import Snapshot
from regen.protocols import Storage
from regen.records import CoordinatorStatus, Phase, ReplicaStats, StartStage, Status, Totals
from regen.run.driver import Cluster, Driver, EventLog, Watcher
from regen.run.held import control_records
from regen.run.look import labels_by_source, outcomes_by_replica
from regen.run.progress.run_facts import run_facts
from regen.run.record import require_record
from regen.run.setup import RunSetup, WorkerSetup
from regen.run.speculation.chosen import choice_among
from regen.run.stopwatch import Lap, untimed
from regen.spec import RunSpec
from regen.store import layout
from regen.store.control import Record, SpeculationDecided
from regen.store.replay import replay
from regen.store.shards import Shard, seal

# Wrappers like `timeout` signal a process and then its whole group: that is asking once.
SAME_SIGNAL_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Standing:
    """What the store says of a run: rows planned, totals of what is committed, rows that are wanted once more."""

    planned: int
    totals: Totals
    reopened: int = 0

    @property
    def is_finished(self) -> bool:
        return self.totals.done == self.planned and not self.reopened

    @property
    def is_capped_often(self) -> bool:
        """More than a tenth of the rows hit the cap."""
        return self.totals.by_status()[Status.TRUNCATED] > 0.1 * self.totals.done


async def conduct(
    cluster: Cluster, setup: WorkerSetup, watch: Watcher, log: EventLog, drain_seconds: float, lap: Lap = untimed
) -> CoordinatorStatus:
    """Drive the run to its end, or to a drained stop when asked by a signal. Raises the run's error otherwise."""
    driver = Driver(cluster, setup, watch, log, lap)
    loop = asyncio.get_running_loop()
    drained_at: float | None = None

    def asked() -> None:
        nonlocal drained_at
        if drained_at is None:
            drained_at = loop.time()
            driver.drain(drain_seconds)
            log("a second Ctrl-C, or SIGTERM, stops at once")
        elif loop.time() - drained_at > SAME_SIGNAL_SECONDS:
            driver.drain_now()
            log("stopping now: finished rows are published; what still runs is dropped, and made again later")

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked)
    try:
        return await driver.run()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def standing(storage: Storage) -> Standing:
    """Replay the journal: what is done, whoever did it."""
    plan = open_plan(storage)
    replayed = replay(storage, plan.count, plan.settled())
    return Standing(plan.count, replayed.totals, len(replayed.reopened.pending))


def seal_run(storage: Storage, run: RunSetup) -> list[Shard]:
    """Write the shards of a finished run. Repeatable."""
    rows_per_shard = require_record(storage).spec.checkpoint.rows_per_shard
    return seal(storage, open_plan(storage), rows_per_shard, session=run.session, fingerprint=run.fingerprint)


def seal_complete(storage: Storage) -> list[Shard]:
    """Write the shards whose rows are all committed, in whatever state the run is."""
    record = require_record(storage)
    return seal(
        storage,
        open_plan(storage),
        record.spec.checkpoint.rows_per_shard,
        session="",
        fingerprint=record.fingerprint,
        complete_only=True,
    )


def write_report(
    storage: Storage, spec: RunSpec, last: CoordinatorStatus, found: Standing, start: Sequence[StartStage] = ()
) -> None:
    """report.json: the totals, what this session saw, and all metrics at its end. Derived: it can be made again.

    `spec` is the session's own, which may have another engine or another speculation than run.json. `start` are the
    command's stages; those of replicas are in `last`.
    """
    report = {
        "planned": found.planned,
        "reopened": found.reopened,
        "outcomes": {status.value: count for status, count in found.totals.by_status().items()},
        "outcomes_by_replica": outcomes_by_replica(found.totals),
        "labels_by_source": labels_by_source(found.totals),
        "output_tokens": found.totals.output_tokens,
        "generations": found.totals.generations,
        "accept_length": found.totals.acceptance.accept_length,
        "speculation": _speculation(control_records(storage), spec),
        "session": _session(last, start),
        "metrics": plain_values(Snapshot(last, _planned(storage), run_facts(spec))),
    }
    storage.replace(layout.REPORT, json.dumps(report, indent=1).encode("utf-8"))


def _planned(storage: Storage) -> dict[str, int]:
    return {source.name: source.rows for source in open_plan(storage).summary.sources}


def _speculation(records: Sequence[Record], spec: RunSpec) -> dict[str, Any]:
    """What was chosen, with its evidence, and every decision in order."""
    choice = choice_among(records, spec)
    decided = [one for one in records if isinstance(one, SpeculationDecided)]
    return {
        "choice": choice.to_json() if choice else None,
        "decisions": [
            {"at": one.at, "by": one.by.value, "slot": one.slot, "verdict": one.verdict, "reason": one.reason}
            for one in decided
        ],
    }


def _session(last: CoordinatorStatus, start: Sequence[StartStage]) -> dict[str, Any]:
    first, latest = generation_times(last.replicas)
    return {
        "phase": Phase(last.phase).value,
        "seconds": last.session_seconds,
        "rows": last.session_rows,
        "output_tokens": last.session_output_tokens,
        "sampled_tokens": last.session_sampled_tokens,
        "first_generation_at": first,
        "last_generation_at": latest,
        "dismissed_engines": list(last.dismissed),
        "acceptance": [dict(cell) for cell in last.speculation.cells],
        "start": [asdict(stage) for stage in (*start, *_replicas_start(last.replicas))],
    }


def _replicas_start(replicas: Mapping[int, ReplicaStats]) -> list[StartStage]:
    """Of the engines that each slot had last."""
    return [stage for _, stats in sorted(replicas.items()) for stage in stats.start]


def generation_times(replicas: Mapping[int, ReplicaStats]) -> tuple[float | None, float | None]:
    """When the replicas' first request began and their last row ended, in epoch seconds; None before there is one."""
    firsts = [stats.first_request_at for stats in replicas.values() if stats.first_request_at is not None]
    lasts = [stats.last_completion_at for stats in replicas.values() if stats.last_completion_at is not None]
    return min(firsts, default=None), max(lasts, default=None)
