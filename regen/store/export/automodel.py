"""NeMo AutoModel (0.7): Parquet with `messages` (and `tools` as JSON text), for its `ChatDataset`.

It passes messages to the target's chat template, and no template kwargs. Its reader refuses a null `tool_calls`, turns
null reasoning into empty text, and hands tool arguments to the template as JSON text.

It finds answers by rendering the conversation up to and with each of them, so its mask covers what the template writes
around an answer as well. `mask_generation_prompt: true` takes the part before it out, nothing takes the part behind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from regen.store.export.conversation import ConversationText, Fields, Message
from regen.store.export.format import LengthLimit, TextFormat
from regen.store.export.selection import LeftOut


class AutoModelShape:
    def values(self, conversation: ConversationText, fields: Fields) -> dict[str, Any] | LeftOut:
        tools = {"tools": conversation.tools_json} if fields.tools else {}
        return {
            "id": conversation.id,
            "source": conversation.source,
            "messages": self._messages(conversation, fields),
            **tools,
        }

    def rendered_messages(self, conversation: ConversationText, fields: Fields) -> Sequence[Mapping[str, Any]]:
        return self._messages(conversation, fields)

    def rendered_kwargs(self, conversation: ConversationText, fields: Fields) -> Mapping[str, Any]:
        return {}

    def _messages(self, conversation: ConversationText, fields: Fields) -> list[Message]:
        filled: Message = {"reasoning_content": ""} if fields.reasoning else {}
        if fields.calls:
            filled |= {"tool_calls": [], "tool_call_id": None, "name": None}
        return [{**filled, **message} for message in conversation.messages]


_GUIDE = """\
`data_path` (`path_or_dataset_id` of `ChatDataset`): this folder, `split: train`. Set `mask_generation_prompt: true`, or
the loss also covers what the template writes before an answer ({before!r}). Behind an answer's end the template writes
{behind!r}, which AutoModel trains on too unless the template marks its answers itself. `seq_length` has no default."""

AUTOMODEL = TextFormat(
    "automodel",
    AutoModelShape(),
    _GUIDE,
    LengthLimit("the recipe's seq_length", None),
    suffix="parquet",
    trains_behind_answers=True,
)
