"""From a spec, or a run folder, to everything a session needs: the steps before any engine is loaded, in order.

    spec -> held? -> target -> preflight -> run.json -> plan -> setup

Each step that refuses does so with a typed error, and nothing has been written before preflight has passed.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from regen.data.changes import ChangedFile, PlanChanges, changed_files, plan_changes
from regen.data.plan import RunPlan, open_plan, read_summary
from regen.data.plan_summary import PlanSummary
from regen.data.planning import build_plan
from regen.data.target import Target, resolve_target
from regen.errors import FingerprintDrift
from regen.protocols import Storage
from regen.records import WorkerId
from regen.run.preflight import examine, examine_lengths, require_healthy
from regen.run.record import (
    Drift,
    RunRecord,
    drift,
    make_record,
    read_record,
    refuse_drift,
    require_record,
    write_record,
)
from regen.run.setup import RunSetup, WorkerSetup
from regen.spec import RunSpec, not_acted_on
from regen.store.control import DriftAccepted
from regen.store.holder import Holder, Liveness, held, read_holder, watch
from regen.store.machine import machine_identity, process_exists
from regen.store.replay import Replayed, replay
from regen.store.storage import LocalStorage, open_storage

# Three heartbeats (run/coordinator.py) and a little: a live holder shows itself within that.
WATCH_SECONDS = 7.0
# Ray was seen to end an actor 2 to 3 s after the process that created it.
ORPHAN_SECONDS = 15.0

# What no flag can change: the plan is frozen, and shards of another size would overlap.
_FIXED = ("sources.", "rows.", "rows_per_shard")
PROGRESS_SECONDS = 10.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class StartOptions:
    """What the command line adds to a spec. `processes` render prompts while planning."""

    take_over: bool = False
    accept_drift: bool = False
    processes: int = os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class Begun:
    """A run that is ready for its engines. `is_new`: planned by this very command."""

    storage: Storage
    record: RunRecord
    plan_summary: PlanSummary
    worker_setup: WorkerSetup
    is_new: bool


def begin(spec: RunSpec, options: StartOptions, say: Say) -> Begun:
    """Start the run of this spec, or continue it if its folder holds it already. `say` gets lines for a person.

    Raises SpecError, SourceError, PreflightRefused, RunHeld, FingerprintDrift, StoreError.
    """
    storage = open_storage(spec.output)
    claim_seen = refuse_if_held(storage, options.take_over)
    target = resolve_target(spec.target)
    require_healthy(examine(spec, target, storage), say)
    _say_what_is_odd(spec, target, say)
    record = make_record(spec, target)
    storage.probe()
    before = read_record(storage)
    if before is None:
        before = record if write_record(storage, record) else require_record(storage)  # another start was faster
    drift = _accepted_drift(before, record, storage, options)
    is_new = not has_plan(storage)
    summary = _planned(spec, target, storage, options, say) if is_new else _unchanged(spec, target, storage, options)
    if is_new:
        require_healthy(examine_lengths(spec, target, storage), say)
        claim_seen = refuse_if_held(storage, options.take_over)  # planning takes time, and others start meanwhile
    return Begun(storage, record, summary, _setup(record, target, storage, options, drift, claim_seen), is_new)


def resume(run_url: str, options: StartOptions, say: Say) -> Begun:
    """Continue a run from its folder alone: the spec is the one it was begun with, sources are not looked at again."""
    storage = open_storage(run_url)
    before = require_record(storage)
    _refuse_after_drift(storage)
    spec = before.spec.model_copy(update={"output": run_url})  # the folder may have been moved
    claim_seen = refuse_if_held(storage, options.take_over)
    target = resolve_target(spec.target)
    require_healthy(examine(spec, target, storage), say)
    _say_what_is_odd(spec, target, say)
    storage.probe()
    record = make_record(spec, target)
    drift = _accepted_drift(before, record, storage, options)
    is_new = not has_plan(storage)
    summary = _planned(spec, target, storage, options, say) if is_new else _frozen(storage)
    return Begun(storage, record, summary, _setup(record, target, storage, options, drift, claim_seen), is_new)


def refuse_if_held(storage: Storage, take_over: bool) -> str | None:
    """The session of the newest claim, if it is over (or `take_over`); None if nobody has ever run this folder.

    Raises RunHeld if somebody does: seen at once, or by watching the folder for `WATCH_SECONDS`.
    """
    if not has_plan(storage):
        return None
    _await_orphan(read_holder(storage))
    replayed = _replayed(storage)
    if not take_over and watch(storage, replayed, time.sleep, WATCH_SECONDS, machine_identity()) is Liveness.ALIVE:
        raise held(read_holder(storage), replayed.newest_claim, storage.url, datetime.now(UTC))
    return replayed.newest_claim.session if replayed.newest_claim else None


def _replayed(storage: Storage) -> Replayed:
    plan = open_plan(storage)
    return replay(storage, plan.count, plan.refused())


def _await_orphan(holder: Holder | None) -> None:
    """A coordinator whose driver was killed ends by itself within seconds: a restart right after the kill waits."""
    if holder is None or holder.boot_id != machine_identity() or process_exists(holder.driver_pid):
        return
    deadline = time.monotonic() + ORPHAN_SECONDS
    while process_exists(holder.coordinator_pid) and time.monotonic() < deadline:
        time.sleep(0.1)


def has_plan(storage: Storage) -> bool:
    """Whether the plan was committed."""
    return read_summary(storage) is not None


@contextmanager
def dry_plan(spec: RunSpec, target: Target, processes: int) -> Iterator[RunPlan]:
    """The plan that this spec gives now, in a temporary folder that goes when the block ends."""
    with tempfile.TemporaryDirectory(prefix="regen-plan-") as folder:
        storage = LocalStorage(Path(folder))
        build_plan(spec, target, storage, session="dry", processes=processes)
        yield open_plan(storage)


def _planned(spec: RunSpec, target: Target, storage: Storage, options: StartOptions, say: Say) -> PlanSummary:
    said_at = time.monotonic()

    def tell(source: str, rows: int) -> None:
        nonlocal said_at
        if time.monotonic() - said_at >= PROGRESS_SECONDS:
            said_at = time.monotonic()
            say(f"planning: {source}: {rows:,} rows")

    return build_plan(spec, target, storage, _new_session(), options.processes, tell)


def _frozen(storage: Storage) -> PlanSummary:
    return open_plan(storage).summary


def _unchanged(spec: RunSpec, target: Target, storage: Storage, options: StartOptions) -> PlanSummary:
    """The frozen plan, if the sources still are what it was made from."""
    summary = _frozen(storage)
    changed = changed_files(summary, spec)
    if changed:
        raise FingerprintDrift(_changed_input(spec, target, storage, changed, options))
    return summary


def _changed_input(
    spec: RunSpec, target: Target, storage: Storage, changed: list[ChangedFile], options: StartOptions
) -> str:
    with dry_plan(spec, target, options.processes) as now:
        difference = plan_changes(open_plan(storage), now)
    files = "".join(f"\n  {file.source}: {file.path} {file.what}" for file in changed)
    return (
        f"the sources have changed since {storage.url} was planned:{files}{_described(difference)}"
        "\nThe plan is frozen: `regen resume` continues it as it is, without looking at the sources;"
        " a new output folder plans anew."
    )


def _described(difference: PlanChanges) -> str:
    kinds = (
        ("added", difference.added),
        ("removed", difference.removed),
        ("now rejected", difference.newly_invalid),
        ("no longer rejected", difference.newly_valid),
    )
    lines = [
        f"\n  {change.count} rows {kind}, such as {', '.join(f'{row} ({where})' for row, where in change.examples)}"
        for kind, change in kinds
        if change.count
    ]
    return "".join(lines) or "\n  the rows are the same"


def _accepted_drift(before: RunRecord, now: RunRecord, storage: Storage, options: StartOptions) -> Drift:
    """What differs from the run's beginning, if that is accepted, now or by an earlier session with these settings."""
    found = drift(before.shaping, now.shaping)
    if fixed := {name: change for name, change in found.items() if name.startswith(_FIXED)}:
        refuse_drift(fixed, storage.url, can_be_accepted=False)
    accepted = _latest_drift(storage)
    if not options.accept_drift and (accepted is None or accepted.fingerprint_after != now.fingerprint):
        refuse_drift(found, storage.url)
    return found


def _refuse_after_drift(storage: Storage) -> None:
    """The spec of run.json is not what the run was last continued with: only the user has that one."""
    if (accepted := _latest_drift(storage)) is not None:
        changed = "".join(f"\n  {name}: was {was}, is {now}" for name, (was, now) in accepted.fields.items())
        raise FingerprintDrift(
            f"{storage.url} went on with accepted changes:{changed}\nContinue it with the spec that has them:"
            " regen run SPEC"
        )


def _latest_drift(storage: Storage) -> DriftAccepted | None:
    records = _replayed(storage).records if has_plan(storage) else ()
    return next((record for record in reversed(records) if isinstance(record, DriftAccepted)), None)


def _say_what_is_odd(spec: RunSpec, target: Target, say: Say) -> None:
    if target.context_tokens is not None and spec.engine.max_model_len > target.context_tokens:
        say(
            f"warning: engine.max_model_len is {spec.engine.max_model_len}, and the target's config.json says"
            f" max_position_embeddings {target.context_tokens}: the engine may refuse, or answer badly beyond it"
        )
    if names := not_acted_on(spec):
        say(f"note: this version keeps these with the run and does not act on them: {', '.join(names)}")


def _setup(
    record: RunRecord,
    target: Target,
    storage: Storage,
    options: StartOptions,
    accepted: Drift,
    claim_seen: str | None,
) -> WorkerSetup:
    session = _new_session()
    run = RunSetup(
        spec=record.spec,
        run_url=storage.url,
        session=session,
        fingerprint=record.fingerprint,
        host=socket.gethostname(),
        boot_id=machine_identity(),
        driver_pid=os.getpid(),
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        take_over=options.take_over,
        drift=_drift_record(session, accepted, record, storage),
        claim_seen=claim_seen,
    )
    is_local = Path(target.model).expanduser().is_dir()
    return WorkerSetup(
        run=run,
        worker=WorkerId(0, 0),
        model_folder=target.folder,
        model=str(target.folder) if is_local else target.model,
        model_revision=None if is_local else target.commit,
        generation_config=dict(target.generation_config),
        eos_token_ids=target.eos_token_ids,
    )


def _drift_record(session: str, accepted: Drift, record: RunRecord, storage: Storage) -> DriftAccepted | None:
    if not accepted:
        return None
    fields = {name: (json.dumps(was), json.dumps(now)) for name, (was, now) in accepted.items()}
    return DriftAccepted(session, fields, require_record(storage).fingerprint, record.fingerprint)


def _new_session() -> str:
    return uuid.uuid4().hex[:12]
