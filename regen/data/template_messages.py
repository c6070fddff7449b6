"""Messages as chat templates take them: text in storage, objects at the template. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from regen.records import Message


def template_messages(messages: Iterable[Message]) -> tuple[Mapping[str, object], ...]:
    """Role and content, and of tool turns what belongs to them; content is always text, a key without value is absent.

    Arguments of calls are objects (templates that print JSON text would encode it twice). What a slot's source had
    called is not in it: slots are for the target, and never rendered.
    """
    return tuple(_template_message(message) for message in messages)


def _template_message(message: Message) -> Mapping[str, object]:
    made: dict[str, object] = {"role": message.role.value, "content": message.content or ""}
    if message.reasoning is not None:
        made["reasoning_content"] = message.reasoning
    if message.tool_calls_json is not None:
        made["tool_calls"] = [_call(call) for call in json.loads(message.tool_calls_json)]
    if message.tool_call_id is not None:
        made["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        made["name"] = message.name
    return made


def _call(call: Mapping[str, Mapping[str, str]]) -> Mapping[str, object]:
    function = call["function"]
    return {**call, "function": {**function, "arguments": _object(function["arguments"])}}


def _object(arguments: str) -> object:
    """Text that is no JSON (kept by policy) stays text."""
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments
