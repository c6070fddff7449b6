"""The fake engine's clock where steps cost what their batch costs: one loop of steps for all running sequences.

All of them advance together, so that output tokens per second are batch x accept length / (step_seconds x cost). Steps
are laid against the event loop's own time: a sleep that ends late shortens the next one, and over many steps nothing is
lost. What a step makes beyond an answer's end counts for the next answer in that place, so that the length of answers
has no share in it. Which tokens an answer has is not decided here.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from regen.engines.fake_kv import KvBlocks
from regen.records import Acceptance
from regen.spec import SCHEDULE_ARG, FakeCost, FakeKvCache, SpeculationSpec

# A machine that cannot keep up must not keep other tasks from running.
_STEPS_AT_ONCE = 64
# Progress is said in large steps, as engines do.
_PROGRESS_STEPS = 64


class Drafting:
    """How many tokens are drafted for a batch, and how many of them are accepted."""

    def __init__(self, speculation: SpeculationSpec | None) -> None:
        self.most = speculation.num_tokens if speculation else 0
        self._schedule = sorted(speculation.args.get(SCHEDULE_ARG) or []) if speculation else []

    def depth(self, batch: int) -> int:
        """Draft tokens per step. A schedule by batch size as vLLM reads it: what it leaves out goes on as before."""
        depth = self.most
        for first, _, tokens in self._schedule:
            if first <= batch:
                depth = min(self.most, tokens)
        return depth


def accepted_of(depth: int, shares: Sequence[float], draw: random.Random) -> int:
    """How many of `depth` draft tokens one step accepts; `shares` of steps accept at least one, two, ... tokens."""
    roll = draw.random()
    return next((place for place in range(depth) if place >= len(shares) or roll >= shares[place]), depth)


@dataclass(slots=True, eq=False)
class Decoding:
    """One answer of so many tokens on its way. Times are the event loop's."""

    tokens: int
    draw: random.Random
    on_tokens: Callable[[int], None]
    asked_at: float
    by_position: list[int]
    ended: asyncio.Future[None]
    began_at: float = 0.0
    first_token_at: float = 0.0
    ended_at: float = 0.0
    emitted: int = 0
    said: int = 0
    steps: int = 0
    drafts: int = 0
    drafted: int = 0
    prompt_tokens: int = 0
    blocks: int = 0

    @property
    def acceptance(self) -> Acceptance:
        return Acceptance(self.drafts, self.drafted, sum(self.by_position), tuple(self.by_position))


@dataclass(slots=True)
class StepTotals:
    """Since the engine started; never falls."""

    output_tokens: int = 0
    drafts: int = 0
    drafted: int = 0
    by_position: list[int] = field(default_factory=list)

    @property
    def acceptance(self) -> Acceptance:
        return Acceptance(self.drafts, self.drafted, sum(self.by_position), tuple(self.by_position))


class StepLoop:
    """Decodes up to `slots` sequences at once; others wait in order. Runs only while there is work."""

    def __init__(
        self,
        slots: int,
        step_seconds: float,
        cost: FakeCost,
        drafting: Drafting,
        shares: Callable[[], Sequence[float]],
        kv_cache: FakeKvCache | None = None,
    ) -> None:
        """`shares` are asked for at each step: a fault may change them. Without `kv_cache` all sequences fit."""
        self.kv_blocks = None if kv_cache is None else KvBlocks(kv_cache)
        self._computing = 0.0  # what prompts of newly admitted sequences cost the next step
        self.totals = StepTotals(by_position=[0] * drafting.most)
        self.running: list[Decoding] = []
        self.waiting: deque[Decoding] = deque()
        self._slots = slots
        self._step_seconds = step_seconds
        self._cost = cost
        self._drafting = drafting
        self._shares = shares
        self._beyond = 0  # tokens that were made past answers' ends, for whoever comes next
        self._task: asyncio.Task[None] | None = None

    async def decode(
        self, tokens: int, draw: random.Random, on_tokens: Callable[[int], None], prompt_tokens: int = 0
    ) -> Decoding:
        """Wait for a place, then for so many tokens. Cancelling gives the place to the next."""
        loop = asyncio.get_running_loop()
        by_position, ended = [0] * self._drafting.most, loop.create_future()
        one = Decoding(tokens, draw, on_tokens, loop.time(), by_position, ended, prompt_tokens=prompt_tokens)
        self.waiting.append(one)
        self._admit(loop.time())
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._run())
        try:
            await one.ended
            return one
        finally:
            self._remove(one)

    def close(self) -> None:
        """End the loop; who still waits in `decode` has to be cancelled by whoever called."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        """Steps until nothing runs. `at` is when the step ends by the cost model, however late this wakes up."""
        loop = asyncio.get_running_loop()
        at, in_a_row = loop.time(), 0
        while self.running:
            depth = self._drafting.depth(len(self.running))
            at += self._step_seconds * (self._cost.of(len(self.running), depth) + self._computing)
            self._computing = 0.0
            if (ahead := at - loop.time()) > 0 or in_a_row >= _STEPS_AT_ONCE:
                await asyncio.sleep(max(0.0, ahead))
                in_a_row = 0
            in_a_row += 1
            self._step(depth, at)
            if not self.running:
                await asyncio.sleep(0)  # whoever has just got an answer may have the next request at hand

    def _step(self, depth: int, at: float) -> None:
        """One step of all that run; finished ones make room for those that wait, in the same instant."""
        shares = self._shares() if depth else ()
        for one in self.running:
            self._advance(one, depth, shares, at)
        for one in [one for one in self.running if one.emitted >= one.tokens]:
            one.ended_at = at
            self._remove(one)
            if not one.ended.done():
                one.ended.set_result(None)
        if self.kv_blocks is None or not self.kv_blocks.grow(self.running, self.waiting, 1 + depth):
            self._admit(at)

    def _advance(self, one: Decoding, depth: int, shares: Sequence[float], at: float) -> None:
        accepted = accepted_of(depth, shares, one.draw) if depth else 0
        if depth:
            one.drafts, one.drafted = one.drafts + 1, one.drafted + depth
            self.totals.drafts, self.totals.drafted = self.totals.drafts + 1, self.totals.drafted + depth
            for place in range(accepted):
                one.by_position[place] += 1
                self.totals.by_position[place] += 1
        self._emit(one, 1 + accepted)
        one.first_token_at = one.first_token_at or at
        one.steps += 1
        if one.emitted >= one.tokens or one.steps % _PROGRESS_STEPS == 0:
            one.on_tokens(one.emitted - one.said)
            one.said = one.emitted

    def _emit(self, one: Decoding, count: int) -> None:
        kept = min(count, one.tokens - one.emitted)
        one.emitted += kept
        self._beyond += count - kept
        self.totals.output_tokens += kept

    def _admit(self, at: float) -> None:
        """Fill free places. What was made beyond the last answers goes to the next, all but its last token."""
        while self.waiting and len(self.running) < self._slots:
            if self.kv_blocks is not None:
                if (cost := self.kv_blocks.take(self.waiting[0])) is None:
                    return
                self._computing += cost
            one = self.waiting.popleft()
            one.began_at = one.began_at or at
            self.running.append(one)
            credit = min(self._beyond, one.tokens - 1)
            self._beyond -= credit
            self._emit(one, credit)

    def _remove(self, one: Decoding) -> None:
        if one in self.running:
            self.running.remove(one)  # the next step fills the place
            if self.kv_blocks is not None:
                self.kv_blocks.release(one)
        elif one in self.waiting:
            self.waiting.remove(one)
