"""Stored generations, asked of one engine again: the same ids in, sampled alike, as many at once as it has slots.

Guarantees: each request carries the prompt ids, sampling, cap and seed that its row stores; what concerns one request
is its result, what concerns the engine ends all. The engine is closed whatever happens.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from regen.errors import EngineStalled, RowError
from regen.protocols import Engine
from regen.records import Completion, EngineInfo, Generation, GenerationRequest
from regen.run.commands.engine_start import started
from regen.run.fleet.stall import StallClock
from regen.spec import EngineSpec

LOOK_SECONDS = 1.0

Result = Completion | RowError


async def answer_again(
    engine: Engine, spec: EngineSpec, generations: Sequence[Generation], say: Callable[[str], None]
) -> tuple[EngineInfo, list[Result]]:
    """Start the engine, and one result for each generation, in their order.

    Raises EngineStartFailed, EngineDied, EngineStalled.
    """
    try:
        info = await started(engine, spec.start_timeout_seconds)
        say(f"engine: {info.engine}, {info.slots} slots; {len(generations):,} answers to be made again")
        clock = StallClock(spec.stall_timeout_seconds)
        gate = asyncio.Semaphore(info.slots)
        tasks = [
            asyncio.ensure_future(_answer(engine, gate, clock, number, generation))
            for number, generation in enumerate(generations)
        ]
        return info, await _all(tasks, clock, spec.stall_timeout_seconds)
    finally:
        await engine.close()


async def _all(tasks: Sequence[asyncio.Task[Result]], clock: StallClock, limit_seconds: float) -> list[Result]:
    """Results in order. The first error of the engine, or its silence, ends all of them."""
    pending: set[asyncio.Task[Result]] = set(tasks)
    try:
        while pending:
            done, pending = await asyncio.wait(pending, timeout=LOOK_SECONDS, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
            if clock.is_stalled(time.monotonic()):
                raise EngineStalled(f"no new token for engine.stall_timeout_seconds ({limit_seconds:g} s)")
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return [task.result() for task in tasks]


async def _answer(
    engine: Engine, gate: asyncio.Semaphore, clock: StallClock, number: int, generation: Generation
) -> Result:
    async with gate:
        clock.submitted(number, time.monotonic())
        try:
            return await engine.generate(_request(number, generation), lambda _: clock.tokens(number, time.monotonic()))
        except RowError as error:
            return error
        finally:
            clock.ended(number)


def _request(number: int, generation: Generation) -> GenerationRequest:
    assert generation.sampling is not None, "rows that pass through are in no journal"
    assert generation.cap is not None
    return GenerationRequest(
        request_id=f"again-{number}",
        prompt_token_ids=generation.prompt_token_ids,
        sampling=generation.sampling,
        cap=generation.cap,
        seed=generation.seed,
    )
