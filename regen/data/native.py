"""Rows that are the target's own already -> their turns as ids. Pure: it is handed the target's template.

Guarantees: given ids and masks are kept as they are. Else a turn is the difference between the prompt that the template
makes of what stands before it and the whole that it makes with it, so that every turn is one sample with the exact
prompt it would have seen; where the two do not line up, or the answer is not in the difference, the row is refused.
Costs two renderings a turn.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import replace

from regen.data.adapters.given import Tokens
from regen.data.control_tokens import CONTROL_TOKENS
from regen.data.template_messages import template_messages
from regen.errors import RowRefused
from regen.protocols import ChatTemplate
from regen.records import Conversation, FinishReason, Generation, Message, Origin, Role, Stage

REWRITES_HISTORY = "template_rewrites_history"
NOT_RENDERED = "answer_not_rendered"
BAD_TOKENS = "bad_tokens"


def native_turns(
    template: ChatTemplate, conversation: Conversation, eos_token_ids: Sequence[int], is_reasoning_inline: bool
) -> tuple[Generation, ...]:
    """One generation for each answer. `is_reasoning_inline`: the source had it within the answer, in think tags.

    Raises RowRefused.
    """
    return tuple(
        _turn(template, conversation, number, turn, eos_token_ids, is_reasoning_inline)
        for turn, number in enumerate(_answers(conversation))
    )


def given_turn(template: ChatTemplate, tokens: Tokens) -> Generation:
    """A row that came as ids: what stands before the first token in the loss is the prompt. Raises RowRefused."""
    if max(tokens.input_ids) >= template.vocabulary_size:
        detail = f"id {max(tokens.input_ids)} is outside of the target's vocabulary of {template.vocabulary_size}"
        raise RowRefused(Stage.RENDER, BAD_TOKENS, detail)
    first = tokens.loss_mask.index(1)
    completion, mask = tokens.input_ids[first:], tokens.loss_mask[first:]
    text = template.decode(completion)
    return _generation(0, tokens.input_ids[:first], completion, text, text, None, loss_mask=None if all(mask) else mask)


def _answers(conversation: Conversation) -> Iterator[int]:
    return (number for number, message in enumerate(conversation.messages) if message.role is Role.ASSISTANT)


def _turn(
    template: ChatTemplate,
    conversation: Conversation,
    number: int,
    turn: int,
    eos_token_ids: Sequence[int],
    is_reasoning_inline: bool,
) -> Generation:
    answer = conversation.messages[number]
    before = conversation.messages[:number]
    prompt = _ids(template, conversation, before, opens_answer=True)
    forms = [answer]
    if is_reasoning_inline and answer.reasoning is not None:
        forms.append(replace(answer, content=f"<think>{answer.reasoning}</think>{answer.content}", reasoning=None))
    for form in forms:
        whole = _ids(template, conversation, (*before, form), opens_answer=False)
        if whole[: len(prompt)] != prompt:
            raise RowRefused(Stage.RENDER, REWRITES_HISTORY, f"turn {turn}: the prompt is no beginning of the whole")
        completion = _until_end(whole[len(prompt) :], eos_token_ids, turn)
        text = template.decode(completion)
        if _holds(text, answer):
            ended = bool(completion) and completion[-1] in eos_token_ids
            made = _generation(turn, prompt, completion, text, answer.content or "", answer, loss_mask=None)
            return replace(made, finish_reason=FinishReason.STOP if ended else None)
    raise RowRefused(Stage.RENDER, NOT_RENDERED, f"turn {turn}: the template leaves out a part of the answer")


def _ids(
    template: ChatTemplate, conversation: Conversation, messages: Sequence[Message], opens_answer: bool
) -> tuple[int, ...]:
    render = template.render if opens_answer else template.render_whole
    return render(template_messages(messages), conversation.tools_json, conversation.template_kwargs_json)


def _until_end(ids: tuple[int, ...], eos_token_ids: Sequence[int], turn: int) -> tuple[int, ...]:
    """Up to the id that ends the turn: what the template writes after it, the target does not sample."""
    ends = [position for position, id_ in enumerate(ids) if id_ in eos_token_ids]
    if len(ends) > 1:
        raise RowRefused(Stage.RENDER, CONTROL_TOKENS, f"turn {turn} holds the id that ends a turn {len(ends)} times")
    return ids[: ends[0] + 1] if ends else ids


def _holds(text: str, answer: Message) -> bool:
    """Whether all parts of the answer can be read in the turn, but for white space and normal forms."""
    found = _folded(text)
    parts = [answer.content or "", answer.reasoning or ""]
    if answer.tool_calls_json is not None:
        parts += [call["function"]["name"] for call in json.loads(answer.tool_calls_json)]
    return all(_folded(part) in found for part in parts)


def _folded(text: str) -> str:
    return "".join(unicodedata.normalize("NFKC", text).split())


def _generation(
    turn: int,
    prompt: tuple[int, ...],
    completion: tuple[int, ...],
    text: str,
    content: str,
    answer: Message | None,
    loss_mask: tuple[int, ...] | None,
) -> Generation:
    return Generation(
        turn=turn,
        origin=Origin.NATIVE,
        prompt_token_ids=prompt,
        completion_token_ids=completion,
        text=text,
        content=content,
        finish_reason=None,
        stop_reason=None,
        sampling=None,
        cap=None,
        seed=None,
        loss_mask=loss_mask,
        reasoning=answer.reasoning if answer else None,
        tool_calls_json=answer.tool_calls_json if answer else None,
    )
