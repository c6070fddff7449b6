"""One leased conversation becomes one finished row: render, generate, append, for every turn.

Guarantees: each turn is built on the history that the target itself has produced; system messages stay; a refusal or an
empty answer costs the rest of this conversation only, and earlier turns are kept and labelled. What is written is what
the engine saw and sampled: ids first, text as a view of them.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import TypeVar

from regen.data.sampling import effective_sampling, row_seed
from regen.data.template_messages import template_messages
from regen.errors import RowRefused
from regen.protocols import ChatTemplate, Engine
from regen.records import (
    Completion,
    Conversation,
    FinishReason,
    Generation,
    GenerationRequest,
    Lease,
    Message,
    Observed,
    ObservedGeneration,
    Origin,
    OutputRow,
    Role,
    Sampling,
    Stage,
    Status,
)
from regen.run.setup import RunSetup, WorkerSetup
from regen.run.stall import StallClock

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a conversation ended, besides what it contains."""

    status: Status
    stage: Stage | None = None
    reason: str | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class Ending:
    """A whole conversation: its messages as far as they go, its generations, and how it ended."""

    messages: tuple[Message, ...]
    generations: tuple[Generation, ...]
    seen: tuple[ObservedGeneration, ...]
    outcome: Outcome


class Regenerator:
    """Makes rows with one engine and one template. Rendering runs in `executor`, off the event loop."""

    def __init__(
        self,
        setup: WorkerSetup,
        engine: Engine,
        template: ChatTemplate,
        executor: Executor,
        max_model_len: int,
        stall: StallClock,
    ) -> None:
        self._stall = stall
        self._setup = setup
        self._engine = engine
        self._template = template
        self._executor = executor
        self._max_model_len = max_model_len

    async def regenerate(self, lease: Lease, observed: Observed, on_tokens: Callable[[int], None]) -> OutputRow:
        """Raises RowFailed (give the row back), EngineDied; anything that only concerns the row is in the result."""
        conversation = lease.row.conversation
        assert conversation is not None, "refused rows are never leased"
        ending = await self._converse(lease, conversation, on_tokens)
        row = lease.row
        return OutputRow(
            ordinal=row.ordinal,
            row_id=row.row_id,
            source=row.source,
            location=row.location,
            source_id=row.source_id,
            status=ending.outcome.status,
            round=lease.round,
            messages=ending.messages,
            generations=ending.generations,
            observed=replace(observed, attempts=lease.attempt, generations=ending.seen),
            tools_json=conversation.tools_json,
            template_kwargs_json=effective_template_kwargs(self._setup.run, conversation),
            stage=ending.outcome.stage,
            reason=ending.outcome.reason,
            detail=ending.outcome.detail,
            split=row.split,
        )

    async def _converse(self, lease: Lease, conversation: Conversation, on_tokens: Callable[[int], None]) -> Ending:
        history: list[Message] = []
        generations: list[Generation] = []
        seen: list[ObservedGeneration] = []
        outcome = Outcome(Status.OK)
        for turn, given in _turns(conversation):
            if any(message.role is Role.TOOL for message in given):
                outcome = _tools_unsupported(turn, generations)
                break
            history.extend(given)
            try:
                request = await self._request(lease, conversation, tuple(history), turn)
                self._stall.submitted(lease.row.ordinal, time.monotonic())
                completion = await self._engine.generate(request, on_tokens)
                generation = await self._generation(turn, request, completion)
            except RowRefused as refusal:
                outcome = _refused(refusal, generations)
                break
            generations.append(generation)
            seen.append(_observed(turn, completion))
            ended = _judge(generation, turn)
            if ended is None or ended.status is Status.TRUNCATED:
                history.append(Message(Role.ASSISTANT, generation.content, generation.reasoning))
            if ended is not None:
                outcome = ended
                break
        return Ending(tuple(history), tuple(generations), tuple(seen), outcome)

    async def _request(
        self, lease: Lease, conversation: Conversation, history: tuple[Message, ...], turn: int
    ) -> GenerationRequest:
        prompt = await self._off_loop(self._render, conversation, history)
        sampling = self._sampling(lease)
        room = self._max_model_len - len(prompt)
        if room < 1:
            raise RowRefused(
                Stage.LENGTH, "longer_than_context", f"turn {turn}: {len(prompt)} of {self._max_model_len} tokens"
            )
        return GenerationRequest(
            request_id=f"{lease.row.row_id}-{turn}-{lease.round}-{lease.attempt}-{time.monotonic_ns()}",
            prompt_token_ids=prompt,
            sampling=sampling,
            cap=min(sampling.max_tokens, room),
            seed=row_seed(self._setup.run.spec.sampling.seed, lease.row.row_id, turn, lease.round),
        )

    def _sampling(self, lease: Lease) -> Sampling:
        setup = self._setup
        overrides = lease.row.conversation.sampling if lease.row.conversation else {}
        return effective_sampling(
            setup.run.spec.sampling, setup.generation_config, setup.eos_token_ids, lease.row.row_id, overrides
        )

    def _render(self, conversation: Conversation, history: tuple[Message, ...]) -> tuple[int, ...]:
        return self._template.render(
            template_messages(history), conversation.tools_json, conversation.template_kwargs_json
        )

    async def _generation(self, turn: int, request: GenerationRequest, completion: Completion) -> Generation:
        text = await self._off_loop(self._template.decode, completion.token_ids)
        return Generation(
            turn=turn,
            origin=Origin.TARGET,
            prompt_token_ids=request.prompt_token_ids,
            completion_token_ids=completion.token_ids,
            text=text,
            content=_without_stop_string(text, completion, request.sampling),
            finish_reason=completion.finish_reason,
            stop_reason=completion.stop_reason,
            sampling=request.sampling,
            cap=request.cap,
            seed=request.seed,
        )

    async def _off_loop(self, work: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work, *arguments)


def effective_template_kwargs(run: RunSetup, conversation: Conversation) -> str | None:
    """What the template was given besides the messages, as JSON text: the spec's, the row's own winning."""
    own = json.loads(conversation.template_kwargs_json) if conversation.template_kwargs_json else {}
    kwargs = {**run.spec.target.template_kwargs, **own}
    return json.dumps(kwargs, sort_keys=True) if kwargs else None


def _turns(conversation: Conversation) -> Iterator[tuple[int, list[Message]]]:
    """(turn, messages given since the turn before) for each slot, turns counted from 0."""
    given: list[Message] = []
    turn = 0
    for message in conversation.messages:
        if message.is_slot:
            yield turn, given
            given, turn = [], turn + 1
        else:
            given.append(message)


def _judge(generation: Generation, turn: int) -> Outcome | None:
    """None: a good turn, go on. A cut answer is kept as the last message; an empty one is not."""
    if generation.finish_reason is FinishReason.LENGTH:
        return Outcome(Status.TRUNCATED, Stage.GENERATE, "cap", f"turn {turn}: cut at {generation.cap} tokens")
    if generation.finish_reason is FinishReason.REPETITION:
        return _bad_turn(turn, "repetition")
    if not generation.content.strip():
        return _bad_turn(turn, "empty_answer")
    return None


def _bad_turn(turn: int, reason: str) -> Outcome:
    status = Status.PARTIAL if turn else Status.DEGENERATE
    return Outcome(status, Stage.GENERATE, reason, f"turn {turn}")


def _tools_unsupported(turn: int, generations: list[Generation]) -> Outcome:
    """Recorded results are not fed back yet: what tools said to another model is no history of the target."""
    status = Status.PARTIAL if generations else Status.REJECTED
    return Outcome(status, Stage.GENERATE, "tool_turns_unsupported", f"turn {turn} follows a tool's result")


def _refused(refusal: RowRefused, generations: list[Generation]) -> Outcome:
    status = Status.PARTIAL if generations else Status.REJECTED
    return Outcome(status, Stage(refusal.stage), refusal.reason, refusal.detail)


def _without_stop_string(text: str, completion: Completion, sampling: Sampling) -> str:
    """The engine samples a stop string before it stops at it: it is in the ids, and no part of the answer."""
    if completion.stop_reason in sampling.stop:
        return text[: text.rfind(completion.stop_reason)]
    return text


def _observed(turn: int, completion: Completion) -> ObservedGeneration:
    return ObservedGeneration(
        turn=turn,
        acceptance=completion.acceptance,
        queue_seconds=completion.queue_seconds,
        first_token_seconds=completion.first_token_seconds,
        decode_seconds=completion.decode_seconds,
    )
