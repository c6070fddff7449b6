"""A row of a table of typed columns (Parquet, Arrow) as a raw row. Pure.

A struct has every field of every row, those that a row does not have being null. Where keys are looked up one by one
a null key counts as absent; tools and the arguments of calls are printed as they stand, so the nulls that the columns
put in are taken out here.
"""

from __future__ import annotations

from collections.abc import Mapping

from regen.data.raw import RawRow

_PRINTED_KEYS = ("tools", "function", "functions")
_CONVERSATION_KEYS = ("messages", "conversations", "conversation")
_CALL_KEYS = ("tool_calls", "function_call")


def table_row(location: str, value: Mapping[str, object]) -> RawRow:
    changed = {key: _without_null_keys(value[key]) for key in _PRINTED_KEYS if isinstance(value.get(key), list | dict)}
    for key in _CONVERSATION_KEYS:
        if isinstance(messages := value.get(key), list):
            changed[key] = [_message(message) for message in messages]
    return RawRow(location, value={**value, **changed} if changed else value)


def _message(message: object) -> object:
    if not isinstance(message, dict) or not any(message.get(key) for key in _CALL_KEYS):
        return message
    return {**message, **{key: _without_null_keys(message[key]) for key in _CALL_KEYS if key in message}}


def _without_null_keys(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_null_keys(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_without_null_keys(inner) for inner in value]
    return value
