"""The only file that imports Ray: coordinator and workers as actors, their placement, the job's submission.

- The driver makes all actors, and they end with it (Ray ends an actor with its creator, even a restartable one).
- The coordinator sits beside the driver, needs no CPU of its own, and is restarted by Ray for ever; its calls are
  repeated, which they are made for. The driver bounds the restarts.
- A worker is never restarted: the driver makes the next incarnation. An async actor answers while its engine works.
"""

from __future__ import annotations

import os
import shlex
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError
from ray.job_submission import JobSubmissionClient
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from regen.errors import EngineDied, EngineStartFailed, RegenError, UserError
from regen.records import CoordinatorStatus, ExchangeReply, ExchangeRequest, WorkerId
from regen.run.coordinator import Coordinator
from regen.run.replica import build_worker
from regen.run.setup import RunSetup, WorkerSetup
from regen.spec import EngineSpec, RunSpec, VllmEngineSpec, dump_spec, with_absolute_paths

# `ray job stop` sends SIGTERM and, so long after it, SIGKILL. Ray's own default of 3 s is too short to end a row in.
JOB_STOP_SECONDS = 60
# The driver drains for less than that: the rest is for publishing and leaving.
DRAIN_SECONDS = 45.0
DRAIN_SECONDS_VARIABLE = "REGEN_DRAIN_SECONDS"
_CONCURRENT_CALLS = 2000


class RayCluster:
    """`driver.Cluster` over Ray actors, on the cluster of this process (see `connect`)."""

    async def start_coordinator(self, setup: RunSetup) -> RayCoordinator:
        here = ray.get_runtime_context().get_node_id()
        actor = CoordinatorActor.options(  # type: ignore[attr-defined]
            scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=False)
        ).remote(setup)
        self._coordinator = RayCoordinator(actor)
        return self._coordinator

    async def start_worker(self, setup: WorkerSetup) -> RayWorker:
        options = worker_options(setup.run.spec.engine)
        return RayWorker(ReplicaActor.options(**options).remote(setup, self._coordinator.actor))  # type: ignore[attr-defined]

    async def close(self) -> None:
        ray.kill(self._coordinator.actor)


@dataclass(frozen=True, slots=True)
class RayCoordinator:
    """`driver.CoordinatorHandle`."""

    actor: Any

    async def status(self) -> CoordinatorStatus:
        status: CoordinatorStatus = await self.actor.status.remote()
        return status

    async def drain(self, seconds: float) -> None:
        await self.actor.drain.remote(seconds)

    async def worker_gone(self, worker: WorkerId) -> None:
        await self.actor.worker_gone.remote(worker)


@dataclass(frozen=True, slots=True)
class RayWorker:
    """`driver.WorkerHandle`."""

    actor: Any

    async def run(self) -> None:
        try:
            await self.actor.run.remote()
        except RegenError:
            raise
        except RayActorError as error:
            raise EngineDied(f"the replica's process is gone: {_first_line(error)}") from error
        except RayError as error:
            raise EngineStartFailed(f"{type(error).__name__}: {_first_line(error)}") from error

    async def kill(self) -> None:
        ray.kill(self.actor)


def worker_options(engine: EngineSpec) -> dict[str, Any]:
    """Ray's options for one replica's actor."""
    gpus = engine.gpus_per_replica if isinstance(engine, VllmEngineSpec) else 0
    return {"num_cpus": engine.cpus_per_replica, "num_gpus": gpus}


def connect(address: str | None, verbose: bool) -> None:
    """Join the Ray cluster at `address`, else the one of RAY_ADDRESS (a Ray job has it set), else start a local one.

    Without either it never looks for a running cluster: Ray would follow the note that some `ray start` has left on this
    machine, dead or alive, and wait for minutes. `address="auto"` asks for just that.
    Raises UserError when nothing answers.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    wanted = address or os.environ.get("RAY_ADDRESS") or "local"
    options = {"include_dashboard": False} if wanted == "local" else {}
    try:
        ray.init(address=wanted, log_to_driver=verbose, logging_level="warning", **options)
    except (ConnectionError, RuntimeError) as error:
        raise UserError(f"cannot join the Ray cluster at {wanted}: {_first_line(error)}") from error


def disconnect() -> None:
    """Leave the cluster; a local one ends with it."""
    ray.shutdown()


def log_folder() -> str:
    """Where Ray keeps the output of this session's processes, for messages: its documented place on each node."""
    return "/tmp/ray/session_latest/logs"


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
        except (ConnectionError, RuntimeError) as error:
            raise UserError(
                f"the Ray job server at {address or 'RAY_API_SERVER_ADDRESS, else http://localhost:8265'} refused:"
                f" {_first_line(error)}. With token authentication set RAY_AUTH_MODE=token on both sides."
            ) from error


def job_environment() -> dict[str, str]:
    """Shown in clear by `ray job list`: no secrets here."""
    return {"RAY_JOB_STOP_WAIT_TIME_S": str(JOB_STOP_SECONDS), DRAIN_SECONDS_VARIABLE: str(DRAIN_SECONDS)}


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


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

    async def worker_gone(self, worker: WorkerId) -> None:
        await self._coordinator.worker_gone(worker)


@ray.remote(max_restarts=0, max_task_retries=0)
class ReplicaActor:
    def __init__(self, setup: WorkerSetup, coordinator: Any) -> None:
        self._setup = setup
        self._coordinator = coordinator

    async def run(self) -> None:
        await build_worker(self._setup, self._exchange).run()

    async def _exchange(self, request: ExchangeRequest) -> ExchangeReply:
        reply: ExchangeReply = await self._coordinator.exchange.remote(request)
        return reply
