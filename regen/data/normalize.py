"""Raw values made canonical conversations, and the ids of rows. Pure.

Guarantees: `normalize` returns a conversation or raises RowRefused with a reason of the closed list `Reason`, whatever
JSON value it is given; no answer of the source survives (assistant messages become slots, their content is never
looked at); what was changed on the way is named in `notes`. Does not know the target: whether its template takes two
user turns in a row is decided by the dry render.

Fixed rules, the same for every source:
- Content as a list of parts: text parts (or bare strings) are joined with one newline; any other part is refused.
- Roles are compared without case; `human`, `gpt`, `model` and their like are mapped.
- A null key counts as absent (tabular formats fill rows with nulls), and so do `tool_calls: []` and `tools: []`.
- A row-level `system` or `system_prompt` text becomes the first system message, unless it is there already.
- `instruction` and `input` are joined with a blank line.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NoReturn

from regen.data.json_values import complaint, parse
from regen.data.text import canonical_json, digest_of, has_surrogate, printable
from regen.errors import RowRefused
from regen.records import Conversation, Message, Role, Stage

Shape = Literal["auto", "messages", "sharegpt", "prompt", "turns", "alpaca"]


class Reason(StrEnum):
    """Why a row is no conversation. Closed: these are counted."""

    UNKNOWN_SHAPE = "unknown_shape"
    MISSING_KEY = "missing_key"
    WRONG_TYPE = "wrong_type"
    EMPTY_CONVERSATION = "empty_conversation"
    NO_USER_TURN = "no_user_turn"
    EMPTY_USER_TURN = "empty_user_turn"
    NO_CONTENT = "no_content"
    NON_TEXT_PART = "non_text_part"
    UNKNOWN_ROLE = "unknown_role"
    TOOL_TURNS = "tool_turns"
    BAD_TOOLS = "bad_tools"
    HISTORY = "history_not_supported"
    UNPAIRED_SURROGATE = "unpaired_surrogate"


class Note(StrEnum):
    """What was changed in an accepted row. Closed: these are counted."""

    LEADING_ASSISTANT_DROPPED = "leading_assistant_dropped"
    ASSISTANT_TURNS_MERGED = "assistant_turns_merged"
    TRAILING_SYSTEM_DROPPED = "trailing_system_dropped"
    ROW_SYSTEM_PROMPT_USED = "row_system_prompt_used"
    SPEC_SYSTEM_PROMPT_USED = "spec_system_prompt_used"


@dataclass(frozen=True, slots=True)
class Normalized:
    """A canonical conversation. `source_id` is the row's own id as text, `typed_id` the same with its JSON type."""

    conversation: Conversation
    source_id: str | None
    typed_id: object
    notes: tuple[Note, ...]


_ROLES: Mapping[str, Role] = {
    "system": Role.SYSTEM,
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
}
_TOOL_ROLES = frozenset(
    {"tool", "function", "function_call", "function_response", "observation", "tool_call", "tool_response", "ipython"}
)
_ID_KEYS = ("id", "uuid", "conversation_id", "question_id", "task_id", "prompt_id")
_CONVERSATION_KEYS = ("messages", "conversations", "conversation", "turns")
_PROMPT_KEYS = ("prompt", "question", "instruction")
_SHAPE_OF_KEY: Mapping[str, Shape] = {
    "messages": "messages",
    "conversations": "sharegpt",
    "conversation": "sharegpt",
    "turns": "turns",
    "prompt": "prompt",
    "question": "prompt",
    "instruction": "alpaca",
}
_TEXT_PART_TYPES = (None, "text", "input_text")


def normalize(value: Mapping[str, object], shape: Shape, system_prompt: str | None) -> Normalized:
    """The row as a conversation: what is given, and a slot wherever the target speaks.

    `system_prompt` is put before conversations without a system message. Raises RowRefused with a `Reason`.
    """
    notes: list[Note] = []
    given = _READERS[_shape_of(value) if shape == "auto" else shape](value)
    messages = _with_slots(given, notes)
    messages = _with_row_system(value, messages, notes)
    if system_prompt is not None and not any(message.role is Role.SYSTEM for message in messages):
        messages.insert(0, Message(Role.SYSTEM, system_prompt))
        notes.append(Note.SPEC_SYSTEM_PROMPT_USED)
    _check_text(messages)
    typed_id = _typed_id(value)
    conversation = Conversation(messages=tuple(messages), tools_json=_tools_json(value.get("tools")))
    return Normalized(conversation, _id_text(typed_id), typed_id, tuple(notes))


# --- identity ------------------------------------------------------------------------------------


def content_digest(conversation: Conversation) -> bytes:
    """16 bytes over what is asked of the target, types preserved: equal for conversations that are the same."""
    messages = [[message.role, message.content, message.reasoning] for message in conversation.messages]
    parts = [messages, conversation.tools_json, conversation.template_kwargs_json, dict(conversation.sampling)]
    return digest_of(canonical_json(parts).encode("ascii"))


def row_key(source_name: str, typed_id: object, content: bytes) -> bytes:
    """16 bytes that equal rows of one source share; `numbered` tells them apart. `content` is `content_digest`'s."""
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


def _key(kind: str, source_name: str, typed_id: str, content: bytes) -> bytes:
    return digest_of(kind.encode(), source_name.encode("utf-8", "surrogatepass"), typed_id.encode("ascii"), content)


def _typed_id(value: Mapping[str, object]) -> object:
    return _first(value, *_ID_KEYS)


def _id_text(typed_id: object) -> str | None:
    if typed_id is None:
        return None
    return printable(typed_id if isinstance(typed_id, str) else canonical_json(typed_id))


# --- shapes --------------------------------------------------------------------------------------


def _shape_of(value: Mapping[str, object]) -> Shape:
    """By the keys that are there: a conversation wins over a bare prompt; two of a kind are ambiguous."""
    for keys in (_CONVERSATION_KEYS, _PROMPT_KEYS):
        found = [key for key in keys if value.get(key) is not None]
        if len(found) == 1:
            return _SHAPE_OF_KEY[found[0]]
        if found:
            _refuse(Reason.UNKNOWN_SHAPE, f"{' and '.join(found)} are both there: set the source's format")
    keys_seen = ", ".join(sorted(map(str, value))) or "none"
    _refuse(Reason.UNKNOWN_SHAPE, f"no messages, conversations, prompt or turns; keys: {keys_seen}")


def _read_messages(value: Mapping[str, object]) -> list[Message]:
    return _read_chat(_required(value, "messages"))


def _read_sharegpt(value: Mapping[str, object]) -> list[Message]:
    return _read_chat(_required(value, "conversations", "conversation"))


def _read_prompt(value: Mapping[str, object]) -> list[Message]:
    return [Message(Role.USER, _text(_required(value, *_PROMPT_KEYS), "the prompt"))]


def _read_alpaca(value: Mapping[str, object]) -> list[Message]:
    if value.get("history"):
        _refuse(Reason.HISTORY, "a row with history: turn it into messages")
    instruction = _text(_required(value, "instruction"), "instruction")
    extra = value.get("input")
    more = "" if extra is None else _text(extra, "input")
    return [Message(Role.USER, f"{instruction}\n\n{more}" if more.strip() else instruction)]


def _read_turns(value: Mapping[str, object]) -> list[Message]:
    turns = _list(_required(value, "turns"), "turns")
    messages = []
    for number, turn in enumerate(turns):
        if not isinstance(turn, str):
            _refuse(Reason.WRONG_TYPE, f"turn {number} is {_type_name(turn)}, not text")
        messages += [Message(Role.USER, turn), Message(Role.ASSISTANT, None)]
    return messages


_READERS: Mapping[Shape, Callable[[Mapping[str, object]], list[Message]]] = {
    "messages": _read_messages,
    "sharegpt": _read_sharegpt,
    "prompt": _read_prompt,
    "turns": _read_turns,
    "alpaca": _read_alpaca,
}


# --- one chat message ----------------------------------------------------------------------------


def _read_chat(given: object) -> list[Message]:
    """Messages with role and content, or from and value, in either kind of list."""
    return [_chat_message(message, number) for number, message in enumerate(_list(given, "the conversation"))]


def _chat_message(message: object, number: int) -> Message:
    if not isinstance(message, Mapping):
        _refuse(Reason.WRONG_TYPE, f"message {number} is {_type_name(message)}, not an object")
    role = _role(message, number)
    if role is Role.ASSISTANT:
        return Message(role, None)
    return Message(role, _content(_first(message, "content", "value"), f"message {number} ({role})"))


def _role(message: Mapping[str, object], number: int) -> Role:
    given = _first(message, "role", "from")
    if not isinstance(given, str):
        _refuse(Reason.UNKNOWN_ROLE, f"message {number} has {_type_name(given)} for a role")
    name = given.strip().lower()
    if name in _TOOL_ROLES or message.get("tool_calls") or message.get("function_call"):
        _refuse(Reason.TOOL_TURNS, f"message {number} ({name}): tool turns are not supported in this version")
    if name not in _ROLES:
        _refuse(Reason.UNKNOWN_ROLE, f"message {number} has the role {given!r}")
    return _ROLES[name]


def _content(given: object, where: str) -> str:
    if isinstance(given, Sequence) and not isinstance(given, str | bytes):
        return "\n".join(_part(part, where) for part in given)
    return _text(given, where)


def _part(part: object, where: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        _refuse(Reason.WRONG_TYPE, f"{where} has a part that is {_type_name(part)}")
    kind = part.get("type")
    if kind not in _TEXT_PART_TYPES:
        _refuse(Reason.NON_TEXT_PART, f"{where} has a part of type {kind!r}")
    return _text(part.get("text"), f"a text part of {where}")


def _text(given: object, where: str) -> str:
    if isinstance(given, str):
        return given
    if given is None:
        _refuse(Reason.NO_CONTENT, f"{where} is null or absent")
    _refuse(Reason.WRONG_TYPE, f"{where} is {_type_name(given)}, not text")


# --- the conversation as a whole -----------------------------------------------------------------


def _with_slots(given: list[Message], notes: list[Note]) -> list[Message]:
    """Slots only after the first user turn, never two in a row, and one to end with."""
    if not given:
        _refuse(Reason.EMPTY_CONVERSATION, "there is no message")
    if not any(message.role is Role.USER for message in given):
        _refuse(Reason.NO_USER_TURN, f"{len(given)} messages, none by the user")
    messages = list(_slots_in_place(given, notes))
    last_user = max(number for number, message in enumerate(messages) if message.role is Role.USER)
    slots_after = [number for number in range(last_user, len(messages)) if messages[number].role is Role.ASSISTANT]
    if not slots_after:
        messages.append(Message(Role.ASSISTANT, None))
    elif slots_after[-1] < len(messages) - 1:
        del messages[slots_after[-1] + 1 :]
        _note(notes, Note.TRAILING_SYSTEM_DROPPED)
    return messages


def _slots_in_place(given: list[Message], notes: list[Note]) -> Iterator[Message]:
    has_user, is_after_slot = False, False
    for message in given:
        is_slot = message.role is Role.ASSISTANT
        has_user = has_user or message.role is Role.USER
        if is_slot and not has_user:
            _note(notes, Note.LEADING_ASSISTANT_DROPPED)
        elif is_slot and is_after_slot:
            _note(notes, Note.ASSISTANT_TURNS_MERGED)
        else:
            yield message
            is_after_slot = is_slot


def _with_row_system(value: Mapping[str, object], messages: list[Message], notes: list[Note]) -> list[Message]:
    """Tabular datasets keep the system prompt beside the conversation; blank text there means none."""
    text = next((text for key in ("system_prompt", "system") if isinstance(text := value.get(key), str)), "")
    if not text.strip() or messages[0] == Message(Role.SYSTEM, text):
        return messages
    _note(notes, Note.ROW_SYSTEM_PROMPT_USED)
    return [Message(Role.SYSTEM, text), *messages]


def _check_text(messages: list[Message]) -> None:
    for number, message in enumerate(messages):
        if message.content is None:
            continue
        if message.role is Role.USER and not message.content.strip():
            _refuse(Reason.EMPTY_USER_TURN, f"message {number} is blank")
        if has_surrogate(message.content):
            _refuse(Reason.UNPAIRED_SURROGATE, f"message {number} ({message.role}) is not valid Unicode")


def _tools_json(given: object) -> str | None:
    """A list of objects, or JSON text that is one. Kept in the order given: the template prints it."""
    if given is None or given == "" or given == []:
        return None
    tools = _parsed(given) if isinstance(given, str) else given
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        _refuse(Reason.BAD_TOOLS, f"tools is {_type_name(tools)}, not a list of objects")
    try:
        text = json.dumps(tools, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise RowRefused(Stage.NORMALIZE, Reason.BAD_TOOLS, f"tools cannot be JSON: {error}") from error
    if has_surrogate(text):
        _refuse(Reason.UNPAIRED_SURROGATE, "tools is not valid Unicode")
    return text if tools else None


def _parsed(text: str) -> object:
    try:
        return parse(text)
    except json.JSONDecodeError as error:
        raise RowRefused(Stage.NORMALIZE, Reason.BAD_TOOLS, f"tools is not JSON: {error}") from error
    except (ValueError, RecursionError) as error:
        raise RowRefused(Stage.NORMALIZE, Reason.BAD_TOOLS, f"tools is not JSON: {complaint(error)[1]}") from error


# --- small steps ---------------------------------------------------------------------------------


def _required(value: Mapping[str, object], *keys: str) -> object:
    found = _first(value, *keys)
    if found is None:
        seen = ", ".join(sorted(map(str, value))) or "none"
        _refuse(Reason.MISSING_KEY, f"no {' or '.join(keys)}; keys: {seen}")
    return found


def _first(value: Mapping[str, object], *keys: str) -> object:
    for key in keys:
        found = value.get(key)
        if found is not None:
            return found
    return None


def _list(given: object, where: str) -> list[object]:
    if not isinstance(given, list | tuple):
        _refuse(Reason.WRONG_TYPE, f"{where} is {_type_name(given)}, not a list")
    return list(given)


def _type_name(value: object) -> str:
    return "null" if value is None else type(value).__name__


def _note(notes: list[Note], note: Note) -> None:
    if note not in notes:
        notes.append(note)


def _refuse(reason: Reason, detail: str) -> NoReturn:
    raise RowRefused(Stage.NORMALIZE, reason, detail)
