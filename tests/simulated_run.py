"""A run as it would go: rows with lengths from known distributions over slots, one after the other, and what is seen.

All slots advance together, so a session is laid out in tokens of one sequence and then put on a clock: a step takes
longer the more slots are busy (`batch_cost`), and at one moment nothing happens for a while (`Stall`). No engine and no
clock.
"""

from __future__ import annotations

import heapq
import math
import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from regen.observe.eta import Estimator
from regen.observe.length_curve import Curve, edges_to
from regen.observe.lengths import Group, Running
from regen.observe.speed import Beat

AGAIN = "again "


@dataclass(frozen=True, slots=True)
class Source:
    """Lognormal lengths, cut at the cap; `share` of all rows are of it."""

    share: float
    median_tokens: int
    sigma: float
    cap_tokens: int

    def drawn(self, draw: random.Random) -> int:
        length = round(self.median_tokens * math.exp(self.sigma * draw.gauss()))
        return min(self.cap_tokens, max(1, length))

    def curve(self) -> Curve:
        edges = edges_to(self.cap_tokens)
        above = [
            0.5 * math.erfc(math.log(edge / self.median_tokens) / self.sigma / math.sqrt(2)) if edge else 1.0
            for edge in edges
        ]
        return Curve(edges, above)


@dataclass(frozen=True, slots=True)
class Row:
    group: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Stall:
    """So long nothing happens, when this share of the session's working time has passed."""

    at_share: float
    seconds: float


def drawn_rows(sources: Mapping[str, Source], count: int, draw: random.Random) -> list[Row]:
    names = draw.choices(list(sources), [source.share for source in sources.values()], k=count)
    return [Row(name, sources[name].drawn(draw)) for name in names]


class Session:
    """`rows` in order over `slots`, each slot taking the next row when it is free."""

    def __init__(
        self,
        rows: Sequence[Row],
        slots: int,
        step_seconds: float,
        batch_cost: float = 0.0,
        stall: Stall | None = None,
    ) -> None:
        self.rows, self.slots, self.stall = rows, slots, stall
        self.spans: list[tuple[int, int]] = []
        free = [0] * slots
        for row in rows:
            begin = free[0]
            heapq.heapreplace(free, begin + row.tokens)
            self.spans.append((begin, begin + row.tokens))
        self._by_end = sorted(range(len(rows)), key=lambda index: self.spans[index][1])
        self._ends = [self.spans[index][1] for index in self._by_end]
        self._lay_out(step_seconds, batch_cost)

    def _lay_out(self, step_seconds: float, batch_cost: float) -> None:
        """Between two ends of rows the busy slots stay the same, but for those of rows without tokens to make."""
        self._at, self._seconds, self._made = [0.0], [0.0], [0.0]
        self._busy = [min(self.slots, len(self.rows))]
        for place, at in enumerate(self._ends):
            busy = min(self.slots, len(self.rows) - place)
            step = at - self._at[-1]
            self._at.append(float(at))
            self._seconds.append(self._seconds[-1] + step * step_seconds * (1 + batch_cost * busy / self.slots))
            self._made.append(self._made[-1] + step * busy)
            self._busy.append(busy)

    @property
    def seconds(self) -> float:
        """From begin to end, the stall included."""
        return self._seconds[-1] + (self.stall.seconds if self.stall else 0.0)

    def when_ended(self, rows: int) -> float:
        """Seconds until so many rows had ended, without a stall."""
        return self._seconds[rows]

    def seen(self, now: float) -> Seen:
        """What can be seen after so many seconds."""
        working = now
        if self.stall is not None:
            begins = self.stall.at_share * self._seconds[-1]
            working = now if now < begins else max(begins, now - self.stall.seconds)
        place = min(bisect_left(self._seconds, working), len(self._seconds) - 1)
        before = max(0, place - 1)
        width = self._seconds[place] - self._seconds[before]
        part = min(1.0, (working - self._seconds[before]) / width) if width else 0.0
        return Seen(
            self,
            now,
            self._at[before] + part * (self._at[place] - self._at[before]),
            self._made[before] + part * (self._made[place] - self._made[before]),
            self._busy[place],
        )

    def ended(self, at: float) -> list[Row]:
        """Rows that have ended, in the order of their ends."""
        return [self.rows[index] for index in self._by_end[: bisect_right(self._ends, at)]]

    def unfinished(self, at: float) -> Iterator[tuple[Row, float | None]]:
        """In the order of the plan, with the tokens so far; None has not begun."""
        for row, (begin, end) in zip(self.rows, self.spans, strict=True):
            if end > at:
                yield row, at - begin if begin <= at else None


@dataclass(frozen=True, slots=True)
class Seen:
    """One moment: `at` in tokens of one sequence."""

    session: Session
    now: float
    at: float
    made: float
    busy: int

    def beat(self) -> Beat:
        return Beat(self.now, int(self.made), self.busy, self.session.slots)

    def running(self) -> list[Running]:
        return [
            Running(row.group, int(tokens)) for row, tokens in self.session.unfinished(self.at) if tokens is not None
        ]

    def left(self) -> dict[str, int]:
        left: dict[str, int] = {}
        for row, _ in self.session.unfinished(self.at):
            left[row.group] = left.get(row.group, 0) + 1
        return left


class Watch:
    """Tells estimators all that happens in one session, up to any moment."""

    def __init__(self, session: Session, estimators: Sequence[Estimator], every_seconds: float = 20.0) -> None:
        self._session, self._estimators, self._every_seconds = session, estimators, every_seconds
        self._now, self._told = 0.0, 0

    def until(self, now: float) -> Seen:
        while True:
            seen = self._session.seen(self._now)
            self._tell(seen)
            if self._now >= now:
                return seen
            self._now = min(now, self._now + self._every_seconds)

    def _tell(self, seen: Seen) -> None:
        ended = self._session.ended(seen.at)
        for estimator in self._estimators:
            for row in ended[self._told :]:
                estimator.row_finished(row.group, row.tokens)
            estimator.beat(seen.beat())
        self._told = len(ended)


class TrueLengths:
    """`LengthModel` that knows. Of rows that were interrupted, how far each was: those are longer than that."""

    def __init__(self, sources: Mapping[str, Source], interrupted: Sequence[tuple[Row, float]] = ()) -> None:
        self._curves = {name: source.curve() for name, source in sources.items()}
        for name in sources:
            ages = [age for row, age in interrupted if row.group == name]
            if ages:
                self._curves[AGAIN + name] = self._beyond(sources[name], ages)

    def _beyond(self, source: Source, ages: Sequence[float]) -> Curve:
        curve, edges = source.curve(), edges_to(source.cap_tokens)
        last = edges[-1] - 1
        shares = [(age, curve.above(min(age, last))) for age in ages]
        above = [
            sum(curve.above(min(max(edge, age), last)) / share for age, share in shares) / len(ages) for edge in edges
        ]
        return Curve(edges, above)

    def saw(self, group: str, tokens: int, is_earlier: bool, rows: int = 1) -> None:
        pass

    def guesses(self, running: Sequence[Running], count: int) -> Iterator[Mapping[str, Curve]]:
        for _ in range(count + 1):
            yield self._curves


def groups_of(sources: Mapping[str, Source]) -> dict[str, Group]:
    """Each source, and its rows that were interrupted and are made again."""
    whole = {name: Group(source.cap_tokens) for name, source in sources.items()}
    again = {AGAIN + name: Group(source.cap_tokens, interrupted_of=name) for name, source in sources.items()}
    return whole | again


@dataclass(frozen=True, slots=True)
class Resumed:
    """A run that was killed and goes on: what was done before, what was in work then, and the second session."""

    seconds_before: float
    done: Sequence[Row]
    interrupted: Sequence[tuple[Row, float]]
    session: Session


def resumed(first: Session, done_share: float, step_seconds: float, stall: Stall) -> Resumed:
    """Killed when this share of the rows has ended. What was in work begins anew, and first, as the plan has it."""
    seconds = first.when_ended(round(done_share * len(first.rows)))
    at = first.seen(seconds).at
    left = list(first.unfinished(at))
    rows = [Row(AGAIN + row.group, row.tokens) if tokens is not None else row for row, tokens in left]
    interrupted = [(row, tokens) for row, tokens in left if tokens is not None]
    return Resumed(seconds, first.ended(at), interrupted, Session(rows, first.slots, step_seconds, stall=stall))
