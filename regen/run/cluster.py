"""The only file that imports Ray: coordinator and workers as actors, their placement, the job's submission.

- The driver makes all actors, and they end with it (Ray ends an actor with its creator, even a restartable one).
- The coordinator sits beside the driver, needs no CPU of its own, and is restarted by Ray for ever; its calls are
  repeated, which they are made for. The driver bounds the restarts.
- A worker is never restarted: the driver makes the next incarnation. An async actor answers while its engine works.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RayTaskError
from ray.job_submission import JobSubmissionClient
from ray.util import placement_group, placement_group_table, remove_placement_group
from ray.util.placement_group import PlacementGroup, get_current_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from regen.errors import EngineDied, EngineStartFailed, NodeLost, RegenError, UserError
from regen.records import CoordinatorStatus, Death, ExchangeReply, ExchangeRequest, Left, Places, Toll, WorkerId
from regen.run.coordinator import Coordinator
from regen.run.fleet import leash, probe
from regen.run.fleet.fit import Answers, Node, Questions
from regen.run.fleet.placement import STRATEGY, Placement, placement_of
from regen.run.replica import build_worker, import_engine, is_own_vllm, prepare_draft
from regen.run.setup import Assignment, RunSetup, WorkerSetup
from regen.spec import RunSpec, dump_spec, with_absolute_paths

# `ray job stop` sends SIGTERM and, so long after it, SIGKILL. Ray's own default of 3 s is too short to end a row in.
JOB_STOP_SECONDS = 60
# The driver drains for less than that: the rest is for publishing and leaving.
DRAIN_SECONDS = 45.0
DRAIN_SECONDS_VARIABLE = "REGEN_DRAIN_SECONDS"
# A replica that has no node by then is spoken of.
PLACEMENT_SECONDS = 30.0
# Within so long a dead actor is known to be one.
DEATH_TOLD_SECONDS = 0.5
# From an actor that Ray cannot reach to its word on the node: by its settings 15 s, and more on a busy head.
NODE_VERDICT_SECONDS = 30.0
_LOOK_AT_NODES_SECONDS = 0.5
_CONCURRENT_CALLS = 2000
# Ray gives it to the node that was started with `--head`, and to no other.
_HEAD_RESOURCE = "node:__internal_head__"
_AUTHENTICATION_LOG = logging.getLogger("ray._private.authentication.authentication_token_setup")
_JOINING_LOG = logging.getLogger("ray._private.worker")


class RayCluster:
    """`driver.Cluster` over Ray actors, on the cluster of this process (see `connect`)."""

    def __init__(self, log: Callable[[str], None], made_ahead: Mapping[int, MadeReplica] | None = None) -> None:
        """`made_ahead` are processes for the first engines of their slots; they end with `close` where none came."""
        self._log = log
        self._made_ahead = dict(made_ahead or {})
        self._coordinator: RayCoordinator | None = None
        self._has_told_nicer = False

    async def start_coordinator(self, setup: RunSetup) -> RayCoordinator:
        here = ray.get_runtime_context().get_node_id()
        actor = CoordinatorActor.options(scheduling_strategy=_on(here)).remote(setup)  # type: ignore[attr-defined]
        self._coordinator = RayCoordinator(actor)
        return self._coordinator

    async def start_worker(self, setup: WorkerSetup) -> RayWorker:
        assert self._coordinator is not None, "the coordinator comes first"
        made = await self._take_made(setup.worker.slot) or _make_replica(setup.run.spec, setup.worker.slot)
        return RayWorker(
            made.actor, setup, self._coordinator.actor, made.placement, self._log, made.group, self._tell_nicer
        )

    async def _take_made(self, slot: int) -> MadeReplica | None:
        """The process that was made ahead, if it is still there: the plan may have taken an hour."""
        made = self._made_ahead.pop(slot, None)
        if made is not None and await _has_died(made.actor):
            _remove_group(made.group)
            return None
        return made

    def _tell_nicer(self, slot: int, steps: int) -> None:
        """Once: where it is so it is so for all."""
        if steps > 0 and not self._has_told_nicer:
            self._has_told_nicer = True
            self._log(
                f"replica {slot}: Ray has made its processes {steps} steps nicer than its own (`nice`), so whatever"
                " else runs on that machine goes first. Set RAY_worker_niceness=0 where Ray is started there"
            )

    async def close(self) -> None:
        for made in self._made_ahead.values():
            ray.kill(made.actor)
            _remove_group(made.group)
        if self._coordinator is not None:
            ray.kill(self._coordinator.actor)


@dataclass(frozen=True, slots=True)
class RayCoordinator:
    """`driver.CoordinatorHandle`. Ray repeats calls while it restarts the actor; an error here is for good."""

    actor: Any

    async def status(self) -> CoordinatorStatus:
        status: CoordinatorStatus = await _answered(self.actor.status.remote())
        return status

    async def drain(self, seconds: float) -> None:
        await _answered(self.actor.drain.remote(seconds))

    async def assignment(self, slot: int) -> Assignment | None:
        assignment: Assignment | None = await _answered(self.actor.assignment.remote(slot))
        return assignment

    async def worker_gone(
        self, worker: WorkerId, death: Death | None = None, is_released: bool = False, is_to_blame: bool = True
    ) -> Toll:
        toll: Toll = await _answered(self.actor.worker_gone.remote(worker, death, is_released, is_to_blame))
        return toll

    async def places(self, places: Places) -> None:
        await _answered(self.actor.places.remote(places))

    async def farewell(self) -> str | None:
        awaited: str | None = await _answered(self.actor.farewell.remote())
        return awaited


@dataclass(frozen=True, slots=True)
class Placed:
    """Where an actor's process is; how much nicer it is than the node's own, which has started it."""

    node: str
    nicer: int


def placed_here() -> Placed:
    """This process, an actor's."""
    nicer = os.getpriority(os.PRIO_PROCESS, 0) - os.getpriority(os.PRIO_PROCESS, os.getppid())
    return Placed(str(ray.get_runtime_context().get_node_id()), nicer)


@dataclass(frozen=True, slots=True)
class MadeReplica:
    """A replica's process, which has no engine yet. `group`: where it has a placement group."""

    actor: Any
    placement: Placement
    group: PlacementGroup | None


@dataclass(frozen=True, slots=True)
class Joined:
    """A cluster that was joined. `logs`: where its processes write their output, on every node."""

    logs: str
    made_ahead: Mapping[int, MadeReplica]


@dataclass(slots=True)
class RayWorker:
    """`driver.WorkerHandle`. Its placement group, if there is one, lives as long as it does."""

    actor: Any
    setup: WorkerSetup
    coordinator: Any
    placement: Placement
    log: Callable[[str], None]
    group: PlacementGroup | None = None
    tell_nicer: Callable[[int, int], None] = lambda slot, steps: None
    nodes: frozenset[str] = frozenset()  # by Ray's ids; empty until it is placed

    async def run(self) -> Left:
        placed = asyncio.ensure_future(self._await_place())
        try:
            return Left(await self.actor.run.remote(self.setup, self.coordinator))
        except RayTaskError as error:
            own = _own(error)
            raise (await self._lost_node(waits=self.group is not None and isinstance(own, EngineDied)) or own) from None
        except RayActorError as error:
            # While Ray does not know yet what became of a node, it says that the actor is unavailable.
            lost = await self._lost_node(error.preempted, waits=isinstance(error, ActorUnavailableError))
            raise (lost or EngineDied(f"the replica's process is gone: {_first_line(error)}")) from error
        except RayError as error:
            raise EngineDied(f"the replica failed: {type(error).__name__}: {_last_line(error)}") from error
        finally:
            placed.cancel()

    async def placed(self) -> None:
        await self._place()

    async def kill(self) -> None:
        try:
            ray.kill(self.actor)
        finally:
            group, self.group = self.group, None
            _remove_group(group)

    async def _lost_node(self, is_preempted: bool = False, waits: bool = False) -> NodeLost | None:
        """None: its nodes live, as far as Ray knows. `waits`: Ray may yet find out that one does not."""
        deadline = time.monotonic() + (NODE_VERDICT_SECONDS if waits else 0.0)
        while True:
            if lost := await asyncio.to_thread(_dead_among, self.nodes):
                return NodeLost(f"the replica's node is gone: {', '.join(lost)}")
            if is_preempted:
                return NodeLost("the replica's node was taken away: Ray says that it was drained, and is gone")
            if time.monotonic() > deadline:
                return None
            await asyncio.sleep(_LOOK_AT_NODES_SECONDS)

    async def _await_place(self) -> None:
        """A replica that no node has room for stays pending without a word from Ray."""
        placing = asyncio.ensure_future(self._place())
        done, _ = await asyncio.wait((placing,), timeout=PLACEMENT_SECONDS)
        if not done:
            self.log(
                f"replica {self.setup.worker.slot} still waits for {self.placement} to be free; the cluster has"
                f" {ray.cluster_resources()} in all. `ray status` shows what is taken."
            )
            await placing

    async def _place(self) -> None:
        with suppress(RayError):
            placed: Placed = await self.actor.is_placed.remote()
            self.tell_nicer(self.setup.worker.slot, placed.nicer)
            self.nodes = frozenset({placed.node}) | await asyncio.to_thread(_nodes_of, self.group)


def join(spec: RunSpec, address: str | None, verbosity: int) -> Joined:
    """`connect`, and processes for the first engines of this spec: they import what an engine is made of."""
    logs = connect(address, verbosity)
    first = [slot for slot in range(spec.engine.fewest_replicas) if is_own_vllm(spec, slot)]
    try:
        made = {slot: _make_replica(spec, slot) for slot in first}
    except BaseException:
        disconnect()
        raise
    for slot, replica in made.items():
        replica.actor.get_ready.remote(spec, slot)
    return Joined(logs, made)


async def _has_died(actor: Any) -> bool:
    """Ray says so at once. One that says nothing waits for room, or is busy with its imports."""

    async def ask() -> bool:
        try:
            await actor.is_placed.remote()
        except RayError:
            return True
        return False

    asked = asyncio.ensure_future(ask())
    await asyncio.wait((asked,), timeout=DEATH_TOLD_SECONDS)
    return asked.done() and asked.result()


def _make_replica(spec: RunSpec, slot: int) -> MadeReplica:
    """At once: its process comes up when there is room for it."""
    placement = placement_of(spec.engine, slot)
    group = _make_group(placement)
    try:
        actor = ReplicaActor.options(**placement.options, **_in_first_bundle(group)).remote()  # type: ignore[attr-defined]
    except BaseException:
        _remove_group(group)
        raise
    return MadeReplica(actor, placement, group)


def _make_group(placement: Placement) -> PlacementGroup | None:
    """At once: Ray reserves it when there is room. It ends with the driver, if nobody removes it before."""
    if not placement.bundles:
        return None
    return placement_group([placement.bundle] * placement.bundles, strategy=STRATEGY)


def _in_first_bundle(group: PlacementGroup | None) -> dict[str, Any]:
    """Options of the actor: vLLM finds the group that the actor is in, and makes its workers there."""
    if group is None:
        return {}
    return {
        "scheduling_strategy": PlacementGroupSchedulingStrategy(
            group, placement_group_bundle_index=0, placement_group_capture_child_tasks=True
        )
    }


def _remove_group(group: PlacementGroup | None) -> None:
    """Also one that never became ready: it would take GPUs as soon as there are some."""
    if group is not None:
        remove_placement_group(group)


def _nodes_of(group: PlacementGroup | None) -> frozenset[str]:
    """That its bundles lie on."""
    if group is None:
        return frozenset()
    return frozenset(placement_group_table(group)["bundles_to_node_id"].values())


def _dead_among(nodes: frozenset[str]) -> list[str]:
    """Addresses and ids of those that Ray counts as dead, or has forgotten."""
    known = {node["NodeID"]: node for node in ray.nodes()}
    return [_told_node(known.get(name), name) for name in sorted(nodes) if not known.get(name, {}).get("Alive")]


def _told_node(node: dict[str, Any] | None, name: str) -> str:
    if node is None:
        return name
    why = node.get("DeathReasonMessage")
    return f"{node['NodeManagerAddress']} ({name[:8]}{f': {why}' if why else ''})"


def _own(error: RayTaskError) -> RegenError:
    """The error that the replica raised, without Ray's wrapping and remote trace (that is in the replica's log)."""
    cause = error.cause
    if isinstance(cause, RegenError):
        return cause
    return EngineDied(f"the replica failed: {type(cause).__name__}: {_last_line(cause)}")


async def _answered(answer: Any) -> Any:
    try:
        return await answer
    except RayError as error:
        raise RegenError(
            f"the coordinator does not answer any more: {type(error).__name__}: {_last_line(error)}"
        ) from error


def connect(address: str | None, verbosity: int) -> str:
    """Where its processes write their output, on every node.

    Join the Ray cluster at `address`, else the one of RAY_ADDRESS (a Ray job has it set), else start a local one.

    Without either it never looks for a running cluster: Ray would follow the note that some `ray start` has left on
    this machine, dead or alive, and wait for minutes. `address="auto"` asks for just that.
    From `verbosity` 1 on what they write is printed here, too, and Ray's own remarks; 2 makes a local cluster's engines
    say all they can. Raises UserError when nothing answers.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    wanted = address or os.environ.get("RAY_ADDRESS") or "local"
    options = {"include_dashboard": False} if wanted == "local" else {}
    if verbosity > 1:
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "DEBUG")
    logging.getLogger("ray").setLevel(logging.INFO if verbosity else logging.WARNING)
    _AUTHENTICATION_LOG.addFilter(_is_no_note_of_tokens)
    _JOINING_LOG.addFilter(_is_no_note_of_signals)
    try:
        context = ray.init(address=wanted, log_to_driver=verbosity > 0, configure_logging=False, **options)
    except Exception as error:  # Ray has no error of its own for this: ValueError, ConnectionError, RpcError, ...
        raise UserError(f"cannot join the Ray cluster at {wanted}: {_first_line(error)}") from error
    return f"{context.address_info['session_dir']}/logs"


def _is_no_note_of_tokens(record: logging.LogRecord) -> bool:
    """Ray remarks with each local cluster that it is guarded by a token. That one is not, it must go on saying.

    Choosing the token oneself (RAY_AUTH_MODE) silences it, too, and stops the cluster: Ray reads its settings when it
    is imported, and only then.
    """
    return record.funcName != "_warn_token_auth_enabled"


def _is_no_note_of_signals(record: logging.LogRecord) -> bool:
    """Outside the main thread Ray sets no handler of SIGTERM, and remarks on that. The session has its own."""
    return not record.getMessage().startswith("SIGTERM handler is not set")


def survey(questions: Questions, seconds: float) -> list[Node]:
    """Every live node of the connected cluster, and what it says within `seconds`. Runs one small task on each."""
    alive = [node for node in ray.nodes() if node["Alive"]]
    asked = {node["NodeID"]: _ask(node["NodeID"], questions) for node in alive}
    answered, _ = ray.wait(list(asked.values()), num_returns=len(asked), timeout=seconds)
    return [_node(node, asked[node["NodeID"]], set(answered), seconds) for node in alive]


def free_resources() -> tuple[float, float]:
    """CPUs and GPUs of the whole cluster that nobody holds at this moment."""
    free = ray.available_resources()
    return free.get("CPU", 0.0), free.get("GPU", 0.0)


def _ask(node_id: str, questions: Questions) -> Any:
    return answer_questions.options(scheduling_strategy=_on(node_id)).remote(questions)


def _on(node_id: str) -> NodeAffinitySchedulingStrategy:
    return NodeAffinitySchedulingStrategy(node_id, soft=False)


def _node(node: dict[str, Any], asked: Any, answered: set[Any], seconds: float) -> Node:
    answers: Answers | None = None
    error = f"nothing within {seconds:g} s"
    if asked in answered:
        try:
            answers, error = ray.get(asked), ""
        except RayError as failed:
            error = _last_line(failed)
    else:
        ray.cancel(asked)
    has = node["Resources"]
    return Node(
        name=f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})",
        cpus=has.get("CPU", 0.0),
        gpus=has.get("GPU", 0.0),
        is_head=_HEAD_RESOURCE in has,
        answers=answers,
        error=error,
    )


def disconnect() -> None:
    """Leave the cluster; a local one ends with it."""
    ray.shutdown()


def drain_seconds() -> float:
    """How long a drain may take here: what the submission set, else the default."""
    return float(os.environ.get(DRAIN_SECONDS_VARIABLE, DRAIN_SECONDS))


def submit(spec: RunSpec, address: str | None, arguments: list[str]) -> str:
    """Submit `python -m regen run` with this spec as a Ray job; its submission id.

    The spec travels as the job's working directory, its relative paths made absolute: every node must see them.
    Raises UserError when the cluster's job server does not answer or refuses.
    """
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "spec.yaml").write_text(dump_spec(with_absolute_paths(spec)), encoding="utf-8")
        try:
            return str(
                JobSubmissionClient(address).submit_job(
                    entrypoint=shlex.join(["python", "-m", "regen", "run", "spec.yaml", *arguments]),
                    runtime_env={"working_dir": folder, "env_vars": job_environment()},
                )
            )
        except Exception as error:  # as in `connect`
            raise UserError(
                f"the Ray job server at {address or 'RAY_API_SERVER_ADDRESS, else http://localhost:8265'} refused:"
                f" {_first_line(error)}. With token authentication set RAY_AUTH_MODE=token on both sides."
            ) from error


def job_environment() -> dict[str, str]:
    """Shown in clear by `ray job list`: no secrets here."""
    return {"RAY_JOB_STOP_WAIT_TIME_S": str(JOB_STOP_SECONDS), DRAIN_SECONDS_VARIABLE: str(DRAIN_SECONDS)}


def _last_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@ray.remote(num_cpus=0, max_retries=0)  # type: ignore[untyped-decorator]
def answer_questions(questions: Questions) -> Answers:
    """On the node that is asked."""
    return probe.answer(questions)


@ray.remote(num_cpus=0, max_retries=0)  # type: ignore[untyped-decorator]
def make_draft(setup: WorkerSetup) -> str | None:
    """On a node of an engine that lies over several."""
    return prepare_draft(setup)


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1, max_concurrency=_CONCURRENT_CALLS)
class CoordinatorActor:
    def __init__(self, setup: RunSetup) -> None:
        self._coordinator = Coordinator(setup)

    async def exchange(self, request: ExchangeRequest) -> ExchangeReply:
        return await self._coordinator.exchange(request)

    async def status(self) -> CoordinatorStatus:
        return await self._coordinator.status()

    async def drain(self, seconds: float) -> None:
        await self._coordinator.drain(seconds)

    async def assignment(self, slot: int) -> Assignment | None:
        return await self._coordinator.assignment(slot)

    async def worker_gone(
        self, worker: WorkerId, death: Death | None = None, is_released: bool = False, is_to_blame: bool = True
    ) -> Toll:
        return await self._coordinator.worker_gone(worker, death, is_released, is_to_blame)

    async def places(self, places: Places) -> None:
        await self._coordinator.places(places)

    async def farewell(self) -> str | None:
        return await self._coordinator.farewell()


@ray.remote(max_restarts=0, max_task_retries=0)
class ReplicaActor:
    def __init__(self) -> None:
        self._importing = asyncio.Lock()

    async def get_ready(self, spec: RunSpec, slot: int) -> None:
        """Import what the slot's engine is made of. What fails here fails again, and is said, when it starts."""
        async with self._importing:
            with suppress(Exception):
                await asyncio.to_thread(import_engine, spec, slot)

    async def is_placed(self) -> Placed:
        """As soon as Ray has found a node for this actor (and its group) and its process has come up."""
        return placed_here()

    async def run(self, setup: WorkerSetup, coordinator: Any) -> Left:
        """Once."""

        async def exchange(request: ExchangeRequest) -> ExchangeReply:
            reply: ExchangeReply = await coordinator.exchange.remote(request)
            return reply

        async with self._importing:  # two threads that import transformers at once find it half made
            await asyncio.to_thread(leash.tie, leash.mark_of(setup))
        speculation, slot = setup.assignment.speculation, setup.worker.slot
        if speculation is not None and placement_of(setup.run.spec.engine, slot).bundles:
            await self._share_draft(setup, _nodes_of(get_current_placement_group()))
        return await build_worker(setup, exchange).run()

    async def _share_draft(self, setup: WorkerSetup, nodes: frozenset[str]) -> None:
        """vLLM hands one path to its workers, and each opens it on its own node. Raises EngineStartFailed."""
        here = ray.get_runtime_context().get_node_id()
        paths = dict[str, str | None]()
        for node in sorted(nodes | {here}):
            try:
                paths[node] = await make_draft.options(scheduling_strategy=_on(node)).remote(setup)
            except RayError as error:
                raise EngineStartFailed(
                    f"the draft's folder cannot be made on node {node[:8]} of this engine: {_last_line(error)}"
                ) from None
        if other := next((path for path in paths.values() if path != paths[here]), None):
            raise EngineStartFailed(
                f"the draft's folder is {paths[here]} on one node of this engine and {other} on another: vLLM gives one"
                " path to all. Set TMPDIR alike on all nodes, and put the draft at the same path"
            )
