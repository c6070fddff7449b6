"""Rows that ask what a benchmark asks. Pure.

Two ways to tell: a user turn is the same text, but for case, white space, punctuation and normal form; or it shares a
run of so many words with one. A benchmark's question that has fewer words is compared as a whole. Memory: about 100
bytes for each question or run of words.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

from regen.records import Conversation, Role


class Benchmark:
    """The questions of one benchmark. `ngram_words` is None for comparing whole turns."""

    def __init__(self, name: str, ngram_words: int | None) -> None:
        self.name = name
        self._words = ngram_words
        self._whole: dict[bytes, str] = {}
        self._runs: dict[bytes, str] = {}

    def add(self, conversation: Conversation, location: str) -> None:
        """What its user turns ask; `location` is told when a row is like one."""
        for words in _user_words(conversation):
            if self._words is None or len(words) < self._words:
                self._whole.setdefault(_digest(words), location)
            else:
                for run in _runs(words, self._words):
                    self._runs.setdefault(run, location)

    def like(self, conversation: Conversation) -> str | None:
        """Where the benchmark has what this conversation asks; None if nowhere."""
        for words in _user_words(conversation):
            if (found := self._whole.get(_digest(words))) is not None:
                return found
            if self._words is not None and self._runs:
                for run in _runs(words, self._words):
                    if run in self._runs:
                        return self._runs[run]
        return None


def contaminated(benchmarks: Iterable[Benchmark], conversation: Conversation) -> str | None:
    """In words which benchmark has a question of this conversation; None if none."""
    for benchmark in benchmarks:
        if (where := benchmark.like(conversation)) is not None:
            return f"asks what {benchmark.name} asks at {where}"
    return None


def _user_words(conversation: Conversation) -> Iterator[list[str]]:
    for message in conversation.messages:
        if message.role is Role.USER and message.content and (words := _normalized(message.content)):
            yield words


def _normalized(text: str) -> list[str]:
    folded = unicodedata.normalize("NFKC", text).casefold()
    return "".join(char if char.isalnum() else " " for char in folded).split()


def _runs(words: Sequence[str], length: int) -> Iterator[bytes]:
    return (_digest(words[start : start + length]) for start in range(len(words) - length + 1))


def _digest(words: Sequence[str]) -> bytes:
    return hashlib.blake2b(" ".join(words).encode("utf-8", "surrogatepass"), digest_size=8).digest()
