"""The driver: makes the coordinator and the workers, awaits them, replaces dead ones, drains when asked. No state.

It knows replicas and the coordinator only through `Cluster`: Ray actors (cluster.py) or one event loop (local.py).
Killed at any moment it loses nothing: the same command continues from the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from regen.errors import EngineError, RegenError
from regen.records import CoordinatorStatus, Phase, WorkerId
from regen.run.setup import RunSetup, WorkerSetup

POLL_SECONDS = 0.5
# A coordinator that dies so often without publishing anything in between will not come right by itself.
COORDINATOR_RESTARTS = 5
# How long after the end the workers may take to leave before they are killed.
LEAVE_SECONDS = 20.0


class CoordinatorHandle(Protocol):
    """`run.coordinator.Coordinator`, wherever it lives."""

    async def status(self) -> CoordinatorStatus: ...

    async def drain(self, seconds: float) -> None: ...

    async def worker_gone(self, worker: WorkerId) -> None: ...


class WorkerHandle(Protocol):
    """`run.worker.Worker`, wherever it lives."""

    async def run(self) -> None:
        """Ends when the worker was told to stop. Raises EngineError when it, or its process, is no good any more."""
        ...

    async def kill(self) -> None:
        """End it and every process it started. No error if it is gone."""
        ...


class Cluster(Protocol):
    """Where coordinator and workers live."""

    async def start_coordinator(self, setup: RunSetup) -> CoordinatorHandle: ...

    async def start_worker(self, setup: WorkerSetup) -> WorkerHandle: ...

    async def close(self) -> None:
        """End everything that was started here."""
        ...


Watcher = Callable[[CoordinatorStatus], None]
EventLog = Callable[[str], None]


class Driver:
    """One session of a run, from claim to end."""

    def __init__(self, cluster: Cluster, worker_setup: WorkerSetup, watch: Watcher, log: EventLog) -> None:
        """`worker_setup` is the pattern for every replica; `watch` is called with each new status."""
        self._cluster = cluster
        self._pattern = worker_setup
        self._watch = watch
        self._log = log
        self._drain = asyncio.Event()
        self._drain_again = asyncio.Event()
        self._drain_seconds = 0.0

    def drain(self, seconds: float) -> None:
        """Ask for an orderly end: nothing new is begun, finished rows are published, then the session ends."""
        self._drain_seconds = seconds
        self._drain.set()

    def drain_now(self) -> None:
        """Asked a second time: what still runs is dropped, what is finished is published."""
        self._drain_seconds = 0.0
        self._drain_again.set()

    async def run(self) -> CoordinatorStatus:
        """The last status: finished or drained. Raises the run's error otherwise."""
        setup = self._pattern.run
        coordinator = await self._cluster.start_coordinator(setup)
        replicas: list[asyncio.Task[None]] = []
        drain = asyncio.ensure_future(self._pass_on_drain(coordinator))
        try:
            await self._until_open(coordinator)
            replicas = [
                asyncio.ensure_future(self._keep_replica(coordinator, slot))
                for slot in range(setup.spec.engine.replicas)
            ]
            status = await self._supervise(coordinator, replicas)
            await asyncio.wait(replicas, timeout=LEAVE_SECONDS)
            return status
        finally:
            drain.cancel()
            for replica in replicas:
                replica.cancel()
            await asyncio.gather(drain, *replicas, return_exceptions=True)
            await self._cluster.close()

    async def _until_open(self, coordinator: CoordinatorHandle) -> None:
        """No engine is loaded for a run that somebody else holds."""
        while (status := await coordinator.status()).phase is Phase.REPLAYING:
            await asyncio.sleep(POLL_SECONDS / 5)
        _raise_if_failed(status)

    async def _supervise(self, coordinator: CoordinatorHandle, replicas: list[asyncio.Task[None]]) -> CoordinatorStatus:
        restarts = _RestartCount()
        while True:
            status = await coordinator.status()
            self._watch(status)
            _raise_if_failed(status)
            if status.phase in (Phase.FINISHED, Phase.DRAINED):
                return status
            restarts.see(status)
            _raise_if_all_lost(replicas)
            await asyncio.wait(replicas, timeout=POLL_SECONDS)
            if all(replica.done() for replica in replicas):
                await asyncio.sleep(POLL_SECONDS / 5)

    async def _keep_replica(self, coordinator: CoordinatorHandle, slot: int) -> None:
        """One slot: an engine after another until one is told to stop. Raises when its restarts are used up."""
        allowed = self._pattern.run.spec.engine.restarts
        for incarnation in range(allowed + 1):
            setup = replace(self._pattern, worker=WorkerId(slot, incarnation))
            worker = await self._cluster.start_worker(setup)
            try:
                return await worker.run()
            except EngineError as error:
                left = allowed - incarnation
                self._log(f"replica {slot} is gone ({type(error).__name__}: {error}); restarts left: {left}")
                if not left:
                    raise
            finally:
                await worker.kill()
                await coordinator.worker_gone(setup.worker)

    async def _pass_on_drain(self, coordinator: CoordinatorHandle) -> None:
        await self._drain.wait()
        self._log(f"draining: finished rows are published, running ones get {self._drain_seconds:g} s")
        await coordinator.drain(self._drain_seconds)
        await self._drain_again.wait()
        await coordinator.drain(0.0)


class _RestartCount:
    """Restarts of the coordinator since it last published a row."""

    def __init__(self) -> None:
        self._incarnation = ""
        self._done = -1
        self._restarts = 0

    def see(self, status: CoordinatorStatus) -> None:
        if status.phase is Phase.REPLAYING:
            return
        if status.totals.done > self._done:
            self._restarts = 0
        elif self._incarnation and status.incarnation != self._incarnation:
            self._restarts += 1
        self._incarnation, self._done = status.incarnation, max(status.totals.done, self._done)
        if self._restarts >= COORDINATOR_RESTARTS:
            raise RegenError(
                f"the coordinator died {self._restarts} times without publishing anything in between;"
                " its log in the Ray session's folder says why. Nothing committed is lost."
            )


def _raise_if_failed(status: CoordinatorStatus) -> None:
    if status.phase is Phase.FAILED:
        raise status.error or RegenError("the coordinator failed and gave no reason")


def _raise_if_all_lost(replicas: list[asyncio.Task[None]]) -> None:
    """A lost replica is a smaller fleet; only the last one's loss ends the run."""
    failed = [error for replica in replicas if replica.done() and (error := replica.exception()) is not None]
    if len(failed) == len(replicas):
        raise failed[-1]
