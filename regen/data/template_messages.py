"""Messages as chat templates take them. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from regen.records import Message


def template_messages(messages: Iterable[Message]) -> tuple[Mapping[str, object], ...]:
    """Role and content, and of tool turns what belongs to them; content is always text, a key without value is absent.

    Arguments of calls are the text that they are in storage: `TokenizerTemplate` makes objects of them where its
    template takes those. What a slot's source had called is not in it: slots are for the target, and never rendered.
    """
    return tuple(_template_message(message) for message in messages)


def _template_message(message: Message) -> Mapping[str, object]:
    made: dict[str, object] = {"role": message.role.value, "content": message.content or ""}
    if message.reasoning is not None:
        made["reasoning_content"] = message.reasoning
    if message.tool_calls_json is not None:
        made["tool_calls"] = json.loads(message.tool_calls_json)
    if message.tool_call_id is not None:
        made["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        made["name"] = message.name
    return made
