"""Has an answer run into a loop or a wall of one token. Pure, on ids alone, a few string compares of cost.

Only exact repetition that lasts to the answer's end counts, over dozens of tokens: tables, code and lists repeat
themselves in parts and are not flagged. Short answers never are.
"""

from __future__ import annotations

from collections.abc import Sequence

MAX_PERIOD_TOKENS = 256
MIN_REPEATS = 4
MIN_LOOP_TOKENS = 40
WALL_TOKENS = 48
WALL_IDS = 2


def looks_degenerate(token_ids: Sequence[int]) -> bool:
    """Whether the answer ends in a loop or a wall, its closing id aside; True for no token at all."""
    if not token_ids:
        return True
    ids = tuple(token_ids)
    return any(_is_wall(tail) or _is_loop(tail) for tail in (ids, ids[:-1]))


def _is_wall(ids: tuple[int, ...]) -> bool:
    """Dozens of tokens of one or two kinds, in whatever order."""
    return len(ids) >= WALL_TOKENS and len(set(ids[-WALL_TOKENS:])) <= WALL_IDS


def _is_loop(ids: tuple[int, ...]) -> bool:
    longest = min(MAX_PERIOD_TOKENS, len(ids) // MIN_REPEATS)
    return any(_repeats(ids, period) for period in range(1, longest + 1))


def _repeats(ids: tuple[int, ...], period: int) -> bool:
    span = max(MIN_REPEATS * period, MIN_LOOP_TOKENS)
    if len(ids) < span or ids[-1] != ids[-1 - period]:
        return False
    tail = ids[-span:]
    return tail[period:] == tail[:-period]
