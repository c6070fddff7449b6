"""When a run ends, as a range: from the tokens that are left, not from the rows. Pure: events and `now`, no clock.

Two things decide: how long the slots stay full, and, when the queue is empty, the longest row. So an estimate lays the
rest of the run out in tokens of one sequence: rows that run go on from where they are, as long as rows of their group
that got so far (observe/lengths.py); the queue follows as slots become free; the end is that of the last row. The time
for it comes from this session's rate alone (observe/speed.py). It is done for the middle guess of all that is not known
and for a number of others; low and high are the 10th and the 90th percentile over them.

What it does not know: which rows come late in the queue (any group comes at any time), that replicas differ in speed,
and what has not happened yet: a stall, a lost replica. Cost: milliseconds, however long the queue is.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence

from regen.observe.length_curve import Curve
from regen.observe.lengths import Group, LengthModel, Lengths, Running, gathered
from regen.observe.speed import Beat, Speed
from regen.records import Eta, EtaState

# No token for so long, and it is said. Engines tell of tokens in steps of seconds.
STALLED_AFTER_SECONDS = 60.0
_GUESSES = 24
# Rows that have to end before anything is said, or half of all, if that is less.
_FEWEST_ENDS = 8
# The queue's rows begin at so many moments.
_STARTS = 12
_CLOSE, _STRIDE = 0.005, 1.3
# How far the rate to come may well be off that of the last minutes. Where the longest row is sure to reach its cap,
# nothing else is open.
_RATE_OFF = 1.05


class Estimator:
    """One session's. Tell it every row that ends and a beat now and then; ask it with what is left."""

    def __init__(
        self,
        groups: Mapping[str, Group],
        stalled_after_seconds: float = STALLED_AFTER_SECONDS,
        lengths: LengthModel | None = None,
        rate_off: float = _RATE_OFF,
    ) -> None:
        """`lengths` is only for who knows better than to learn them, `rate_off` 1.0 for who knows the rate to come."""
        self._rate_off = rate_off
        self._lengths = Lengths(groups) if lengths is None else lengths
        self._speed = Speed(stalled_after_seconds)
        self._began_at: float | None = None
        self._slots = 0
        self._finished = 0
        self._seen = 0

    def row_finished(self, group: str, tokens: int) -> None:
        """A row of this session has ended, by itself or at its cap, with so many output tokens."""
        self._finished += 1
        self._seen += 1
        self._lengths.saw(group, tokens, is_earlier=False)

    def row_finished_before(self, group: str, tokens: int, rows: int = 1) -> None:
        """Rows of an earlier session, of so many tokens each: they tell how long rows are, and are in no rate."""
        self._seen += rows
        self._lengths.saw(group, tokens, is_earlier=True, rows=rows)

    def beat(self, beat: Beat) -> None:
        """In the order of time. The session begins with the first one."""
        if self._began_at is None:
            self._began_at = beat.now
        self._slots = beat.slots or self._slots
        self._speed.add(beat)

    @property
    def has_rate(self) -> bool:
        """Tokens have come for a while: there may be an estimate."""
        return self._speed.is_known

    def is_stalled(self, now: float) -> bool:
        """Cheap, unlike an estimate."""
        return self._speed.is_stalled(now)

    def estimate(
        self, now: float, left: Mapping[str, int], running: Sequence[Running], slots: int | None = None
    ) -> Eta:
        """`left` are rows of each group that have not ended, those that run among them; `slots` those that will work
        on them (None: as many as at the last beat).
        """
        self._slots = slots or self._slots
        rows = sum(left.values())
        if not rows:
            return Eta(EtaState.FINISHED, 0.0, 0.0, 0.0, 0.0)
        naive = None
        if self._finished and self._began_at is not None:
            naive = (now - self._began_at) * rows / self._finished
        if not self._speed.is_known or self._seen < min(_FEWEST_ENDS, (self._seen + rows + 1) // 2):
            is_stalled = self._speed.is_stalled(now)
            return Eta(EtaState.STALLED if is_stalled else EtaState.WARMING, naive_seconds=naive)
        state = EtaState.STALLED if self._speed.is_stalled(now) else EtaState.ESTIMATING
        low, mid, high = self._range(left, gathered(running))
        return Eta(state, low, mid, high, naive)

    def _range(self, left: Mapping[str, int], running: Sequence[Running]) -> tuple[float, float, float]:
        luck = random.Random(0)
        places = [(place + 0.5) / _GUESSES for place in range(_GUESSES)]
        luck.shuffle(places)
        guesses = self._lengths.guesses(running, _GUESSES)
        middle = _Rest(next(guesses), left, running, self._slots)
        middle_end = middle.end(0.5, near=max(1.0, middle.full_until))
        mid = self._speed.seconds(middle_end, middle.made(middle_end), self._slots)
        others: list[float] = []
        for curves, place in zip(guesses, places, strict=True):
            rest = _Rest(curves, left, running, self._slots, middle.full_share)
            end = rest.end(place, near=middle_end)
            others.append(self._speed.seconds(end, rest.made(end), self._slots, luck.gauss()))
        others.sort()
        low, high = min(mid, _percentile(others, 0.1)), max(mid, _percentile(others, 0.9))
        return low / self._rate_off, mid, high * self._rate_off


class _Rest:
    """The rest of the run as one guess of the curves has it, in tokens of a sequence that runs from now to the end.

    `full_until`: until then all slots are busy; `full_share`: how this compares with the work divided by the slots.
    """

    def __init__(
        self,
        curves: Mapping[str, Curve],
        left: Mapping[str, int],
        running: Sequence[Running],
        slots: int,
        full_share: float | None = None,
    ) -> None:
        self._running = [
            (curve, one.tokens, above, curve.made(one.tokens), one.rows)
            for one in running
            if (above := (curve := curves[one.group]).above(one.tokens)) > 0
        ]
        runs = Counter[str]()
        for one in running:
            runs[one.group] += one.rows
        self._queue = [(curves[name], rows - runs[name]) for name, rows in left.items() if rows > runs[name]]
        self._slots = slots
        self.full_until, self.full_share = 0.0, 0.0
        self._pieces: list[tuple[float, float]] = []
        if self._queue:
            self._pieces = _pieces(slots / sum(rows for _, rows in self._queue))
            longest = self.made(math.inf) / slots
            self.full_share = self._solved_share(longest) if full_share is None else full_share
            self.full_until = self.full_share * longest

    def end(self, probability: float, near: float) -> float:
        """So likely the last row has ended by then; `near` is where to look first."""
        wanted = math.log(probability)
        low = high = near
        if self._log_ended(near) < wanted:
            while self._log_ended(high) < wanted:
                low, high = high, high * _STRIDE
        else:
            while low > 1.0 and self._log_ended(low) >= wanted:
                low, high = low / _STRIDE, low
        while high - low > _CLOSE * high:
            middle = (low + high) / 2
            low, high = (middle, high) if self._log_ended(middle) < wanted else (low, middle)
        return high

    def made(self, at: float) -> float:
        """Mean tokens of all rows together by then, which is after the last row has begun."""
        made = sum(
            rows * (curve.made(tokens + at) - before) / above for curve, tokens, above, before, rows in self._running
        )
        for start, share in self._starts():
            made += share * sum(rows * curve.made(at - start) for curve, rows in self._queue)
        return made

    def _log_ended(self, at: float) -> float:
        """The log of the probability that every row has ended by then."""
        total = 0.0
        for curve, tokens, above, _, rows in self._running:
            if (left := curve.above(tokens + at) / above) >= 1:
                return -math.inf
            total += rows * math.log1p(-left)
        for start, share in self._starts():
            for curve, rows in self._queue:
                if start >= at or (left := curve.above(at - start)) >= 1:
                    return -math.inf
                total += share * rows * math.log1p(-left)
        return total

    def _starts(self) -> list[tuple[float, float]]:
        """When the queue's rows begin, as slots become free: moments, and the share of them that begins then."""
        return [(place * self.full_until, share) for place, share in self._pieces]

    def _solved_share(self, longest: float) -> float:
        """All slots are busy until what is made by then is what they make in that time."""
        low, high = 0.0, 1.0
        while high - low > _CLOSE:
            middle = (low + high) / 2
            self.full_until = middle * longest
            is_more = self.made(self.full_until) > self._slots * self.full_until
            low, high = (middle, high) if is_more else (low, middle)
        return high


def _pieces(slots_over_rows: float) -> list[tuple[float, float]]:
    """The queue cut into pieces of (middle, share), as shares of all of it, the smaller the later they begin.

    Rows begin evenly until the queue is empty, and those that begin last decide the end: the last piece is a sixth of
    what fills the slots once. Of pieces of one size the last would begin long before a long queue is empty.
    """
    last = min(1 / _STARTS, slots_over_rows / 6)
    low, high = 1.0, 1 / last
    while high - low > 1e-6 * high:
        growth = (low + high) / 2
        low, high = (growth, high) if last * sum(growth**place for place in range(_STARTS)) < 1 else (low, growth)
    shares = [last * high**place for place in reversed(range(_STARTS))]
    ends = list(itertools.accumulate(shares))
    return [(end - share / 2, share) for end, share in zip(ends, shares, strict=True)]


def _percentile(ordered: Sequence[float], share: float) -> float:
    """Of values that stand for equal parts of what is possible: between the two nearest."""
    place = min(max(share * len(ordered) - 0.5, 0.0), len(ordered) - 1.0)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
