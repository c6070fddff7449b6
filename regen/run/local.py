"""A cluster on one event loop: the same Coordinator and Worker classes without Ray. For tests, and for looking closely.

Killing here is what it is elsewhere: the coordinator stops at once, publishing nothing, and a new one is made with the
same setup; a worker's rows vanish.
"""

from __future__ import annotations

import asyncio

from regen.errors import EngineDied
from regen.records import (
    CoordinatorStatus,
    Death,
    ExchangeReply,
    ExchangeRequest,
    Left,
    Places,
    ReplicaStats,
    Toll,
    WorkerId,
)
from regen.run.coordinator import Coordinator
from regen.run.replica import build_worker
from regen.run.setup import Assignment, RunSetup, WorkerSetup


class LocalCluster:
    """`driver.Cluster` in this process."""

    def __init__(self) -> None:
        self.coordinator: LocalCoordinator | None = None
        self.workers: dict[WorkerId, LocalWorker] = {}

    async def start_coordinator(self, setup: RunSetup) -> LocalCoordinator:
        self.coordinator = LocalCoordinator(setup)
        return self.coordinator

    async def start_worker(self, setup: WorkerSetup) -> LocalWorker:
        assert self.coordinator is not None, "the coordinator comes first"
        worker = LocalWorker(setup, self.coordinator)
        self.workers[setup.worker] = worker
        return worker

    async def close(self) -> None:
        for worker in self.workers.values():
            await worker.kill()
        if self.coordinator is not None:
            await self.coordinator.kill()


class LocalCoordinator:
    """`driver.CoordinatorHandle`: calls go to whichever coordinator lives now, as Ray's restarts have it."""

    def __init__(self, setup: RunSetup) -> None:
        self._setup = setup
        self._living = Coordinator(setup)

    async def status(self) -> CoordinatorStatus:
        return await self._living.status()

    async def drain(self, seconds: float) -> None:
        await self._living.drain(seconds)

    async def assignment(self, slot: int) -> Assignment | None:
        return await self._living.assignment(slot)

    async def worker_gone(
        self, worker: WorkerId, death: Death | None = None, is_released: bool = False, is_to_blame: bool = True
    ) -> Toll:
        return await self._living.worker_gone(worker, death, is_released, is_to_blame)

    async def places(self, places: Places) -> None:
        await self._living.places(places)

    async def farewell(self) -> str | None:
        return await self._living.farewell()

    async def exchange(self, request: ExchangeRequest) -> ExchangeReply:
        return await self._living.exchange(request)

    async def kill(self) -> None:
        """End it without a word; the next call finds it dead and answers nothing new."""
        await self._living.close()

    async def restart(self) -> None:
        """What Ray does when the coordinator's process dies: a new one with the same setup, all memory gone."""
        await self._living.close()
        self._living = Coordinator(self._setup)


class LocalWorker:
    """`driver.WorkerHandle`: one task."""

    def __init__(self, setup: WorkerSetup, coordinator: LocalCoordinator) -> None:
        self._setup = setup
        self._worker = build_worker(setup, coordinator.exchange)
        self._task: asyncio.Task[Left] | None = None

    async def run(self) -> Left:
        self._task = asyncio.ensure_future(self._worker.run())
        await asyncio.wait((self._task,))
        if self._task.cancelled():
            raise EngineDied(f"worker {self._setup.worker.slot} was killed")
        return self._task.result()

    async def placed(self) -> None:
        """There is always room."""

    def stats(self) -> ReplicaStats:
        """What this worker says of itself now, also after its end."""
        return self._worker.stats()

    async def kill(self) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
