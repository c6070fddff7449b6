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
# What a batch costs is read from times of this length.
_PART_SECONDS = 20.0
# Before so much time with tokens, nothing is said.
_FEWEST_SECONDS = 15.0
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
class _Level:
    """Sums over productive time in which the past fades.

    Tokens are told of in large steps, so rates of short times are added up and not averaged: a time with few tokens
    would weigh too much.
    """

    seconds: float = 0.0
    share_seconds: float = 0.0
    busy_seconds: float = 0.0
    tokens: float = 0.0

    def add(self, seconds: float, share: float, busy_seconds: float, tokens: float, kept: float = 1.0) -> None:
        self.seconds = self.seconds * kept + seconds
        self.share_seconds = self.share_seconds * kept + share * seconds
        self.busy_seconds = self.busy_seconds * kept + busy_seconds
        self.tokens = self.tokens * kept + tokens

    @property
    def share(self) -> float:
        """Of the slots, busy ones."""
        return self.share_seconds / self.seconds

    @property
    def step(self) -> float:
        """Seconds per token of a sequence."""
        return self.busy_seconds / self.tokens


@dataclass(slots=True)
class _Cost:
    """Moments of shares and of seconds per token, over productive seconds in which the past fades."""

    weight: float = 0.0
    share: float = 0.0
    share2: float = 0.0
    step: float = 0.0
    cross: float = 0.0

    def add(self, productive: float, share: float, step: float) -> None:
        kept = math.exp(-productive / _COST_SECONDS)
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
        self._seen: Beat | None = None
        self._busy_seconds = 0.0
        self._counts_from = 0.0
        self._is_first_step = True
        self._at_work_since: float | None = None  # without a token since
        self._up_since: float | None = None  # any engine works
        self._level, self._part, self._cost = _Level(), _Level(), _Cost()

    def add(self, beat: Beat) -> None:
        """Time without tokens is judged when they come again: a large step, or a stall."""
        self._up_since = (beat.now if self._up_since is None else self._up_since) if beat.slots else None
        if self._last is None or self._seen is None or beat.useful_tokens < self._last.useful_tokens:
            self._begin(beat)
            return
        self._busy_seconds += (self._seen.busy + beat.busy) / 2 * (beat.now - self._seen.now)
        self._seen = beat
        if not self._busy_seconds:  # nothing was at work: engines start, say
            self._counts_from, self._is_first_step = beat.now, True
        if self._at_work_since is None and beat.busy:
            self._at_work_since = beat.now
        tokens, seconds = beat.useful_tokens - self._last.useful_tokens, beat.now - self._counts_from
        if not tokens or seconds <= 0:
            return
        # Of the first step after a pause much is made and not told of yet; from then on it is as much before as after.
        is_whole = not self._is_first_step and seconds <= self._stalled_after_seconds
        if is_whole and self._busy_seconds > 0 and beat.slots:
            self._count(seconds, min(1.0, self._busy_seconds / seconds / beat.slots), tokens)
        self._is_first_step = False
        self._begin(beat)

    def _begin(self, beat: Beat) -> None:
        self._last = self._seen = beat
        self._busy_seconds, self._counts_from = 0.0, beat.now
        self._at_work_since = beat.now if beat.busy else None

    def _count(self, seconds: float, share: float, tokens: int) -> None:
        self._level.add(seconds, share, self._busy_seconds, tokens, math.exp(-seconds / _LEVEL_SECONDS))
        self._part.add(seconds, share, self._busy_seconds, tokens)
        if self._part.seconds >= _PART_SECONDS:
            self._cost.add(self._part.seconds, self._part.share, self._part.step)
            self._part = _Level()

    @property
    def is_known(self) -> bool:
        """Tokens have come for long enough: told of in steps, those of a few seconds say little."""
        return self._level.seconds >= _FEWEST_SECONDS

    def is_stalled(self, now: float) -> bool:
        """Nothing has come for longer than large steps would explain. Before the first token, only work in vain counts.

        While every engine starts, or starts again (the next arm of a calibration), nothing is stalled.
        """
        since = self._last.now if self._last is not None and self.is_known else self._at_work_since
        if since is None or self._up_since is None:
            return False
        return now - max(since, self._up_since) > self._stalled_after_seconds

    def seconds(self, tokens_in_a_row: float, tokens_of_all: float, slots: int, spread: float = 0.0) -> float:
        """For so many tokens of one sequence that runs to the end, while all together get `tokens_of_all`.

        `spread`: how many of its spreads the cost of a batch lies above what is most likely.
        """
        cost = self._batch_cost(spread)
        lone = self._level.step / (1 + cost * self._level.share)
        return lone * (tokens_in_a_row + cost * tokens_of_all / slots)

    def _batch_cost(self, spread: float) -> float:
        """The slope over shares of slots, as far as they have moved; the guess, as far as they have not."""
        seen = self._cost
        if not seen.weight:
            return max(0.0, _COST + spread * _COST_SPREAD)
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
