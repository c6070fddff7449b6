"""A target's control tokens written out in text: found, and kept from becoming control tokens. Pure.

Control tokens are the tokenizer's special tokens, and those of its other added tokens that the chat template writes
(section markers are often not flagged special). Others, like tags of HTML in some vocabularies, are ordinary text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

CONTROL_TOKENS = "control_tokens"
_FIRST_MARK = 0xF0000  # a plane for private use: no template and no tokenizer means anything by it


@dataclass(frozen=True, slots=True)
class Masked:
    """Messages whose control tokens are replaced by marks, and what stands for what."""

    messages: tuple[Mapping[str, object], ...]
    literals: tuple[str, ...]
    mark: re.Pattern[str]

    def pieces(self, text: str) -> list[tuple[str, bool]]:
        """The rendered text in order, and whether a piece is a literal that stood behind a mark."""
        parts = self.mark.split(text)
        texts = [
            (part, False) if number % 2 == 0 else (self.literals[int(part)], True) for number, part in enumerate(parts)
        ]
        return [piece for piece in texts if piece[0]]


@dataclass(slots=True)
class _Masking:
    """Literals replaced so far."""

    mark: str
    literals: list[str] = field(default_factory=list)

    def replace(self, found: re.Match[str]) -> str:
        self.literals.append(found.group())
        return f"{self.mark}{len(self.literals) - 1}{self.mark}"


class ControlTokens:
    """`tokens` are (text, is special) of a tokenizer's added tokens, `template_source` the chat template's text."""

    def __init__(self, tokens: Iterable[tuple[str, bool]], template_source: str) -> None:
        known = list(tokens)
        self._special = _pattern(text for text, is_special in known if is_special)
        self._all = _pattern(text for text, is_special in known if is_special or _is_written(text, template_source))

    def found(self, text: str, only_special: bool) -> tuple[str, ...]:
        """Which stand in a text, in order, each once."""
        pattern = self._special if only_special else self._all
        return tuple(dict.fromkeys(pattern.findall(text))) if pattern else ()

    def masked(self, messages: tuple[Mapping[str, object], ...], beside: str) -> Masked | None:
        """What is given (answers are the target's own), its control tokens behind marks; None if there are none.

        `beside`: other text of the row that is rendered; marks are made of a character that stands nowhere.
        """
        pattern = self._all
        if pattern is None or not any(pattern.search(_content(message)) for message in messages):
            return None
        everything = beside + json.dumps(messages, ensure_ascii=False)
        mark = next(char for char in map(chr, range(_FIRST_MARK, _FIRST_MARK + 10_000)) if char not in everything)
        masking = _Masking(mark)
        replaced = tuple(
            {**message, "content": pattern.sub(masking.replace, given)} if (given := _content(message)) else message
            for message in messages
        )
        return Masked(replaced, tuple(masking.literals), re.compile(f"{mark}([0-9]+){mark}"))


def _content(message: Mapping[str, object]) -> str:
    content = message.get("content")
    return content if isinstance(content, str) and message.get("role") != "assistant" else ""


def _is_written(text: str, template_source: str) -> bool:
    return len(text) > 2 and not text.isalnum() and not text.isspace() and text in template_source


def _pattern(texts: Iterable[str]) -> re.Pattern[str] | None:
    longest_first = sorted({text for text in texts if text}, key=lambda text: (-len(text), text))
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
