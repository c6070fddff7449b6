"""The coordinator: owns schedule, journal, metrics. One per run, beside the driver.

Guarantees: a row is settled only after its file was published; nothing is leased before the run is claimed; a fenced
coordinator never writes again; killed and made anew with the same setup, it comes back from the store and from what the
workers list, and no row is run twice for it.

The constructor does no I/O: the first call starts the work, and until the journal is replayed every answer is `wait`.
Blocking store calls run in a thread, one at a time. Memory: the plan's bitmaps, rows in flight, and at most
`checkpoint.uncommitted_bytes` of finished rows plus what was on its way when the cap was reached.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
import traceback
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar, cast

import pyarrow as pa
import pyarrow.compute as pc

from regen import rows
from regen.data.plan import open_plan
from regen.errors import Fenced, RegenError, StoreError, StoreUnavailable
from regen.observe.metrics import Endpoint, Snapshot
from regen.protocols import Plan
from regen.records import (
    Command,
    CoordinatorStatus,
    EngineCounters,
    ExchangeReply,
    ExchangeRequest,
    Lease,
    Observed,
    OutputRow,
    Phase,
    PlannedRow,
    ReplicaState,
    ReplicaStats,
    Role,
    Stage,
    Status,
    Totals,
    WorkerId,
)
from regen.run.schedule import Exhausted, Report, Schedule
from regen.run.setup import RunSetup
from regen.store.control import Claim, Released, ReleaseReason
from regen.store.holder import Holder, HolderState, write_holder
from regen.store.journal import Journal
from regen.store.machine import machine_identity, process_exists
from regen.store.storage import open_storage

T = TypeVar("T")

TICK_SECONDS = 0.2
BEAT_SECONDS = 2.0
# After a restart, so long is waited for replicas to say what they hold. One that starts an engine answers every second.
ADOPTION_SECONDS = 15.0
RETRY_FIRST_SECONDS, RETRY_LONGEST_SECONDS = 0.5, 30.0
# The breaker looks at shares only after so many rows: one failure of three is no share.
BREAKER_ROWS = 200
BREAKER_DRAIN_SECONDS = 60.0
_ENDED = (Phase.FINISHED, Phase.DRAINED, Phase.FAILED)


@dataclass(slots=True)
class _Buffer:
    """Finished rows that are not committed, as tables in `rows.SCHEMA`."""

    tables: list[pa.Table]
    rows: int = 0
    size_bytes: int = 0

    def add(self, table: pa.Table) -> None:
        self.tables.append(table)
        self.rows += table.num_rows
        self.size_bytes += table.nbytes


@dataclass(slots=True)
class _OpenRun:
    """What there is once the journal is replayed and the run claimed."""

    plan: Plan
    planned_by_source: Mapping[str, int]
    journal: Journal
    schedule: Schedule


class Coordinator:
    """See the module. Every public method may be called again with the same arguments: Ray repeats calls."""

    def __init__(self, setup: RunSetup) -> None:
        self._setup = setup
        self._spec = setup.spec
        self._incarnation = uuid.uuid4().hex
        self._phase = Phase.REPLAYING
        self._error: RegenError | None = None
        self._run: _OpenRun | None = None
        self._work: asyncio.Task[None] | None = None
        self._publication: asyncio.Task[None] | None = None
        self._opened_at = time.monotonic()
        self._replicas = dict.fromkeys(range(setup.spec.engine.replicas), _unheard(setup.spec.engine.slots))
        self._buffer = _Buffer([])
        self._publishing = _Buffer([])
        self._session_rows = 0
        self._session_output_tokens = 0
        self._last_commit_at = time.monotonic()
        self._last_beat_at = float("-inf")
        self._beat = 0
        self._drain_until: float | None = None
        self._endpoint: Endpoint | None = None
        self._is_beside_driver = setup.boot_id == machine_identity()

    # --- calls -----------------------------------------------------------------------------------

    async def exchange(self, request: ExchangeRequest) -> ExchangeReply:
        """One worker's listing against what is known: see `records.ExchangeRequest` and `run/schedule.py`."""
        self._ensure_working()
        if self._phase in _ENDED:
            return ExchangeReply(Command.STOP)
        if (run := self._run) is None:
            return ExchangeReply(Command.WAIT)
        table = rows.from_bytes(request.finished) if request.finished else None
        orders = run.schedule.report(_report(request, table), time.monotonic(), self._may_lease())
        if orders.superseded:
            return ExchangeReply(Command.STOP)
        self._replicas[request.worker.slot] = request.stats
        if table is not None:
            self._take_in(table, orders.accepted)
        for exhausted in orders.exhausted:
            self._write_down_failed(run.plan, exhausted, request.worker)
        granted = run.plan.rows([grant.ordinal for grant in orders.grants])
        leases = tuple(Lease(row, 0, grant.attempt) for row, grant in zip(granted, orders.grants, strict=True))
        return ExchangeReply(self._command(), orders.settled, orders.resend, leases)

    async def status(self) -> CoordinatorStatus:
        """What is known now. The first call starts the work."""
        self._ensure_working()
        return self._status()

    async def drain(self, seconds: float) -> None:
        """Hand out nothing more, publish at once, and leave after `seconds` or when all that runs has finished.

        Called again it can only shorten the drain.
        """
        self._ensure_working()
        self._begin_drain(time.monotonic() + seconds)

    async def worker_gone(self, worker: WorkerId) -> None:
        """The driver saw this incarnation die."""
        self._replicas[worker.slot] = _unheard(self._spec.engine.slots)
        if self._run is not None:
            self._run.schedule.worker_gone(worker)

    async def close(self) -> None:
        """Stop at once, publishing nothing: what a kill does, for coordinators that share a process with others."""
        tasks = [task for task in (self._work, self._publication) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._close_endpoint()

    # --- the work --------------------------------------------------------------------------------

    def _ensure_working(self) -> None:
        if self._work is None:
            self._work = asyncio.ensure_future(self._live())

    async def _live(self) -> None:
        """Open, tick until the end, leave word. Whatever goes wrong is the run's error, for the driver to raise."""
        try:
            self._run = run = await self._open()
            await self._serve_metrics(run)
            while not await self._step(run):
                await asyncio.sleep(TICK_SECONDS)
            await self._leave_word(run)
        except RegenError as error:
            self._error = self._error or error
        except Exception as error:  # a defect: it ends the run, with its trace in this process's log
            traceback.print_exc()
            self._error = self._error or RegenError(f"the coordinator failed: {type(error).__name__}: {error}")
        self._phase = Phase.FAILED if self._error else self._ending_phase()
        await self._leave_holder()
        self._close_endpoint()

    async def _open(self) -> _OpenRun:
        """Replay, then claim: nothing is leased before."""
        storage = self._storage = open_storage(self._setup.run_url)
        plan = await asyncio.to_thread(open_plan, storage)
        journal = Journal(storage, self._setup.session, plan.count)
        replayed = await asyncio.to_thread(journal.replay, plan.refused())
        is_restart = replayed.newest_claim is not None and replayed.newest_claim.session == self._setup.session
        take = journal.resume_own if is_restart else journal.claim
        await self._patiently(lambda: take(self._claim()))
        if self._setup.drift is not None and not is_restart:
            prepared = await asyncio.to_thread(journal.prepare, rows.SCHEMA.empty_table(), [self._setup.drift])
            await self._patiently(lambda: journal.commit(prepared))
        schedule = Schedule(
            journal.done,
            self._spec.limits.attempts,
            expected_slots=range(self._spec.engine.replicas) if is_restart else (),
            adopt_until=time.monotonic() + ADOPTION_SECONDS,
        )
        return _OpenRun(plan, {source.name: source.rows for source in plan.summary.sources}, journal, schedule)

    async def _step(self, run: _OpenRun) -> bool:
        """One tick. True when the run has ended for this session."""
        now = time.monotonic()
        run.schedule.tick(now)
        self._obey_limits(run, now)
        self._phase = self._working_phase(run, now)
        await self._publish_if_due(run, now)
        await self._keep_beat(now)
        return self._has_ended(run, now)

    async def _publish_if_due(self, run: _OpenRun, now: float) -> None:
        """At most one publication at a time; its error is this coordinator's error."""
        if self._publication is not None and self._publication.done():
            publication, self._publication = self._publication, None
            publication.result()
        if self._publication is None and self._must_publish(run, now):
            self._publication = asyncio.ensure_future(self._publish(run))

    def _must_publish(self, run: _OpenRun, now: float) -> bool:
        checkpoint = self._spec.checkpoint
        is_due = now - self._last_commit_at >= checkpoint.interval_seconds
        if not self._buffer.rows:
            return is_due  # without rows an interval still looks whether the next number is free
        return (
            is_due
            or self._buffer.size_bytes >= checkpoint.max_bytes
            or self._drain_until is not None
            or run.schedule.left == run.schedule.received
        )

    async def _publish(self, run: _OpenRun) -> None:
        self._publishing, self._buffer = self._buffer, _Buffer([])
        if not self._publishing.rows:
            await self._patiently(run.journal.check_fence)
        else:
            table = pa.concat_tables(self._publishing.tables)
            prepared = await asyncio.to_thread(run.journal.prepare, table)
            await self._patiently(lambda: run.journal.commit(prepared))
            run.schedule.committed(_ordinals(table))
        self._publishing = _Buffer([])
        self._last_commit_at = time.monotonic()

    async def _patiently(self, call: Callable[[], T]) -> T:
        """The same call until the store is back or a drain is over. Generation goes on meanwhile, up to the cap."""
        wait_seconds = RETRY_FIRST_SECONDS
        while True:
            try:
                return await asyncio.to_thread(call)
            except StoreUnavailable:
                if self._drain_is_over(time.monotonic()):
                    raise
                await asyncio.sleep(wait_seconds * random.uniform(0.5, 1.5))
                wait_seconds = min(RETRY_LONGEST_SECONDS, wait_seconds * 2)

    def _has_ended(self, run: _OpenRun, now: float) -> bool:
        if self._publication is not None:
            return False
        if run.schedule.is_finished:
            return True
        is_drained = run.schedule.in_flight == 0 and run.schedule.received == 0
        return self._drain_until is not None and not self._buffer.rows and (is_drained or self._drain_is_over(now))

    async def _leave_word(self, run: _OpenRun) -> None:
        reason = ReleaseReason(self._ending_phase().value)
        released = Released(self._setup.session, reason, _time_of_day())
        prepared = await asyncio.to_thread(run.journal.prepare, rows.SCHEMA.empty_table(), [released])
        await self._patiently(lambda: run.journal.commit(prepared))

    async def _leave_holder(self) -> None:
        """The session is over for starters too, unless somebody else holds the run now."""
        if self._run is None or isinstance(self._error, Fenced):
            return
        with suppress(StoreError):
            await asyncio.to_thread(write_holder, self._storage, self._holder(HolderState(self._phase.value)))

    # --- decisions -------------------------------------------------------------------------------

    def _may_lease(self) -> bool:
        uncommitted = self._buffer.size_bytes + self._publishing.size_bytes
        return self._drain_until is None and uncommitted < self._spec.checkpoint.uncommitted_bytes

    def _command(self) -> Command:
        return Command.WORK if self._drain_until is None else Command.DRAIN

    def _begin_drain(self, until: float) -> None:
        """A later call may only shorten the drain."""
        self._drain_until = min(until, self._drain_until if self._drain_until is not None else until)

    def _drain_is_over(self, now: float) -> bool:
        return self._drain_until is not None and now > self._drain_until

    def _driver_is_gone(self) -> bool:
        return self._is_beside_driver and not process_exists(self._setup.driver_pid)

    def _working_phase(self, run: _OpenRun, now: float) -> Phase:
        if self._drain_until is not None:
            return Phase.DRAINING
        return Phase.ADOPTING if run.schedule.is_adopting(now) else Phase.RUNNING

    def _ending_phase(self) -> Phase:
        if self._error is not None:
            return Phase.FAILED
        return Phase.FINISHED if self._run is not None and self._run.schedule.is_finished else Phase.DRAINED

    def _obey_limits(self, run: _OpenRun, now: float) -> None:
        """All of these drain: what is finished is published before the session ends."""
        limits = self._spec.limits
        if self._driver_is_gone():
            self._begin_drain(now)  # Ray ends this process too, seconds after its creator: publish while there is time
        if limits.hours is not None and now - self._opened_at > limits.hours * 3600 and self._drain_until is None:
            self._begin_drain(now + BREAKER_DRAIN_SECONDS)
        if self._error is None and (error := _too_many_failed(run.journal.totals, limits.failed_share)) is not None:
            self._error = error
            self._begin_drain(now + BREAKER_DRAIN_SECONDS)

    # --- rows ------------------------------------------------------------------------------------

    def _take_in(self, table: pa.Table, accepted: frozenset[int]) -> None:
        ordinals = _ordinals(table)
        kept = [index for index, ordinal in enumerate(ordinals) if ordinal in accepted]
        if not kept:
            return
        table = table if len(kept) == len(ordinals) else table.take(kept)
        self._buffer.add(table)
        self._session_rows += table.num_rows
        self._session_output_tokens += _completion_tokens(table)

    def _write_down_failed(self, plan: Plan, exhausted: Exhausted, worker: WorkerId) -> None:
        (planned,) = plan.rows([exhausted.ordinal])
        self._buffer.add(rows.to_table([self._failed_row(planned, exhausted, worker)]))

    def _failed_row(self, planned: PlannedRow, exhausted: Exhausted, worker: WorkerId) -> OutputRow:
        conversation = planned.conversation
        assert conversation is not None, "refused rows are never leased"
        first_slot = next(i for i, message in enumerate(conversation.messages) if message.role is Role.ASSISTANT)
        return OutputRow(
            ordinal=planned.ordinal,
            row_id=planned.row_id,
            source=planned.source,
            location=planned.location,
            source_id=planned.source_id,
            status=Status.FAILED,
            round=0,
            messages=conversation.messages[:first_slot],
            generations=(),
            observed=Observed(worker.slot, self._setup.session, exhausted.attempts, "", None, self._setup.fingerprint),
            tools_json=conversation.tools_json,
            template_kwargs_json=conversation.template_kwargs_json,
            stage=Stage.GENERATE,
            reason=exhausted.reason,
            detail=exhausted.detail,
        )

    # --- what others see -------------------------------------------------------------------------

    def _status(self) -> CoordinatorStatus:
        run = self._run
        return CoordinatorStatus(
            incarnation=self._incarnation,
            phase=self._phase,
            planned=run.plan.count if run else 0,
            totals=run.journal.totals if run else Totals(),
            in_flight=run.schedule.in_flight if run else 0,
            uncommitted_rows=self._buffer.rows + self._publishing.rows,
            commits=run.journal.next_number if run else 0,
            replicas=dict(self._replicas),
            session_output_tokens=self._session_output_tokens,
            session_rows=self._session_rows,
            session_seconds=time.monotonic() - self._opened_at,
            metrics_url=self._endpoint.url if self._endpoint else None,
            error=self._error,
        )

    async def _serve_metrics(self, run: _OpenRun) -> None:
        metrics = self._spec.metrics
        if metrics.port is not None:
            self._endpoint = Endpoint(metrics.host, metrics.port, lambda: self._snapshot(run))
            await asyncio.to_thread(self._endpoint.check)

    def _snapshot(self, run: _OpenRun) -> Snapshot:
        return Snapshot(self._status(), run.planned_by_source, time.monotonic() - self._last_commit_at)

    def _close_endpoint(self) -> None:
        if self._endpoint is not None:
            self._endpoint.close()
            self._endpoint = None

    def _claim(self) -> Claim:
        setup = self._setup
        return Claim(setup.session, setup.host, os.getpid(), setup.driver_pid, setup.started_at, setup.take_over)

    async def _keep_beat(self, now: float) -> None:
        """holder.json is for people and starters; that it cannot be written stops nothing: publishing decides."""
        if now - self._last_beat_at < BEAT_SECONDS:
            return
        self._last_beat_at = now
        self._beat += 1
        with suppress(StoreUnavailable):
            await asyncio.to_thread(write_holder, self._storage, self._holder(HolderState.RUNNING))

    def _holder(self, state: HolderState) -> Holder:
        setup = self._setup
        return Holder(
            session=setup.session,
            host=setup.host,
            boot_id=setup.boot_id,
            coordinator_pid=os.getpid(),
            driver_pid=setup.driver_pid,
            started_at=setup.started_at,
            beat=self._beat,
            beat_at=_time_of_day(),
            state=state,
        )


def _report(request: ExchangeRequest, table: pa.Table | None) -> Report:
    return Report(
        worker=request.worker,
        seq=request.seq,
        running=request.running,
        awaiting=request.awaiting,
        finished=() if table is None else tuple(_ordinals(table)),
        failed=request.failed,
        free_slots=request.free_slots,
    )


def _unheard(slots: int) -> ReplicaStats:
    """A replica that has said nothing yet: it is shown from the first moment, with zeros."""
    return ReplicaStats(ReplicaState.STARTING, slots, 0, 0.0, EngineCounters())


def _too_many_failed(totals: Totals, allowed_share: float | None) -> RegenError | None:
    counts = totals.by_status()
    failed, finished = counts[Status.FAILED], sum(counts.values()) - counts[Status.REJECTED]
    if allowed_share is None or finished < BREAKER_ROWS or failed <= allowed_share * finished:
        return None
    return RegenError(
        f"{failed} of {finished} finished rows failed, more than limits.failed_share ({allowed_share:g})."
        " `regen status` shows the commonest reasons. Nothing is lost: mend the cause and continue the run,"
        " or raise the limit."
    )


def _ordinals(table: pa.Table) -> list[int]:
    return cast(list[int], table.column("ordinal").to_pylist())  # never null in rows.SCHEMA


def _completion_tokens(table: pa.Table) -> int:
    generations = pc.list_flatten(table.column("generations"))
    return int(pc.sum(pc.list_value_length(pc.struct_field(generations, "completion_token_ids"))).as_py() or 0)


def _time_of_day() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
