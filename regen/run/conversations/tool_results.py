"""Recorded results of tools and the calls that the target itself has made: which answers which. Pure.

A result was recorded for a call of another model. It is given to the target only where the target has made that call,
by `policies.tool_results`; and only if every call of the turn has its result and every result its call, since a history
with a call that nobody answered, or an answer to nothing, is none that the target would ever see.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from regen.protocols import ToolCall
from regen.records import Message

Policy = Literal["name_and_arguments", "name", "order"]
_Key = Callable[[str, str], object]


def calls_json(calls: Sequence[ToolCall], id_format: str, earlier_ids: Sequence[str]) -> str:
    """The calls of one turn in OpenAI's form, as JSON text, arguments as the target wrote them.

    An id that the target has written itself stays, unless the conversation has it already. Others are made from
    `id_format`, counting over the whole conversation: `earlier_ids` are those of the turns before.
    """
    taken = list(earlier_ids)
    made = []
    for call in calls:
        id_ = call.id if call.id and call.id not in taken else _free_id(call.name, id_format, taken)
        taken.append(id_)
        made.append({"id": id_, "type": "function", "function": {"name": call.name, "arguments": call.arguments}})
    return json.dumps(made, ensure_ascii=False)


def ids_of(calls_text: str | None) -> list[str]:
    """The ids of calls in the form of `calls_json`."""
    return [call["id"] for call in json.loads(calls_text)] if calls_text else []


def is_readable(call: ToolCall) -> bool:
    """Whether the arguments are the JSON text of an object."""
    try:
        return isinstance(json.loads(call.arguments), dict)
    except (ValueError, RecursionError):
        return False


def matched_results(
    calls_text: str, expected_text: str | None, results: Sequence[Message], policy: Policy
) -> tuple[Message, ...] | None:
    """The recorded results in the order of the target's calls and under its ids; None where they do not match.

    `expected_text` are the recorded calls that `results` answer, by id.
    """
    calls, recorded = json.loads(calls_text), json.loads(expected_text or "[]")
    answered = _answered(recorded, results)
    if not len(calls) == len(answered) == len(results):
        return None
    if policy == "order":
        pairs = list(zip(calls, range(len(answered)), strict=True))
    else:
        key = _by_name if policy == "name" else _by_name_and_arguments
        found = _paired(calls, [call for call, _ in answered], key)
        if found is None:
            return None
        pairs = found
    return tuple(
        replace(answered[place][1], tool_call_id=call["id"], name=call["function"]["name"]) for call, place in pairs
    )


def _answered(
    recorded: Sequence[Mapping[str, Any]], results: Sequence[Message]
) -> list[tuple[Mapping[str, Any], Message]]:
    """Recorded calls with their results. Each result is used once: a source may give two calls the same id."""
    left = list(results)
    pairs = []
    for call in recorded:
        result = next((result for result in left if result.tool_call_id == call["id"]), None)
        if result is not None:
            left.remove(result)
            pairs.append((call, result))
    return pairs


def canonical(arguments: str) -> str | None:
    """One text for equal arguments, whatever the order of keys and the spacing: 1 and 1.0 are equal, 1 and true not.

    None for what is no JSON.
    """
    try:
        return json.dumps(_plain(json.loads(arguments)), sort_keys=True)
    except (ValueError, RecursionError):
        return None


def _paired(
    calls: Sequence[Mapping[str, Any]], answered: Sequence[Mapping[str, Any]], key: _Key
) -> list[tuple[Mapping[str, Any], int]] | None:
    """Each call with the place of the first recorded one that has its key and is not taken yet."""
    left = list(range(len(answered)))
    pairs = []
    for call in calls:
        wanted = _key_of(call, key)
        place = next((place for place in left if wanted is not None and _key_of(answered[place], key) == wanted), None)
        if place is None:
            return None
        left.remove(place)
        pairs.append((call, place))
    return pairs


def _key_of(call: Mapping[str, Any], key: _Key) -> object:
    return key(call["function"]["name"], call["function"]["arguments"])


def _by_name(name: str, arguments: str) -> object:
    return name


def _by_name_and_arguments(name: str, arguments: str) -> object:
    return None if (told := canonical(arguments)) is None else (name, told)


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _free_id(name: str, id_format: str, taken: Sequence[str]) -> str:
    index = len(taken)
    while (made := id_format.format(name=name, index=index)) in taken:
        index += 1
    return made
