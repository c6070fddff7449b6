"""The fake engine where a step costs what its batch costs: rates as the cost model says, exact over many steps."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from regen.engines.fake import FakeEngine
from regen.records import Completion, EngineCounters, GenerationRequest, Sampling, WorkerId
from regen.spec import FakeCost, FakeEngineSpec, SpeculationSpec
from tests import virtual_time

SAMPLING = Sampling(1000, 0.7, 1.0, 0, 0.0, 0.0, 0.0, 1.0, (), ())
DRAFT = SpeculationSpec(method="eagle3", draft="draft", num_tokens=3)
STEP = 0.02


def engine(speculation: SpeculationSpec | None = None, slots: int = 8, **spec: Any) -> FakeEngine:
    given = {"acceptance_by_position": [0.7, 0.3, 0.1], "step_seconds": STEP, "cost": {}, "slots": slots, **spec}
    return FakeEngine(FakeEngineSpec.model_validate(given), speculation, WorkerId(0, 0))


def scheduled(*schedule: list[int]) -> SpeculationSpec:
    return DRAFT.model_copy(update={"args": {"num_speculative_tokens_per_batch_size": list(schedule)}})


async def ask(made: FakeEngine, number: int) -> Completion:
    return await made.generate(
        GenerationRequest(f"r{number}", (number,), SAMPLING, 1000, 3), on_tokens=lambda count: None
    )


async def keep_busy(made: FakeEngine, clients: int, seconds: float) -> tuple[EngineCounters, float]:
    """(what was counted, over how many seconds) with so many requests under way all the time."""

    async def client(numbers: Iterator[int]) -> None:
        for number in numbers:
            await ask(made, number)

    numbers, loop = iter(range(10**9)), asyncio.get_running_loop()
    work = [asyncio.ensure_future(client(numbers)) for _ in range(clients)]
    began = loop.time()
    await asyncio.sleep(seconds)
    counted = made.counters(), loop.time() - began
    for one in work:
        one.cancel()
    await asyncio.gather(*work, return_exceptions=True)
    await made.close()
    return counted


def rate(made: FakeEngine, clients: int, seconds: float = 60.0) -> float:
    """Output tokens per second."""
    counters, passed = virtual_time.run(keep_busy(made, clients, seconds))
    return counters.output_tokens / passed


@pytest.mark.parametrize("slots", [1, 8, 43, 64])
def test_tokens_per_second_are_batch_times_accept_length_over_cost(slots: int) -> None:
    cost = 1.1 + 1.5 * (slots - 1) / 63
    assert rate(engine(slots=slots), 2 * slots) == pytest.approx(slots / STEP, rel=0.005)
    assert rate(engine(DRAFT, slots=slots), 2 * slots) == pytest.approx(slots * 2.1 / cost / STEP, rel=0.03)


def test_a_batch_that_is_not_full_costs_less() -> None:
    assert rate(engine(DRAFT, slots=64), clients=2) == pytest.approx(2 * 2.1 / 1.124 / STEP, rel=0.03)


@pytest.mark.parametrize("answer_tokens", [3, 40, 400])
def test_the_length_of_answers_has_no_share_in_it(answer_tokens: int) -> None:
    made = engine(DRAFT, answer_tokens=answer_tokens, answer_spread=0)
    assert rate(made, 16) == pytest.approx(8 * 2.1 / (1.1 + 1.5 * 7 / 63) / STEP, rel=0.02)


def test_the_cost_is_a_line_between_points_and_flat_beyond() -> None:
    cost = FakeCost(without=0.9, with_speculation=[(2, 1.0), (10, 2.0)])
    assert [cost.of(batch, 3) for batch in (1, 2, 6, 10, 99)] == [1.0, 1.0, 1.5, 2.0, 2.0]
    assert cost.of(6, 0) == 0.9


@pytest.mark.parametrize("points", [[], [(2, 1.0), (2, 2.0)], [(4, 1.0), (2, 2.0)], [(0, 1.0)], [(1, 0.0)]])
def test_a_cost_that_is_no_line_is_refused(points: list[tuple[int, float]]) -> None:
    with pytest.raises(ValueError, match="with_speculation"):
        FakeCost(with_speculation=points)


def test_a_cost_without_a_step_is_refused() -> None:
    with pytest.raises(ValueError, match="step_seconds"):
        FakeEngineSpec(cost=FakeCost())


def test_sleeps_that_end_late_lose_nothing() -> None:
    async def disturbed() -> tuple[EngineCounters, float]:
        async def stall() -> None:
            while True:
                await asyncio.sleep(0.5)
                loop = asyncio.get_running_loop()
                assert isinstance(loop, virtual_time.VirtualTimeLoop)
                loop.jump(0.3)  # the loop did something else meanwhile

        stalling = asyncio.ensure_future(stall())
        try:
            return await keep_busy(engine(), 16, 30.0)
        finally:
            stalling.cancel()

    counters, seconds = virtual_time.run(disturbed())
    assert counters.output_tokens / seconds == pytest.approx(8 / STEP, rel=0.02)


def test_counters_advance_within_an_answer() -> None:
    async def look(made: FakeEngine) -> tuple[EngineCounters, EngineCounters]:
        work = [asyncio.ensure_future(ask(made, number)) for number in range(10)]
        await asyncio.sleep(100 * STEP)
        early = made.counters()
        await asyncio.sleep(100 * STEP)
        late = made.counters()
        for one in work:
            one.cancel()
        await asyncio.gather(*work, return_exceptions=True)
        return early, late

    for cost in (FakeCost(), None):
        early, late = virtual_time.run(look(engine(DRAFT, answer_tokens=900, answer_spread=0, cost=cost)))
        assert (early.running, early.waiting) == (8, 2)
        assert 0 < early.output_tokens < late.output_tokens
        assert early.acceptance is not None
        assert late.acceptance is not None
        assert 0 < early.acceptance.drafts < late.acceptance.drafts
        assert late.acceptance.accept_length == pytest.approx(2.1, abs=0.1)


def test_counters_agree_with_the_answers() -> None:
    async def all_of(made: FakeEngine) -> list[Completion]:
        return await asyncio.gather(*(ask(made, number) for number in range(30)))

    for cost in (FakeCost(), None):
        made = engine(DRAFT, cost=cost, answer_tokens=300)
        completions = virtual_time.run(all_of(made))
        counters = made.counters()
        assert counters.output_tokens == sum(len(one.token_ids) for one in completions)
        assert counters.prompt_tokens == 30
        assert (counters.running, counters.waiting, counters.kv_usage) == (0, 0, 0.0)
        assert counters.acceptance is not None
        assert counters.acceptance.drafts == sum(one.acceptance.drafts for one in completions if one.acceptance)
        assert counters.acceptance.accepted == sum(one.acceptance.accepted for one in completions if one.acceptance)


def test_answers_do_not_depend_on_time() -> None:
    async def answers(made: FakeEngine) -> list[tuple[int, ...]]:
        return [one.token_ids for one in await asyncio.gather(*(ask(made, number) for number in range(12)))]

    expected = virtual_time.run(answers(engine(cost=None)))
    assert virtual_time.run(answers(engine(DRAFT))) == expected
    assert virtual_time.run(answers(engine(slots=3))) == expected


def test_a_schedule_by_batch_size_is_obeyed() -> None:
    none_when_full = scheduled([1, 4, 3], [5, 64, 0])
    made = engine(none_when_full, slots=8)
    assert rate(made, 16) == pytest.approx(8 / STEP, rel=0.005)
    assert made.counters().acceptance is not None
    assert made.counters().acceptance.drafts == 0  # type: ignore[union-attr]
    few = engine(none_when_full, slots=8)
    assert rate(few, 3) == pytest.approx(3 * 2.1 / (1.1 + 1.5 * 2 / 63) / STEP, rel=0.03)
    one_when_full = engine(scheduled([1, 4, 3], [7, 64, 1]), slots=8)
    assert rate(one_when_full, 16) == pytest.approx(8 * 1.7 / (1.1 + 1.5 * 7 / 63) / STEP, rel=0.03)


def test_a_schedule_is_obeyed_where_each_sequence_has_its_own_steps() -> None:
    made = engine(scheduled([1, 64, 0]), cost=None)
    virtual_time.run(ask(made, 1))
    assert made.counters().acceptance is not None
    assert made.counters().acceptance.drafts == 0  # type: ignore[union-attr]


def test_acceptance_may_differ_by_method() -> None:
    ngram = SpeculationSpec(method="ngram", num_tokens=3)
    made = engine(ngram, acceptance_by_method={"ngram": [0.2]})
    counters, _ = virtual_time.run(keep_busy(made, 16, 60.0))
    assert counters.acceptance is not None
    assert counters.acceptance.accept_length == pytest.approx(1.2, abs=0.02)


def test_a_cancelled_request_makes_room() -> None:
    async def cancel_one() -> EngineCounters:
        made = engine(slots=2, answer_tokens=900, answer_spread=0)
        work = [asyncio.ensure_future(ask(made, number)) for number in range(3)]
        await asyncio.sleep(10 * STEP)
        work[0].cancel()
        await asyncio.sleep(2 * STEP)
        counters = made.counters()
        for one in work:
            one.cancel()
        await asyncio.gather(*work, return_exceptions=True)
        return counters

    counters = virtual_time.run(cancel_one())
    assert (counters.running, counters.waiting) == (2, 0)


def test_times_of_a_completion_are_those_of_its_steps() -> None:
    async def three() -> list[Completion]:
        made = engine(slots=2, answer_tokens=100, answer_spread=0)
        return await asyncio.gather(*(ask(made, number) for number in range(3)))

    first, _, queued = virtual_time.run(three())
    assert first.queue_seconds == 0.0
    assert first.first_token_seconds == pytest.approx(STEP)
    assert first.decode_seconds == pytest.approx(len(first.token_ids) * STEP)
    assert queued.queue_seconds == pytest.approx(first.decode_seconds)
