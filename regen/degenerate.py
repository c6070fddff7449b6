"""Has an answer run into a loop, a wall of one token, or a handful of ids? Pure, on ids alone; milliseconds.

Only what lasts to the answer's end counts, over dozens of tokens: tables, code and lists repeat themselves in parts and
are not flagged. Short answers never are. A model in a loop does not stop by itself, so an answer that did needs much
more of it. What the prompt has asked for (zeros, a line a hundred times) is for `is_asked_for` to tell, from text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

MAX_PERIOD_TOKENS = 256
MIN_REPEATS = 4
MIN_LOOP_TOKENS = 40
WALL_TOKENS = 48
WALL_IDS = 2
FEW_IDS_TOKENS = 256
FEW_IDS = 4
# Of an answer that ended by itself.
ENDED_MIN_REPEATS = 12
ENDED_MIN_LOOP_TOKENS = 128
MAX_UNIT_CHARACTERS = 400

# Prompts ask for these by name: "write fifty zeros", "a line of dashes".
_NAMES = {
    "0": ("zero", "zeros", "zeroes"),
    "1": ("one", "ones"),
    "-": ("dash", "dashes", "hyphen", "hyphens"),
    "*": ("star", "stars", "asterisk", "asterisks"),
    "=": ("equals", "equal"),
    "_": ("underscore", "underscores"),
    "#": ("hash", "hashes"),
    ".": ("dot", "dots", "period", "periods"),
    "!": ("exclamation",),
}


class TailKind(StrEnum):
    LOOP = "loop"
    WALL = "wall"
    FEW_IDS = "few_ids"


@dataclass(frozen=True, slots=True)
class Tail:
    """What an answer ends in. `unit` are the ids that repeat: one period of a loop, the distinct ids otherwise."""

    kind: TailKind
    unit: tuple[int, ...]


def looks_degenerate(token_ids: Sequence[int]) -> bool:
    """Whether the answer ends in a loop or a wall, its closing id aside; True for no token at all."""
    return not token_ids or degenerate_tail(token_ids) is not None


def degenerate_tail(token_ids: Sequence[int], has_ended: bool = False) -> Tail | None:
    """What the answer ends in, its closing id aside. `has_ended`: by itself, not at a cap."""
    ids = tuple(token_ids)
    least_tokens, least_repeats = (
        (ENDED_MIN_LOOP_TOKENS, ENDED_MIN_REPEATS) if has_ended else (MIN_LOOP_TOKENS, MIN_REPEATS)
    )
    for tail in (ids, ids[:-1]):
        if (unit := _loop(tail, least_tokens, least_repeats)) is not None:
            return Tail(TailKind.WALL if len(set(unit)) == 1 else TailKind.LOOP, unit)
        for kind, length, most in (
            (TailKind.WALL, max(WALL_TOKENS, least_tokens if has_ended else 0), WALL_IDS),
            (TailKind.FEW_IDS, FEW_IDS_TOKENS, FEW_IDS),
        ):
            if len(tail) >= length and len(distinct := set(tail[-length:])) <= most:
                return Tail(kind, tuple(sorted(distinct)))
    return None


def is_asked_for(unit: str, request: str) -> bool:
    """Whether the text that repeats stands in the request as words of its own, in whatever rotation, or by name."""
    text = unit[:MAX_UNIT_CHARACTERS].casefold()
    request = request.casefold()
    rotations = {(text[start:] + text[:start]).strip() for start in range(len(text))}
    wanted = {rotation for rotation in rotations if rotation}
    smallest = {_smallest_period(rotation) for rotation in wanted}
    names = {name for rotation in smallest for name in _NAMES.get(rotation.strip(" ,;\n"), ())}
    return any(_stands_in(words, request) for words in wanted | smallest | names)


def _loop(ids: tuple[int, ...], least_tokens: int, least_repeats: int) -> tuple[int, ...] | None:
    """The shortest period that the ids end in, repeated often enough."""
    for period in range(1, min(MAX_PERIOD_TOKENS, len(ids) // least_repeats) + 1):
        span = max(least_repeats * period, least_tokens)
        if len(ids) < span or ids[-1] != ids[-1 - period]:
            continue
        tail = ids[-span:]
        if tail[period:] == tail[:-period]:
            return ids[-period:]
    return None


def _smallest_period(text: str) -> str:
    """`000` -> `0`; a text that does not repeat itself is its own."""
    length = (text + text).find(text, 1)
    return text[:length]


def _stands_in(words: str, request: str) -> bool:
    """As words of their own: `0` does not stand in `200`, nor `!` in `Hello!`."""
    before = r"(?<!\w)"
    return re.search(f"{before}{re.escape(words)}(?!\\w)", request) is not None
