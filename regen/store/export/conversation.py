"""A kept row as a conversation in text, for the formats that hold messages. Pure.

Every assistant message in it is one of the kept generations, and what comes after the last of them is not in it.
Tool calls have OpenAI's shape (`id`, `type`, `function` with `name` and `arguments` as JSON text), however the row
holds them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regen.records import Role, SampledTurn
from regen.store.export.selection import Kept, LeftOut, Row
from regen.store.export.tokens import is_plain, sampled_turn

Message = dict[str, Any]
NO_TOOLS = "[]"


@dataclass(frozen=True, slots=True)
class Fields:
    """What occurs anywhere in an export beside role and content, so that every record has the same keys.

    Loaders infer types from the first rows of a file: a key that appears later, or text where only null was seen, fails
    there. `kwargs` are the names of the template kwargs that some row has.
    """

    reasoning: bool = False
    calls: bool = False
    tools: bool = False
    kwargs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ConversationText:
    """`messages` have role and content (text, never null); reasoning_content, tool_calls, tool_call_id and name where
    the row has them. `tools_json` is a JSON list.
    """

    id: str
    source: str
    split: str
    messages: tuple[Message, ...]
    turns: tuple[SampledTurn, ...]
    tools_json: str
    template_kwargs: Mapping[str, Any]

    @property
    def tokens(self) -> int:
        """Up to the end of the last answer, as the target saw and sampled it."""
        last = self.turns[-1]
        return len(last.prompt_token_ids) + len(last.completion_token_ids)

    @property
    def trained_tokens(self) -> int:
        return sum(len(turn.completion_token_ids) for turn in self.turns)


def conversation_text(kept: Kept) -> ConversationText | LeftOut:
    """The conversation up to the last kept turn."""
    row, generations = kept.row, kept.generations
    if not all(is_plain(generation) for generation in generations):
        return LeftOut("a loss mask of its own, which text cannot carry")
    places = [place for place, message in enumerate(row["messages"]) if message["role"] == Role.ASSISTANT]
    answered = places[: len(generations)] if kept.turns_left_out else places
    if len(answered) != len(generations):
        return LeftOut("answers in its text are not those of its generations")
    return ConversationText(
        id=row["row_id"],
        source=row["source"],
        split=kept.split,
        messages=tuple(_message(message) for message in row["messages"][: answered[-1] + 1]),
        turns=tuple(sampled_turn(generation, _stop_token_ids(generation)) for generation in generations),
        tools_json=row["tools"] or NO_TOOLS,
        template_kwargs=json.loads(row["template_kwargs"]) if row["template_kwargs"] else {},
    )


def with_objects(messages: Sequence[Mapping[str, Any]]) -> tuple[Message, ...]:
    """Tool calls as templates are meant to get them: arguments as objects. Text that is no JSON stays text."""
    return tuple(
        {**message, "tool_calls": [_with_object(call) for call in message["tool_calls"]]}
        if message.get("tool_calls")
        else dict(message)
        for message in messages
    )


def _message(message: Mapping[str, Any]) -> Message:
    made: Message = {"role": message["role"], "content": message["content"] or ""}
    if message.get("reasoning"):
        made["reasoning_content"] = message["reasoning"]
    if calls := _calls(message.get("tool_calls")):
        made["tool_calls"] = calls
    for name in ("tool_call_id", "name"):
        if message.get(name):
            made[name] = message[name]
    return made


def _calls(value: Any) -> list[dict[str, Any]]:
    """The calls of a message, which a row holds as JSON text or as a list."""
    calls = json.loads(value) if isinstance(value, str) else value
    return [_call(call) for call in calls or ()]


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function", call)
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments if arguments is not None else {})
    return {
        "id": call.get("id") or "",
        "type": call.get("type") or "function",
        "function": {"name": function["name"], "arguments": text},
    }


def _with_object(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        arguments = function["arguments"]
    return {**call, "function": {**function, "arguments": arguments}}


def _stop_token_ids(generation: Row) -> tuple[int, ...]:
    """None are recorded of a native turn: the target's own end it, which whoever has the template adds."""
    return tuple(json.loads(generation["sampling"])["stop_token_ids"]) if generation["sampling"] else ()
