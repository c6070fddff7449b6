"""Committed rows as plain values, a bounded number at a time, and what fields occur in them.

Memory: one table of the store (about 64 MiB of Arrow) and `SLICE_BYTES` of it as Python values, some ten times that.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from regen.protocols import Plan, Storage
from regen.rows import SCHEMA
from regen.store.export.conversation import Fields
from regen.store.export.selection import Row
from regen.store.parquet import row_groups
from regen.store.shards import committed

SLICE_BYTES = 2 * 2**20
_LOOKED_AT = ("ordinal", "messages", "tools", "template_kwargs")
_OF_CALLS = ("tool_calls", "tool_call_id", "name")
_NOT_EXPORTED = ("observed", "digest")


def finished_rows(storage: Storage, plan: Plan, rows_per_shard: int) -> Iterator[Row]:
    """Every row that has an outcome, in order of ordinals. Raises JournalDamaged, StoreUnavailable, StoreRefused."""
    columns = [name for name in SCHEMA.names if name not in _NOT_EXPORTED]
    for table in committed(storage, plan, rows_per_shard, columns):
        for part in row_groups(table, SLICE_BYTES):
            yield from part.to_pylist()


def fields_of(storage: Storage, plan: Plan, rows_per_shard: int) -> Fields:
    """One pass over the columns that may hold more than role and content."""
    reasoning = calls = tools = False
    kwargs: set[str] = set()
    for table in committed(storage, plan, rows_per_shard, _LOOKED_AT):
        messages = pc.list_flatten(table["messages"])
        reasoning = reasoning or _occurs(messages, ("reasoning",))
        calls = calls or _occurs(messages, _OF_CALLS)
        tools = tools or table["tools"].null_count < len(table)
        kwargs.update(
            name for text in pc.unique(table["template_kwargs"]).to_pylist() if text for name in json.loads(text)
        )
    return Fields(reasoning, calls, tools, tuple(sorted(kwargs)))


def _occurs(messages: Any, names: Sequence[str]) -> bool:
    """Whether one of these fields of a message, as far as the schema has it, is anywhere not null and not empty."""
    known = {field.name for field in messages.type}
    for name in names:
        if name in known:
            values = pc.struct_field(messages, name)
            if any(value for value in pc.unique(_as_text(values)).to_pylist()):
                return True
    return False


def _as_text(values: Any) -> Any:
    """Lists by whether they hold anything."""
    if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        return pc.list_value_length(values)
    return pc.utf8_length(values)
