"""Servers that count drafts later than they give tokens: neither gate nor guard takes that for drafts that are absent.

Every server counts while its answers are on their way, and tells it when they end, or to whoever asks /metrics.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from regen.engines import openai, served_totals
from regen.engines.openai import OpenaiEngine
from regen.errors import SpeculationFailed
from regen.records import (
    GenerationRequest,
    PlannedRow,
    ReplicaState,
    ReplicaStats,
    Sampling,
    WarmupReport,
    WorkerId,
)
from regen.run.setup import Purpose, RunSetup
from regen.run.speculation.control import SpeculationControl
from regen.run.speculation.warmup import warm_up
from regen.spec import EndpointSpec, FakeEngineSpec, FakeFault, OpenaiEngineSpec, SpeculationSpec, parse_spec
from regen.speculative.gate import GateVerdict, judge
from tests.output_rows import planned_row
from tests.served.answers import Answers
from tests.served.faults import Fault, Kind, Script
from tests.served.sglang_server import SglangServer
from tests.served.stand import standing
from tests.served.vllm_server import VllmServer

SLOTS, ANSWER_TOKENS, WORKER = 8, 1500, WorkerId(0, 0)
EAGLE3: dict[str, Any] = {"method": "eagle3", "draft": "head", "num_tokens": 3, "calibrate": "off", "guard": "fail"}
SPECULATION = SpeculationSpec.model_validate(EAGLE3)
SAMPLING = Sampling(ANSWER_TOKENS, 1.0, 1.0, 0, 0.0, 0.0, 0.0, 1.0, (), (2,))
DEAD = {"faults": [FakeFault(kind="reject_drafts")]}
ABSENT = {"counters_absent": True}

Server = SglangServer | VllmServer


def sglang(answers: Answers, **how: Any) -> Server:
    return SglangServer(answers=answers, is_incremental=True, arguments={"incremental_streaming_output": True}, **how)


def vllm_by_answer(answers: Answers, **how: Any) -> Server:
    return VllmServer(answers=answers, gives_counts=True, **how)


def vllm_by_totals(answers: Answers, **how: Any) -> Server:
    return VllmServer(answers=answers, gives_counts=False, **how)


EVERY_SERVER = pytest.mark.parametrize("kind", [sglang, vllm_by_answer, vllm_by_totals])


@dataclass
class Case:
    engine: OpenaiEngine
    server: Server
    control: SpeculationControl
    said: list[str]
    asked: int = 0

    async def answer(self, many: int, tokens: int = ANSWER_TOKENS) -> None:
        """So many answers at a time, while the guard looks on as a coordinator lets it."""
        work = asyncio.gather(*[self._one(tokens) for _ in range(many)])
        while not work.done():
            self.look()
            await asyncio.sleep(0.02)
        await work
        self.look()

    async def _one(self, tokens: int) -> None:
        self.asked += 1
        number = self.asked
        request = GenerationRequest(f"row-{number}", (5, 6, number), SAMPLING, cap=tokens, seed=number)
        made = await self.engine.generate(request, lambda count: None)
        assert len(made.token_ids) == tokens
        self.control.generation(0, "rows", 3, made.acceptance)

    def look(self) -> None:
        now = asyncio.get_running_loop().time()
        counters = self.engine.counters()
        stats = ReplicaStats(ReplicaState.RUNNING, SLOTS, SLOTS, 0.0, counters, arm="configured", counted_at=now)
        self.control.hear(WORKER, stats, now)
        self.control.tick(now, None)

    @property
    def verdict(self) -> str:
        return self.control.status().verdicts[0]

    @property
    def error(self) -> SpeculationFailed | None:
        return self.control.error


@asynccontextmanager
async def case(
    kind: Callable[..., Server], fake: dict[str, Any] | None = None, answer_tokens: int = 2 * ANSWER_TOKENS, **how: Any
) -> AsyncIterator[Case]:
    """An engine over one server, started; in the end it is closed."""
    settings = {"slots": SLOTS, "answer_tokens": answer_tokens, "answer_spread": 0.0, "end_token_id": 2, **(fake or {})}
    answers = Answers(FakeEngineSpec(max_model_len=4096, **settings), SPECULATION)
    server = kind(answers, chunk_tokens=50, **how)
    with standing(server) as stand:
        place = EndpointSpec(url=stand.url, model="target")
        spec = OpenaiEngineSpec(endpoints=[place], slots=SLOTS, max_model_len=4096)
        said: list[str] = []
        engine = OpenaiEngine(spec, place, "target", SAMPLING, SPECULATION, say=said.append)
        try:
            await engine.start()
            yield Case(engine, server, SpeculationControl(setup(), []), said)
        finally:
            await engine.close()


def setup() -> RunSetup:
    raw = {
        "name": "test",
        "output": "run",
        "target": {"model": "target"},
        "engine": {"kind": "fake", "slots": SLOTS, "max_model_len": 4096},
        "speculation": EAGLE3,
        "sampling": {"max_tokens": ANSWER_TOKENS},
        "sources": [{"name": "rows", "path": "rows.jsonl"}],
    }
    return RunSetup(parse_spec(raw, origin="test"), "run", "s1", "f", "h", "b", 1, "t", False, purpose=Purpose.RUN)


@pytest.fixture
def quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of tokens lie between two readings all the same."""
    monkeypatch.setattr(served_totals, "POLL_SECONDS", 0.15)


# --- the guard -----------------------------------------------------------------------------------


@EVERY_SERVER
def test_long_answers_of_a_server_that_speculates_are_healthy_and_counters_that_are_lost_are_found(
    kind: Callable[..., Server], quick_polls: None
) -> None:
    async def story() -> None:
        async with case(kind, tokens_per_second=6000) as made:
            made.engine.shown_so_far()
            await made.answer(SLOTS)
            await made.answer(SLOTS)
            await asyncio.sleep(2 * served_totals.POLL_SECONDS)
            made.look()
            assert made.error is None, made.error
            assert made.verdict == "healthy"
            lose_counters(made.server)
            await made.answer(SLOTS)
            await asyncio.sleep(2 * served_totals.POLL_SECONDS)
            made.look()
            assert made.verdict == "absent"
            assert "tokens were decoded with drafts due" in str(made.error)

    asyncio.run(asyncio.wait_for(story(), 30))


def lose_counters(server: Server) -> None:
    server.gives_counts = False
    if isinstance(server, VllmServer):
        server.has_counters = False


@EVERY_SERVER
@pytest.mark.parametrize(("fake", "verdict"), [(DEAD, "collapsed"), (ABSENT, "absent")], ids=["dead", "absent"])
def test_speculation_that_does_nothing_is_found(
    kind: Callable[..., Server], fake: dict[str, Any], verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_totals, "POLL_SECONDS", 0.08)

    async def story() -> None:
        async with case(kind, fake) as made:
            made.engine.shown_so_far()
            for _ in range(4):
                await made.answer(SLOTS // 2)
                await asyncio.sleep(1.5 * served_totals.POLL_SECONDS)
                made.look()
            assert made.verdict == verdict
            assert made.error is not None

    asyncio.run(asyncio.wait_for(story(), 30))


def test_a_server_that_was_started_anew_stays_healthy(quick_polls: None) -> None:
    async def story() -> None:
        async with case(vllm_by_totals) as made:
            made.engine.shown_so_far()
            await made.answer(SLOTS)
            await asyncio.sleep(2 * served_totals.POLL_SECONDS)
            before = made.engine.counters().acceptance
            made.server._drafts.clear()  # type: ignore[union-attr]
            made.server._positions.clear()  # type: ignore[union-attr]
            made.server.script.add(Fault(Kind.STATUS, path="/metrics", status=503, times=1))
            await made.answer(2, 600)
            await asyncio.sleep(2 * served_totals.POLL_SECONDS)
            made.look()
            after = made.engine.counters().acceptance
            assert before is not None
            assert after is not None
            assert before.drafts < after.drafts < 2 * before.drafts
            assert after.accepted > before.accepted
            assert made.error is None
            assert made.verdict == "healthy"

    asyncio.run(asyncio.wait_for(story(), 30))


# --- the gate ------------------------------------------------------------------------------------

ROWS = [planned_row(number) for number in range(20)]


async def shown(made: Case, temperature: float) -> WarmupReport:
    sampling = Sampling(300, temperature, 1.0, 0, 0.0, 0.0, 0.0, 1.0, (), (2,))

    async def prepare(row: PlannedRow) -> GenerationRequest:
        return GenerationRequest(f"r{row.ordinal}", (5, 6, row.ordinal), sampling, 300, 7 + row.ordinal)

    return await warm_up(ROWS, SPECULATION, prepare, made.engine, SLOTS, temperature=temperature)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("fake", "verdict"),
    [({}, GateVerdict.HEALTHY), (DEAD, GateVerdict.DEAD), (ABSENT, GateVerdict.ABSENT)],
    ids=["healthy", "dead", "absent"],
)
def test_a_warm_up_is_judged_by_totals_that_have_its_answers(
    fake: dict[str, Any], verdict: GateVerdict, temperature: float
) -> None:
    async def story() -> None:
        async with case(vllm_by_totals, fake, answer_tokens=250) as made:
            report = await shown(made, temperature)
            assert judge(report, SPECULATION, temperature=temperature).verdict is verdict
            assert report.seconds < served_totals.POLL_SECONDS, "else the background has read them"
            asked = made.server.desk.paths.count("/metrics")
            made.engine.shown_so_far()
            await made.answer(4, 100)
            assert made.server.desk.paths.count("/metrics") == asked, "after the warm-up answers wait for no reading"

    asyncio.run(asyncio.wait_for(story(), 30))


def test_a_warm_up_whose_totals_cannot_be_read_is_no_verdict() -> None:
    async def story() -> None:
        async with case(vllm_by_totals, answer_tokens=250) as made:
            made.server.script.add(Fault(Kind.STATUS, path="/metrics", status=503, times=None))
            report = await shown(made, 0.0)
            assert judge(report, SPECULATION).verdict is GateVerdict.UNDECIDED

    asyncio.run(asyncio.wait_for(story(), 30))


def test_totals_that_are_needed_and_refused_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else drafts of the time before would be taken for those of this run, or the gate would find none."""
    monkeypatch.setattr(openai, "START_RETRY_SECONDS", 0.01)

    async def story() -> None:
        refused = Fault(Kind.STATUS, path="/metrics", status=503, times=8)
        async with case(vllm_by_totals, answer_tokens=250, script=Script(refused)) as made:
            assert refused.struck == 8
            assert any("/metrics is refused" in line for line in made.said)
            assert judge(await shown(made, 0.0), SPECULATION).verdict is GateVerdict.HEALTHY
        async with case(vllm_by_answer, script=Script(Fault(Kind.STATUS, path="/metrics", times=None))) as made:
            assert not any("/metrics is refused" in line for line in made.said), "where answers have counters"

    asyncio.run(asyncio.wait_for(story(), 30))
