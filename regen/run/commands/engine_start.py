"""Starting an engine that no worker holds: for `regen evaluate` and `regen doctor`. A worker waits in its own way."""

from __future__ import annotations

import asyncio

from regen.errors import EngineStartFailed
from regen.protocols import Engine
from regen.records import EngineInfo


async def started(engine: Engine, limit_seconds: float) -> EngineInfo:
    """Raises EngineStartFailed, also when `limit_seconds` (engine.start_timeout_seconds) are over."""
    try:
        return await asyncio.wait_for(engine.start(), limit_seconds)
    except TimeoutError:
        raise EngineStartFailed(
            f"the engine was not ready within engine.start_timeout_seconds ({limit_seconds:g} s)"
        ) from None
