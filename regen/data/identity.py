"""The ids of rows, and digests of what is asked. Pure.

A change here orphans every run on disk.
"""

from __future__ import annotations

from dataclasses import replace

from regen.data.text import canonical_json, digest_of
from regen.records import Conversation, Message


def content_digest(conversation: Conversation) -> bytes:
    """16 bytes over what is asked of the target, types preserved: equal for conversations that are the same."""
    messages = [_message_parts(message) for message in conversation.messages]
    parts = [messages, conversation.tools_json, conversation.template_kwargs_json, dict(conversation.sampling)]
    return digest_of(canonical_json(parts).encode("ascii"))


def question_digest(conversation: Conversation) -> bytes:
    """16 bytes over the conversation alone, however it is sampled and rendered."""
    return content_digest(replace(conversation, sampling={}, template_kwargs_json=None))


def tokens_digest(input_ids: tuple[int, ...], loss_mask: tuple[int, ...]) -> bytes:
    """16 bytes over a row that came as tokens."""
    return digest_of(canonical_json([input_ids, loss_mask]).encode("ascii"))


def row_key(source_name: str, typed_id: object, content: bytes) -> bytes:
    """16 bytes that equal rows of one source share; `numbered` tells them apart. `content` is a digest from here."""
    return _key("conversation", source_name, canonical_json(typed_id), content)


def unreadable_row_key(source_name: str, raw: bytes) -> bytes:
    """16 bytes that equal unreadable rows of one source share."""
    return _key("unreadable", source_name, "", raw)


def numbered(key: bytes, n: int) -> str:
    """The row id: 32 hex digits. `n` counts the rows with this key that stand earlier in the plan's order."""
    return digest_of(key, n.to_bytes(8, "big")).hex()


def row_id(source_name: str, typed_id: object, conversation: Conversation, n: int) -> str:
    """32 hex digits. `typed_id` is the id as the row gave it: 1, 1.0, "1" and true are different ids."""
    return numbered(row_key(source_name, typed_id, content_digest(conversation)), n)


def unreadable_row_id(source_name: str, raw: bytes, n: int) -> str:
    """32 hex digits for a row that is no conversation, over its bytes."""
    return numbered(unreadable_row_key(source_name, raw), n)


def _message_parts(message: Message) -> list[str | None]:
    """Three parts for messages without tools: so their ids are what they were before there were tool turns."""
    plain: list[str | None] = [message.role, message.content, message.reasoning]
    tools = [message.tool_calls_json, message.tool_call_id, message.name, message.expected_calls_json]
    return plain if tools == [None] * len(tools) else plain + tools


def _key(kind: str, source_name: str, typed_id: str, content: bytes) -> bytes:
    return digest_of(kind.encode(), source_name.encode("utf-8", "surrogatepass"), typed_id.encode("ascii"), content)
