"""A whole run in one thread, without engines, Ray or disk: real coordinators and workers, and a world that fails them.

The world is Ray, the driver, the network, the store and the clock. It decides when a call arrives, when a store call
is carried out and whether its answer is heard; nothing happens by itself but timers, and time passes only when told.
What must always hold is checked where it could be broken: at every publication and at every reply.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import hashlib
import json
import selectors
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO, NamedTuple
from unittest import mock

import pyarrow as pa

from regen import length_buckets
from regen.errors import Fenced, RowFailed, RunHeld, StoreError, StoreUnavailable
from regen.ordinals import OrdinalSet
from regen.records import (
    Command,
    EngineCounters,
    EngineInfo,
    ExchangeReply,
    ExchangeRequest,
    Lease,
    OutputRow,
    Phase,
    Places,
    ReplicaState,
    Status,
    Totals,
    WorkerId,
)
from regen.rows import SCHEMA, from_bytes, to_bytes
from regen.run import coordinator as coordinators
from regen.run import worker as workers
from regen.run.conversations import failed_rows
from regen.run.coordinator import Coordinator
from regen.run.open_run import ADOPTION_SECONDS
from regen.run.schedule import SILENT_SECONDS, Orders, Report, Schedule
from regen.run.setup import Assignment, RunSetup, WorkerSetup
from regen.run.worker import Worker
from regen.spec import RunSpec, parse_spec
from regen.store import files, totals
from regen.store import footer as footers
from regen.store import journal as journals
from regen.store.control import Claim, Released, ReleaseReason, RetriesEnded, RowsReopened
from regen.store.journal import Journal
from regen.store.layout import JOURNAL, journal_key
from regen.store.reopened import next_round
from regen.store.replay import Replayed, replay
from regen.store.tally import newest_tally, tally_of
from tests.memory_storage import MemoryStorage
from tests.output_rows import MemoryPlan, observed, observed_generation, output_row

ROWS, REFUSED, NATIVE = 30, (5,), (9,)
ATTEMPTS = 2
SLOTS_PER_REPLICA = 3  # a replica holds one and a quarter times as many rows
TICK_SECONDS = 0.5

_real_sleep, _real_report = asyncio.sleep, Schedule.report
_real_count, _real_table = totals.count, failed_rows.storable_table
_process: contextvars.ContextVar[Process] = contextvars.ContextVar("process")


class Lost(Exception):
    """An exchange without an answer, as its worker sees it."""


class Broken(AssertionError):
    """A promise that does not hold. Kept by the world too: a worker's task must not swallow it."""


class _Loop(asyncio.SelectorEventLoop):
    """Time passes when all that is left to do is to wait for it. Threads are not used: what would run in one is run."""

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_Waiting(self))

    def time(self) -> float:
        return self._now

    def jump(self, seconds: float) -> None:
        self._now += seconds

    async def rest(self) -> None:
        """Until nothing is left to do but to let time pass."""
        for _ in range(1000):
            await _real_sleep(0)
            timers = self._scheduled  # type: ignore[attr-defined]
            if not self._ready and not (timers and timers[0].when() <= self._now):  # type: ignore[attr-defined]
                return
        raise Broken("something goes on and on without time passing")

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future = self.create_future()
        future.set_result(func(*args))
        return future


class _Waiting(selectors.DefaultSelector):
    """Nothing here is ever waited for but time."""

    def __init__(self, loop: _Loop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        assert timeout is not None, "nothing would ever happen again"
        self._loop.jump(max(0.0, timeout))
        return []


def _count(table: pa.Table) -> Totals:
    return _real_count(table) if len(table) else Totals()


class Plan(MemoryPlan):
    """What the coordinator asks of a plan, beyond `protocols.Plan`."""

    def __init__(self) -> None:
        super().__init__(ROWS, REFUSED, NATIVE)
        counts = {"rows": ROWS, "accepted": ROWS, "native": 0, "turns": ROWS, "most_turns": 1}
        self.summary = SimpleNamespace(sources=[SimpleNamespace(name=name, **counts) for name in self.sources])


PLAN = Plan()
SETTLED = tuple(PLAN.settled())


class Process:
    """One incarnation of a coordinator. Frozen: nothing of it moves. Held: its store calls are on their way."""

    def __init__(self, world: World, session: Session) -> None:
        self.world, self.session = world, session
        self.context = contextvars.copy_context()
        self.context.run(_process.set, self)
        self.died = world.loop.create_future()
        self.is_frozen = self.is_held = False
        self.calls: deque[tuple[asyncio.Future[Any], Callable[[], Any]]] = deque()
        self.heard: dict[WorkerId, float] = {}
        self.granted: dict[WorkerId, set[int]] = {}
        # By slot, from the newest report: incarnation, seq, rows that are listed or were handed out on it.
        self.listed: dict[int, tuple[int, int, set[int]]] = {}
        self.gone: set[WorkerId] = set()
        self.accepted: set[int] = set()
        self.answering: set[asyncio.Task[Any]] = set()
        self.first_file = len(world.files)
        self.is_restart = any(file.session == session.name for file in world.files)
        self.opened_at = world.loop.time()
        self.storage = Store(world, self)
        self.coordinator = Coordinator(session.setup)
        self._thawed: asyncio.Event = asyncio.Event()
        self._thawed.set()
        self.spawn(self.coordinator.status())

    @property
    def is_dead(self) -> bool:
        return self.died.done()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self.world.loop.create_task(work, context=self.context)
        self.answering.add(task)
        task.add_done_callback(self.answering.discard)
        return task

    async def thawed(self) -> None:
        await self._thawed.wait()

    def freeze(self) -> None:
        self.is_frozen = True
        self._thawed.clear()

    def thaw(self) -> None:
        self.is_frozen = False
        self._thawed.set()
        if not self.is_held:
            self.release()

    def release(self) -> None:
        """The store answers: what was on its way is carried out, in order."""
        self.is_held = False
        while self.calls and not self.is_frozen:
            carry_out(*self.calls.popleft())
            self.world.settle()

    def carry_out_one(self) -> None:
        """The oldest call on its way; those after it wait on."""
        if self.calls and not self.is_frozen:
            carry_out(*self.calls.popleft())
            self.world.settle()

    @property
    def has_ended(self) -> bool:
        return self.coordinator._phase in (Phase.FINISHED, Phase.DRAINED, Phase.FAILED)

    def is_writing(self) -> bool:
        """The oldest call on its way is the publication of a file, not what is read for it before."""
        call = self.calls[0][1] if self.calls else None
        is_of_commit = "Publisher._commit" in getattr(call, "__qualname__", "")
        return is_of_commit and "prepare" not in getattr(call, "__code__").co_names  # noqa: B009

    async def in_thread(self, call: Callable[[], Any]) -> Any:
        if not self.is_frozen and not self.is_held:
            return call()
        future = self.world.loop.create_future()
        self.calls.append((future, call))
        return await future

    async def told_of_death(self, worker: WorkerId, is_released: bool = False) -> None:
        await self.thawed()
        await self.coordinator.worker_gone(worker, is_released=is_released)
        if self.coordinator._run is not None:
            self.gone.add(worker)
            self.world.check_accounts(self)

    def newest_of(self, slot: int) -> tuple[int, int]:
        """Incarnation and `seq` of the newest request of this slot that was taken in."""
        return self.listed.get(slot, (-1, -1, set()))[:2]

    async def answer(self, request: ExchangeRequest) -> ExchangeReply:
        await self.thawed()
        self.world.note_zombie(self, request.worker)
        # A repeated request, too, says nothing of now: what the silent slot held may be with others.
        is_news = (request.worker.incarnation, request.seq) > self.newest_of(request.worker.slot)
        if self.coordinator._run is not None and is_news:  # before, it answers `wait` and takes nothing in
            self.heard[request.worker] = self.world.loop.time()
        reply = await self.coordinator.exchange(request)
        self.world.check_reply(request, reply)
        if self.has_ended:
            self.session.told_by_the_ended.add(request.worker)
        return reply

    def kill(self) -> None:
        """At once, publishing nothing. Store calls that are on their way may still be carried out, by the world."""
        self.died.set_result(None)
        if not self.is_frozen:
            self.world.in_flight += [call for _, call in self.calls]
        self.calls.clear()
        self._thawed.set()
        for task in list(self.answering):
            task.cancel()
        self.world.loop.run_until_complete(self.coordinator.close())


def carry_out(future: asyncio.Future[Any], call: Callable[[], Any]) -> None:
    try:
        result = call()
    except Exception as error:
        if not future.done():
            future.set_exception(error)
    else:
        if not future.done():
            future.set_result(result)


class Store(MemoryStorage):
    """The world's one run folder, as one process sees it. `world.faults` hit whoever asks next."""

    def __init__(self, world: World, process: Process | None = None) -> None:
        super().__init__()
        self.objects = world.objects
        self._world, self._process = world, process

    def create(self, key: str, data: bytes) -> bool:
        fault = self._world.next_fault() if key.startswith(JOURNAL) else None
        if fault == "away":
            raise StoreUnavailable(f"{key}: the store is away")
        created = super().create(key, data)
        if not created and key.startswith(JOURNAL):
            self._world.seen["own write found" if self.objects[key] == data else "number taken"] += 1
        if created and key.startswith(JOURNAL):
            self._world.published(key, data)
        if fault == "answer lost" or self._is_of_the_dead:
            raise StoreUnavailable(f"{key}: no answer")
        return created

    def replace(self, key: str, data: bytes | Path) -> None:
        self._world.require(not key.startswith(JOURNAL), f"{key} was replaced")
        super().replace(key, data)

    def delete(self, key: str) -> None:
        self._world.require(not key.startswith(JOURNAL), f"{key} was deleted")
        super().delete(key)

    def read(self, key: str) -> bytes:
        self._fail_if_unreadable(key)
        return super().read(key)

    def open(self, key: str) -> BinaryIO:
        self._fail_if_unreadable(key)
        return super().open(key)

    @property
    def _is_of_the_dead(self) -> bool:
        """A killed process had one request on its way. Nobody is there to look what became of it and send another."""
        return self._process is not None and self._process.is_dead

    def _fail_if_unreadable(self, key: str) -> None:
        if self._process is not None and key.startswith(JOURNAL) and self._world.unreadable:
            self._world.unreadable -= 1
            raise StoreUnavailable(f"{key}: cannot be read now")


class Replica(Worker):
    """The real worker over an engine whose rows end when the world says so."""

    def __init__(self, world: World, session: Session, worker: WorkerId) -> None:
        super().__init__(session.worker_setup(worker), _NoEngine(), None, self._ask)  # type: ignore[arg-type]
        self._state = ReplicaState.RUNNING
        self._info = EngineInfo("none", None, 2048, SLOTS_PER_REPLICA)
        self.world, self.session, self.id = world, session, worker
        self.how = "answered"
        self.at_work: dict[int, tuple[Lease, asyncio.Future[OutputRow]]] = {}
        self.talk: asyncio.Task[None] | None = None
        self.is_silent_for: Process | None = None

    def holds(self) -> set[int]:
        return {*self._tasks, *self._unsent, *self._awaiting}

    def speak(self, how: str) -> None:
        """One exchange, unless the last one is still under way."""
        if self.talk is None or self.talk.done():
            self.how = how
            self.talk = self.world.loop.create_task(self._speak())

    async def _speak(self) -> None:
        with suppress(Lost):
            if not await self._exchange_once():
                self.session.stopped(self)
            elif self._leaving is not None and self._holds_nothing() and self not in self.session.zombies:
                self.world.seen["released"] += 1
                self.session.lose_worker(self.id.slot, is_zombie=False, is_released=True)

    async def _ask(self, request: ExchangeRequest) -> ExchangeReply:
        how = self.how
        if how == "request lost":
            raise Lost
        if how == "late":
            self.world.late.append((self.session.process, request))
            raise Lost
        process = self.session.process
        reply = await self._answered(request)
        if how == "reply lost":
            raise Lost
        if how in ("twice, first reply", "twice, second reply") and self.session.process is process:
            again = await self._answered(request)
            return reply if how == "twice, first reply" else again
        return reply

    async def _answered(self, request: ExchangeRequest) -> ExchangeReply:
        """As Ray does it: repeated with the same arguments when the coordinator dies under the call."""
        while not self.session.is_over:
            process = self.session.process
            answer = process.spawn(process.answer(request))
            await asyncio.wait((answer, process.died), return_when=asyncio.FIRST_COMPLETED)
            if answer.done() and not answer.cancelled():
                reply: ExchangeReply = answer.result()
                return reply
            answer.cancel()
        raise Lost

    def _regenerator(self, info: EngineInfo) -> Any:
        return SimpleNamespace(regenerate=self._regenerate)

    async def _regenerate(self, lease: Lease, seen: Any, on_tokens: Any) -> OutputRow:
        self.session.begun(self, lease)
        future: asyncio.Future[OutputRow] = self.world.loop.create_future()
        self.at_work[lease.row.ordinal] = lease, future
        return await future

    def end_rows(self, count: int, failing: bool = False) -> None:
        """The oldest `count` rows at work end, with an answer or without."""
        for ordinal in [one for one in self.at_work if one in self._tasks][:count]:
            lease, future = self.at_work.pop(ordinal)
            if future.done():
                continue
            if failing:
                self.session.explain(ordinal)
                self.world.failures[ordinal, lease.round] += 1
                future.set_exception(RowFailed("engine_error", "x"))
            else:
                future.set_result(finished(ordinal, lease.round, self.id.slot))

    def vanish(self) -> None:
        for task in (self.talk, *self._tasks.values()):
            if task is not None and task is not asyncio.current_task(self.world.loop):
                task.cancel()


def _table_of(row: OutputRow) -> pa.Table:
    """The worker's `storable_table`. Rows are few and made again and again: each is written out once."""
    return _finished_table(row.ordinal, row.round, row.observed.replica)


@cache
def _finished_table(ordinal: int, round_: int, slot: int) -> pa.Table:
    return _real_table(finished(ordinal, round_, slot))


@cache
def finished(ordinal: int, round_: int, slot: int) -> OutputRow:
    seen = observed((observed_generation(),), replica=slot)
    status = Status.TRUNCATED if ordinal % 4 == 0 else Status.OK
    return output_row(ordinal, round_=round_, status=status, tokens=ordinal + 1, seen=seen)


class Cheap:
    """A journal file as Arrow and JSON, in the place of Parquet: much faster, and as exact.

    `encode` and the constructor are `parquet.encode_rows` and `parquet.RowsFile`; verify still reads Parquet.
    """

    def __init__(self, source: Any, where: str) -> None:
        data = source if isinstance(source, bytes) else source.read()
        self.where = where
        self.digest, self.entry, self._table = _read(data)

    @staticmethod
    def encode(table: pa.Table, entry: Mapping[str, Any]) -> bytes:
        return json.dumps(entry).encode() + b"\n" + to_bytes(table)

    @property
    def rows(self) -> int:
        return int(self._table.num_rows)

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        return self._table if columns is None else self._table.select(list(columns))


@lru_cache(maxsize=64)
def _read(data: bytes) -> tuple[str, Any, pa.Table]:
    head, _, body = data.partition(b"\n")
    return hashlib.blake2b(data, digest_size=16).hexdigest(), json.loads(head), from_bytes(body)


class _NoEngine:
    def counters(self) -> EngineCounters:
        return EngineCounters()


@cache
def _spec() -> RunSpec:
    raw = {
        "name": "model",
        "output": "memory",
        "target": {"model": "none"},
        "engine": {"kind": "fake", "slots": SLOTS_PER_REPLICA, "max_model_len": 2048},
        "sampling": {"max_tokens": 100, "seed": 7},
        "sources": [{"name": "rows", "path": "none"}],
        "metrics": {"port": None},
        "limits": {"attempts": ATTEMPTS, "failed_share": None},
    }
    return parse_spec(raw, origin="test")


@dataclass
class Session:
    """One start: a driver's view. It is over when its coordinator has ended or its driver is dead."""

    world: World
    name: str
    replicas: int
    setup: RunSetup
    is_held: bool = False
    is_over: bool = False
    phase: Phase | None = None
    error: Exception | None = None
    drain_until: float | None = None
    workers: dict[int, Replica] = field(default_factory=dict)
    zombies: list[Replica] = field(default_factory=list)
    told_by_the_ended: set[WorkerId] = field(default_factory=set)
    incarnations: Counter[int] = field(default_factory=Counter)
    begun_rows: Counter[int] = field(default_factory=Counter)
    explained: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.process = Process(self.world, self)
        self.process.is_held = self.is_held
        for slot in range(self.replicas):
            self.start_worker(slot)

    def worker_setup(self, worker: WorkerId) -> WorkerSetup:
        return WorkerSetup(self.setup, worker, Assignment("off", None), Path(), "", None, {}, (), None)  # type: ignore[arg-type]

    def start_worker(self, slot: int) -> None:
        self.workers[slot] = Replica(self.world, self, WorkerId(slot, self.incarnations[slot]))
        self.incarnations[slot] += 1

    def lost(self, worker: Replica) -> None:
        """What it holds, or is being handed, may be made once more."""
        self.explain(*(worker.holds() | self.process.granted.get(worker.id, set())))

    def release(self, slot: int) -> None:
        """Nobody wants an engine there any more, until the next one is there."""
        self.process.coordinator._duty._roster._releasing.add(slot)

    def lose_worker(self, slot: int, is_zombie: bool, is_released: bool = False) -> None:
        """The driver sees it end, tells the coordinator and starts the next; a zombie does not know."""
        worker = self.workers.pop(slot)
        if not is_released:  # that one has left nothing behind
            self.lost(worker)
        if is_zombie:
            self.zombies.append(worker)
        else:
            worker.vanish()
        if not self.is_over:
            process = self.process
            process.spawn(process.told_of_death(worker.id, is_released))
            self.start_worker(slot)

    def stopped(self, worker: Replica) -> None:
        """Told to leave."""
        worker.vanish()
        if worker in self.zombies:
            self.zombies.remove(worker)
            return
        self.world.require(
            # A coordinator that has ended says so, and may die afterwards: Ray's next one knows nothing of it.
            self.process.has_ended or self.is_over or worker.id in self.told_by_the_ended,
            f"{worker.id} of {self.name} was told to stop while its session goes on",
        )

    def restart_process(self, is_held: bool = False) -> None:
        """As Ray does it; the driver passes a drain on again."""
        self.process.kill()
        self.process = Process(self.world, self)
        self.process.is_held = is_held
        self._pass_on_places()
        self._pass_on_drain()

    def drain(self, seconds: float) -> None:
        self.drain_until = self.world.loop.time() + seconds
        self._pass_on_drain()

    def _pass_on_drain(self) -> None:
        if self.drain_until is not None:
            process, seconds = self.process, max(0.0, self.drain_until - self.world.loop.time())
            process.spawn(_when_thawed(process, lambda: process.coordinator.drain(seconds)))

    def _pass_on_places(self) -> None:
        process, places = self.process, Places(placed=frozenset(self.workers))
        process.spawn(_when_thawed(process, lambda: process.coordinator.places(places)))

    def ids(self) -> set[WorkerId]:
        return {worker.id for worker in self.workers.values()}

    def explain(self, *ordinals: int) -> None:
        """These rows may be begun once more than they were in this session."""
        self.explained.update(ordinals)

    def begun(self, worker: Replica, lease: Lease) -> None:
        """A row is made. More than once in a session only for what was lost: that is the bound, row by row."""
        ordinal, world = lease.row.ordinal, self.world
        if worker in self.zombies:
            return
        self.begun_rows[ordinal] += 1
        times, explained = self.begun_rows[ordinal], self.explained[ordinal]
        world.seen["made again" if times > 1 else "made"] += 1
        world.require(times <= 1 + explained, f"row {ordinal} is made {times} times, and {explained} are explained")
        has = world.winners.get(ordinal)
        is_wanted = has is None or has[0] < lease.round or world.holder != self.name
        world.require(is_wanted, f"row {ordinal} is committed and made again")


async def _when_thawed(process: Process, call: Callable[[], Awaitable[Any]]) -> None:
    await process.thawed()
    await call()


class Winner(NamedTuple):
    """Of the row that counts what the totals tell; `replica` is None without an answer."""

    round: int
    status: str
    source: str
    tokens: int
    replica: int | None


@dataclass(frozen=True)
class File:
    number: int
    session: str
    claims: bool


class World:
    """See the module. Use it as a context: `with World() as world`."""

    def __init__(self) -> None:
        self.loop = _Loop()
        self.objects: dict[str, bytes] = {}
        self.sessions: list[Session] = []
        self.files: list[File] = []
        self.winners: dict[int, Winner] = {}
        self.holder: str | None = None
        self.told = (0, 0, 0, 0, 0)
        self.was_fenced: set[str] = set()
        self.faults: deque[str] = deque()
        self.unreadable = 0
        self.late: list[tuple[Process, ExchangeRequest]] = []
        self.in_flight: list[Callable[[], Any]] = []
        self.broken: list[str] = []
        self.seen: Counter[str] = Counter()
        self.failures: Counter[tuple[int, int]] = Counter()  # attempts that have failed, by row and round
        self._stack = ExitStack()

    def __enter__(self) -> World:
        async def in_thread(call: Callable[..., Any], *args: Any) -> Any:
            return await _process.get().in_thread(functools.partial(call, *args) if args else call)

        def report(schedule: Schedule, report: Report, *rest: Any, **options: Any) -> Orders:
            orders = _real_report(schedule, report, *rest, **options)
            self.check_orders(_process.get(), report, orders)
            return orders

        async def sleep(seconds: float) -> None:
            await _real_sleep(seconds)
            if (process := _process.get(None)) is not None:
                await process.thawed()

        for target, name, value in (
            (time, "monotonic", self.loop.time),
            (asyncio, "to_thread", in_thread),
            (asyncio, "sleep", sleep),
            (Schedule, "report", report),
            (journals, "encode_rows", Cheap.encode),
            (journals, "RowsFile", Cheap),
            (files, "RowsFile", Cheap),
            (totals, "count", _count),
            (workers, "storable_table", _table_of),
            (coordinators, "open_storage", lambda url, *options: _process.get().storage),
            (coordinators, "open_plan", lambda storage: PLAN),
            (coordinators, "TICK_SECONDS", TICK_SECONDS),
        ):
            self._stack.enter_context(mock.patch.object(target, name, value))
        asyncio.set_event_loop(self.loop)
        return self

    def __exit__(self, *error: object) -> None:
        for session in self.sessions:
            for worker in (*session.workers.values(), *session.zombies):
                worker.vanish()
            if not session.process.is_dead:
                session.process.kill()
        self.settle()
        asyncio.set_event_loop(None)
        self._stack.close()
        self.loop.close()

    # --- time and sessions ---------------------------------------------------------------------------

    def settle(self) -> None:
        """Whatever can happen now without time passing happens."""
        self.loop.run_until_complete(self.loop.rest())

    def pass_time(self, seconds: float) -> None:
        until = self.loop.time() + seconds
        while self.loop.time() < until:
            self.loop.run_until_complete(_real_sleep(min(TICK_SECONDS, until - self.loop.time())))
            self.look_at_sessions()

    @property
    def alive(self) -> list[Session]:
        return [session for session in self.sessions if not session.is_over]

    @property
    def newest(self) -> Session:
        return self.sessions[-1]

    def start(self, replicas: int, interval_seconds: float, take_over: bool = False, is_held: bool = False) -> Session:
        """What `regen run` or `regen resume` does once it has found nobody, or was told to take over."""
        claim = self.replayed().newest_claim
        spec = _spec()
        spec = spec.model_copy(
            update={
                "engine": spec.engine.model_copy(update={"replicas": replicas}),
                "checkpoint": spec.checkpoint.model_copy(update={"interval_seconds": interval_seconds}),
            }
        )
        name = f"session-{len(self.sessions)}"
        setup = RunSetup(
            spec=spec,
            run_url="memory",
            session=name,
            fingerprint="f" * 32,
            host=f"host-of-{name}",
            boot_id="elsewhere",
            driver_pid=1,
            started_at="2026-01-01T00:00:00+00:00",
            take_over=take_over,
            claim_seen=claim.session if claim else None,
        )
        session = Session(self, name, replicas, setup, is_held)
        self.sessions.append(session)
        self.settle()
        return session

    def driver_dies(self, session: Session) -> None:
        """Everything that it made dies with it."""
        session.is_over = True
        for worker in session.workers.values():
            worker.vanish()
        if not session.process.is_dead:
            session.process.kill()

    def reopen(self, ordinals: set[int]) -> None:
        """`regen retry`, between two sessions."""
        name = f"retry-{len(self.files)}"
        journal = Journal(Store(self), name, ROWS)
        replayed = journal.replay(SETTLED)
        rows = OrdinalSet(ROWS, [ordinal for ordinal in ordinals if ordinal in self.winners])
        if not len(rows):
            return
        self.faults.clear()
        journal.claim(Claim(name, "host", 1, 1, "now"))
        opened = RowsReopened(name, next_round(replayed.records), rows.to_text(), len(rows), {}, "{}", "now")
        journal.publish(SCHEMA.empty_table(), (opened, Released(name, ReleaseReason.DRAINED, "now")))

    def land(self, which: int = -1) -> None:
        """One store call that the dead had on their way is carried out, up to its first write: nobody hears of it."""
        files = len(self.files)
        if self.in_flight:
            with suppress(StoreError):
                self.in_flight.pop(which % len(self.in_flight))()
        self.seen["write of the dead"] += len(self.files) - files

    def look_at_sessions(self) -> None:
        """What drivers see: a session that has ended, and why."""
        for session in self.alive:
            coordinator = session.process.coordinator
            if session.process.has_ended and not session.process.is_frozen:
                session.phase, session.error = coordinator._phase, coordinator._error
                session.is_over = True
                self._check_end(session, coordinator._error)
            self._explain_silence(session)
            self.check_accounts(session.process)
        self.require_nothing_broken()

    def _check_end(self, session: Session, error: Exception | None) -> None:
        self.seen[f"ended: {type(error).__name__ if error else session.phase}"] += 1
        if isinstance(error, Fenced | RunHeld):
            self.require(self.holder != session.name, f"{session.name} holds the run and was fenced: {error}")
            own = max((file.number for file in self.files if file.session == session.name), default=-1)
            claimed = {file.session for file in self.files[own + 1 :] if file.claims}
            self.require(any(name in str(error) for name in claimed), f"the loser is not told who won: {error}")
        else:
            self.require(error is None or isinstance(error, StoreUnavailable), f"{session.name} ended with {error!r}")

    def _explain_silence(self, session: Session) -> None:
        """Rows of a replica that said nothing for so long go to others, and so do those that nobody could ask for."""
        now, process = self.loop.time(), session.process
        for worker in session.workers.values():
            heard = process.heard.get(worker.id)
            limit = ADOPTION_SECONDS if heard is None else SILENT_SECONDS
            since = now - (process.opened_at if heard is None else heard)
            if since < limit - TICK_SECONDS:
                worker.is_silent_for = None
            elif worker.is_silent_for is not process:
                worker.is_silent_for = process
                session.lost(worker)

    def note_zombie(self, process: Process, speaker: WorkerId) -> None:
        """A zombie that a restarted coordinator hears before its successor ends the wait for that slot."""
        worker = process.session.workers.get(speaker.slot)
        if worker is not None and worker.id != speaker and worker.id not in process.heard:
            process.session.lost(worker)

    # --- what is checked -----------------------------------------------------------------------------

    def require(self, holds: bool, what: str) -> None:
        if not holds:
            self.broken.append(what)
            raise Broken(self.broken[0])  # what follows from the first is no news

    def require_nothing_broken(self) -> None:
        if self.broken:
            raise Broken(self.broken[0])

    def next_fault(self) -> str | None:
        return self.faults.popleft() if self.faults else None

    def replayed(self) -> Replayed:
        return replay(Store(self), ROWS, SETTLED)

    def published(self, key: str, data: bytes) -> None:
        """A journal file has come about: every rule of the journal, and the totals by a count of our own."""
        file = Cheap(data, key)
        footer = footers.from_json(file.entry, key)
        claims = [record for record in footer.records if isinstance(record, Claim)]
        self.require(key == journal_key(len(self.files)), f"{key} is published after {len(self.files)} files")
        self.require(footer.number == len(self.files), f"{key} says that it is number {footer.number}")
        for claim in claims:
            self.require(claim.session not in self.was_fenced, f"{claim.session} was fenced and claims again")
            if self.holder not in (None, claim.session):
                self.was_fenced.add(str(self.holder))
            self.holder = claim.session
        self.require(footer.session == self.holder, f"{key} is of {footer.session}, and {self.holder} holds the run")
        for row in file.table(["ordinal", "round", "status", "source", "generations", "observed"]).to_pylist():
            self._count(row)
        self.seen["retry ended"] += sum(isinstance(record, RetriesEnded) for record in footer.records)
        self.files.append(File(footer.number, footer.session, bool(claims)))
        self._check_totals(footer, key)
        self._check_tally(footer, key)

    def _count(self, row: dict[str, Any]) -> None:
        ordinal, round_ = row["ordinal"], row["round"]
        has = self.winners.get(ordinal)
        self.require(has is None or has[0] < round_, f"row {ordinal} is in the journal twice in round {round_}")
        tokens = sum(len(made["completion_token_ids"]) for made in row["generations"])
        self.seen[f"committed: {row['status']}{', again' if round_ else ''}"] += 1
        replica = row["observed"]["replica"] if row["generations"] else None
        self.winners[ordinal] = Winner(round_, row["status"], row["source"], tokens, replica)

    def _check_totals(self, footer: footers.Footer, key: str) -> None:
        winners = self.winners.values()
        counted = Counter((row.source, Status(row.status)) for row in winners)
        self.require(dict(footer.totals.outcomes) == dict(counted), f"{key}: its totals are not the count of its rows")
        tokens = sum(row.tokens for row in winners)
        self.require(
            footer.totals.output_tokens == tokens, f"{key}: {footer.totals.output_tokens} tokens, not {tokens}"
        )
        lengths = Counter((row.source, length_buckets.bucket(row.tokens)) for row in winners if row.replica is not None)
        told = {
            (source, bucket): rows
            for source, part in footer.totals.by_source.items()
            for bucket, rows in enumerate(part.lengths)
            if rows
        }
        self.require(told == dict(lengths), f"{key}: its rows by source and length are not the count of its rows")
        by_replica: Counter[int] = Counter()
        for row in winners:
            if row.replica is not None:
                by_replica[row.replica] += row.tokens
        told_tokens = {replica: part.output_tokens for replica, part in footer.totals.by_replica.items()}
        self.require(told_tokens == dict(by_replica), f"{key}: its tokens by replica are not those of its rows")

    def _check_tally(self, footer: footers.Footer, key: str) -> None:
        """No count falls, whoever publishes; none is above what has happened."""
        tally = tally_of(newest_tally(footer.records))
        if not newest_tally(footer.records):
            return
        failed, restarts = sum(tally.retries.values()), tally.coordinator_restarts
        self.require(failed <= sum(self.failures.values()), f"{key}: {failed} failed attempts are told")
        claims = Counter(file.session for file in self.files if file.claims)
        self.require(restarts <= sum(claims.values()) - len(claims), f"{key}: {restarts} restarts are told")
        starts = sum(slot.starts for slot in tally.slots.values())
        counts = (failed, restarts, starts, sum(slot.restarts for slot in tally.slots.values()), tally.store_errors)
        self.require(
            all(now >= before for now, before in zip(counts, self.told, strict=True)), f"{key}: {counts} < {self.told}"
        )
        self.told = counts

    def check_orders(self, process: Process, report: Report, orders: Orders) -> None:
        """What the schedule decides, at the moment when it does."""
        session, speaker = process.session, report.worker
        self._note(process, report, orders)
        twice = orders.accepted & process.accepted
        self.require(not twice, f"rows {sorted(twice)} are received twice")
        process.accepted |= orders.accepted
        if (speaker.incarnation, report.seq) < process.newest_of(speaker.slot):
            self.require(not orders.grants, f"a late request of {speaker} gets rows")
            return
        before = process.granted.get(speaker, set())
        process.granted[speaker] = {grant.ordinal for grant in orders.grants}
        is_repeated = process.listed.get(speaker.slot, ())[:2] == (speaker.incarnation, report.seq)
        handed_anew = process.granted[speaker] - (before if is_repeated else set())
        self._note_listed(process, report, orders)
        self._check_attempts(process, orders)
        if not orders.grants:
            return
        claims = [file for file in self.files[process.first_file :] if file.claims and file.session == session.name]
        self.require(bool(claims), f"{session.name} hands out rows without a claim of this incarnation")
        newest = max((one.incarnation for one in process.heard if one.slot == speaker.slot), default=0)
        self.require(speaker.incarnation == newest, f"{speaker} was replaced and gets rows")
        self.require(speaker not in process.gone, f"{speaker} is dead and gets rows")
        for worker in session.workers.values():
            is_known = worker.id in process.heard and worker.is_silent_for is not process and not session.is_over
            for ordinal in handed_anew & worker.holds() if is_known and worker.id != speaker else ():
                self.require(False, f"row {ordinal} is handed to {speaker} while {worker.id} lists it")

    def _note(self, process: Process, report: Report, orders: Orders) -> None:
        is_first = len(process.heard) == 1 and process.is_restart
        for name, happens in {
            "superseded": orders.superseded,
            "asked to send again": orders.resend,
            "attempts used up": orders.exhausted,
            "adopted": is_first and report.running,
            "settled while running": set(orders.settled) & set(report.running),
            "result of a zombie": orders.accepted and report.worker not in process.session.ids(),
        }.items():
            self.seen[name] += bool(happens)

    @staticmethod
    def _note_listed(process: Process, report: Report, orders: Orders) -> None:
        """What a slot holds by its newest report. An older one, or one of a replaced worker, says nothing."""
        incarnation, seq, _ = process.listed.get(report.worker.slot, (-1, -1, set()))
        if (report.worker.incarnation, report.seq) >= (incarnation, seq):
            holds = {*report.running, *report.awaiting, *(grant.ordinal for grant in orders.grants)}
            process.listed[report.worker.slot] = report.worker.incarnation, report.seq, holds

    def _check_attempts(self, process: Process, orders: Orders) -> None:
        """A failed attempt counts once, however often it is told."""
        assert process.coordinator._run is not None
        round_of = process.coordinator._run.reopened.round_of
        counted = {grant.ordinal: grant.attempt - 1 for grant in orders.grants}
        counted |= {row.ordinal: row.attempts for row in orders.exhausted}
        for ordinal, failed in counted.items():
            times = self.failures[ordinal, round_of(ordinal)]
            self.require(failed <= times, f"row {ordinal} has failed {times} times, and {failed} are counted")

    def check_accounts(self, process: Process) -> None:
        """Rows in flight are with somebody not known to be dead; rows received are on their way into the journal."""
        if (run := process.coordinator._run) is None or process.is_dead or process.is_frozen:
            return
        holders = [
            holds
            for slot, (incarnation, _, holds) in process.listed.items()
            if WorkerId(slot, incarnation) not in process.gone
        ]
        held = len(set().union(*holders))
        self.require(run.schedule.in_flight <= held, f"{run.schedule.in_flight} rows in flight, and {held} are held")
        on_their_way = run.publisher.uncommitted_rows + len(process.coordinator._exhausted)
        self.require(
            run.schedule.received == on_their_way, f"{run.schedule.received} rows received, {on_their_way} on their way"
        )

    def check_reply(self, request: ExchangeRequest, reply: ExchangeReply) -> None:
        is_leaving = reply.command is Command.RELEASE
        self.require(not (is_leaving and reply.leases), f"{request.worker} is to leave and gets rows")
        for ordinal in reply.settled:
            is_running = ordinal in request.running  # then somebody else has finished it
            self.require(is_running or ordinal in self.winners, f"row {ordinal} is settled and not committed")

    # --- the end -------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Without faults from here on: the run ends, and what it amounts to is right."""
        self.faults.clear()
        self.unreadable = 0
        for session in list(self.sessions):
            if not session.process.is_dead:
                session.process.is_held = False
                session.process.thaw()
        for _ in range(60):
            self.settle()
            self.pass_time(2.0)
            if not self.alive and any(one.name == self.holder and one.phase is Phase.FINISHED for one in self.sessions):
                break
            if not self.alive:
                self.start(3, 2.0)
            for session in self.alive:
                for worker in list(session.workers.values()):
                    worker.end_rows(ROWS)
                    worker.speak("answered")
        self.require(not self.alive, "the run does not come to an end")
        self._check_result()

    def _check_result(self) -> None:
        replayed = self.replayed()
        self.require(len(replayed.done) == ROWS, f"rows are missing: {sorted(replayed.done)}")
        self.require(sum(replayed.totals.by_status().values()) == ROWS, "planned is not the sum of outcomes")
        self.require(not len(replayed.reopened.pending), "re-opened rows were not made")
        self.require(replayed.next_number == len(self.files), "files are not read back")
