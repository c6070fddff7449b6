"""JSON text -> values, where text that is well formed can still be no value, and where such a text ends. Pure.

Guarantees: a key that an object names twice is an error, never the last one silently; complaints are short and about
the data.
"""

from __future__ import annotations

import json
import re
import sys

from regen.data.raw import LoadError

_TOKEN = re.compile(r'["\[\]{}]')
_STRING_REST = re.compile(r'[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_SCALAR = re.compile(r"[^,\[\]{}\s]*")
_OPENED_BY = {"]": "[", "}": "{"}
_KEY_CHARS = 80


class DuplicateKey(ValueError):
    """An object names a key twice. `args` are (key,)."""


def parse(text: str) -> object:
    """The value. Raises json.JSONDecodeError, and what `complaint` explains: ValueError, RecursionError."""
    return DECODER.decode(text)


def complaint(error: Exception) -> tuple[LoadError, str]:
    """Why well-formed text is no value: a key twice, a number too long, nesting too deep."""
    if isinstance(error, DuplicateKey):
        key = str(error.args[0])
        shown = key if len(key) <= _KEY_CHARS else key[:_KEY_CHARS] + "..."
        return LoadError.DUPLICATE_KEYS, f"an object has the key {shown!r} twice"
    if isinstance(error, RecursionError):
        return LoadError.BAD_JSON, "nested too deeply"
    return LoadError.BAD_JSON, f"a number of more than {sys.get_int_max_str_digits()} digits"


def value_end(text: str, start: int) -> int | None:
    """Where the value that begins at `start` ends, by its quotes and brackets; None if the text stops before.

    A number or a bare word may go on where the text ends. Raises ValueError(what, position): a bracket closes another.
    """
    if text[start] not in '"[{':
        return _SCALAR.match(text, start).end()  # type: ignore[union-attr]
    opened: list[str] = []
    position = start
    while token := _TOKEN.search(text, position):
        char, position = token.group(), token.end()
        if char == '"':
            string = _STRING_REST.match(text, position)
            if string is None:
                return None
            position = string.end()
        elif char in "[{":
            opened.append(char)
        elif opened.pop() != _OPENED_BY[char]:
            raise ValueError(f"{char!r} closes another bracket", token.start())
        if not opened:
            return position
    return None


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        raise DuplicateKey(next(key for key, _ in pairs if key in seen or seen.add(key)))  # type: ignore[func-returns-value]
    return made


DECODER = json.JSONDecoder(object_pairs_hook=_object)
