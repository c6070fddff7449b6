"""`sharegpt`: JSONL with `conversations` of `from` and `value`; calls are `function_call`, results `observation`.

It has no place for reasoning apart from the answer, for text beside calls, for ids of calls, nor for template kwargs:
conversations that a template renders otherwise without those are left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from regen.store.export.conversation import ConversationText, Fields, Message, with_objects
from regen.store.export.format import TextFormat
from regen.store.export.selection import LeftOut

_FROM = {"system": "system", "user": "human", "assistant": "gpt", "tool": "observation"}


class ShareGptShape:
    def values(self, conversation: ConversationText, fields: Fields) -> dict[str, Any] | LeftOut:
        for message in conversation.messages:
            if message.get("reasoning_content"):
                return LeftOut("reasoning has no place in this format")
            if message.get("tool_calls") and message["content"]:
                return LeftOut("text beside tool calls has no place in this format")
        tools = {"tools": conversation.tools_json} if fields.tools else {}
        return {
            "id": conversation.id,
            "source": conversation.source,
            "conversations": [_turn(message) for message in conversation.messages],
            **tools,
        }

    def rendered_messages(self, conversation: ConversationText, fields: Fields) -> Sequence[Mapping[str, Any]]:
        """All that can be read out of the turns."""
        return [_read_back(message) for message in with_objects(conversation.messages)]

    def rendered_kwargs(self, conversation: ConversationText, fields: Fields) -> Mapping[str, Any]:
        return {}


def _read_back(message: Message) -> Message:
    made: Message = {"role": message["role"], "content": message["content"]}
    if calls := message.get("tool_calls"):
        made["tool_calls"] = [{"type": "function", "function": call["function"]} for call in calls]
    return made


def _turn(message: Message) -> dict[str, str]:
    calls = message.get("tool_calls")
    if not calls:
        return {"from": _FROM[message["role"]], "value": message["content"]}
    said = [call["function"] for call in with_objects([message])[0]["tool_calls"]]
    return {"from": "function_call", "value": json.dumps(said[0] if len(said) == 1 else said)}


_GUIDE = """\
ShareGPT's shape, one conversation a line. Rendered with the target's own template it gives the ids of the run. Which
tokens are trained on is up to the reader: an answer begins behind {before!r} and ends with {closing!r}."""

SHAREGPT = TextFormat("sharegpt", ShareGptShape(), _GUIDE)
