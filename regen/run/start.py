"""From a spec, or a run folder, to everything a session needs: the steps before any engine is loaded, in order.

    spec -> held? -> target -> preflight -> run.json -> plan -> setup

Each step that refuses does so with a typed error, and nothing has been written before preflight has passed.
"""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from regen.data.changes import ChangedFile, PlanChanges, changed_files, plan_changes
from regen.data.plan import RunPlan, open_plan, read_summary
from regen.data.plan_summary import PlanSummary
from regen.data.planning import build_plan
from regen.data.profiles import answer_format
from regen.data.target import Target, resolve_target
from regen.errors import FingerprintDrift
from regen.protocols import Storage
from regen.records import WorkerId
from regen.run.drift import Drift, accepted_drift, drift_record, refuse_after_drift
from regen.run.held import control_records, refuse_if_held
from regen.run.keeper import new_session, time_of_day
from regen.run.record import RunRecord, highest_temperature, make_record, read_record, require_record, write_record
from regen.run.setup import CONFIGURED, OFF, Assignment, Purpose, RunSetup, WorkerSetup
from regen.run.speculation.preflight import examine, examine_lengths, require_healthy
from regen.run.speculation.wanted import NewDraft, configured_record, wanted_speculation, with_new_draft
from regen.run.stopwatch import Lap, untimed
from regen.spec import RunSpec, SpeculationSpec
from regen.store.local import LocalStorage
from regen.store.machine import machine_identity
from regen.store.storage import open_storage, remarks, with_resolved_store

PROGRESS_SECONDS = 10.0

Say = Callable[[str], None]


def _nothing(spec: RunSpec) -> None: ...


_PlannedBefore = Callable[[RunSpec, Target, Storage, "StartOptions"], PlanSummary]


@dataclass(frozen=True, slots=True)
class StartOptions:
    """What the command line adds to a spec. `processes` render prompts while planning.

    `before_plan` is called when there is no plan yet, and nothing is left to do but that; `lap` ends each step.
    """

    take_over: bool = False
    accept_drift: bool = False
    purpose: Purpose = Purpose.RUN
    processes: int = os.cpu_count() or 1
    before_plan: Callable[[RunSpec], None] = _nothing
    lap: Lap = untimed


@dataclass(frozen=True, slots=True)
class Begun:
    """A run that is ready for its engines. `is_new`: planned by this very command."""

    storage: Storage
    record: RunRecord
    plan_summary: PlanSummary
    worker_setup: WorkerSetup
    is_new: bool


@dataclass(frozen=True, slots=True)
class _Changes:
    """How this start differs from the run so far: run.json, what of it was accepted, the last speculation."""

    before: RunRecord
    drift: Drift
    speculation_before: SpeculationSpec | None


def begin(spec: RunSpec, options: StartOptions, say: Say) -> Begun:
    """Start the run of this spec, or continue it if its folder holds it already. `say` gets lines for a person.

    Raises SpecError, SourceError, PreflightRefused, RunHeld, FingerprintDrift, StoreError.
    """
    spec = with_resolved_store(spec)
    return _begin(spec, open_storage(spec.output, spec.store), options, say, _unchanged)


def resume(run_url: str, options: StartOptions, say: Say, new_draft: NewDraft | None = None) -> Begun:
    """Continue a run from its folder alone: the spec is the one it was begun with, sources are not looked at again.

    Speculation is what was asked for last; `new_draft` changes that from here on.
    """
    storage = open_storage(run_url)
    before = require_record(storage)
    records = control_records(storage)
    refuse_after_drift(records, storage.url)
    # The folder may have been moved: to another store too, which the environment alone says how to reach.
    spec = with_resolved_store(before.spec.model_copy(update={"output": run_url, "store": None}))
    spec = spec.model_copy(update={"speculation": wanted_speculation(records, before)})
    if new_draft is not None:
        spec = with_new_draft(spec, new_draft)
    return _begin(spec, storage, options, say, _frozen)


def _begin(spec: RunSpec, storage: Storage, options: StartOptions, say: Say, planned_before: _PlannedBefore) -> Begun:
    for remark in remarks(storage, spec.limits.hours):
        say(remark)
    claim_seen = refuse_if_held(storage, options.take_over)
    options.lap("run folder")
    target = resolve_target(spec.target)
    options.lap("target")
    require_healthy(examine(spec, target, storage), say)
    options.lap("preflight")
    _say_what_is_odd(spec, target, say)
    record = make_record(spec, target)
    storage.probe()
    before = read_record(storage)
    if before is None:
        before = record if write_record(storage, record) else require_record(storage)  # another start was faster
    records = control_records(storage)
    drift = accepted_drift(before, record, records, storage.url, options.accept_drift)
    changes = _Changes(before, drift, wanted_speculation(records, before))
    is_new = not has_plan(storage)
    if is_new:
        options.before_plan(spec)
        summary = _planned(spec, target, storage, options, say)
        require_healthy(examine_lengths(spec, target, storage), say)
        claim_seen = refuse_if_held(storage, options.take_over)  # planning takes time, and others start meanwhile
    else:
        summary = planned_before(spec, target, storage, options)
    options.lap("plan")
    return Begun(storage, record, summary, _setup(record, target, storage, options, changes, claim_seen), is_new)


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
    return build_plan(spec, target, storage, new_session(), options.processes, planning_progress(say))


def planning_progress(say: Say) -> Callable[[str, int], None]:
    """Tells every few seconds how far planning is."""
    said_at = time.monotonic()

    def tell(source: str, rows: int) -> None:
        nonlocal said_at
        if time.monotonic() - said_at >= PROGRESS_SECONDS:
            said_at = time.monotonic()
            say(f"planning: {source}: {rows:,} rows")

    return tell


def _frozen(spec: RunSpec, target: Target, storage: Storage, options: StartOptions) -> PlanSummary:
    """The frozen plan, whatever the sources are by now."""
    return open_plan(storage).summary


def _unchanged(spec: RunSpec, target: Target, storage: Storage, options: StartOptions) -> PlanSummary:
    """The frozen plan, if the sources still are what it was made from."""
    summary = open_plan(storage).summary
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
        " `regen extend SPEC` adds what is new; a new output folder plans anew."
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


def _say_what_is_odd(spec: RunSpec, target: Target, say: Say) -> None:
    if target.context_tokens is not None and spec.engine.max_model_len > target.context_tokens:
        say(
            f"warning: engine.max_model_len is {spec.engine.max_model_len}, and the target's config.json says"
            f" max_position_embeddings {target.context_tokens}: the engine may refuse, or answer badly beyond it"
        )


def _setup(
    record: RunRecord,
    target: Target,
    storage: Storage,
    options: StartOptions,
    changes: _Changes,
    claim_seen: str | None,
) -> WorkerSetup:
    session = new_session()
    run = RunSetup(
        spec=record.spec,
        run_url=storage.url,
        session=session,
        fingerprint=record.fingerprint,
        host=socket.gethostname(),
        boot_id=machine_identity(),
        driver_pid=os.getpid(),
        started_at=time_of_day(),
        take_over=options.take_over,
        temperature=highest_temperature(record),
        purpose=options.purpose,
        configured=configured_record(session, record.spec.speculation, changes.speculation_before),
        drift=drift_record(session, changes.drift, changes.before, record),
        claim_seen=claim_seen,
    )
    return worker_setup(run, target)


def aside_setup(record: RunRecord, target: Target, run_url: str, session: str) -> WorkerSetup:
    """For an engine beside any run (`regen evaluate`, `regen doctor`): it takes no part in one and claims nothing."""
    run = RunSetup(
        spec=record.spec,
        run_url=run_url,
        session=session,
        fingerprint=record.fingerprint,
        host=socket.gethostname(),
        boot_id=machine_identity(),
        driver_pid=os.getpid(),
        started_at=time_of_day(),
        take_over=False,
        temperature=highest_temperature(record),
    )
    return worker_setup(run, target)


def own_engine(setup: WorkerSetup) -> WorkerSetup:
    """In the slot of the first engine of the spec's own; its first server, where it has nothing else."""
    engine = setup.run.spec.engine
    return replace(setup, worker=WorkerId(len(engine.endpoints) if engine.own.max else 0, 0))


def worker_setup(run: RunSetup, target: Target) -> WorkerSetup:
    """What the first worker of this session is made with; others differ in their slot only."""
    is_local = Path(target.model).expanduser().is_dir()
    return WorkerSetup(
        run=run,
        worker=WorkerId(0, 0),
        assignment=Assignment(CONFIGURED if run.spec.speculation else OFF, run.spec.speculation),
        model_folder=target.folder,
        model=str(target.folder) if is_local else target.model,
        model_revision=None if is_local else target.commit,
        generation_config=dict(target.generation_config),
        eos_token_ids=target.eos_token_ids,
        answers=answer_format(run.spec, target.profile, target.template_source),
    )
