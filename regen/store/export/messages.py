"""`messages`: JSONL in OpenAI's shape, for whatever reads that. Keys that a message does not need are not there.
So `datasets` may not tell the columns from the first rows: the card declares them, for loading the folder.

Template kwargs, where the run has any, stand in `chat_template_kwargs`; tools are JSON text, and so are the arguments
of calls, which a reader must parse before it renders.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from regen.store.export.conversation import ConversationText, Fields, with_objects
from regen.store.export.format import TextFormat
from regen.store.export.selection import LeftOut


class MessagesShape:
    def values(self, conversation: ConversationText, fields: Fields) -> dict[str, Any] | LeftOut:
        made: dict[str, Any] = {
            "id": conversation.id,
            "source": conversation.source,
            "messages": list(conversation.messages),
        }
        if fields.tools:
            made["tools"] = conversation.tools_json
        if fields.kwargs:
            made["chat_template_kwargs"] = dict(self.rendered_kwargs(conversation, fields))
        return made

    def rendered_messages(self, conversation: ConversationText, fields: Fields) -> Sequence[Mapping[str, Any]]:
        return with_objects(conversation.messages)

    def rendered_kwargs(self, conversation: ConversationText, fields: Fields) -> Mapping[str, Any]:
        return conversation.template_kwargs


def _features(fields: Fields) -> list[dict[str, Any]] | None:
    """None where template kwargs are there: nobody knows their types."""
    if fields.kwargs or not (fields.reasoning or fields.calls):
        return None
    message = _texts("role", "content", *(["reasoning_content"] if fields.reasoning else []))
    if fields.calls:
        function = {"name": "function", "struct": _texts("name", "arguments")}
        message.append({"name": "tool_calls", "list": [*_texts("id", "type"), function]})
        message += _texts("tool_call_id", "name")
    columns = [*_texts("id", "source"), {"name": "messages", "list": message}]
    return [*columns, *_texts("tools")] if fields.tools else columns


def _texts(*names: str) -> list[dict[str, Any]]:
    return [{"name": name, "dtype": "string"} for name in names]


_GUIDE = """\
OpenAI's shape, one conversation a line. Rendered with the target's own template, with `chat_template_kwargs` where the
column is there and arguments of tool calls parsed from JSON, it gives the ids of the run. Which tokens are trained on
is up to the reader: an answer begins behind {before!r} and ends with {closing!r}."""

MESSAGES = TextFormat("messages", MessagesShape(), _GUIDE, declared=_features)
