"""What an adapter makes of a raw row, and the small steps that all of them take. Pure.

An adapter reads; it does not judge the conversation as a whole. Whatever JSON value it is given, it returns a `Given`
or raises RowRefused. In mode regenerate it never needs an answer of the source, so a broken one spoils nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from regen.data.json_values import complaint, parse
from regen.data.reasons import Note, Reason, refuse
from regen.data.text import has_surrogate
from regen.records import Role
from regen.spec import PoliciesSpec

_NO_FIELDS: Mapping[str, str] = {}
_HUGE = 2**63


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool. `arguments` is JSON text; `id` is None where the source gives none."""

    id: str | None
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Turn:
    """One message as the row gives it. `content` of an answer is None where answers are not kept."""

    role: Role
    content: str | None
    reasoning: str | None = None
    calls: tuple[Call, ...] = ()
    call_id: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Tokens:
    """A row that came as token ids, with a mask of the same length: 1 where the target spoke."""

    input_ids: tuple[int, ...]
    loss_mask: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Given:
    """What a row gives: turns (or tokens), and what stands beside them."""

    turns: tuple[Turn, ...]
    tools: object = None
    system: object = None
    sampling: Mapping[str, float | int] = field(default_factory=dict)
    tokens: Tokens | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """How one row is read, and what is noted on the way. `fields` maps keys to the names they have in this source."""

    policies: PoliciesSpec = field(default_factory=PoliciesSpec)
    keeps_answers: bool = False
    fields: Mapping[str, str] = field(default_factory=lambda: _NO_FIELDS)
    notes: list[Note] = field(default_factory=list)

    def note(self, note: Note) -> None:
        if note not in self.notes:
            self.notes.append(note)

    def keys(self, key: str, *others: str) -> tuple[str, ...]:
        """Under which names a message may have a key: as mapped, else as usual."""
        return (self.fields[key],) if key in self.fields else (key, *others)

    def clean(self, text: str, where: str) -> str:
        """The text, if UTF-8 can carry it; else as the policy says."""
        if not has_surrogate(text):
            return text
        if self.policies.unpaired_surrogates == "reject":
            refuse(Reason.UNPAIRED_SURROGATE, f"{where} is not valid Unicode")
        self.note(Note.SURROGATE_REPLACED)
        return "".join("\ufffd" if "\ud800" <= char <= "\udfff" else char for char in text)

    def json_text(self, value: object, where: str, reason: Reason) -> str:
        """A JSON value as text, exactly; NaN and what JSON does not have are refused with `reason`."""
        try:
            text = json.dumps(value, ensure_ascii=False, allow_nan=False)
            is_huge = _has_huge_integer(value)
        except (TypeError, ValueError, RecursionError) as error:
            refuse(reason, f"{where} cannot be JSON: {error}")
        if is_huge:
            if self.policies.huge_integers == "reject":
                refuse(Reason.HUGE_INTEGER, f"{where} holds an integer beyond 64 bits")
            self.note(Note.HUGE_INTEGER_KEPT)
        return self.clean(text, where)


def parsed(text: str, where: str, reason: Reason) -> object:
    """The value of a JSON text. Refused with `reason` if there is none."""
    try:
        return parse(text)
    except json.JSONDecodeError as error:
        refuse(reason, f"{where} is not JSON: {error}")
    except (ValueError, RecursionError) as error:
        refuse(reason, f"{where} is not JSON: {complaint(error)[1]}")


def first(value: Mapping[str, object], *keys: str) -> object:
    """The first of these keys that is there and not null; tables fill rows with nulls."""
    for key in keys:
        found = value.get(key)
        if found is not None:
            return found
    return None


def required(value: Mapping[str, object], *keys: str) -> object:
    found = first(value, *keys)
    if found is None:
        seen = ", ".join(sorted(map(str, value))) or "none"
        refuse(Reason.MISSING_KEY, f"no {' or '.join(keys)}; keys: {seen}")
    return found


def as_list(given: object, where: str) -> list[object]:
    """A list, or the JSON text of one (columns of text hold conversations like that)."""
    if isinstance(given, str) and given.lstrip().startswith("["):
        given = parsed(given, where, Reason.WRONG_TYPE)
    if not isinstance(given, list | tuple):
        refuse(Reason.WRONG_TYPE, f"{where} is {type_name(given)}, not a list")
    return list(given)


def as_text(given: object, where: str) -> str:
    if isinstance(given, str):
        return given
    if given is None:
        refuse(Reason.NO_CONTENT, f"{where} is null or absent")
    refuse(Reason.WRONG_TYPE, f"{where} is {type_name(given)}, not text")


def type_name(value: object) -> str:
    return "null" if value is None else type(value).__name__


def _has_huge_integer(value: object) -> bool:
    if isinstance(value, int):
        return not -_HUGE <= value < _HUGE
    if isinstance(value, dict):
        return any(map(_has_huge_integer, value.values()))
    return isinstance(value, list | tuple) and any(map(_has_huge_integer, value))
