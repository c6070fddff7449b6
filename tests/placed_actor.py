"""Stands where `cluster.ReplicaActor` does, without an engine: it says what Ray gave it, and ends as it is told."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import get_current_placement_group

from regen.errors import EngineDied
from regen.records import Left
from regen.run.cluster import Placed, placed_here
from regen.run.setup import WorkerSetup
from regen.spec import RunSpec


@dataclass(frozen=True)
class Given:
    """What one replica's process sees."""

    pid: int
    node: str
    visible: str | None
    gpu_ids: tuple[int, ...]
    resources: dict[str, float]
    group: str | None


@ray.remote(max_restarts=0, max_task_retries=0)
class PlacedActor:
    def __init__(self) -> None:
        self._fails = asyncio.Event()

    async def is_placed(self) -> Placed:
        return placed_here()

    async def get_ready(self, spec: RunSpec, slot: int) -> None: ...

    async def run(self, setup: WorkerSetup, coordinator: Any) -> Left:
        await self._fails.wait()
        raise EngineDied("vLLM's engine process is gone")

    async def fail(self) -> None:
        """As an engine does that finds one of its workers gone."""
        self._fails.set()

    async def given(self) -> Given:
        """Asked in a thread: there `VllmEngine` loads, and there vLLM looks for a placement group."""
        return await asyncio.to_thread(_given)


def _given() -> Given:
    context, group = ray.get_runtime_context(), get_current_placement_group()
    return Given(
        os.getpid(),
        context.get_node_id(),
        os.environ.get("CUDA_VISIBLE_DEVICES"),
        tuple(ray.get_gpu_ids()),
        context.get_assigned_resources(),
        None if group is None else group.id.hex(),
    )
