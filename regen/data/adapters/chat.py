"""Lists of messages: OpenAI's `role` and `content`, ShareGPT's `from` and `value`, and both mixed. Pure.

Fixed rules: text parts (or bare strings) of a content are joined with one newline; roles are compared without case;
a null key counts as absent, and so do `tool_calls: []` and `tools: []`; a tool's result that is neither text nor parts
with a type that is known becomes JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from regen.data.adapters.calls import calls_in_value, calls_of
from regen.data.adapters.given import Call, Given, Reading, Turn, as_list, as_text, first, required, type_name
from regen.data.reasons import Note, Reason, refuse
from regen.records import Role

_ROLES: Mapping[str, Role] = {
    "system": Role.SYSTEM,
    "developer": Role.SYSTEM,
    "user": Role.USER,
    "human": Role.USER,
    "prompter": Role.USER,
    "assistant": Role.ASSISTANT,
    "gpt": Role.ASSISTANT,
    "chatgpt": Role.ASSISTANT,
    "bot": Role.ASSISTANT,
    "model": Role.ASSISTANT,
    "bard": Role.ASSISTANT,
    "bing": Role.ASSISTANT,
    "tool": Role.TOOL,
    "tool_response": Role.TOOL,
    "tool_result": Role.TOOL,
    "function": Role.TOOL,
    "function_response": Role.TOOL,
    "observation": Role.TOOL,
    "ipython": Role.TOOL,
}
_CALL_ROLES = frozenset({"function_call", "tool_call", "tool_calls"})
_TEXT_PART_TYPES = (None, "text", "input_text", "output_text")
_MEDIA_PART_TYPES = (
    *("image", "image_url", "input_image", "audio", "audio_url", "input_audio"),
    *("video", "video_url", "file", "input_file"),
)
_REASONING_KEYS = ("reasoning", "reasoning_content", "thinking", "thought")
_THINK = re.compile(r"\s*<think>(.*?)</think>(.*)", re.DOTALL)
_RESPONSE = re.compile(r"\s*<tool_response>\n?(.*?)\n?</tool_response>\s*", re.DOTALL)


def read_messages(value: Mapping[str, object], reading: Reading) -> Given:
    return _chat(value, required(value, "messages"), reading)


def read_sharegpt(value: Mapping[str, object], reading: Reading) -> Given:
    return _chat(value, required(value, "conversations", "conversation"), reading)


def read_chat(given: object, reading: Reading) -> Iterator[Turn]:
    """The turns of a list of messages; one message gives more than one where it holds several results of tools."""
    for number, message in enumerate(as_list(given, "the conversation")):
        if not isinstance(message, Mapping):
            refuse(Reason.WRONG_TYPE, f"message {number} is {type_name(message)}, not an object")
        yield from _turns(message, number, reading)


def _chat(value: Mapping[str, object], messages: object, reading: Reading) -> Given:
    return Given(
        turns=tuple(read_chat(messages, reading)),
        tools=first(value, "tools", "functions"),
        system=system_beside(value, reading),
    )


def system_beside(value: Mapping[str, object], reading: Reading) -> str | None:
    """Tabular datasets keep the system prompt beside the conversation: text, or parts as a message has them.

    A number or a flag in such a column is no prompt.
    """
    columns = {key: value.get(key) for key in ("system_prompt", "system")}
    as_it_is = next((given for given in columns.values() if isinstance(given, str)), None)
    if as_it_is is not None:
        return as_it_is
    no_text = ((key, given) for key, given in columns.items() if isinstance(given, list | tuple | Mapping))
    return next((content_text(given, reading, key) for key, given in no_text), None)


def _turns(message: Mapping[str, object], number: int, reading: Reading) -> Iterator[Turn]:
    name = _role_name(message, number, reading)
    where = f"message {number} ({name})"
    given = first(message, *reading.keys("content", "value"))
    if name in _CALL_ROLES:
        calls = calls_of(message, None, reading, where) or calls_in_value(given, reading, where)
        yield Turn(Role.ASSISTANT, "" if reading.keeps_answers else None, calls=calls)
        return
    role = _ROLES.get(name)
    if role is None:
        refuse(Reason.UNKNOWN_ROLE, f"message {number} has the role {name!r}")
    if role is Role.ASSISTANT:
        yield _answer(message, given, reading, where)
    elif role is Role.TOOL:
        yield from _results(message, given, reading, where)
    else:
        yield Turn(role, content_text(given, reading, where))


def _role_name(message: Mapping[str, object], number: int, reading: Reading) -> str:
    given = first(message, *reading.keys("role", "from"))
    if not isinstance(given, str):
        refuse(Reason.UNKNOWN_ROLE, f"message {number} has {type_name(given)} for a role")
    return given.strip().lower()


# --- answers -------------------------------------------------------------------------------------


def _answer(message: Mapping[str, object], given: object, reading: Reading, where: str) -> Turn:
    calls = calls_of(message, _text_in(given), reading, where)
    if not reading.keeps_answers:
        return Turn(Role.ASSISTANT, None, calls=calls)
    content = "" if given is None else content_text(given, reading, where)
    if calls and Note.TOOL_CALLS_FROM_TEXT in reading.notes:
        content = content.partition("<tool_call>")[0].rstrip()
    return answer_turn(content, _reasoning(message, reading, where), reading, calls)


def _text_in(given: object) -> object:
    """The joined text of what can be read; an answer that is not kept may be broken otherwise."""
    if not isinstance(given, list):
        return given
    texts = [part.get("text") if isinstance(part, Mapping) else part for part in given]
    return "\n".join(text for text in texts if isinstance(text, str))


def answer_turn(text: str, reasoning: str | None, reading: Reading, calls: tuple[Call, ...] = ()) -> Turn:
    """An answer that is kept; a leading `<think>` block becomes its reasoning, exactly as it was written."""
    if reasoning is None and (found := _THINK.fullmatch(text)):
        reading.note(Note.REASONING_FROM_TEXT)
        reasoning, text = found[1], found[2]
    return Turn(Role.ASSISTANT, text, reasoning, calls)


def _reasoning(message: Mapping[str, object], reading: Reading, where: str) -> str | None:
    given = first(message, *reading.keys("reasoning", *_REASONING_KEYS))
    return None if given is None or given == "" else content_text(given, reading, f"the reasoning of {where}")


# --- results of tools ----------------------------------------------------------------------------


def _results(message: Mapping[str, object], given: object, reading: Reading, where: str) -> Iterator[Turn]:
    call_id = _optional_text(first(message, *reading.keys("tool_call_id")), f"tool_call_id of {where}")
    name = _optional_text(first(message, *reading.keys("name")), f"name of {where}")
    text = _result_text(given, reading, where)
    for content in _unwrapped(text, reading):
        yield Turn(Role.TOOL, content, call_id=call_id, name=name)


def _result_text(given: object, reading: Reading, where: str) -> str:
    if given is None:
        return ""
    if isinstance(given, str):
        return given
    if isinstance(given, list) and given and all(_is_part(part) for part in given):
        return content_text(given, reading, where)
    reading.note(Note.TOOL_RESULT_AS_JSON)
    return reading.json_text(given, where, Reason.WRONG_TYPE)


def _is_part(part: object) -> bool:
    """A list of anything else is what the tool gave: its form is part of the result."""
    if not isinstance(part, Mapping):
        return False
    kind = part.get("type")
    is_text = kind in _TEXT_PART_TYPES and kind is not None and isinstance(part.get("text"), str)
    return is_text or kind in _MEDIA_PART_TYPES


def _unwrapped(text: str, reading: Reading) -> list[str]:
    """Results in `<tool_response>` tags, one or several: the target's template puts its own around each."""
    blocks, position = [], 0
    while found := _RESPONSE.match(text, position):
        blocks.append(found[1])
        position = found.end()
    if not blocks or position < len(text):
        return [text]
    reading.note(Note.TOOL_RESULT_UNWRAPPED)
    return blocks


def _optional_text(given: object, where: str) -> str | None:
    return None if given is None or given == "" else as_text(given, where)


# --- content -------------------------------------------------------------------------------------


def content_text(given: object, reading: Reading, where: str) -> str:
    """Text, or the text of parts, joined with one newline."""
    if isinstance(given, Sequence) and not isinstance(given, str | bytes):
        texts = [_part(part, reading, where) for part in given]
        return "\n".join(text for text in texts if text is not None)
    return as_text(given, where)


def _part(part: object, reading: Reading, where: str) -> str | None:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        refuse(Reason.WRONG_TYPE, f"{where} has a part that is {type_name(part)}")
    kind = part.get("type")
    if kind not in _TEXT_PART_TYPES:
        if reading.policies.non_text_parts == "reject":
            refuse(Reason.NON_TEXT_PART, f"{where} has a part of type {kind!r}")
        reading.note(Note.PART_DROPPED)
        return None
    return as_text(part.get("text"), f"a text part of {where}")
