"""An ordinary engine without a model: seeded answers, scripted time, faults and acceptance counters.

Answers follow from the prompt's ids, the seed and the cap alone, never from timing, batch or replica: a run over this
engine can be compared row by row with another. Time passes only through `step_seconds` and `start_seconds`: each
sequence has its own steps, or, with `cost`, all share the steps of one batch (engines/fake_time.py).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from regen.engines.fake_child import FakeChild
from regen.engines.fake_time import Drafting, StepLoop, accepted_of
from regen.errors import EngineDied, EngineStartFailed, RowFailed, RowRefused
from regen.records import (
    Acceptance,
    Completion,
    EngineCounters,
    EngineInfo,
    FinishReason,
    GenerationRequest,
    Stage,
    StepTrace,
    TokenScore,
    WorkerId,
)
from regen.spec import FakeEngineSpec, FakeFault, SpeculationSpec

PROGRESS_TOKENS = 64
CHILD_POLL_SECONDS = 0.2
# How the fake model rates a token that is not its greedy one, in nats.
UNLIKELY = -10.0


class FakeEngine:
    """`protocols.Engine` without a model. Scripted faults are matched with `worker`: its slot and incarnation."""

    def __init__(
        self, spec: FakeEngineSpec, speculation: SpeculationSpec | None, worker: WorkerId, keeps_steps: bool = False
    ) -> None:
        """`keeps_steps`: completions hold their steps, except where steps are shared (`cost`)."""
        self._keeps_steps = keeps_steps
        self._spec = spec
        self._speculation = speculation
        self._faults = [
            fault for fault in spec.faults if fault.replica in (None, worker.slot) and worker.incarnation < fault.lives
        ]
        self._strikes: dict[int, int] = {}
        self._chances: dict[int, int] = {}
        self._slots = asyncio.Semaphore(spec.slots)
        self._requests = 0
        self._counters = EngineCounters(acceptance=None if self._acceptance_is_absent else Acceptance())
        self._dead = asyncio.Event()
        self._slot = worker.slot
        self._child: FakeChild | None = None
        self._watching: asyncio.Future[None] | None = None
        self._is_frozen = False
        self._drafting = Drafting(speculation)
        self._steps: StepLoop | None = None
        if spec.cost is not None:
            self._steps = StepLoop(
                spec.slots, spec.step_seconds, spec.cost, self._drafting, self._shares, spec.kv_cache
            )

    async def start(self) -> EngineInfo:
        if self._strike("hang_at_start"):
            await asyncio.Event().wait()
        if self._spec.device is not None:
            self._child = await asyncio.to_thread(FakeChild, Path(f"{self._spec.device}.{self._slot}"))
            self._watching = asyncio.ensure_future(self._watch(self._child))
        await asyncio.sleep(self._spec.start_seconds)
        if self._strike("die_at_start"):
            raise EngineStartFailed("the fake engine was told to die at its start")
        return EngineInfo(
            "fake",
            self._speculation.draft_name if self._speculation else None,
            self._spec.max_model_len,
            self._spec.slots,
        )

    async def generate(self, request: GenerationRequest, on_tokens: Callable[[int], None]) -> Completion:
        if self._dead.is_set():
            raise EngineDied("the fake engine is dead")
        self._requests += 1
        work = asyncio.ensure_future(self._generate(request, on_tokens))
        death = asyncio.ensure_future(self._dead.wait())
        try:
            await asyncio.wait((work, death), return_when=asyncio.FIRST_COMPLETED)
            if self._dead.is_set():
                raise EngineDied("the fake engine died")
            made = work.result()
            self._note_made(request)
            return made
        finally:
            work.cancel()
            death.cancel()

    async def score(self, prompt_token_ids: tuple[int, ...], token_ids: tuple[int, ...]) -> tuple[TokenScore, ...]:
        """The fake model is sure of its greedy answer: any other token is far below it."""
        if self._dead.is_set():
            raise EngineDied("the fake engine is dead")
        draw = _greedy_draw(prompt_token_ids)
        self._length(draw)  # an answer's length is drawn before its words
        best_ids = self._words(draw, len(token_ids))
        return tuple(
            TokenScore(token, 0.0 if token in (best, self._spec.end_token_id) else UNLIKELY, best, 0.0)
            for token, best in zip(token_ids, best_ids, strict=True)
        )

    def counters(self) -> EngineCounters:
        self._count_steps()
        return replace(self._counters, acceptance=None) if self._acceptance_is_absent else self._counters

    async def close(self) -> None:
        self._dead.set()
        if self._steps is not None:
            self._steps.close()
        if self._watching is not None:
            self._watching.cancel()
        if self._child is not None:
            await asyncio.to_thread(self._child.close)

    async def _watch(self, child: FakeChild) -> None:
        """An engine's process that ends takes the engine with it."""
        while child.lives:
            await asyncio.sleep(CHILD_POLL_SECONDS)
        self._dead.set()

    def _note_made(self, request: GenerationRequest) -> None:
        if self._spec.made_log is None:
            return
        line = json.dumps({"at": time.time(), "pid": os.getpid(), "slot": self._slot, "request": request.request_id})
        with open(self._spec.made_log, "a", encoding="utf-8") as log:  # one short write in append mode: never torn
            log.write(line + "\n")

    @property
    def _acceptance_is_absent(self) -> bool:
        return self._speculation is None or self._spec.counters_absent or self._is_under("counters_absent")

    async def _generate(self, request: GenerationRequest, on_tokens: Callable[[int], None]) -> Completion:
        if self._steps is not None:
            return await self._decode_in_batch(self._steps, request, on_tokens)
        self._count(waiting=1)
        try:
            await self._slots.acquire()
        finally:
            self._count(waiting=-1)
        self._count(running=1)
        try:
            return await self._decode(request, on_tokens)
        finally:
            self._count(running=-1)
            self._slots.release()

    async def _decode(self, request: GenerationRequest, on_tokens: Callable[[int], None]) -> Completion:
        await self._suffer(request)
        draw = self._draw(request)
        token_ids, finish_reason = self._answer(request, draw)
        steps, acceptance, trace = self._speculate(len(token_ids), draw)
        emitted, counted = 0, Acceptance()
        self._record(prompt_tokens=len(request.prompt_token_ids))
        for step in range(0, steps, PROGRESS_TOKENS):
            batch = min(PROGRESS_TOKENS, steps - step)
            await asyncio.sleep(batch * self._spec.step_seconds)
            if self._is_frozen:
                await asyncio.Event().wait()
            new = math.ceil(len(token_ids) * (step + batch) / steps) - emitted
            emitted += new
            on_tokens(new)
            before, counted = counted, _part(acceptance or Acceptance(), step + batch, steps)
            self._record(new, acceptance=_less(counted, before))
        return Completion(
            token_ids=token_ids,
            finish_reason=finish_reason,
            stop_reason=None,
            acceptance=acceptance,
            queue_seconds=0.0,
            first_token_seconds=self._spec.step_seconds,
            decode_seconds=steps * self._spec.step_seconds,
            steps=trace if self._keeps_steps and acceptance is not None else None,
        )

    async def _decode_in_batch(
        self, steps: StepLoop, request: GenerationRequest, on_tokens: Callable[[int], None]
    ) -> Completion:
        await self._suffer(request)
        draw = self._draw(request)
        token_ids, finish_reason = self._answer(request, draw)
        self._record(prompt_tokens=len(request.prompt_token_ids))
        made = await steps.decode(len(token_ids), draw, on_tokens, len(request.prompt_token_ids))
        return Completion(
            token_ids=token_ids,
            finish_reason=finish_reason,
            stop_reason=None,
            acceptance=None if self._acceptance_is_absent else made.acceptance,
            queue_seconds=made.began_at - made.asked_at,
            first_token_seconds=made.first_token_at - made.began_at,
            decode_seconds=made.ended_at - made.began_at,
        )

    def _count_steps(self) -> None:
        """What the shared steps have made so far; without them everything is counted where it happens."""
        if (steps := self._steps) is None:
            return
        blocks = steps.kv_blocks
        self._counters = replace(
            self._counters,
            output_tokens=steps.totals.output_tokens,
            running=len(steps.running),
            waiting=len(steps.waiting),
            kv_usage=min(1.0, len(steps.running) / self._spec.slots) if blocks is None else blocks.usage,
            preemptions=0 if blocks is None else blocks.totals.preemptions,
            acceptance=None if self._speculation is None else steps.totals.acceptance,
        )

    async def _suffer(self, request: GenerationRequest) -> None:
        prompt = request.prompt_token_ids
        if self._strike("die", prompt):
            self._dead.set()
            await asyncio.Event().wait()
        self._is_frozen = self._is_frozen or self._strike("freeze", prompt)
        if self._is_frozen or self._strike("hang", prompt):
            await asyncio.Event().wait()
        if self._strike("refuse", prompt):
            raise RowRefused(Stage.GENERATE, "engine_refused", "the fake engine was told to refuse this request")
        if self._strike("fail", prompt):
            raise RowFailed("engine_error", "the fake engine was told to fail this attempt")

    def _strike(self, kind: str, prompt: tuple[int, ...] = ()) -> bool:
        return any(
            self._struck_by(index, fault, prompt) for index, fault in enumerate(self._faults) if fault.kind == kind
        )

    def _struck_by(self, index: int, fault: FakeFault, prompt: tuple[int, ...]) -> bool:
        if fault.prompt_ids and not _stand_in(prompt, tuple(fault.prompt_ids)):
            return False
        if self._requests <= fault.after_requests and not fault.kind.endswith("_at_start"):
            return False
        self._chances[index] = self._chances.get(index, 0) + 1
        if self._chances[index] % fault.every or self._strikes.get(index, 0) >= fault.times:
            return False
        self._strikes[index] = self._strikes.get(index, 0) + 1
        return True

    def _is_under(self, kind: str) -> bool:
        """Whether a fault that lasts has set in."""
        return any(fault.kind == kind and self._requests > fault.after_requests for fault in self._faults)

    def _draw(self, request: GenerationRequest) -> random.Random:
        if request.sampling.temperature == 0:
            return _greedy_draw(request.prompt_token_ids)
        if request.seed is None:
            return random.Random()
        text = f"{request.seed}|{request.sampling.temperature}|{','.join(map(str, request.prompt_token_ids))}"
        return random.Random(hashlib.blake2b(text.encode("ascii")).digest())

    def _answer(self, request: GenerationRequest, draw: random.Random) -> tuple[tuple[int, ...], FinishReason]:
        """The scripted answer, else one of lognormal length; the closing id included, cut at the cap."""
        if (scripted := self._scripted(request.prompt_token_ids)) is not None:
            is_cut = len(scripted) >= request.cap
            return (
                (scripted[: request.cap], FinishReason.LENGTH)
                if is_cut
                else (
                    (*scripted, self._spec.end_token_id),
                    FinishReason.STOP,
                )
            )
        length = self._length(draw)
        words = list(self._words(draw, min(length, request.cap)))
        if self._strike("garbage"):
            words = [self._spec.vocabulary[0]] * len(words)
        if self._speculation is not None and self._strike("salad"):
            random.Random(len(words)).shuffle(words)
        if length >= request.cap:
            return tuple(words), FinishReason.LENGTH
        return (*words, self._spec.end_token_id), FinishReason.STOP

    def _scripted(self, prompt: tuple[int, ...]) -> tuple[int, ...] | None:
        for answer in self._spec.answers:
            if _stand_in(prompt, tuple(answer.prompt_ids)):
                return tuple(answer.ids)
        return None

    def _words(self, draw: random.Random, count: int) -> tuple[int, ...]:
        first, last = self._spec.vocabulary
        return tuple(draw.randint(first, last) for _ in range(count))

    def _length(self, draw: random.Random) -> int:
        return max(1, round(self._spec.answer_tokens * math.exp(self._spec.answer_spread * draw.gauss(0, 1))))

    def _speculate(self, tokens: int, draw: random.Random) -> tuple[int, Acceptance | None, StepTrace]:
        """(decoding steps, counters, steps that drafted) for so many tokens: one token a step without speculation."""
        if self._speculation is None:
            return tokens, None, StepTrace((), ())
        depth = self._drafting.depth(self._counters.running)
        shares, by_position = self._shares(), [0] * self._drafting.most
        steps = 1
        verified: list[int] = []
        emitted = 1  # the first token comes from the prompt's own pass, before anything was drafted
        while emitted < tokens:
            accepted = accepted_of(depth, shares, draw) if depth else 0
            for position in range(accepted):
                by_position[position] += 1
            steps += 1
            verified += [accepted] if depth else []
            emitted += 1 + accepted
        drafts = len(verified)
        acceptance = Acceptance(drafts, drafts * depth, sum(by_position), tuple(by_position))
        trace = StepTrace((depth,) * drafts, tuple(verified))
        return steps, None if self._acceptance_is_absent else acceptance, trace

    def _shares(self) -> Sequence[float]:
        """Of steps that accept at least one, two, ... draft tokens."""
        if self._speculation is None or self._is_under("reject_drafts"):
            return ()
        return self._spec.acceptance_by_method.get(self._speculation.method, self._spec.acceptance_by_position)

    def _record(self, tokens: int = 0, prompt_tokens: int = 0, acceptance: Acceptance | None = None) -> None:
        seen = self._counters.acceptance
        self._counters = replace(
            self._counters,
            output_tokens=self._counters.output_tokens + tokens,
            prompt_tokens=self._counters.prompt_tokens + prompt_tokens,
            acceptance=seen + acceptance if seen is not None and acceptance is not None else seen,
        )

    def _count(self, running: int = 0, waiting: int = 0) -> None:
        self._counters = replace(
            self._counters,
            running=self._counters.running + running,
            waiting=self._counters.waiting + waiting,
            kv_usage=min(1.0, (self._counters.running + running) / self._spec.slots),
        )


def _stand_in(prompt: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    return any(prompt[start : start + len(wanted)] == wanted for start in range(len(prompt) - len(wanted) + 1))


def _part(whole: Acceptance, done: int, steps: int) -> Acceptance:
    """What of an answer's counters so many of its steps have made; all of them in the end."""
    by_position = tuple(count * done // steps for count in whole.accepted_by_position)
    return Acceptance(whole.drafts * done // steps, whole.drafted * done // steps, sum(by_position), by_position)


def _less(now: Acceptance, before: Acceptance) -> Acceptance:
    earlier = (*before.accepted_by_position, *[0] * len(now.accepted_by_position))
    by_position = tuple(count - past for count, past in zip(now.accepted_by_position, earlier, strict=False))
    return Acceptance(now.drafts - before.drafts, now.drafted - before.drafted, sum(by_position), by_position)


def _greedy_draw(prompt_token_ids: tuple[int, ...]) -> random.Random:
    """Greedy answers follow from the prompt alone, whatever the seed."""
    return random.Random(hashlib.blake2b(f"greedy|{','.join(map(str, prompt_token_ids))}".encode("ascii")).digest())
