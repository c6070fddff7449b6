"""A JSON array element by element, without holding the array. Pure: it is given a function that reads bytes.

Guarantees: every element before a damaged place is given, then one element that says where the damage is (a byte
offset), then nothing. An element that is well formed and no value (a key twice, a number of thousands of digits) and
invalid UTF-8 spoil only the elements they are in. Memory: a few times the largest element, or
the rest of the file where it is damaged (only its end tells damage from an element that goes on).
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from regen.data.json_values import DECODER, complaint, value_end
from regen.data.raw import LoadError

UNREAD = "everything after it in this file is unread"
_SPACE = re.compile(r"[ \t\r\n]*")
_DELIMITER = re.compile(r"[ \t\r\n]*[,\]]")


@dataclass(frozen=True, slots=True)
class Element:
    """One element, or the place where the array is damaged. `raw` are the element's bytes in the file.

    `error` is (reason, detail) where the element is well formed and no value.
    """

    index: int
    value: object = None
    raw: bytes = b""
    has_invalid_utf8: bool = False
    error: tuple[LoadError, str] | None = None
    damage: str | None = None


class _Damaged(Exception):
    """The array does not go on here. `args` are (what, position in the window)."""


def read_array(read: Callable[[], bytes], stream_errors: tuple[type[BaseException], ...]) -> Iterator[Element]:
    """The elements of a JSON array. `read()` gives the next bytes, empty at the end.

    One of `stream_errors` raised by `read` counts as the end of the bytes, and is named where the array breaks off.
    """
    window = _Window(read, stream_errors)
    index = 0
    try:
        window.expect("[")
        while (char := window.peek()) != "]":
            if index:
                if char != ",":
                    raise _Damaged("expected ',' or ']'", window.position)
                window.expect(",")
            yield window.take_element(index)
            index += 1
        window.expect("]")
        if window.peek():
            raise _Damaged("more text after the end of the array", window.position)
    except _Damaged as error:
        what, position = error.args
        yield Element(index, raw=window.rest(), damage=window.describe(what, position))


class _Window:
    """The part of the text in memory, how far it is consumed, and the byte offset of its beginning."""

    def __init__(self, read: Callable[[], bytes], stream_errors: tuple[type[BaseException], ...]) -> None:
        self._read = read
        self._stream_errors = stream_errors
        self._decode = codecs.getincrementaldecoder("utf-8")("surrogateescape").decode
        self._text = ""
        self._start_bytes = 0
        self._at_end = False
        self._broken: BaseException | None = None
        self.position = 0
        self._grow()
        if self._text.startswith("\ufeff"):
            self._consume(1)

    def peek(self) -> str:
        """The next character that is not white space; empty at the end."""
        while True:
            self.position = _SPACE.match(self._text, self.position).end()  # type: ignore[union-attr]
            if self.position < len(self._text):
                return self._text[self.position]
            if not self._grow():
                return ""

    def expect(self, char: str) -> None:
        if self.peek() != char:
            raise _Damaged(f"expected {char!r}", self.position)
        self._consume(self.position + 1)

    def take_element(self, index: int) -> Element:
        """The next value, or why it is none."""
        self.peek()
        while True:
            try:
                value, end = DECODER.raw_decode(self._text, self.position)
            except json.JSONDecodeError as error:
                if not self._grow():
                    raise _Damaged(error.msg, error.pos) from None
                continue
            except (ValueError, RecursionError) as error:
                raw, has_invalid_utf8 = self._take(self._end_of_value())
                return Element(index, None, raw, has_invalid_utf8, error=complaint(error))
            if not _DELIMITER.match(self._text, end) and self._grow():
                continue  # what looks like 1 may be the beginning of 1e+16
            raw, has_invalid_utf8 = self._take(end)
            return Element(index, value, raw, has_invalid_utf8)

    def rest(self) -> bytes:
        return _encoded(self._text[self.position :])[0]

    def describe(self, what: str, position: int) -> str:
        offset = self._start_bytes + len(_encoded(self._text[:position])[0])
        if self._broken is not None:
            return f"the file breaks off at byte {offset} ({type(self._broken).__name__}), {UNREAD}"
        return f"{what} at byte {offset}, " + ("where the file ends" if position >= len(self._text) else UNREAD)

    def _end_of_value(self) -> int:
        while True:
            try:
                end = value_end(self._text, self.position)
            except ValueError as error:
                raise _Damaged(*error.args) from None
            if end is not None and _DELIMITER.match(self._text, end):
                return end
            if not self._grow():
                if end is None:
                    raise _Damaged("a value does not end", len(self._text))
                return end

    def _take(self, end: int) -> tuple[bytes, bool]:
        """The bytes up to `end`, and whether they are not UTF-8; they are consumed."""
        raw, has_invalid_utf8 = _encoded(self._text[self.position : end])
        self._consume(end)
        return raw, has_invalid_utf8

    def _consume(self, position: int) -> None:
        """Forget the text before `position` once it is worth a copy."""
        self.position = position
        if position > len(self._text) // 2:
            self._start_bytes += len(_encoded(self._text[:position])[0])
            self._text = self._text[position:]
            self.position = 0

    def _grow(self) -> bool:
        """At least double the window, so that a large element is tried again few times. False at the end."""
        if self._at_end:
            return False
        wanted, parts = max(1, len(self._text)), [self._text]
        while wanted > 0 and not self._at_end:
            part = self._next_part()
            parts.append(part)
            wanted -= len(part)
        grown = "".join(parts)
        has_grown = len(grown) > len(self._text)
        self._text = grown
        return has_grown

    def _next_part(self) -> str:
        try:
            block = self._read()
        except self._stream_errors as error:
            self._broken = error
            block = b""
        self._at_end = not block
        return self._decode(block, final=self._at_end)


def _encoded(text: str) -> tuple[bytes, bool]:
    try:
        return text.encode("utf-8"), False
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogateescape"), True
