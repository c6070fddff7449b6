"""SpecForge (0.2): `specforge` holds `id`, `conversations`, `tools`; `specforge-ids` holds `input_ids`, `loss_mask`.

The ids are read by `data.prompts_path` as they are. Conversations (`data.train_data_path`) are rendered by the target's
own chat template. Every further column is passed to that template as a kwarg, so the columns are these three and the
template kwargs of the run. SpecForge finds the answers in the rendered text by `assistant_header` and
`end_of_turn_token` of a template of its own registry, which the dataset card gives; it also puts that template's
`system_prompt` before conversations without one, so that has to be empty.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from regen.records import Role
from regen.store.export.conversation import ConversationText, Fields, Message, with_objects
from regen.store.export.format import LengthLimit, TextFormat, TokenFormat
from regen.store.export.selection import LeftOut

_TAKEN = frozenset({"id", "conversations", "tools", "text"})


class SpecForgeShape:
    """All keys in every message and no null: its loader infers types from the first rows."""

    def values(self, conversation: ConversationText, fields: Fields) -> dict[str, Any] | LeftOut:
        messages = self._messages(conversation, fields)
        if not _is_read_whole(messages):
            return LeftOut("SpecForge would not read the conversation to its end")
        if fields.calls:
            messages = [{**message, "tool_calls": json.dumps(message["tool_calls"])} for message in messages]
        return {
            "id": conversation.id,
            "conversations": messages,
            "tools": conversation.tools_json,
            **self.rendered_kwargs(conversation, fields),
        }

    def rendered_messages(self, conversation: ConversationText, fields: Fields) -> Sequence[Mapping[str, Any]]:
        return with_objects(self._messages(conversation, fields))

    def rendered_kwargs(self, conversation: ConversationText, fields: Fields) -> Mapping[str, Any]:
        """A row without one that others have gets null, as its loader fills it in."""
        return {name: conversation.template_kwargs.get(name) for name in fields.kwargs if name not in _TAKEN}

    def _messages(self, conversation: ConversationText, fields: Fields) -> list[Message]:
        filled: Message = {"reasoning_content": ""} if fields.reasoning else {}
        if fields.calls:
            filled |= {"tool_calls": [], "tool_call_id": "", "name": ""}
        return [{**filled, **message} for message in conversation.messages]


def _is_read_whole(messages: Sequence[Message]) -> bool:
    """Its parser drops what comes before the first user, and stops where an answer or a tool result is out of place."""
    roles = [message["role"] for message in messages]
    if roles[:1] == [Role.SYSTEM]:
        roles = roles[1:]
    after = {Role.ASSISTANT: (Role.USER, "tool"), "tool": (Role.ASSISTANT, "tool")}
    follows = all(before in after.get(role, (before,)) for before, role in pairwise(roles))
    return roles[:1] == [Role.USER] and follows


_GUIDE = """\
`data.train_data_path`: SpecForge reads one file, so put these one behind another. It renders conversations with the
target's own template and finds the answers by a template of its own registry. This one gives the ids of the run, with
the loss on exactly the sampled tokens:

```python
from specforge.data.template import TEMPLATE_REGISTRY, ChatTemplate

TEMPLATE_REGISTRY.register(
    name="regen",
    template=ChatTemplate(
        assistant_header={before!r},
        end_of_turn_token={closing!r},
        system_prompt="",
        parser_type={parser!r},
    ),
)
```

Templates that come with SpecForge may put a system prompt before conversations that have none, and may train on more
than what was sampled."""

_GUIDE_IDS = """\
`data.prompts_path`: SpecForge reads one file, so put these one behind another. Ids and mask are taken as they are."""

_LIMIT = LengthLimit("SpecForge's data.max_length", 2048)
SPECFORGE = TextFormat("specforge", SpecForgeShape(), _GUIDE, _LIMIT)
SPECFORGE_IDS = TokenFormat("specforge-ids", _LIMIT, _GUIDE_IDS)
