"""One leased conversation becomes one finished row: render, generate, read the answer, append, for every turn.

Guarantees: each turn is built on the history that the target itself has produced, its own calls of tools included;
recorded results are fed back only to calls that they answer; system messages stay; a refusal or a bad answer costs the
rest of this conversation only, and earlier turns are kept and labelled. What is written is what the engine saw and
sampled: ids first, text as a view of them.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import TypeVar

from regen.data.sampling import effective_sampling, row_seed
from regen.data.template_messages import template_messages
from regen.errors import RowRefused
from regen.protocols import AnswerParser, ChatTemplate, Engine
from regen.records import (
    Completion,
    Conversation,
    Generation,
    GenerationRequest,
    Lease,
    Message,
    Observed,
    ObservedGeneration,
    OutputRow,
    PlannedRow,
    Role,
    Sampling,
    Stage,
    Status,
)
from regen.run.conversations.failed_rows import refusal_detail
from regen.run.conversations.labels import Outcome, outcome_of
from regen.run.conversations.reading import Reader, effective_template_kwargs
from regen.run.conversations.tool_results import matched_results
from regen.run.fleet.stall import StallClock
from regen.run.setup import WorkerSetup

T = TypeVar("T")

NO_TOOL_CALL, TOOL_CALL_UNMATCHED = "no_tool_call", "tool_call_unmatched"
CONTROL_TOKENS_IN_ANSWER = "control_tokens_in_answer"


@dataclass(frozen=True, slots=True)
class Ending:
    """A whole conversation: its messages as far as they go, its generations, and how it ended."""

    messages: tuple[Message, ...]
    generations: tuple[Generation, ...]
    seen: tuple[ObservedGeneration, ...]
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Slot:
    """A turn of the target. `given` came since the turn before, `expected_before` are the recorded calls of that one.

    Turns count from 0.
    """

    turn: int
    given: tuple[Message, ...]
    expected_before: str | None


class Regenerator:
    """Makes rows with one engine and one template. Rendering and reading run in `executor`, off the event loop."""

    def __init__(
        self,
        setup: WorkerSetup,
        engine: Engine,
        template: ChatTemplate,
        parser: AnswerParser | None,
        executor: Executor,
        max_model_len: int,
        stall: StallClock,
    ) -> None:
        """Without a `parser` the whole text of an answer is its content."""
        self._stall = stall
        self._setup = setup
        self._engine = engine
        self._template = template
        self._reader = Reader(setup, template, parser)
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

    async def first_request(self, row: PlannedRow) -> GenerationRequest:
        """What this row's first turn asks of the engine. Raises RowRefused."""
        conversation = row.conversation
        assert conversation is not None, "refused rows are never asked for"
        slot = next(_slots(conversation))
        return await self._request(Lease(row, 0, 0), conversation, slot.given, slot.turn)

    async def _converse(self, lease: Lease, conversation: Conversation, on_tokens: Callable[[int], None]) -> Ending:
        history: list[Message] = []
        generations: list[Generation] = []
        seen: list[ObservedGeneration] = []
        outcome: Outcome | None = None
        for slot in _slots(conversation):
            given = self._answered(history, slot)
            if isinstance(given, Outcome):
                outcome = given
                break
            history.extend(given)
            try:
                request = await self._request(lease, conversation, tuple(history), slot.turn)
                self._stall.submitted(lease.row.ordinal, time.monotonic())
                completion = await self._engine.generate(request, on_tokens)
                generation = await self._off_loop(
                    self._reader.turn, slot.turn, request, completion, conversation, tuple(history)
                )
            except RowRefused as refusal:
                outcome = _refused(refusal, generations)
                break
            generations.append(generation)
            seen.append(_observed(slot.turn, completion))
            outcome = outcome_of(generation.labels, slot.turn, request.cap)
            if outcome is None or outcome.status is Status.TRUNCATED:
                history.append(
                    Message(Role.ASSISTANT, generation.content, generation.reasoning, generation.tool_calls_json)
                )
            if outcome is not None:
                break
        return Ending(tuple(history), tuple(generations), tuple(seen), outcome or Outcome(Status.OK))

    def _answered(self, history: Sequence[Message], slot: Slot) -> tuple[Message, ...] | Outcome:
        """What is given before this turn, recorded results under the target's own calls; or how the conversation ends.

        A call that nobody answers ends it too: the user's next words would follow an open call. So do control tokens
        that the target has spelled out: in the next prompt they would be real ones.
        """
        if spelled := self._template.control_tokens(_said(history[-1]), only_special=True) if slot.turn else ():
            detail = f"turn {slot.turn - 1}: {', '.join(spelled)} written out, and another turn would follow"
            return Outcome(Status.PARTIAL, Stage.GENERATE, CONTROL_TOKENS_IN_ANSWER, detail)
        results = tuple(message for message in slot.given if message.role is Role.TOOL)
        calls = history[-1].tool_calls_json if slot.turn else None
        if not results and calls is None:
            return slot.given
        if calls is None:
            return self._unanswered(NO_TOOL_CALL, slot, f"{len(results)} recorded results and no call of the target")
        matched = matched_results(calls, slot.expected_before, results, self._setup.run.spec.policies.tool_results)
        if matched is None:
            detail = f"calls of {_names(calls)}, recorded results of {_names(slot.expected_before) or 'none'}"
            return self._unanswered(TOOL_CALL_UNMATCHED, slot, detail)
        return (*matched, *(message for message in slot.given if message.role is not Role.TOOL))

    def _unanswered(self, reason: str, slot: Slot, detail: str) -> Outcome:
        if self._setup.answers.tool_parser is None:
            detail += " (target.tool_parser is none: calls are not looked for)"
        return Outcome(Status.PARTIAL, Stage.GENERATE, reason, f"turn {slot.turn - 1}: {detail}")

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
        own = lease.row.conversation.sampling if lease.row.conversation else {}
        overrides = {**own, **lease.sampling}
        return effective_sampling(
            setup.run.spec.sampling, setup.generation_config, setup.eos_token_ids, lease.row.row_id, overrides
        )

    def _render(self, conversation: Conversation, history: tuple[Message, ...]) -> tuple[int, ...]:
        return self._template.render(
            template_messages(history), conversation.tools_json, conversation.template_kwargs_json
        )

    async def _off_loop(self, work: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work, *arguments)


def _slots(conversation: Conversation) -> Iterator[Slot]:
    given: list[Message] = []
    turn, expected = 0, None
    for message in conversation.messages:
        if not message.is_slot:
            given.append(message)
            continue
        yield Slot(turn, tuple(given), expected)
        given, turn, expected = [], turn + 1, message.expected_calls_json


def _said(message: Message) -> str:
    return "\n".join(filter(None, (message.content, message.reasoning, message.tool_calls_json)))


def _names(calls_text: str | None) -> str:
    """Which tools are called, for people."""
    return ", ".join(call["function"]["name"] for call in json.loads(calls_text or "[]"))


def _refused(refusal: RowRefused, generations: list[Generation]) -> Outcome:
    status = Status.PARTIAL if generations else Status.REJECTED
    return Outcome(status, Stage(refusal.stage), refusal.reason, refusal_detail(refusal.detail))


def _observed(turn: int, completion: Completion) -> ObservedGeneration:
    return ObservedGeneration(
        turn=turn,
        acceptance=completion.acceptance,
        queue_seconds=completion.queue_seconds,
        first_token_seconds=completion.first_token_seconds,
        decode_seconds=completion.decode_seconds,
        steps=completion.steps,
    )
