"""A cluster in this process with room for so many engines, which comes and goes: nodes that an autoscaler gives."""

from __future__ import annotations

import asyncio

from regen.errors import NodeLost
from regen.records import Left
from regen.run.local import LocalCluster, LocalCoordinator, LocalWorker
from regen.run.setup import WorkerSetup


class ScarceCluster(LocalCluster):
    """`driver.Cluster`: an engine waits until there is room, as an actor of Ray's does."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.free = room
        self.most_placed = 0
        self._waiting: list[asyncio.Future[None]] = []

    async def start_worker(self, setup: WorkerSetup) -> ScarceWorker:
        assert self.coordinator is not None, "the coordinator comes first"
        worker = ScarceWorker(setup, self.coordinator, self)
        self.workers[setup.worker] = worker
        return worker

    @property
    def placed(self) -> dict[int, ScarceWorker]:
        """By slot, the engines that have room now."""
        return {
            worker.slot: worker
            for worker in self.workers.values()
            if isinstance(worker, ScarceWorker) and worker.has_room
        }

    @property
    def waiting(self) -> int:
        """Engines that there is no room for."""
        return len(self._waiting)

    async def take(self) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._serve()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give(1)
            raise
        finally:
            self._waiting = [other for other in self._waiting if other is not turn]

    def give(self, room: int) -> None:
        """A node comes, or an engine has left."""
        self.free += room
        self._serve()

    async def lose(self, slot: int) -> None:
        """The node of this engine goes, and its room with it."""
        worker = self.placed[slot]
        worker.is_node_lost = True
        await worker.kill()

    def _serve(self) -> None:
        while self.free and self._waiting:
            turn = self._waiting.pop(0)
            if not turn.done():  # one that was called off is about to say so
                self.free -= 1
                turn.set_result(None)


class ScarceWorker(LocalWorker):
    """`driver.WorkerHandle`."""

    def __init__(self, setup: WorkerSetup, coordinator: LocalCoordinator, cluster: ScarceCluster) -> None:
        super().__init__(setup, coordinator)
        self.slot = setup.worker.slot
        self.has_room = self.is_node_lost = False
        self._cluster = cluster
        self._is_placed = asyncio.Event()

    async def run(self) -> Left:
        await self._cluster.take()
        self.has_room = True
        self._is_placed.set()
        self._cluster.most_placed = max(self._cluster.most_placed, len(self._cluster.placed))
        try:
            return await super().run()
        except Exception as error:
            raise (NodeLost("its node is gone") if self.is_node_lost else error) from error
        finally:
            self.has_room = False
            if not self.is_node_lost:
                self._cluster.give(1)

    async def placed(self) -> None:
        await self._is_placed.wait()
