"""The one declared schema of planned rows, the way between `PlannedRow` and Arrow, and the plan's digest.

Conversations are stored as JSON text, exactly. All text must be valid Unicode when it comes here: planning sees to it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import pyarrow as pa

from regen.records import Conversation, Generation, Message, PlannedRow, Refusal, Role, Split, Stage
from regen.rows import GENERATION, generation_of, generation_values

_FIELDS: list[pa.Field[Any]] = [
    pa.field("ordinal", pa.int64(), nullable=False),
    pa.field("row_id", pa.string(), nullable=False),
    pa.field("source", pa.string(), nullable=False),
    pa.field("location", pa.string(), nullable=False),
    pa.field("source_id", pa.string()),
    pa.field("messages", pa.string()),
    pa.field("tools", pa.string()),
    pa.field("template_kwargs", pa.string()),
    pa.field("sampling", pa.string()),
    pa.field("prompt_tokens", pa.int32(), nullable=False),
    pa.field("split", pa.string(), nullable=False),
    pa.field("settled", pa.string()),
    pa.field("native", pa.list_(GENERATION)),
    pa.field("stage", pa.string()),
    pa.field("reason", pa.string()),
    pa.field("detail", pa.string()),
]
SCHEMA = pa.schema(_FIELDS)
_COMPACT = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_OTHER_FIELDS = {
    "reasoning": "reasoning",
    "tool_calls": "tool_calls_json",
    "tool_call_id": "tool_call_id",
    "name": "name",
    "expected_calls": "expected_calls_json",
}
_ID_LISTS = ("prompt_token_ids", "completion_token_ids", "loss_mask")
_BYTES_PER_ID = 40  # a Python number and the place that points to it


class RowValues(TypedDict):
    """One row in the schema's shape."""

    ordinal: int
    row_id: str
    source: str
    location: str
    source_id: str | None
    messages: str | None
    tools: str | None
    template_kwargs: str | None
    sampling: str | None
    prompt_tokens: int
    split: str
    settled: str | None
    native: list[dict[str, Any]] | None
    stage: str | None
    reason: str | None
    detail: str | None


class PlanDigest:
    """32 hex digits over every row's id, content, native turns and refusal, in order; not over locations, details."""

    def __init__(self, before: str = "") -> None:
        """`before`: the digest of the plan that is extended; the new one covers its rows through it."""
        self._hash = hashlib.blake2b(before.encode("ascii"), digest_size=16)

    def add(self, values: RowValues) -> None:
        determined = [
            values["row_id"],
            values["messages"],
            values["tools"],
            values["template_kwargs"],
            values["sampling"],
            values["prompt_tokens"],
            values["split"],
            values["native"],
            values["stage"],
            values["reason"],
        ]
        self._hash.update(json.dumps(determined, separators=(",", ":")).encode("ascii"))
        self._hash.update(b"\n")

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


def to_values(row: PlannedRow) -> RowValues:
    conversation, refusal = row.conversation, row.refusal
    return {
        "ordinal": row.ordinal,
        "row_id": row.row_id,
        "source": row.source,
        "location": row.location,
        "source_id": row.source_id,
        "messages": _messages_json(conversation) if conversation else None,
        "tools": conversation.tools_json if conversation else None,
        "template_kwargs": conversation.template_kwargs_json if conversation else None,
        "sampling": json.dumps(dict(conversation.sampling)) if conversation and conversation.sampling else None,
        "prompt_tokens": row.prompt_tokens,
        "split": row.split.value,
        "settled": row.settled.value if row.settled else None,
        "native": [generation_values(generation) for generation in row.native] or None,
        "stage": refusal.stage.value if refusal else None,
        "reason": refusal.reason if refusal else None,
        "detail": refusal.detail if refusal else None,
    }


def from_values(values: Mapping[str, object]) -> PlannedRow:
    row: RowValues = values  # type: ignore[assignment]
    return PlannedRow(
        ordinal=row["ordinal"],
        row_id=row["row_id"],
        source=row["source"],
        location=row["location"],
        source_id=row["source_id"],
        conversation=_conversation(row),
        prompt_tokens=row["prompt_tokens"],
        refusal=_refusal(row),
        split=Split(row["split"]),
        native=_native(row),
    )


def to_table(rows: Sequence[RowValues]) -> pa.Table:
    """Rows as an Arrow table in `SCHEMA`."""
    return pa.Table.from_pylist(list(rows), schema=SCHEMA)


def text_bytes(values: RowValues) -> int:
    """About how much memory a row takes, for bounding row groups and parts."""
    texts = len(values["messages"] or "") + len(values["tools"] or "") + len(values["detail"] or "")
    ids = sum(len(turn[name] or ()) for turn in values["native"] or () for name in _ID_LISTS)
    return 200 + texts + _BYTES_PER_ID * ids


def _messages_json(conversation: Conversation) -> str:
    messages = [_message_values(message) for message in conversation.messages]
    return _COMPACT.encode(messages)


def _message_values(message: Message) -> dict[str, str | None]:
    """Role and content always, anything else where it is there."""
    values: dict[str, str | None] = {"role": message.role.value, "content": message.content}
    others = {name: getattr(message, field) for name, field in _OTHER_FIELDS.items()}
    return values | {name: text for name, text in others.items() if text is not None}


def _message(values: Mapping[str, Any]) -> Message:
    others = {field: values.get(name) for name, field in _OTHER_FIELDS.items()}
    return Message(Role(values["role"]), values["content"], **others)


def _conversation(row: RowValues) -> Conversation | None:
    if row["messages"] is None:
        return None
    messages = tuple(_message(values) for values in json.loads(row["messages"]))
    sampling = json.loads(row["sampling"]) if row["sampling"] else {}
    return Conversation(messages, row["tools"], row["template_kwargs"], sampling)


def _native(row: RowValues) -> tuple[Generation, ...]:
    return tuple(generation_of(values) for values in row["native"] or ())


def _refusal(row: RowValues) -> Refusal | None:
    if row["stage"] is None:
        return None
    return Refusal(Stage(row["stage"]), row["reason"] or "", row["detail"] or "")
