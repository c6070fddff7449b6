"""The warm-up over the fake engine: what it asks for, what it counts, and what it leads the gate to say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from regen.engines.fake import FakeEngine
from regen.errors import EngineDied, RowFailed, RowRefused
from regen.records import (
    Acceptance,
    Completion,
    Conversation,
    GenerationRequest,
    Message,
    PlannedRow,
    Role,
    Sampling,
    Stage,
    TokenScore,
    WarmupReport,
    WorkerId,
)
from regen.run.speculation.warmup import CANARY_PROMPT_TOKENS, first_miss, warm_up
from regen.spec import FakeEngineSpec, SpeculationSpec
from regen.speculative.gate import GateVerdict, judge

SLOTS = 4
ROWS = [
    PlannedRow(
        number,
        f"{number:032x}",
        "rows",
        f"rows.jsonl:{number}",
        None,
        Conversation((Message(Role.USER, f"say {number}"), Message(Role.ASSISTANT, None))),
        prompt_tokens=100 - number,
    )
    for number in range(20)
]
SAMPLED = Sampling(100, 0.7, 0.9, 50, 0.0, 0.5, 0.2, 1.1, ("\n",), (1,))


class Recording(FakeEngine):
    """The fake engine, and what it was asked for: each request with how many others ran then."""

    def __init__(self, spec: FakeEngineSpec, speculation: SpeculationSpec | None) -> None:
        super().__init__(spec, speculation, WorkerId(0, 0))
        self.asked: list[tuple[GenerationRequest, int]] = []
        self.running = 0

    async def generate(self, request: GenerationRequest, on_tokens: Callable[[int], None]) -> Completion:
        self.asked.append((request, self.running))
        self.running += 1
        try:
            return await super().generate(request, on_tokens)
        finally:
            self.running -= 1


def engine(speculation: SpeculationSpec, **spec: Any) -> Recording:
    defaults = {"slots": SLOTS, "answer_tokens": 60, "answer_spread": 0.1}
    return Recording(FakeEngineSpec.model_validate({**defaults, **spec}), speculation)


def speculation(method: str = "ngram", **warmup: Any) -> SpeculationSpec:
    draft = None if method == "ngram" else "heads/one"
    return SpeculationSpec.model_validate({"method": method, "draft": draft, "num_tokens": 3, "warmup": warmup})


async def prepare(row: PlannedRow) -> GenerationRequest:
    await asyncio.sleep(0)
    return GenerationRequest(f"r{row.ordinal}", (row.ordinal, 5, 6), SAMPLED, 100, 7 + row.ordinal)


def run(made: FakeEngine, spec: SpeculationSpec, rows: list[PlannedRow] = ROWS, **how: Any) -> WarmupReport:
    how = {"prepare": prepare, "temperature": SAMPLED.temperature, **how}
    return asyncio.run(warm_up(rows, spec, engine=made, slots=SLOTS, **how))


def test_a_healthy_draft_is_seen_to_be_healthy() -> None:
    spec = speculation("eagle3")
    report = run(engine(spec), spec, temperature=0.7)
    assert judge(report, spec).verdict is GateVerdict.HEALTHY
    assert report.acceptance is not None
    assert report.acceptance.drafts >= 500
    assert report.acceptance.accept_length == pytest.approx(2.3, abs=0.2)
    assert report.canary_answers == len(ROWS)
    assert report.canary_misses == ()
    assert report.degenerate == 0


@pytest.mark.parametrize(
    ("fault", "verdict"),
    [
        ({"acceptance_by_position": [0.0]}, GateVerdict.DEAD),
        ({"acceptance_by_position": [0.04, 0.002]}, GateVerdict.DEAD),
        ({"counters_absent": True}, GateVerdict.ABSENT),
        ({"faults": [{"kind": "counters_absent", "after_requests": 10}]}, GateVerdict.ABSENT),
        ({"faults": [{"kind": "salad", "every": 5, "times": 1000}]}, GateVerdict.GARBAGE),
    ],
)
def test_a_broken_draft_is_seen_to_be_broken(fault: dict[str, Any], verdict: GateVerdict) -> None:
    spec = speculation("eagle3")
    assert judge(run(engine(spec, **fault), spec), spec).verdict is verdict


def test_requests_are_the_runs_own_at_run_concurrency_with_a_small_cap() -> None:
    spec = speculation(max_tokens=40, canary_rows=0, drafts=300)
    made = engine(spec, step_seconds=0.0001)
    run(made, spec)
    assert {request.cap for request, _ in made.asked} == {40}
    assert {request.sampling for request, _ in made.asked} == {SAMPLED}
    assert max(running for _, running in made.asked) == SLOTS - 1
    assert len({request.request_id for request, _ in made.asked}) == len(made.asked)


def test_prompt_lookup_is_asked_each_row_once_and_every_answer_is_waited_for() -> None:
    spec = speculation(canary_rows=0, drafts=10**6)
    made = engine(spec, step_seconds=0.0001)
    report = run(made, spec, rows=ROWS[:7])
    assert sorted(request.prompt_token_ids[0] for request, _ in made.asked) == [row.ordinal for row in ROWS[:7]]
    assert report.answers + report.degenerate == 7


def test_another_round_over_the_rows_has_other_seeds() -> None:
    spec = speculation("eagle3", canary_rows=0)
    made = engine(spec)
    run(made, spec, rows=ROWS[:3])
    seeds = [request.seed for request, _ in made.asked if request.prompt_token_ids[0] == 0]
    assert len(seeds) > 2
    assert len(set(seeds)) == len(seeds)


async def prepare_greedy(row: PlannedRow) -> GenerationRequest:
    request = await prepare(row)
    return replace(request, sampling=replace(SAMPLED, temperature=0.0))


GREEDY: dict[str, Any] = {"prepare": prepare_greedy, "temperature": 0.0}


def test_a_greedy_answer_that_was_cut_goes_on_and_no_draft_is_made_twice() -> None:
    spec = speculation("eagle3", canary_rows=0, max_tokens=30, drafts=10**6)
    made = engine(spec, answer_tokens=1000, answer_spread=0)
    run(made, spec, rows=ROWS[:3], **GREEDY)
    prompts = [request.prompt_token_ids for request, _ in made.asked]
    assert len(set(prompts)) == len(prompts) == 3 * 4
    for ordinal in range(3):
        caps = {
            len(request.prompt_token_ids): request.cap for request, _ in made.asked if prompt_of(request) == ordinal
        }
        assert caps == {3: 30, 33: 30, 63: 30, 93: 10}  # 100 in all: the row's own cap


def prompt_of(request: GenerationRequest) -> int:
    return request.prompt_token_ids[0]


def test_a_greedy_answer_that_has_ended_is_not_asked_for_again() -> None:
    spec = speculation("eagle3", canary_rows=0, drafts=10**6)
    made = engine(spec, answer_tokens=20)
    report = run(made, spec, rows=ROWS[:3], **GREEDY)
    assert sorted(prompt_of(request) for request, _ in made.asked) == [0, 1, 2]
    assert judge(report, spec).verdict is GateVerdict.UNDECIDED


def test_few_greedy_rows_are_enough_to_see_a_dead_head() -> None:
    spec = speculation("eagle3", canary_rows=8)
    made = engine(spec, answer_tokens=1000, acceptance_by_position=[0.0])
    assert judge(run(made, spec, rows=ROWS[:8], **GREEDY), spec).verdict is GateVerdict.DEAD


def test_a_refused_row_among_greedy_ones_does_not_end_it_early() -> None:
    async def prepare_some(row: PlannedRow) -> GenerationRequest:
        if row.ordinal == 1:
            raise RowRefused(Stage.RENDER, "template_error")
        return await prepare_greedy(row)

    spec = speculation("eagle3", canary_rows=0, max_tokens=30, drafts=10**6)
    made = engine(spec, answer_tokens=1000)
    run(made, spec, rows=ROWS[:3], prepare=prepare_some, temperature=0.0)
    assert len(made.asked) == 2 * 4


def test_a_mix_that_fell_out_all_greedy_comes_to_an_end() -> None:
    spec = speculation("eagle3", canary_rows=0, drafts=10**6)
    made = engine(spec, answer_tokens=20)
    run(made, spec, rows=ROWS[:3], prepare=prepare_greedy)
    assert sorted(prompt_of(request) for request, _ in made.asked) == [0, 1, 2]


def test_of_a_mix_only_what_is_sampled_is_asked_again() -> None:
    async def prepare_mix(row: PlannedRow) -> GenerationRequest:
        return await (prepare_greedy(row) if row.ordinal % 2 else prepare(row))

    spec = speculation("eagle3", canary_rows=0)
    made = engine(spec)
    run(made, spec, rows=ROWS[:4], prepare=prepare_mix)
    asked = [prompt_of(request) for request, _ in made.asked]
    assert asked.count(1) == asked.count(3) == 1
    assert asked.count(0) > 2


def test_the_canary_is_greedy_neutral_and_runs_beside_others() -> None:
    spec = speculation(canary_rows=5)
    made = engine(spec, step_seconds=0.0001)
    run(made, spec)
    canaries = [(request, running) for request, running in made.asked if request.sampling.temperature == 0]
    assert len({request.prompt_token_ids for request, _ in canaries}) == len(canaries) == 5
    # Rating an answer costs memory by the length of what is before it.
    assert {request.prompt_token_ids[0] for request, _ in canaries} == {15, 16, 17, 18, 19}
    for request, running in canaries:
        assert request.sampling == Sampling(100, 0.0, 1.0, 0, 0.0, 0.0, 0.0, 1.0, (), (1,))
        assert running > 0


def uncounted_drafts(report: WarmupReport) -> int:
    """Drafts beyond those of the answers that count, where every step rejects its draft."""
    assert report.acceptance is not None
    assert report.output_tokens > 0
    return report.acceptance.drafts - (report.output_tokens - report.answers)


DROPPED = SLOTS * 64  # answers that run when it is decided may leave their drafts


def test_canary_answers_do_not_count_as_drafts() -> None:
    spec = speculation("eagle3", canary_rows=20, drafts=1)
    report = run(engine(spec, acceptance_by_position=[0.0]), spec)
    assert report.canary_answers == 20
    assert 0 <= uncounted_drafts(report) < DROPPED


def test_degenerate_answers_do_not_count() -> None:
    spec = speculation("eagle3", canary_rows=0)
    faults = [{"kind": "garbage", "every": 2, "times": 1000}]
    report = run(engine(spec, acceptance_by_position=[0.0], faults=faults), spec)
    assert report.degenerate > SLOTS
    assert 0 <= uncounted_drafts(report) < DROPPED


def test_only_degenerate_answers_end_undecided_before_time_is_up() -> None:
    spec = speculation("eagle3", canary_rows=0, seconds=60)
    made = engine(spec, answer_spread=0, faults=[{"kind": "garbage", "times": 10_000}])
    report = run(made, spec)
    assert report.answers == 0
    assert judge(report, spec).verdict is GateVerdict.UNDECIDED
    assert report.seconds < 30


def test_a_failure_costs_its_own_row_only() -> None:
    async def prepare_some(row: PlannedRow) -> GenerationRequest:
        if row.ordinal % 2:
            raise RowRefused(Stage.RENDER, "template_error")
        return await prepare(row)

    spec = speculation("eagle3", canary_rows=10)
    report = run(engine(spec, faults=[{"kind": "fail", "every": 3, "times": 10}]), spec, prepare=prepare_some)
    assert judge(report, spec).verdict is GateVerdict.HEALTHY


def test_a_defect_costs_its_own_row_only(capsys: pytest.CaptureFixture[str]) -> None:
    class Defective(Recording):
        async def score(self, prompt_token_ids: tuple[int, ...], token_ids: tuple[int, ...]) -> tuple[TokenScore, ...]:
            if prompt_token_ids[0] == 2:
                raise ValueError("score")
            return await super().score(prompt_token_ids, token_ids)

    async def prepare_some(row: PlannedRow) -> GenerationRequest:
        if row.ordinal == 1:
            raise ValueError("prepare")
        return await prepare(row)

    spec = speculation("eagle3", canary_rows=20)
    made = Defective(FakeEngineSpec(slots=SLOTS, answer_tokens=60), spec)
    report = run(made, spec, prepare=prepare_some)
    assert judge(report, spec).verdict is GateVerdict.HEALTHY
    assert report.canary_answers == 18
    said = capsys.readouterr().err
    assert "ValueError: prepare" in said
    assert "ValueError: score" in said


def test_only_rows_with_a_prompt_that_can_be_rated_are_the_canarys() -> None:
    lengths = (0, CANARY_PROMPT_TOKENS, CANARY_PROMPT_TOKENS + 1)
    rows = [replace(row, prompt_tokens=length) for row, length in zip(ROWS, lengths, strict=False)]
    spec = speculation("eagle3")
    assert run(engine(spec), spec, rows=rows).canary_answers == 2
    report = run(engine(spec), spec, rows=rows[2:])
    assert report.canary_answers == 0
    result = judge(report, spec)
    assert result.verdict is GateVerdict.HEALTHY
    assert "no canary answer was rated" in result.found


def test_rows_that_can_none_be_asked_end_it() -> None:
    async def prepare_none(row: PlannedRow) -> GenerationRequest:
        raise RowFailed("no")

    spec = speculation()
    for report in (run(engine(spec), spec, prepare=prepare_none), run(engine(spec), spec, rows=[])):
        assert report.answers == report.canary_answers == 0
        assert judge(report, spec).verdict is GateVerdict.UNDECIDED


def test_a_death_is_the_callers_to_know() -> None:
    for canary_rows in (0, 8):
        spec = speculation(canary_rows=canary_rows)
        with pytest.raises(EngineDied):
            run(engine(spec, faults=[{"kind": "die", "after_requests": 6}]), spec)


def test_time_that_is_up_ends_it_with_what_there_is() -> None:
    spec = speculation("eagle3", seconds=0.1)
    made = engine(spec, faults=[{"kind": "hang", "after_requests": 8, "times": 1000}])
    report = run(made, spec)
    assert judge(report, spec).verdict is GateVerdict.UNDECIDED
    assert made.running == 0
    assert made.counters().running == 0


def test_tokens_are_evidence_of_life() -> None:
    seen: list[int] = []
    spec = speculation(canary_rows=2)
    report = run(engine(spec), spec, on_tokens=seen.append)
    assert sum(seen) >= report.output_tokens > 0


def test_what_was_counted_before_is_not_the_warm_ups() -> None:
    spec = speculation("eagle3", canary_rows=0, drafts=50)
    made = engine(spec)
    first, second = (run(made, spec).acceptance for _ in range(2))
    assert first is not None
    assert second is not None
    assert second.drafts < 1.5 * first.drafts


def test_an_engine_that_says_of_each_answer_that_nothing_was_drafted_has_counted() -> None:
    """vLLM's totals are absent until the first draft; what it says of each request is not."""

    class Silent(Recording):
        async def generate(self, request: GenerationRequest, on_tokens: Callable[[int], None]) -> Completion:
            return replace(await super().generate(request, on_tokens), acceptance=Acceptance())

    spec = speculation(canary_rows=0)
    report = run(Silent(FakeEngineSpec(slots=SLOTS, counters_absent=True), spec), spec)
    assert report.acceptance == Acceptance()
    assert judge(report, spec).verdict is GateVerdict.UNDECIDED
    report = run(engine(spec, counters_absent=True), spec)
    assert report.acceptance is None
    assert judge(report, spec).verdict is GateVerdict.ABSENT


def test_one_that_is_cancelled_leaves_nothing_running() -> None:
    spec = speculation()
    made = engine(spec, step_seconds=0.01)

    async def cancel() -> None:
        work = asyncio.ensure_future(warm_up(ROWS, spec, prepare, made, SLOTS))
        while made.running < SLOTS:
            await asyncio.sleep(0)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        assert made.running == 0

    asyncio.run(cancel())


def test_the_first_miss_beyond_the_margin_is_kept() -> None:
    best = TokenScore(4, -0.1, 4, -0.1)
    near, far = TokenScore(5, -0.8, 4, -0.5), TokenScore(6, -9.0, 4, -0.5)
    assert first_miss("ab", [best, near, best], margin=1.0) == ()
    (miss,) = first_miss("ab", [best, near, far, far], margin=1.0)
    assert (miss.row_id, miss.position, miss.margin) == ("ab", 2, 8.5)
