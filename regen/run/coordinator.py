"""The coordinator: owns schedule, journal, metrics. One per run, beside the driver.

Guarantees: a row is settled only after its file was published; nothing is leased before the run is claimed; a fenced
coordinator never writes again; killed and made anew with the same setup, it comes back from the store and from what the
workers list, and no row is run twice for it.

The constructor does no I/O: the first call starts the work, and until the journal is replayed every answer is `wait`.
Store calls run in threads. Memory: the plan's bitmaps, rows in flight, and at most `checkpoint.uncommitted_bytes` of
finished rows plus what was on its way when the cap was reached.
"""

from __future__ import annotations

import asyncio
import os
import time
import traceback
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar, cast

import pyarrow as pa

from regen import rows
from regen.data.plan import open_plan
from regen.errors import Fenced, RegenError, RunHeld, StoreError, StoreUnavailable, UserError
from regen.observe.endpoint import Endpoint, Page, told_awaited
from regen.observe.snapshot import Snapshot
from regen.protocols import Storage
from regen.records import (
    ENDED_PHASES,
    Command,
    CoordinatorStatus,
    Death,
    Eta,
    EtaState,
    ExchangeReply,
    ExchangeRequest,
    GenerationSteps,
    Lease,
    Phase,
    Places,
    PlannedRow,
    ReplicaState,
    SpeculationStatus,
    Status,
    Tally,
    Toll,
    Totals,
    WorkerId,
)
from regen.run.conversations.failed_rows import failed_row
from regen.run.credential_watch import CredentialWatch
from regen.run.fleet.duty import FleetDuty, Outlook
from regen.run.fleet.garbage_duty import Dismissal, GarbageDuty
from regen.run.fleet.limits import too_many_failed
from regen.run.heartbeat import Heartbeat
from regen.run.held import refuse_newcomer
from regen.run.open_run import OpenRun, opened_schedule
from regen.run.order_duty import OrderDuty
from regen.run.page.facts import read_about
from regen.run.page.live import Glance, LivePage
from regen.run.patience import Patience
from regen.run.progress.duty import ProgressDuty
from regen.run.progress.run_facts import deadline_seconds, gpus_of, run_facts
from regen.run.progress.tally import RunningTally, restarted, sequences
from regen.run.publisher import Publisher, ordinals
from regen.run.schedule import Exhausted, Orders, Report
from regen.run.setup import Assignment, RunSetup
from regen.run.speculation.control import SpeculationControl
from regen.store.control import Claim, Record, Released, ReleaseReason, RowAttempts
from regen.store.holder import HolderProgress, HolderState, heartbeat
from regen.store.journal import Journal
from regen.store.machine import machine_identity, process_exists, utc_now
from regen.store.pilot_files import steps_key, steps_to_bytes
from regen.store.reopened import Reopened
from regen.store.replay import Replayed
from regen.store.storage import near, open_storage

TICK_SECONDS = 0.2
# When too many rows fail, what runs gets so long to end.
BREAKER_DRAIN_SECONDS = 60.0
# When speculation is what ends the run.
SPECULATION_DRAIN_SECONDS = 60.0
# So long a scrape waits for the loop to give it its numbers.
_SNAPSHOT_SECONDS = 5.0
# A port that was taken after a restart is tried for again so often.
_PORT_SECONDS = 10.0
_FEWEST_WARMUP_ROWS = 8

T = TypeVar("T")


class Coordinator:
    """See the module. Every public method may be called again with the same arguments: Ray repeats calls."""

    def __init__(self, setup: RunSetup) -> None:
        self._setup = setup
        self._spec = setup.spec
        self._incarnation = uuid.uuid4().hex
        self._phase = Phase.REPLAYING
        self._error: RegenError | None = None
        self._patience = Patience()
        self._storage: Storage | None = None
        self._run: OpenRun | None = None
        self._work: asyncio.Task[None] | None = None
        self._opened_at, self._opened_at_utc = time.monotonic(), datetime.now(UTC)
        self._duty = FleetDuty(setup.spec.engine)
        self._fleet = self._duty.fleet
        self._exhausted: list[tuple[Exhausted, WorkerId]] = []
        self._gone_early: list[tuple[WorkerId, bool]] = []
        self._leasing_since: float | None = None
        self._steps: list[GenerationSteps] = []
        self._session_rows = 0
        self._session_output_tokens = 0
        self._loop_lag_seconds = 0.0
        self._heartbeat: Heartbeat | None = None
        self._drain_until: float | None = None
        self._endpoint: Endpoint | None = None
        self._page_work: asyncio.Task[None] | None = None
        self._port_work: asyncio.Task[None] | None = None
        self._is_beside_driver = setup.boot_id == machine_identity()

    # --- calls -----------------------------------------------------------------------------------

    async def exchange(self, request: ExchangeRequest) -> ExchangeReply:
        """One worker's listing against what is known: see `records.ExchangeRequest` and `run/schedule.py`."""
        self._ensure_working()
        if self._phase in ENDED_PHASES or request.session != self._setup.session:
            return ExchangeReply(Command.STOP)
        if (run := self._run) is None:
            return ExchangeReply(Command.WAIT)
        run.tally.heard(request.worker, request.stats.counters)
        if (why := run.garbage.why_dismissed(request.worker)) is not None:
            return ExchangeReply(Command.DISMISS, why=why)
        table = rows.from_bytes(request.finished) if request.finished else None
        outdated = _outdated(run.reopened, table)
        if outdated and table is not None:
            table = table.filter(pa.array([ordinal not in outdated for ordinal in ordinals(table)]))
        now = time.monotonic()
        orders = run.schedule.report(_report(request, table), now, self._may_lease(run))
        if orders.superseded:
            return ExchangeReply(Command.STOP)
        self._hear(run, request, now)
        run.tally.failed(request.worker.slot, orders.failed)
        self._exhausted.extend((exhausted, request.worker) for exhausted in orders.exhausted)
        if table is not None:
            self._steps += [seen for seen in request.steps if seen.ordinal in orders.accepted]
            if (why := self._take_in(run, request.worker, table, orders.accepted)) is not None:
                return ExchangeReply(Command.DISMISS, why=why)
        command = self._command(run, request.worker)
        leases = await self._leases(run, request.worker, orders, command)
        warmup = await self._warmup_rows(run) if request.wants_warmup else None
        return ExchangeReply(command, (*orders.settled, *outdated), orders.resend, leases, warmup)

    async def assignment(self, slot: int) -> Assignment | None:
        """With what this slot's next engine is started; None while none is: before the replay, in a drain, in a slot
        that is closed.
        """
        self._ensure_working()
        if self._run is None or self._drain_until is not None or slot not in self._duty.open_slots:
            return None
        return self._run.speculation.assignment(slot)

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

    async def worker_gone(
        self, worker: WorkerId, death: Death | None = None, is_released: bool = False, is_to_blame: bool = True
    ) -> Toll:
        """The driver saw this incarnation end; `death`: in a way that its rows may have brought about; `is_released`:
        it has left, since nobody wanted it; `is_to_blame`: it has failed, and nobody took its node or server away.

        A coordinator that is still replaying knows of no rows: then the death is only one more.
        """
        self._duty.gone(worker, is_released, time.monotonic())
        is_stall = death is not None and death.is_stall
        if (run := self._run) is None:
            self._gone_early.append((worker, is_stall))
            return Toll()
        run.tally.gone(worker, is_stall)
        farewell = run.schedule.worker_gone(worker, death if self._drain_until is None else None)
        self._exhausted.extend((exhausted, worker) for exhausted in farewell.exhausted)
        run.speculation.worker_gone(worker, is_to_blame)
        run.garbage.gone(worker)
        run.progress.gone(worker.slot)
        return farewell.toll

    async def places(self, places: Places) -> None:
        """Where the driver has engines, and where none comes any more. A restarted coordinator waits for it."""
        self._ensure_working()
        now = time.monotonic()
        self._duty.told(places, now)
        if (run := self._run) is not None:
            run.schedule.expect(places.placed)
            self._look_after_fleet(run, now)

    async def farewell(self) -> str | None:
        """All workers have left. Who has yet to scrape the final numbers, for people; None: nobody is waited for.

        One that was restarted meanwhile waits for nobody, and begins nothing.
        """
        if self._endpoint is None or isinstance(self._error, Fenced | RunHeld):
            return None
        awaited = self._endpoint.farewell(self._spec.metrics.hold_seconds)
        return None if awaited is None else told_awaited(self._endpoint.url, awaited)

    async def close(self) -> None:
        """Stop at once, publishing nothing: what a kill does, for coordinators that share a process with others."""
        for task in (self._work, self._page_work, self._port_work):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if self._heartbeat is not None:
            await self._heartbeat.cancel()
        if (run := self._run) is not None:
            for duty in (run.progress, run.order, run.credentials, run.publisher):
                await duty.cancel()
        if self._endpoint is not None:
            endpoint, self._endpoint = self._endpoint, None
            await asyncio.to_thread(endpoint.close)

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
                slept_at = time.monotonic()
                await asyncio.sleep(TICK_SECONDS)
                self._loop_lag_seconds = max(0.0, time.monotonic() - slept_at - TICK_SECONDS)
            await self._write_steps()
            await run.publisher.write([self._released()])
        except (Fenced, RunHeld) as error:
            self._error = await self._told_by_whom(error)
        except RegenError as error:
            self._error = self._error or error
        except Exception as error:  # a defect: it ends the run, with its trace in this process's log
            traceback.print_exc()
            self._error = self._error or RegenError(f"the coordinator failed: {type(error).__name__}: {error}")
        for task in (self._page_work, self._port_work):
            if task is not None:
                task.cancel()
        self._phase = self._ending_phase()
        await self._leave_holder()
        if self._endpoint is not None:
            self._endpoint.release()

    async def _open(self) -> OpenRun:
        """Replay, then claim: nothing is leased before. Waits for a store that is away."""
        storage = self._storage = open_storage(self._setup.run_url, self._spec.store)
        self._heartbeat = Heartbeat(self._setup, storage, self._holder_progress)
        plan = await self._patience(lambda: open_plan(near(storage)))  # rows go out while the store is away
        journal = Journal(storage, self._setup.session, plan.count)
        replayed = await self._patience(lambda: journal.replay(plan.settled()))
        is_restart = replayed.newest_claim is not None and replayed.newest_claim.session == self._setup.session
        if not is_restart:
            refuse_newcomer(replayed, self._setup.claim_seen, storage.url)
        if is_restart:
            also = partial(restarted, self._setup.session)
            await self._patience(lambda: journal.resume_own(self._claim(), also))
        else:
            await self._patience(lambda: journal.claim(self._claim()))
        await self._patience(storage.sweep)
        reopened = await asyncio.to_thread(journal.reopened)
        schedule = opened_schedule(self._setup, journal, reopened, is_restart)
        if self._duty.places is not None:
            schedule.expect(self._duty.places.placed)
        session, checkpoint = self._setup.session, self._spec.checkpoint
        tally = RunningTally(session, journal.records)
        for worker, is_stall in self._gone_early:
            tally.gone(worker, is_stall)
        publisher = Publisher(journal, schedule, checkpoint, self._patience, session, reopened, tally)
        if unwritten := self._unwritten(replayed):
            await publisher.write(unwritten)
        speculation = SpeculationControl(self._setup, replayed.records)
        engine = self._spec.engine
        garbage = GarbageDuty(engine.slots, plan.count, replayed.records)
        by_source = {source.name: source.rows for source in plan.summary.sources}
        # Looking for rows that were interrupted takes up to two seconds of a plan of millions.
        progress = await asyncio.to_thread(ProgressDuty, self._setup, plan, journal, reopened, is_restart)
        return OpenRun(
            plan,
            by_source,
            journal,
            schedule,
            publisher,
            speculation,
            journal.totals,
            is_restart,
            garbage,
            tally,
            progress,
            self._heartbeat,
            CredentialWatch(storage),
            OrderDuty(plan, schedule),
        )

    def _unwritten(self, replayed: Replayed) -> list[Record]:
        """What the start has brought and the journal does not have yet."""
        brought = (self._setup.drift, self._setup.configured)
        return [record for record in brought if record is not None and record not in replayed.records]

    async def _step(self, run: OpenRun) -> bool:
        """One tick. True when the run has ended for this session."""
        now = time.monotonic()
        run.schedule.tick(now)
        run.progress.tick(now, self._fleet, run.schedule.left - run.schedule.received)
        run.order.tick(now, self._fleet.slots, run.totals.by_source)
        self._look_after_fleet(run, now)
        self._look_after_speculation(run, now)
        self._look_after_driver(now)
        self._look_for_failures(run, now)
        self._phase = self._working_phase(run, now)
        await self._write_down_exhausted(run)
        self._note_trouble(run)
        self._keep_tally(run, now)
        await run.publisher.turn(now, at_once=self._drain_until is not None or self._is_awaited(run))
        run.heartbeat.keep(now, run.publisher.look_at_once)
        run.credentials.tick(now)
        return self._has_ended(run, now)

    def _has_ended(self, run: OpenRun, now: float) -> bool:
        if not run.publisher.is_idle:
            return False
        if run.schedule.is_finished:
            return True
        if self._drain_until is None or run.schedule.is_adopting(now):
            return False
        return now > self._drain_until or (run.schedule.in_flight == 0 and run.schedule.received == 0)

    async def _write_steps(self) -> None:
        """What a pilot's page colours tokens by, and no part of the run: it may be lost, also with this process."""
        if self._steps and self._storage is not None:
            key = steps_key(self._setup.session, self._incarnation)
            with suppress(StoreError):
                await asyncio.to_thread(self._storage.replace, key, steps_to_bytes(self._steps))

    async def _told_by_whom(self, error: Fenced | RunHeld) -> RegenError:
        """The loser's error, with the age of the other's heartbeat."""
        assert self._storage is not None, "the store has said so"
        seen = await asyncio.to_thread(heartbeat, self._storage, self._setup.session, datetime.now(UTC))
        return type(error)(f"{error} ({seen})")

    async def _leave_holder(self) -> None:
        """The session is over for starters too, unless somebody else holds the run now."""
        if self._heartbeat is not None and not isinstance(self._error, Fenced | RunHeld):
            await self._heartbeat.leave(HolderState(self._phase.value))

    # --- decisions -------------------------------------------------------------------------------

    def _may_lease(self, run: OpenRun) -> bool:
        is_below_cap = run.publisher.uncommitted_bytes < self._spec.checkpoint.uncommitted_bytes
        may_begin = run.speculation.error is None and not run.speculation.has_what_it_came_for
        return self._drain_until is None and is_below_cap and may_begin

    def _command(self, run: OpenRun, worker: WorkerId) -> Command:
        if self._drain_until is not None:
            return Command.DRAIN
        return Command.RELEASE if self._duty.is_to_leave(worker.slot) else run.speculation.command(worker)

    def _look_after_fleet(self, run: OpenRun, now: float) -> None:
        """Which slots are open. After a restart nothing is opened or released before it is known what there is."""
        is_told = self._duty.places is not None or not run.is_restart or self._spec.engine.is_fixed
        if self._drain_until is not None or not is_told or run.schedule.is_adopting(now):
            return
        seconds_left = self._within_hours(run.progress.eta(now).mid_seconds, now)
        moves = self._duty.look(run.schedule, Outlook(run.speculation.is_comparing, seconds_left), now)
        run.speculation.slots_open(self._duty.there, now)
        for slot in sorted(moves.opened):
            run.schedule.slot_opened(slot)
        for slot in sorted(moves.closed):
            run.schedule.slot_closed(slot)
        for slot in sorted(moves.lost):
            run.schedule.slot_lost(slot)
            run.speculation.slot_lost(slot)

    def _look_after_speculation(self, run: OpenRun, now: float) -> None:
        """What was decided goes into the journal; a failure ends the run, and so does the end of `regen calibrate`."""
        seconds_left = self._within_hours(run.progress.eta(now).mid_seconds, now)
        run.speculation.tick(now, seconds_left, self._row_seconds(run, now))
        run.publisher.note(run.speculation.unwritten(utc_now()))
        error = run.speculation.error
        if self._drain_until is None and (error is not None or run.speculation.has_what_it_came_for):
            self._error = self._error or error
            self._begin_drain(now + SPECULATION_DRAIN_SECONDS)

    def _within_hours(self, seconds_left: float | None, now: float) -> float | None:
        hours = self._spec.limits.hours
        if hours is None or seconds_left is None:
            return seconds_left
        return min(seconds_left, max(0.0, self._hours_end_at(hours) - now))

    def _hours_end_at(self, hours: float) -> float:
        """They began with the session, and not with this coordinator."""
        before = self._opened_at_utc - datetime.fromisoformat(self._setup.started_at)
        return self._opened_at + hours * 3600 - before.total_seconds()

    def _row_seconds(self, run: OpenRun, now: float) -> float:
        """How long a row takes: rows at work, over rows that end in a second."""
        if self._leasing_since is None or not self._session_rows:
            return 0.0
        return run.schedule.in_flight * (now - self._leasing_since) / self._session_rows

    def _is_awaited(self, run: OpenRun) -> bool:
        """An engine that is to be replaced has ended its rows and waits for their commit: every second counts there."""
        return bool(run.publisher.uncommitted_rows) and self._fleet.has_idle_drainer()

    def _begin_drain(self, until: float) -> None:
        """A later call may only shorten the drain. The store gets no more time than the rows."""
        self._drain_until = min(until, self._drain_until if self._drain_until is not None else until)
        self._patience.give_up_at = self._drain_until

    def _working_phase(self, run: OpenRun, now: float) -> Phase:
        if self._drain_until is not None:
            return Phase.DRAINING
        return Phase.ADOPTING if run.schedule.is_adopting(now) else Phase.RUNNING

    def _ending_phase(self) -> Phase:
        if self._error is not None:
            return Phase.FAILED
        return Phase.FINISHED if self._run is not None and not self._run.schedule.plan_left else Phase.DRAINED

    def _look_after_driver(self, now: float) -> None:
        """Ray ends this process too, seconds after its creator: publish while there is time."""
        if self._is_beside_driver and not process_exists(self._setup.driver_pid):
            self._begin_drain(now)

    def _look_for_failures(self, run: OpenRun, now: float) -> None:
        limits = self._spec.limits
        error = too_many_failed(run.totals_at_start, run.totals, limits.failed_share)
        error = error or run.garbage.too_much_garbage(limits.degenerate_share, len(self._duty.there))
        if self._error is None and error is not None:
            self._error = error
            self._begin_drain(now + BREAKER_DRAIN_SECONDS)

    # --- rows ------------------------------------------------------------------------------------

    def _hear(self, run: OpenRun, request: ExchangeRequest, now: float) -> None:
        """What a replica says of itself."""
        self._duty.hear(request.worker, request.stats, now)
        run.progress.listed(request.worker.slot, request.running, request.running_tokens)
        run.speculation.hear(request.worker, request.stats, now)

    def _take_in(self, run: OpenRun, worker: WorkerId, table: pa.Table, accepted: frozenset[int]) -> str | None:
        """Accepted rows go on their way. Why the worker is dismissed, if they show that its answers are garbage."""
        kept = [index for index, ordinal in enumerate(ordinals(table)) if ordinal in accepted]
        run.progress.finished(table, accepted)
        if len(run.reopened.pending):
            kept = [index for index in kept if not self._is_fruitless(run, table, index)]
        if not kept:
            return None
        table = table if len(kept) == table.num_rows else table.take(kept)
        run.publisher.add(table)
        self._session_rows += table.num_rows
        self._session_output_tokens += sum(tokens or 0 for tokens in rows.output_tokens(table))
        for seen in rows.seen_generations(table) if run.speculation.is_on else ():
            if seen.status is not Status.DEGENERATE:  # a loop is easy to draft, and tells nothing
                run.speculation.generation(worker.slot, seen.source, seen.prompt_tokens, seen.acceptance)
        dismissal = run.garbage.finished(worker, rows.garbage_labels(table))
        if dismissal is None:
            return None
        self._dismiss(run, dismissal)
        return dismissal.why

    def _dismiss(self, run: OpenRun, dismissal: Dismissal) -> None:
        """What the engine holds is dropped; what it has made lately is made again, and never committed if possible."""
        run.schedule.dismiss(dismissal.worker)
        withdrawn = run.publisher.withdraw(frozenset(dismissal.doubtful))
        run.schedule.make_again(withdrawn)
        if committed := sorted(set(dismissal.doubtful).difference(withdrawn)):
            run.publisher.reopen(committed, run.plan.count, dismissal.asked)

    def _is_fruitless(self, run: OpenRun, table: pa.Table, index: int) -> bool:
        """A retry that was refused has no answer: the row keeps the one that it has, and this is noted."""
        ordinal, round_, status, reason = (
            table.column(name)[index].as_py() for name in ("ordinal", "round", "status", "reason")
        )
        if ordinal not in run.reopened.pending or status != Status.REJECTED:
            return False
        run.publisher.end_retry(ordinal, round_, status, reason or "")
        return True

    async def _leases(self, run: OpenRun, worker: WorkerId, orders: Orders, command: Command) -> tuple[Lease, ...]:
        """The granted rows, read from the plan. With the store away they go back, and the worker asks again.

        So they do when it is to leave. The answer to a repeated request may come after the first one, which had them:
        then the worker's next list says whether it has.
        """
        grants = orders.grants
        if command in (Command.REPLACE, Command.RELEASE):
            self._take_back(run, worker, orders)
            return ()
        if not grants:
            return ()
        self._leasing_since = self._leasing_since or time.monotonic()
        try:
            planned = await self._planned(run, [grant.ordinal for grant in grants])
        except StoreUnavailable:
            self._take_back(run, worker, orders)
            return ()
        leases = tuple(
            Lease(row, run.reopened.round_of(row.ordinal), grant.attempt, run.reopened.sampling_of(row.ordinal))
            for row, grant in zip(planned, grants, strict=True)
        )
        run.progress.leased(worker.slot, leases)
        return leases

    @staticmethod
    def _take_back(run: OpenRun, worker: WorkerId, orders: Orders) -> None:
        if not orders.is_repeat:
            run.schedule.take_back(worker, [grant.ordinal for grant in orders.grants])

    async def _warmup_rows(self, run: OpenRun) -> tuple[PlannedRow, ...] | None:
        """Rows of the plan to warm up with, spread over it: fewer where little is left to do."""
        speculation = self._spec.speculation
        if run.warmup is None and speculation is not None:
            wanted = min(speculation.warmup.rows, max(_FEWEST_WARMUP_ROWS, run.schedule.left // 4))
            try:
                run.warmup = await self._spread_rows(run, wanted)
            except StoreUnavailable:
                return None
        return run.warmup

    async def _spread_rows(self, run: OpenRun, wanted: int) -> tuple[PlannedRow, ...]:
        """Twice as many are looked at, since some are settled by the plan."""
        step = max(1, run.plan.count // (2 * wanted))
        planned = await self._planned(run, range(0, run.plan.count, step)[: 2 * wanted])
        usable = [row for row in planned if row.settled is None]
        return tuple(usable[:: max(1, len(usable) // wanted)][:wanted])

    async def _write_down_exhausted(self, run: OpenRun) -> None:
        """Rows whose attempts are used up become finished rows; with the store away they wait."""
        while self._exhausted:
            exhausted, worker = self._exhausted[0]
            round_ = run.reopened.round_of(exhausted.ordinal)
            if exhausted.ordinal in run.reopened.pending:
                run.publisher.end_retry(exhausted.ordinal, round_, Status.FAILED, exhausted.reason)
                self._exhausted.pop(0)
                continue
            try:
                (planned,) = await self._planned(run, [exhausted.ordinal])
            except StoreUnavailable:
                return
            run.progress.given_up(planned.ordinal, planned.source)
            run.publisher.add(rows.to_table([failed_row(planned, exhausted, worker, self._setup, round_)]))
            self._exhausted.pop(0)

    def _note_trouble(self, run: OpenRun) -> None:
        """What must be known of unfinished rows after this process: suspects at once, failed attempts with the next
        publication.
        """
        if (suspects := run.schedule.changed_suspects(self._setup.session)) is not None:
            run.publisher.note([suspects])
        if failures := run.schedule.changed_failures():
            counts = tuple((row, run.reopened.round_of(row), count) for row, count in sorted(failures.items()))
            run.publisher.attach([RowAttempts(counts)])

    def _keep_tally(self, run: OpenRun, now: float) -> None:
        """One that an earlier coordinator had is looked at once it was heard; one that waits for a node is not."""
        is_adopting = run.schedule.is_adopting(now)
        has_queue, may_lease = run.schedule.queued > run.schedule.suspects, self._may_lease(run) and not is_adopting
        slots = {
            slot: sequences(stats, has_queue, may_lease)
            for slot, stats in self._fleet.stats.items()
            if slot not in self._duty.pending_slots and (self._fleet.has_heard(slot) or not is_adopting)
        }
        unheard = [slot for slot in slots if not self._fleet.has_heard(slot)]
        run.tally.look(now, slots, partial(gpus_of, self._spec), unheard)
        run.tally.hung(run.schedule.hung(now))
        run.tally.store_failed(self._patience.failures)

    async def _planned(self, run: OpenRun, wanted: Sequence[int]) -> list[PlannedRow]:
        try:
            return await asyncio.to_thread(run.plan.rows, wanted)
        except StoreUnavailable as error:
            self._patience.failed(error)
            raise

    # --- what others see -------------------------------------------------------------------------

    def _status(self) -> CoordinatorStatus:
        run, now = self._run, time.monotonic()
        return CoordinatorStatus(
            incarnation=self._incarnation,
            phase=self._phase,
            planned=run.plan.count if run else 0,
            left=run.schedule.plan_left if run else 0,
            suspects=run.schedule.suspects if run else 0,
            totals=run.totals if run else Totals(),
            in_flight=run.schedule.in_flight if run else 0,
            uncommitted_rows=run.publisher.uncommitted_rows if run else 0,
            commits=run.journal.next_number if run else 0,
            replicas=dict(self._fleet.stats),
            open_slots=self._duty.open_slots,
            pending_slots=self._duty.pending_slots,
            hung=run.schedule.hung(now) if run else (),
            speculation=run.speculation.status() if run else SpeculationStatus(),
            session_output_tokens=self._session_output_tokens,
            session_sampled_tokens=self._fleet.sampled_tokens,
            session_paced_tokens=self._fleet.paced_tokens,
            session_rows=self._session_rows,
            session_seconds=now - self._opened_at,
            metrics_url=self._endpoint.url if self._endpoint else None,
            store_error=str(self._patience.error) if self._patience.error else None,
            error=self._error,
            dismissed=run.garbage.dismissed if run else (),
            tally=run.published_tally if run else Tally(),
            published=run.published if run else None,
            queued=run.schedule.queued if run else 0,
            reopened=run.reopened_left if run else 0,
            uncommitted_bytes=run.publisher.uncommitted_bytes if run else 0,
            useful_tokens_per_second=run.progress.tokens_per_second if run else None,
            eta=run.progress.eta(now) if run else Eta(EtaState.WARMING),
            loop_lag_seconds=self._loop_lag_seconds,
            last_commit_age_seconds=now - run.publisher.published_at if run else 0.0,
            credentials_seconds_left=run.credentials.seconds_left if run else None,
        )

    def _holder_progress(self) -> HolderProgress | None:
        run, now = self._run, time.monotonic()
        if run is None:
            return None
        return HolderProgress(
            at=utc_now(),
            phase=self._phase,
            eta=run.progress.eta(now),
            useful_tokens_per_second=run.progress.tokens_per_second,
            in_flight=run.schedule.in_flight,
            queued=run.schedule.queued,
            accept_length=self._fleet.accept_length,
        )

    async def _serve_metrics(self, run: OpenRun) -> None:
        """A port that cannot be had ends a run at its start. In the middle, after a restart, it is tried for aside."""
        metrics = self._spec.metrics
        if metrics.port is None:
            return
        loop = asyncio.get_running_loop()
        snapshot = _on_loop(loop, lambda: self._snapshot(run))
        make = partial(Endpoint, metrics.host, metrics.port, snapshot, await self._pages(run, loop))
        try:
            self._endpoint = await asyncio.to_thread(make)
            await asyncio.to_thread(self._endpoint.check)
        except UserError:
            if not run.is_restart:
                raise
            traceback.print_exc()
            if self._endpoint is None:
                self._port_work = asyncio.ensure_future(self._get_port(make))

    async def _get_port(self, make: Callable[[], Endpoint]) -> None:
        """Whoever has it may go: a predecessor's process that takes its time to end, say."""
        while self._endpoint is None:
            await asyncio.sleep(_PORT_SECONDS)
            with suppress(UserError):
                self._endpoint = await asyncio.to_thread(make)

    async def _pages(self, run: OpenRun, loop: asyncio.AbstractEventLoop) -> Mapping[str, Callable[[], Page]]:
        """What stands in run.json is there for people: that it cannot be read any more stops no run."""
        try:
            return (await self._live_page(run, loop)).routes()
        except RegenError:
            traceback.print_exc()
            return {}

    async def _live_page(self, run: OpenRun, loop: asyncio.AbstractEventLoop) -> LivePage:
        storage = self._storage
        assert storage is not None, "the run is open"
        about = await self._patience(lambda: read_about(storage, self._spec))
        page = LivePage(about, self._setup.session, _on_loop(loop, lambda: self._glance(run)))
        work = page.keep(storage, lambda: self._glance(run), lambda: run.reopened, self._spec.metrics.samples)
        self._page_work = asyncio.ensure_future(work)
        return page

    def _glance(self, run: OpenRun) -> Glance:
        return Glance(time.time(), self._status(), run.journal.records, self._deadline_seconds())

    def _snapshot(self, run: OpenRun) -> Snapshot:
        return Snapshot(self._status(), run.planned_by_source, run_facts(self._spec), self._deadline_seconds())

    def _deadline_seconds(self) -> float | None:
        return deadline_seconds(self._setup.started_at, self._spec.limits.hours, datetime.now(UTC))

    def _claim(self) -> Claim:
        setup = self._setup
        return Claim(setup.session, setup.host, os.getpid(), setup.driver_pid, setup.started_at, setup.take_over)

    def _released(self) -> Record:
        return Released(self._setup.session, ReleaseReason(self._ending_phase().value), utc_now())


def _on_loop(loop: asyncio.AbstractEventLoop, make: Callable[[], T]) -> Callable[[], T]:
    """For other threads: what belongs to the loop is looked at there, between its steps, and never half-way."""

    def asked() -> T:
        answer: Future[T] = Future()
        loop.call_soon_threadsafe(_answer, answer, make)
        return answer.result(_SNAPSHOT_SECONDS)

    return asked


def _answer(answer: Future[T], make: Callable[[], T]) -> None:
    """Whatever goes wrong is the asker's."""
    try:
        answer.set_result(make())
    except Exception as error:
        answer.set_exception(error)


def _outdated(reopened: Reopened, table: pa.Table | None) -> frozenset[int]:
    """Rows of a round before the one that is wanted: opened again while somebody else, too, had made them."""
    if table is None:
        return frozenset()
    made = zip(ordinals(table), cast(list[int], table.column("round").to_pylist()), strict=True)
    return frozenset(ordinal for ordinal, round_ in made if round_ < reopened.round_of(ordinal))


def _report(request: ExchangeRequest, table: pa.Table | None) -> Report:
    return Report(
        worker=request.worker,
        seq=request.seq,
        running=request.running,
        awaiting=request.awaiting,
        finished=() if table is None else tuple(ordinals(table)),
        failed=request.failed,
        free_slots=request.free_slots,
        tokens=request.running_tokens,
        slots=request.stats.usable_slots if request.stats.state is ReplicaState.RUNNING else 0,
    )
