"""The fake engine's own promises: seeded answers that no timing changes, scripted faults, honest counters."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from regen.engines.fake import FakeEngine
from regen.errors import EngineDied, EngineStartFailed, RowFailed, RowRefused
from regen.records import Completion, GenerationRequest, Sampling, WorkerId
from regen.spec import FakeEngineSpec, SpeculationSpec

SAMPLING = Sampling(100, 0.7, 1.0, 0, 0.0, 0.0, 0.0, 1.0, (), ())


FIRST = WorkerId(0, 0)


def engine(worker: WorkerId = FIRST, speculation: SpeculationSpec | None = None, **spec: Any) -> FakeEngine:
    return FakeEngine(FakeEngineSpec.model_validate(spec), speculation, worker)


def request(prompt: int = 1, seed: int | None = 3, cap: int = 100) -> GenerationRequest:
    return GenerationRequest(f"r{prompt}", (prompt,), SAMPLING, cap, seed)


def generate(made: FakeEngine, *requests: GenerationRequest) -> list[Completion | BaseException]:
    async def all_of_them() -> list[Completion | BaseException]:
        work = [made.generate(request, lambda count: None) for request in requests]
        return await asyncio.gather(*work, return_exceptions=True)

    return asyncio.run(all_of_them())


def answer(made: FakeEngine, **ask: Any) -> tuple[int, ...]:
    (completion,) = generate(made, request(**ask))
    assert isinstance(completion, Completion)
    return completion.token_ids


def test_answers_follow_from_prompt_and_seed_alone() -> None:
    alone = answer(engine(slots=1))
    crowded = generate(engine(slots=8, step_seconds=0.0001, replicas=2), *(request(n) for n in range(6)))
    assert isinstance(crowded[1], Completion)
    assert crowded[1].token_ids == alone
    assert answer(engine(), seed=4) != alone
    assert answer(engine(), prompt=2) != alone


def test_speculation_does_not_change_an_answer() -> None:
    speculation = SpeculationSpec(method="ngram", num_tokens=3)
    assert answer(engine(speculation=speculation)) == answer(engine())


def test_unseeded_answers_differ() -> None:
    assert answer(engine(), seed=None) != answer(engine(), seed=None)


def test_acceptance_by_position_is_as_scripted() -> None:
    made = engine(
        speculation=SpeculationSpec(method="ngram", num_tokens=3),
        answer_tokens=5000,
        answer_spread=0,
        acceptance_by_position=[0.8, 0.5, 0.1],
    )
    generate(made, *(request(n, cap=9000) for n in range(5)))
    seen = made.counters().acceptance
    assert seen is not None
    shares = [accepted / seen.drafts for accepted in seen.accepted_by_position]
    assert shares == pytest.approx([0.8, 0.5, 0.1], abs=0.03)
    assert seen.drafted == 3 * seen.drafts
    assert seen.accept_length == pytest.approx(2.4, abs=0.05)


def test_a_dead_draft_has_accept_length_one_and_absent_counters_are_absent() -> None:
    speculation = SpeculationSpec(method="ngram", num_tokens=3)
    dead = engine(speculation=speculation, acceptance_by_position=[0.0])
    generate(dead, request())
    assert dead.counters().acceptance is not None
    assert dead.counters().acceptance.accept_length == 1.0  # type: ignore[union-attr]
    silent = engine(speculation=speculation, counters_absent=True)
    (completion,) = generate(silent, request())
    assert isinstance(completion, Completion)
    assert completion.acceptance is None
    assert silent.counters().acceptance is None


@pytest.mark.parametrize(("kind", "error"), [("fail", RowFailed), ("refuse", RowRefused), ("die", EngineDied)])
def test_faults_strike_when_scripted(kind: str, error: type[Exception]) -> None:
    made = engine(faults=[{"kind": kind, "after_requests": 1}])
    assert isinstance(generate(made, request(1))[0], Completion)
    assert isinstance(generate(made, request(2))[0], error)


def test_a_death_takes_every_request_along() -> None:
    made = engine(slots=4, step_seconds=0.01, faults=[{"kind": "die", "after_requests": 2}])
    assert {type(outcome) for outcome in generate(made, *(request(n) for n in range(4)))} == {EngineDied}
    assert isinstance(generate(made, request(9))[0], EngineDied)


def test_faults_can_be_of_one_replica_and_of_its_first_life() -> None:
    faults = [{"kind": "die_at_start", "replica": 1}]
    with pytest.raises(EngineStartFailed):
        asyncio.run(engine(WorkerId(1, 0), faults=faults).start())
    asyncio.run(engine(WorkerId(1, 1), faults=faults).start())
    asyncio.run(engine(WorkerId(0, 0), faults=faults).start())


def test_no_more_requests_than_slots_are_decoded_at_once() -> None:
    made = engine(slots=2, step_seconds=0.005)

    async def most() -> tuple[int, int]:
        work = [asyncio.ensure_future(made.generate(request(n), lambda count: None)) for n in range(6)]
        await asyncio.sleep(0.02)
        counters = made.counters()
        await asyncio.gather(*work)
        return counters.running, counters.waiting

    assert asyncio.run(most()) == (2, 4)
    assert made.counters().running == 0


SPECULATION = SpeculationSpec(method="ngram", num_tokens=3)


def test_each_so_many_th_answer_is_salad_with_speculation_on_and_only_then() -> None:
    faults = [{"kind": "salad", "every": 5, "times": 100}]
    asks = [request(number) for number in range(20)]
    straight = generate(engine(), *asks)
    assert generate(engine(faults=faults), *asks) == straight
    salad = generate(engine(speculation=SPECULATION, faults=faults), *asks)
    changed = [
        (right, wrong)
        for right, wrong in zip(straight, salad, strict=True)
        if isinstance(right, Completion) and isinstance(wrong, Completion) and right.token_ids != wrong.token_ids
    ]
    assert len(changed) == 4
    for right, wrong in changed:
        assert sorted(right.token_ids) == sorted(wrong.token_ids)
        assert right.finish_reason is wrong.finish_reason


def test_counters_vanish_in_one_replica_after_so_many_requests() -> None:
    faults = [{"kind": "counters_absent", "replica": 1, "after_requests": 2}]
    made = engine(WorkerId(1, 0), speculation=SPECULATION, faults=faults)
    generate(made, request(1), request(2))
    assert made.counters().acceptance is not None
    (completion,) = generate(made, request(3))
    assert isinstance(completion, Completion)
    assert completion.acceptance is None
    assert made.counters().acceptance is None
    other = engine(WorkerId(0, 0), speculation=SPECULATION, faults=faults)
    generate(other, *(request(number) for number in range(5)))
    assert other.counters().acceptance is not None


def test_drafts_are_rejected_after_so_many_requests() -> None:
    made = engine(speculation=SPECULATION, faults=[{"kind": "reject_drafts", "after_requests": 1}])
    first, second = *generate(made, request(1)), *generate(made, request(2))
    assert isinstance(first, Completion)
    assert isinstance(second, Completion)
    assert first.acceptance is not None
    assert first.acceptance.accepted > 0
    assert second.acceptance is not None
    assert second.acceptance.drafts > 0
    assert second.acceptance.accepted == 0


def test_steps_are_kept_only_when_asked_for_and_add_up_to_the_counters() -> None:
    spec, speculation = FakeEngineSpec(answer_tokens=40), SpeculationSpec(method="ngram", num_tokens=3)
    (silent,) = generate(FakeEngine(spec, speculation, FIRST), request())
    (told,) = generate(FakeEngine(spec, speculation, FIRST, keeps_steps=True), request())
    assert isinstance(silent, Completion)
    assert isinstance(told, Completion)
    assert silent.steps is None
    assert told.steps is not None
    assert told.acceptance is not None
    assert len(told.steps.accepted) == told.acceptance.drafts
    assert sum(told.steps.accepted) == told.acceptance.accepted
    assert sum(told.steps.drafted) == told.acceptance.drafted
