"""One replica: an engine, the rows it works on, and the `exchange` that ties it to the coordinator.

Guarantees: every exchange lists all that is held; a finished row is held until it is committed; a row's failure is that
row's; no new token for `stall_timeout_seconds` gives up the row, then the replica. `run` returns when told to stop and
raises when the engine is no good any more: whoever started it replaces it. When the engine's cache is short of room
(run/fleet/in_flight.py), rows wait here, and can still be taken elsewhere.

All on one event loop. Rendering and decoding of text run in two threads (`TEXT_THREADS`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Protocol

import pyarrow as pa

from regen import rows
from regen.errors import (
    EngineDied,
    EngineError,
    EngineGarbage,
    EngineStalled,
    EngineStartFailed,
    RowFailed,
    ServerUnavailable,
    UserError,
)
from regen.protocols import AnswerParser, ChatTemplate, Engine
from regen.records import (
    Command,
    EngineInfo,
    ExchangeReply,
    ExchangeRequest,
    FailedAttempt,
    GenerationSteps,
    Lease,
    Left,
    Observed,
    PlannedRow,
    ReplicaState,
    ReplicaStats,
    WarmupReport,
)
from regen.run.conversations.failed_rows import failed_attempt, storable_table
from regen.run.conversations.regenerator import Regenerator
from regen.run.fleet.in_flight import EngineLoad, InFlight
from regen.run.fleet.lookahead import Lookahead
from regen.run.fleet.stall import StallClock
from regen.run.setup import WorkerSetup
from regen.run.speculation.warmup import warm_up
from regen.run.stopwatch import Stopwatch
from regen.spec import SpeculationSpec

Exchange = Callable[[ExchangeRequest], Awaitable[ExchangeReply]]

EXCHANGE_SECONDS = 1.0  # at least so often a worker says what it holds
PACE_SECONDS = 0.05  # and at most so often
TEXT_THREADS = 2
# The stall clock's name for all of the warm-up: no row has this ordinal.
_WARMUP = -1
# What a started worker is after each command. A coordinator that was restarted may have forgotten a drain.
_STATES = {
    Command.WORK: ReplicaState.RUNNING,
    Command.DRAIN: ReplicaState.DRAINING,
    Command.REPLACE: ReplicaState.DRAINING,
    Command.RELEASE: ReplicaState.DRAINING,
}
# Told to leave for good once all is committed, and what it leaves with.
_LEAVING = {Command.REPLACE: Left.REPLACED, Command.RELEASE: Left.RELEASED}


class Served(Protocol):
    """Something that others read over the network until it is closed."""

    def close(self) -> None: ...


class Worker:
    """One incarnation of one replica slot."""

    def __init__(
        self,
        setup: WorkerSetup,
        engine: Engine,
        template: ChatTemplate,
        exchange: Exchange,
        make_parser: Callable[[], AnswerParser | None] = lambda: None,
        serve_metrics: Callable[[], Served] | None = None,
        approve_warmup: Callable[[], None] = lambda: None,
        import_engine: Callable[[], None] = lambda: None,
        stopwatch: Stopwatch | None = None,
    ) -> None:
        """`make_parser` is called once, in a thread, before the engine is started: it may take seconds.

        `import_engine` is called before it, likewise: what the engine is made of. `stopwatch` times the start.

        `approve_warmup` is asked when the engine has been warmed up, and raises UserError where it must get no rows.

        `serve_metrics` begins to serve the engine's own metrics, or raises UserError. None: they are not wanted.
        """
        self._import_engine = import_engine
        self._stopwatch = stopwatch or Stopwatch(f"replica {setup.worker.slot}")
        self._has_a_token = False
        self._serve_metrics = serve_metrics
        self._approve_warmup = approve_warmup
        self._metrics: Served | None = None
        self._metrics_error: str | None = None
        self._setup = setup
        self._engine = engine
        self._template = template
        self._make_parser = make_parser
        self._parser: AnswerParser | None = None
        self._exchange = exchange
        self._state = ReplicaState.STARTING
        self._info: EngineInfo | None = None
        self._executor = ThreadPoolExecutor(TEXT_THREADS, thread_name_prefix="text")
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._waiting: dict[int, Lease] = {}  # rows that the engine has no room for, in order
        self._tokens: dict[int, int] = {}  # so far, of rows in work
        self._prompt_tokens: dict[int, int] = {}  # of their first prompts
        self._in_flight: InFlight | None = None
        self._lookahead = Lookahead()
        # Finished rows, each a table of one row in rows.SCHEMA: not sent yet, and sent but not known to be committed.
        self._unsent: dict[int, pa.Table] = {}
        self._awaiting: dict[int, pa.Table] = {}
        self._failed: list[FailedAttempt] = []
        self._steps: list[GenerationSteps] = []
        self._stall = StallClock(setup.run.spec.engine.stall_timeout_seconds)
        self._has_given_up_alone = False
        self._started_seconds = 0.0
        self._warmup_rows: tuple[PlannedRow, ...] | None = None
        self._warmup: WarmupReport | None = None
        self._leaving: Left | None = None
        self._wake = asyncio.Event()
        self._error: EngineError | None = None
        self._seq = 0
        self._loop_lag_seconds = 0.0
        self._first_request_at: float | None = None
        self._last_completion_at: float | None = None

    async def run(self) -> Left:
        """Start the engine, warm it up, work until told to stop. Raises EngineError when the engine cannot go on."""
        try:
            await self._begin_metrics()
            if not await self._start_engine() or not await self._warm_up():
                return Left.RELEASED if self._leaving is Left.RELEASED else Left.STOPPED
            while await self._exchange_once():
                if self._error is None:
                    self._look_for_stalls()
                if self._error is not None:
                    raise self._error
                if self._leaving is not None and self._holds_nothing():
                    return self._leaving
                await self._until_next_exchange()
            return Left.STOPPED
        finally:
            await self._leave()

    # --- life ------------------------------------------------------------------------------------

    async def _begin_metrics(self) -> None:
        """Without them the replica works as well: what is in the way is said, and stops nothing."""
        if self._serve_metrics is not None:
            try:
                self._metrics = await asyncio.to_thread(self._serve_metrics)
            except UserError as error:
                self._metrics_error = str(error)
            except Exception as error:  # the client library's, say, of a folder that is none
                self._metrics_error = f"the engine's own metrics cannot be had: {type(error).__name__}: {error}"

    async def _start_engine(self) -> bool:
        """Exchanges go on while the engine loads: the coordinator sees a replica that is starting, not a silent one.

        False: told to leave meanwhile.
        """
        limit_seconds = self._setup.run.spec.engine.start_timeout_seconds
        starting = asyncio.ensure_future(self._load())
        started_at = time.monotonic()
        deadline = started_at + limit_seconds
        try:
            while not starting.done():
                if not await self._is_wanted_yet():
                    return False
                if time.monotonic() > deadline:
                    raise EngineStartFailed(
                        f"replica {self._setup.worker.slot}: the engine was not ready within"
                        f" engine.start_timeout_seconds ({limit_seconds:g} s)"
                    )
                await asyncio.wait((starting,), timeout=EXCHANGE_SECONDS)
            self._info = starting.result()
            self._started_seconds = time.monotonic() - started_at
            return True
        finally:
            starting.cancel()

    async def _load(self) -> EngineInfo:
        """What reads answers first: that it cannot read this target's is better known before an engine has loaded."""
        await asyncio.to_thread(self._import_engine)
        # The first table that is made of Python's values imports pandas, wherever it is installed: half a second of a
        # core, just when the first rows end.
        await asyncio.to_thread(rows.to_table, ())
        self._stopwatch.lap("imports of the engine")
        self._parser = await asyncio.to_thread(self._make_parser)
        info = await self._engine.start()
        self._stopwatch.lap("engine")
        return info

    async def _warm_up(self) -> bool:
        """With speculation on: show whether it works, and hear what follows from it. False: told to leave.

        Nothing is leased to this worker before. Exchanges go on meanwhile.
        """
        speculation = self._setup.assignment.speculation
        if speculation is None:
            self._state = ReplicaState.RUNNING
            return True
        self._state = ReplicaState.WARMING
        while self._warmup_rows is None:
            if not await self._is_wanted_yet():
                return False
            if self._warmup_rows is None:
                await asyncio.sleep(PACE_SECONDS)
        warming = asyncio.ensure_future(self._shown(speculation, self._warmup_rows))
        try:
            while not warming.done():
                if not await self._is_wanted_yet():
                    return False
                if self._stall.is_stalled(time.monotonic()):
                    raise self._stalled()
                await asyncio.wait((warming,), timeout=EXCHANGE_SECONDS)
            self._warmup = warming.result()
            self._stopwatch.lap("warm-up")
        finally:
            warming.cancel()
            self._stall.ended(_WARMUP)
        return True

    async def _shown(self, speculation: SpeculationSpec, planned: tuple[PlannedRow, ...]) -> WarmupReport:
        assert self._info is not None
        self._stall.submitted(_WARMUP, time.monotonic())
        regenerator = self._regenerator(self._info)
        shown = await warm_up(
            planned,
            speculation,
            regenerator.first_request,
            self._engine,
            self._info.slots,
            on_tokens=partial(self._on_tokens, _WARMUP),
            temperature=self._setup.run.temperature,
        )
        self._approve_warmup()
        return shown

    async def _leave(self) -> None:
        self._state = ReplicaState.STOPPED
        self._waiting.clear()
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        if self._metrics is not None:
            await asyncio.to_thread(self._metrics.close)
        await self._engine.close()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _look_for_stalls(self) -> None:
        """First the row is given up, then the replica: a single row without a token may be the row's own fault."""
        now = time.monotonic()
        stalled = self._stall.stalled_rows(now)
        if self._stall.is_stalled(now):
            if len(self._tasks) == 1 and not self._has_given_up_alone:
                self._has_given_up_alone = True
                stalled = tuple(self._tasks)
            else:
                self._error = self._stalled()
        for ordinal in stalled:
            self._give_up(ordinal, "stalled", "no new token for engine.stall_timeout_seconds")

    def _stalled(self) -> EngineStalled:
        return EngineStalled(
            f"replica {self._setup.worker.slot}: {len(self._tasks)} rows in work and no token for"
            f" engine.stall_timeout_seconds ({self._setup.run.spec.engine.stall_timeout_seconds:g} s)"
        )

    async def _until_next_exchange(self) -> None:
        """Until something is worth saying: rows run low, the engine broke, or a second has passed."""
        started = time.monotonic()
        await asyncio.sleep(PACE_SECONDS)
        self._loop_lag_seconds = max(0.0, time.monotonic() - started - PACE_SECONDS)
        with suppress(TimeoutError):  # not wait_for: Python 3.11's loses a cancellation that meets the wake-up
            async with asyncio.timeout(EXCHANGE_SECONDS - PACE_SECONDS):
                await self._wake.wait()
        self._wake.clear()

    # --- exchange --------------------------------------------------------------------------------

    async def _is_wanted_yet(self) -> bool:
        """One exchange before there are rows: whoever is told now that nobody wants this engine has nothing to end."""
        return await self._exchange_once() and self._leaving is not Left.RELEASED

    async def _exchange_once(self) -> bool:
        """Say what is held, take what comes back. False: told to stop."""
        self._look_at_load()
        request = self._request()
        reply = await self._exchange(request)
        if reply.warmup is not None:
            self._warmup_rows = reply.warmup
        self._settle(reply.settled)
        self._send_again(reply.resend)
        for lease in reply.leases:
            self._take(lease)
        self._fill_engine()
        if self._leaving is not Left.RELEASED:  # a coordinator that was restarted takes it for a replacement
            self._leaving = _LEAVING.get(reply.command, self._leaving)
        if reply.command is Command.DISMISS:
            self._error = EngineGarbage(reply.why)
        if self._is_ready() and reply.command in _STATES:
            self._enter(ReplicaState.DRAINING if self._leaving is not None else _STATES[reply.command])
        return reply.command is not Command.STOP

    def _enter(self, state: ReplicaState) -> None:
        if state is not self._state:
            self._wake.set()  # the next exchange says so, and asks for rows, at once
        if state is ReplicaState.DRAINING:
            self._waiting.clear()  # not listed any more, they go back to the queue
        self._state = state

    def _is_ready(self) -> bool:
        """The engine is up, and has shown what it had to."""
        return self._info is not None and (self._setup.assignment.speculation is None or self._warmup is not None)

    def _holds_nothing(self) -> bool:
        return not (self._tasks or self._waiting or self._unsent or self._awaiting or self._failed)

    def _request(self) -> ExchangeRequest:
        """Everything said here counts as said: on a lost answer the next listing puts things right."""
        self._seq += 1
        finished, failed = list(self._unsent.values()), tuple(self._failed)
        request = ExchangeRequest(
            worker=self._setup.worker,
            session=self._setup.run.session,
            seq=self._seq,
            running=(*self._tasks, *self._waiting),
            running_tokens=(*(self._tokens.get(row, 0) for row in self._tasks), *(0 for _ in self._waiting)),
            awaiting=tuple(self._awaiting),
            finished=rows.to_bytes(pa.concat_tables(finished)) if finished else b"",
            failed=failed,
            free_slots=self._free_slots(),
            stats=self.stats(),
            wants_warmup=self._state is ReplicaState.WARMING and self._warmup_rows is None,
            steps=tuple(seen for seen in self._steps if seen.ordinal in self._unsent),
        )
        self._awaiting.update(self._unsent)
        self._steps = [seen for seen in self._steps if seen.ordinal not in self._unsent]
        self._unsent.clear()
        self._failed.clear()
        return request

    def _settle(self, settled: Iterable[int]) -> None:
        for ordinal in settled:
            self._awaiting.pop(ordinal, None)
            self._unsent.pop(ordinal, None)
            self._drop(ordinal)

    def _send_again(self, ordinals: Iterable[int]) -> None:
        for ordinal in ordinals:
            if (row := self._awaiting.pop(ordinal, None)) is not None:
                self._unsent[ordinal] = row
                self._wake.set()

    def _free_slots(self) -> int:
        if self._state is not ReplicaState.RUNNING or self._info is None or self._error is not None:
            return 0
        slots = self._usable_slots(self._info)
        return max(0, slots + self._lookahead.rows(slots) - self._rows_in_hand())

    def _usable_slots(self, info: EngineInfo) -> int:
        limit = self._in_flight.limit if self._in_flight is not None else None
        return info.slots if limit is None else min(limit, info.slots)

    def _rows_in_hand(self) -> int:
        return len(self._tasks) + len(self._waiting)

    def stats(self) -> ReplicaStats:
        """What this worker says of itself now."""
        return ReplicaStats(
            state=self._state,
            slots=self._info.slots if self._info else self._setup.run.spec.engine.slots_of(self._setup.worker.slot),
            running_rows=self._rows_in_hand(),
            loop_lag_seconds=self._loop_lag_seconds,
            counters=self._engine.counters(),
            engine=self._info.engine if self._info else "",
            arm=self._setup.assignment.arm,
            counted_at=time.monotonic(),
            started_seconds=self._started_seconds,
            warmup=self._warmup,
            first_request_at=self._first_request_at,
            last_completion_at=self._last_completion_at,
            metrics_error=self._metrics_error,
            row_limit=self._in_flight.limit if self._in_flight is not None else None,
            start=self._stopwatch.stages,
        )

    # --- rows ------------------------------------------------------------------------------------

    def _take(self, lease: Lease) -> None:
        ordinal = lease.row.ordinal
        if not any(ordinal in held for held in (self._tasks, self._waiting, self._awaiting, self._unsent)):
            self._waiting[ordinal] = lease

    def _fill_engine(self) -> None:
        """Rows that wait here begin, as many as the engine is to have."""
        while self._waiting and self._may_begin():
            ordinal = next(iter(self._waiting))
            self._begin(self._waiting.pop(ordinal))

    def _may_begin(self) -> bool:
        if self._in_flight is None or self._in_flight.limit is None:
            return True
        return len(self._tasks) < self._in_flight.limit

    def _begin(self, lease: Lease) -> None:
        ordinal = lease.row.ordinal
        if self._first_request_at is None:
            self._first_request_at = time.time()
            self._stopwatch.lap("first lease")
        self._tokens[ordinal], self._prompt_tokens[ordinal] = 0, lease.row.prompt_tokens
        self._tasks[ordinal] = asyncio.ensure_future(self._make(lease))

    def _look_at_load(self) -> None:
        """Of an engine of our own: a server's cache is short of room for others' requests, too."""
        is_own = self._setup.run.spec.engine.endpoint_of(self._setup.worker.slot) is None
        if self._info is None or self._state is not ReplicaState.RUNNING or not is_own:
            return
        if self._in_flight is None:
            self._in_flight = InFlight(self._info.slots)
        counters = self._engine.counters()
        load = EngineLoad(counters.running, counters.kv_usage, counters.output_tokens, counters.preemptions)
        held = sum(self._prompt_tokens.values()) + sum(self._tokens.values())
        self._in_flight.look(load, len(self._tasks), held, bool(self._waiting))

    async def _make(self, lease: Lease) -> None:
        ordinal = lease.row.ordinal
        assert self._info is not None
        regenerator, is_over = self._regenerator(self._info), True
        try:
            row = await regenerator.regenerate(lease, self._observed(self._info), partial(self._on_tokens, ordinal))
            self._unsent[ordinal] = await asyncio.get_running_loop().run_in_executor(
                self._executor, storable_table, row
            )
            self._steps += [
                GenerationSteps(ordinal, lease.round, seen.turn, seen.steps)
                for seen in row.observed.generations
                if seen.steps is not None
            ]
            self._last_completion_at = time.time()
        except RowFailed as failure:
            self._failed.append(failed_attempt(ordinal, failure.reason, failure.detail))
        except (EngineDied, ServerUnavailable) as error:
            # The row stays listed: of what was in work the engine may have died.
            self._error, is_over = self._error or error, False
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a defect or a panic must cost this row an attempt, and not be tried for ever
            self._failed.append(failed_attempt(ordinal, "internal_error", f"{type(error).__name__}: {error}"))
        finally:
            is_own = self._tasks.get(ordinal) is asyncio.current_task()  # else dropped, and perhaps leased anew since
            if is_own and is_over:
                self._lookahead.ended(time.monotonic())
                self._drop(ordinal)
                self._fill_engine()
            self._wake_if_low()

    def _regenerator(self, info: EngineInfo) -> Regenerator:
        return Regenerator(
            self._setup,
            self._engine,
            self._template,
            self._parser,
            self._executor,
            info.max_model_len,
            self._stall,
        )

    def _observed(self, info: EngineInfo) -> Observed:
        run = self._setup.run
        return Observed(
            replica=self._setup.worker.slot,
            session=run.session,
            attempts=0,
            engine=info.engine,
            draft=info.draft,
            fingerprint=run.fingerprint,
        )

    def _on_tokens(self, ordinal: int, count: int) -> None:
        if count:
            if ordinal in self._tokens:
                if not self._has_a_token:
                    self._has_a_token = True
                    self._stopwatch.lap("first token")
                self._tokens[ordinal] += count
            self._stall.tokens(ordinal, time.monotonic())
            self._has_given_up_alone = False

    def _wake_if_low(self) -> None:
        """Ask for more before a slot runs empty; and at once when the engine broke."""
        slots = self._usable_slots(self._info) if self._info else 0
        if self._error is not None or self._rows_in_hand() <= slots + self._lookahead.rows(slots) // 2:
            self._wake.set()

    def _give_up(self, ordinal: int, reason: str, detail: str) -> None:
        self._drop(ordinal)
        self._failed.append(failed_attempt(ordinal, reason, detail))

    def _drop(self, ordinal: int) -> None:
        self._waiting.pop(ordinal, None)
        if (task := self._tasks.pop(ordinal, None)) is not None:
            self._tokens.pop(ordinal, None)
            self._prompt_tokens.pop(ordinal, None)
            self._stall.ended(ordinal)
            if task is not asyncio.current_task():
                task.cancel()
