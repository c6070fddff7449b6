"""The fake engine's cache: blocks that grow, and who is set back when there are none."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from regen.engines.fake import FakeEngine
from regen.records import EngineCounters, GenerationRequest, Sampling, WorkerId
from regen.spec import FakeEngineSpec
from tests import virtual_time

SAMPLING = Sampling(1000, 0.7, 1.0, 0, 0.0, 0.0, 0.0, 1.0, (), ())
STEP = 0.02


def engine(blocks: int, slots: int = 64, prompt_token_cost: float = 0.0, **spec: Any) -> FakeEngine:
    given = {
        "slots": slots,
        "step_seconds": STEP,
        "cost": {},
        "answer_tokens": 143,
        "answer_spread": 0,
        "max_model_len": 400,
        "kv_cache": {"blocks": blocks, "prompt_token_cost": prompt_token_cost},
        **spec,
    }
    return FakeEngine(FakeEngineSpec.model_validate(given), None, WorkerId(0, 0))


async def ask(made: FakeEngine, count: int) -> tuple[EngineCounters, float, list[int]]:
    """(counters, seconds, order of the ends) of so many rows of 16 tokens and 144 more, asked for at once."""
    order: list[int] = []
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def one(number: int) -> None:
        request = GenerationRequest(f"r{number}", (number,) * 16, SAMPLING, 400, 3)
        completion = await made.generate(request, on_tokens=lambda tokens: None)
        assert len(completion.token_ids) == 144
        order.append(number)

    await asyncio.gather(*map(one, range(count)))
    counters, seconds = made.counters(), loop.time() - began
    await made.close()
    return counters, seconds, order


def test_with_room_for_all_nobody_is_set_back() -> None:
    counters, seconds, _ = virtual_time.run(ask(engine(blocks=640), 64))
    assert counters.preemptions == 0
    assert seconds == pytest.approx(144 * STEP, rel=0.02)


def test_a_cache_for_ten_rows_decodes_ten_at_a_time_in_the_end() -> None:
    counters, seconds, order = virtual_time.run(ask(engine(blocks=100), 64))
    assert counters.preemptions > 0
    assert counters.kv_usage == 0.0, "all blocks are given back"
    assert (counters.running, counters.waiting) == (0, 0)
    assert counters.output_tokens == 64 * 144
    assert seconds > 3 * 144 * STEP
    assert order == list(range(64)), "who came first keeps its place, and gets it back first"


def test_computing_again_takes_time_and_makes_no_tokens() -> None:
    free, dear = (virtual_time.run(ask(engine(100, prompt_token_cost=cost), 64)) for cost in (0.0, 0.05))
    assert dear[1] > free[1] + 64 * 16 * 0.05 * STEP
    assert dear[0].output_tokens == free[0].output_tokens


def test_a_row_that_is_cancelled_gives_its_blocks_back() -> None:
    async def cancelled() -> EngineCounters:
        made = engine(blocks=100)
        work = asyncio.ensure_future(ask(made, 8))
        await asyncio.sleep(20 * STEP)
        assert made.counters().kv_usage > 0
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await asyncio.sleep(2 * STEP)
        return made.counters()

    counters = virtual_time.run(cancelled())
    assert (counters.kv_usage, counters.running) == (0.0, 0)


def test_a_cache_that_holds_no_whole_sequence_is_refused() -> None:
    with pytest.raises(ValueError, match="do not hold one sequence"):
        engine(blocks=25)
    with pytest.raises(ValueError, match="set cost"):
        engine(blocks=100, cost=None)
