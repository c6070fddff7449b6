"""Calls of tools, in every way that sources write them -> one canonical form. Pure.

Canonical: OpenAI's `[{"id", "type": "function", "function": {"name", "arguments"}}]` as JSON text, the arguments being
the JSON text of an object inside it, as they were written. Templates that take objects get objects.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

from regen.data.adapters.given import Call, Reading, as_list, as_text, first, parsed, type_name
from regen.data.reasons import Note, Reason, refuse
from regen.errors import RowRefused

_IN_TEXT = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


def calls_json(calls: Iterable[Call]) -> str:
    """The canonical text. Ids must have been assigned."""
    return json.dumps(
        [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in calls
        ],
        ensure_ascii=False,
    )


def calls_of(message: Mapping[str, object], content: object, reading: Reading, where: str) -> tuple[Call, ...]:
    """What an answer calls: in its `tool_calls` or `function_call`, else in tags within its text."""
    given = first(message, *reading.keys("tool_calls"))
    if given is not None and given != "":
        return tuple(_call(call, reading, where) for call in _listed(given, f"tool_calls of {where}"))
    single = message.get("function_call")
    if single:
        return (_call(single, reading, where),)
    return _calls_in_text(content, reading, where) if isinstance(content, str) else ()


def calls_in_value(value: object, reading: Reading, where: str) -> tuple[Call, ...]:
    """What a message of the role function_call holds: a call, a list of them, or either as JSON text."""
    if isinstance(value, str):
        if found := _calls_in_text(value, reading, where):
            return found
        value = parsed(value, where, Reason.BAD_TOOL_CALLS)
    listed = value if isinstance(value, list) else [value]
    if not listed:
        refuse(Reason.BAD_TOOL_CALLS, f"{where} holds no call")
    return tuple(_call(call, reading, where) for call in listed)


def _listed(given: object, where: str) -> list[object]:
    try:
        return as_list(given, where)
    except RowRefused as error:
        refuse(Reason.BAD_TOOL_CALLS, error.detail)


def _calls_in_text(text: str, reading: Reading, where: str) -> tuple[Call, ...]:
    blocks = _IN_TEXT.findall(text)
    if blocks:
        reading.note(Note.TOOL_CALLS_FROM_TEXT)
    return tuple(_call(parsed(block.strip(), where, Reason.BAD_TOOL_CALLS), reading, where) for block in blocks)


def _call(given: object, reading: Reading, where: str) -> Call:
    if not isinstance(given, Mapping):
        refuse(Reason.BAD_TOOL_CALLS, f"{where} calls {type_name(given)}, not an object")
    function = given.get("function")
    inner = function if isinstance(function, Mapping) else given
    name = inner.get("name")
    if not isinstance(name, str) or not name:
        refuse(Reason.BAD_TOOL_CALLS, f"{where} calls a tool without a name")
    id_ = given.get("id")
    return Call(
        id=None if id_ is None or id_ == "" else reading.clean(as_text(id_, f"a call id of {where}"), where),
        name=reading.clean(name, f"a tool's name in {where}"),
        arguments=_arguments(first(inner, "arguments", "args", "parameters"), reading, f"a call of {name} in {where}"),
    )


def _arguments(given: object, reading: Reading, where: str) -> str:
    """JSON text of an object. Text that is one stays as it was written; nothing at all is an empty object."""
    if given is None or given == "":
        return "{}"
    try:
        value = parsed(given, f"arguments of {where}", Reason.UNPARSABLE_ARGUMENTS) if isinstance(given, str) else given
        if not isinstance(value, Mapping):
            refuse(Reason.UNPARSABLE_ARGUMENTS, f"arguments of {where} are {type_name(value)}, not an object")
        text = reading.json_text(dict(value), f"arguments of {where}", Reason.UNPARSABLE_ARGUMENTS)
    except RowRefused as error:
        if reading.policies.unparsable_arguments == "reject" or error.reason != Reason.UNPARSABLE_ARGUMENTS:
            raise
        reading.note(Note.ARGUMENTS_KEPT)
        return reading.clean(given if isinstance(given, str) else repr(given), f"arguments of {where}")
    is_as_written = isinstance(given, str) and "\\ud" not in given.lower()
    return reading.clean(given, where) if is_as_written and isinstance(given, str) else text
