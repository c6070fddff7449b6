"""A vLLM server's totals through readings that fail, restarts, and answers that nobody has counted yet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from regen.engines.http import Connection, Reply
from regen.engines.served_totals import ServerTotals
from regen.engines.served_vllm import VllmServer
from regen.errors import ServerUnavailable
from regen.records import Acceptance
from regen.served import ServerFacts, ServerKind

LOST = "lost"


class Metrics:
    """A connection on which /metrics answers what `now` says: drafts, a status, or that nobody is there."""

    url = "http://server"

    def __init__(self, now: int | str) -> None:
        self.now = now
        self.status = 200
        self.asked = 0
        self.before_answer: Callable[[], object] = lambda: None

    async def get(self, path: str, seconds: float) -> Reply:
        self.asked += 1
        self.before_answer()
        await asyncio.sleep(0)
        if self.now == LOST:
            raise ServerUnavailable("nobody is there")
        return Reply(self.status, metrics(int(self.now)).encode() if self.status == 200 else b"")


def metrics(drafts: int) -> str:
    """One accepted token for each two drafts."""
    labels, name = '{engine="0"}', "vllm:spec_decode_num"
    return (
        f"{name}_drafts_total{labels} {drafts}\n{name}_draft_tokens_total{labels} {3 * drafts}\n"
        f"{name}_accepted_tokens_total{labels} {drafts // 2}\n"
    )


class Watching:
    """Totals that began at `drafts`."""

    def __init__(self, drafts: int | str = 100) -> None:
        self.metrics = Metrics(drafts)
        self.connection = cast(Connection, self.metrics)
        self.served = VllmServer(self.connection, ServerFacts(self.metrics.url, ServerKind.VLLM, "target"))
        self.totals = ServerTotals()

    async def begun(self) -> Watching:
        await self.totals.begin(self.connection, self.served, is_needed=True)
        return self

    async def read(self, drafts: int | str, status: int = 200) -> None:
        self.metrics.now, self.metrics.status = drafts, status
        await self.totals.refresh(self.connection, self.served)

    @property
    def drafts(self) -> int | None:
        seen = self.totals.engine_counters().acceptance
        return None if seen is None else seen.drafts


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def test_a_restart_adds_to_what_was_counted_before() -> None:
    async def story() -> None:
        made = await Watching().begun()
        await made.read(400)
        await made.read(40)
        assert made.totals.engine_counters().acceptance == Acceptance(340, 1020, 170)
        await made.read(90)
        assert made.totals.engine_counters().acceptance == Acceptance(390, 1170, 195)

    run(story())


@pytest.mark.parametrize("now", [LOST, 429, 500, 502, 503])
def test_a_reading_that_fails_leaves_what_is_known(now: int | str) -> None:
    async def story() -> None:
        made = await Watching().begun()
        made.totals.own.output_tokens = 1000
        await made.read(400)
        made.totals.own.output_tokens = 9000
        with pytest.raises(ServerUnavailable):
            await made.read(LOST) if now == LOST else await made.read(0, int(now))
        assert (made.drafts, made.totals.counted_tokens, made.totals.has_counters) == (300, 1000, True)
        await made.read(700)
        assert (made.drafts, made.totals.counted_tokens) == (600, 9000)

    run(story())


def test_counters_that_are_there_no_more_are_missing() -> None:
    async def story() -> None:
        made = await Watching().begun()
        made.totals.own.output_tokens = 1000
        await made.read(400, 404)
        assert (made.drafts, made.totals.counted_tokens) == (None, 1000)

    run(story())


def test_without_a_first_reading_what_is_needed_is_not_begun_and_the_rest_begins_later() -> None:
    async def story() -> None:
        made = Watching()
        made.metrics.status = 503
        with pytest.raises(ServerUnavailable, match="/metrics"):
            await made.begun()
        await made.totals.begin(made.connection, made.served)
        assert made.drafts is None
        await made.read(400)
        await made.read(450)
        assert made.drafts == 50

    run(story())


def test_tokens_that_came_while_totals_were_read_are_not_covered_by_them() -> None:
    async def story() -> None:
        made = await Watching().begun()
        own = made.totals.own
        own.output_tokens = 1000
        made.metrics.before_answer = lambda: setattr(own, "output_tokens", 5000)
        await made.read(400)
        assert (own.output_tokens, made.totals.counted_tokens) == (5000, 1000)

    run(story())


def test_where_answers_are_counted_the_tokens_of_whole_ones_are_covered() -> None:
    async def story() -> None:
        made = await Watching().begun()
        made.totals.own.output_tokens = 5000
        made.totals.own.add(Acceptance(10, 30, 5), 20)
        made.totals.own.add(None, 7)
        await made.read(400)
        counters = made.totals.engine_counters()
        assert (counters.output_tokens, counters.counted_tokens) == (5000, 27)
        assert counters.acceptance == Acceptance(10, 30, 5)

    run(story())


def test_those_who_ask_while_somebody_reads_share_the_next_reading() -> None:
    async def story() -> None:
        made = await Watching().begun()
        first = asyncio.ensure_future(made.read(400))
        await asyncio.sleep(0)
        before = made.metrics.asked
        made.totals.own.output_tokens = 1000  # made after the first reading had begun: it is not enough for them
        await asyncio.gather(first, *[made.read(500) for _ in range(8)])
        assert (made.drafts, made.totals.counted_tokens) == (400, 1000)
        assert made.metrics.asked <= before + 3

    run(story())
