"""How fast one sequence gets its tokens, and whether any come at all: samples of one session and `now`. Pure.

Only time in which tokens came counts: a stall slows nothing down, and neither does work of earlier sessions. What a
batch costs is learned as it empties: a step takes `1 + c x (share of slots that are busy)` of a lone sequence's time.
As long as the engines were always full, nobody knows `c`, and it is a guess with its spread.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

# The level of the rate is that of the last minutes, what a batch costs that of the last hours: productive time.
_LEVEL_SECONDS = 600.0
_COST_SECONDS = 7200.0
# `c` before anything was seen of it, its spread, and how far the busy share must have moved to know better.
_COST, _COST_SPREAD, _MOVED = 0.2, 0.5, 0.05
_MOST_COST = 4.0


@dataclass(frozen=True, slots=True)
class Beat:
    """What was known at `now` (seconds on one clock).

    `useful_tokens` were sampled since the session began and not thrown away; `busy` sequences were being decoded, of
    the `slots` of all replicas that work.
    """

    now: float
    useful_tokens: int
    busy: int
    slots: int


@dataclass(slots=True)
class _Faded:
    """Sums over productive seconds in which the past fades: weights, shares, and seconds per token of a sequence."""

    seconds: float
    weight: float = 0.0
    share: float = 0.0
    share2: float = 0.0
    step: float = 0.0
    cross: float = 0.0

    def add(self, productive: float, share: float, step: float) -> None:
        kept = math.exp(-productive / self.seconds)
        self.weight = self.weight * kept + productive
        self.share = self.share * kept + productive * share
        self.share2 = self.share2 * kept + productive * share * share
        self.step = self.step * kept + productive * step
        self.cross = self.cross * kept + productive * share * step


class Speed:
    """Give it every beat, in the order of time."""

    def __init__(self, stalled_after_seconds: float) -> None:
        self._stalled_after_seconds = stalled_after_seconds
        self._last: Beat | None = None  # the latest beat that had new tokens
        self._busy_seconds = 0.0
        self._seen_at = 0.0
        self._seen: Beat | None = None
        self._level = _Faded(_LEVEL_SECONDS)
        self._cost = _Faded(_COST_SECONDS)

    def add(self, beat: Beat) -> None:
        """Time without tokens is judged when they come again: a large step, or a stall."""
        if self._last is None or self._seen is None or beat.useful_tokens < self._last.useful_tokens:
            self._begin(beat)
            return
        self._busy_seconds += (self._seen.busy + beat.busy) / 2 * (beat.now - self._seen.now)
        self._seen = beat
        tokens, seconds = beat.useful_tokens - self._last.useful_tokens, beat.now - self._last.now
        if not tokens or seconds <= 0:
            return
        if seconds <= self._stalled_after_seconds and self._busy_seconds > 0 and beat.slots:
            share = min(1.0, self._busy_seconds / seconds / beat.slots)
            for faded in (self._level, self._cost):
                faded.add(seconds, share, self._busy_seconds / tokens)
        self._begin(beat)

    def _begin(self, beat: Beat) -> None:
        self._last = self._seen = beat
        self._busy_seconds = 0.0

    @property
    def is_known(self) -> bool:
        """Tokens have come."""
        return self._level.weight > 0

    def is_stalled(self, now: float) -> bool:
        """There is work, and nothing comes of it for longer than large steps would explain."""
        last = self._last
        return last is not None and self.is_known and now - last.now > self._stalled_after_seconds

    def seconds(self, tokens_in_a_row: float, tokens_of_all: float, slots: int, spread: float = 0.0) -> float:
        """For so many tokens of one sequence that runs to the end, while all together get `tokens_of_all`.

        `spread`: how many of its spreads the cost of a batch lies above what is most likely.
        """
        cost = self._batch_cost(spread)
        level = self._level
        lone = level.step / (level.weight + cost * level.share)
        return lone * (tokens_in_a_row + cost * tokens_of_all / slots)

    def _batch_cost(self, spread: float) -> float:
        """The slope over shares of slots, as far as they have moved; the guess, as far as they have not."""
        seen = self._cost
        share, step = seen.share / seen.weight, seen.step / seen.weight
        moved = max(0.0, seen.share2 / seen.weight - share * share)
        known = moved / (moved + _MOVED**2)
        cost = _COST
        if moved > 0:
            slope = (seen.cross / seen.weight - share * step) / moved
            lone = step - slope * share
            cost = min(max(slope / lone, 0.0), _MOST_COST) if lone > 0 else _MOST_COST
        guess = known * cost + (1 - known) * (_COST + spread * _COST_SPREAD)
        return max(0.0, guess)
