"""What a run will take, before it has run: tokens, hours, cost, disk, as ranges. Pure.

Tokens go by rows of the same source that are made already (a pilot's, the run's own), else by an assumption that is
named as one. Hours come from the same estimator that a run has (observe/eta.py), told of a speed with all slots full
and of nothing in work: so the tail, in which slots stand empty and the longest row decides, is in them.

What is in none of it: starting engines, warm-ups, calibration, planning, attempts that fail, and what stalls. Of later
prompts of a conversation the user's own words are not counted as long as no row was made. Cost: under a second.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from statistics import NormalDist, quantiles

from regen.observe.eta import Estimator
from regen.observe.lengths import Group, Lengths
from regen.observe.speed import Beat

# Sigma of assumed lengths, which are lognormal: that of chat data, as a rule. And how far off an assumption is taken to
# be, either way.
ASSUMED_SPREAD, ASSUMED_OFF = 0.9, 1.5
_ASSUMED_ROWS, _ROWS_EACH = 40, 10
_GUESSES = 24
# A tenth of a normal distribution lies beyond so many of its sigmas.
_TENTH = 1.2816
# A row in compressed Parquet: ids and text of each token (an answer's text stands in a row three times), and what a row
# has beside them. Held against three runs of a small model on English questions it is 9, 10 and 46 % too much.
BYTES_PER_PROMPT_TOKEN, BYTES_PER_OUTPUT_TOKEN, BYTES_PER_ROW = 2.5, 4.5, 300.0
# What a file has beside its rows: some ninety columns are described in its footer, and each has a page of its own.
BYTES_PER_FILE = 13_000


class Basis(StrEnum):
    """What a source's lengths go by."""

    MADE = "made"  # rows of it that are committed, a pilot's among them
    OTHERS = "others"  # such rows of the other sources
    ASSUMED = "assumed"  # what the command line said


class SpeedBasis(StrEnum):
    """What the speed goes by."""

    GIVEN = "given"
    CALIBRATED = "calibrated"
    MEASURED = "measured"  # the journal's own sessions, a pilot's among them


@dataclass(frozen=True, slots=True)
class Range:
    """Low and high: in 80 of 100 cases it lies between them, as far as what is known can tell."""

    low: float
    mid: float
    high: float

    def times(self, factor: float) -> Range:
        return Range(self.low * factor, self.mid * factor, self.high * factor)


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """One source: `rows` that the target is to make, `left` of them are not made yet.

    `first_prompt_tokens` is the mean of first prompts, `turns` the mean of answers in a row, `cap_tokens` what no row
    of it exceeds. `made_rows` have `made_prompt_tokens` and `made_output_tokens` together; `lengths` are their (output
    tokens, rows).
    """

    name: str
    rows: int
    left: int
    turns: float
    cap_tokens: int
    first_prompt_tokens: float
    made_rows: int = 0
    made_prompt_tokens: int = 0
    made_output_tokens: int = 0
    lengths: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True, slots=True)
class FullSpeed:
    """Output tokens a second of all replicas together, while all of their slots are at work."""

    tokens_per_second: Range
    basis: SpeedBasis


@dataclass(frozen=True, slots=True)
class Resources:
    """What the spec holds: `slots` and `gpus` of all replicas together. `price_per_gpu_hour` None: nobody said."""

    slots: int
    gpus: float
    price_per_gpu_hour: float | None


@dataclass(frozen=True, slots=True)
class SourceEstimate:
    """Of the rows that are left. None: nothing is known. `prompt_tokens` are those that engines are given."""

    name: str
    rows: int
    left: int
    basis: Basis | None
    output_tokens_per_row: float | None
    output_tokens: float | None
    prompt_tokens: float
    most_output_tokens: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """Of all rows that are left, but `row_bytes`, which is of one finished row. `cost` needs GPUs and a price."""

    sources: tuple[SourceEstimate, ...]
    output_tokens: Range | None
    hours: Range | None
    gpu_hours: Range | None
    cost: Range | None
    row_bytes: float | None

    @property
    def left(self) -> int:
        return sum(source.left for source in self.sources)

    @property
    def prompt_tokens(self) -> float:
        return sum(source.prompt_tokens for source in self.sources)

    @property
    def most_output_tokens(self) -> int:
        """If every answer went to its cap."""
        return sum(source.most_output_tokens for source in self.sources)


def estimate(
    sources: Sequence[SourceFacts],
    speed: FullSpeed | None,
    held: Resources,
    assumed_answer_tokens: float | None = None,
    row_bytes: float | None = None,
) -> Estimate:
    """`assumed_answer_tokens` is for sources of which no row is made; `row_bytes` is measured, None: reckoned."""
    each = tuple(_source(source, sources, assumed_answer_tokens) for source in sources)
    tokens = hours = None
    if all(one.output_tokens is not None for one in each if one.left):
        low, middle, high = (_Look(sources, assumed_answer_tokens, factor) for factor in _factors(each))
        mean, curves = sum(one.output_tokens or 0.0 for one in each), middle.tokens
        # Curves go by bins of lengths and the means' own sum does not: the curves say how far off it may be.
        exact = mean / curves.mid if curves.mid else 1.0
        tokens = Range(low.tokens.low, curves.mid, high.tokens.high).times(exact)
        if speed is not None:
            hours = _hours((low, middle, high), speed.tokens_per_second, held.slots, exact)
    gpu_hours = hours.times(held.gpus) if hours is not None and held.gpus else None
    price = held.price_per_gpu_hour
    cost = gpu_hours.times(price) if gpu_hours is not None and price is not None else None
    return Estimate(each, tokens, hours, gpu_hours, cost, _row_bytes(each) if row_bytes is None else row_bytes)


def _source(source: SourceFacts, every: Sequence[SourceFacts], assumed: float | None) -> SourceEstimate:
    basis, mean = _mean(source, every, assumed)
    if source.made_rows:
        prompt = source.made_prompt_tokens / source.made_rows
    else:  # each prompt holds the answers before it
        prompt = source.turns * source.first_prompt_tokens + (mean or 0.0) * (source.turns - 1) / 2
    return SourceEstimate(
        name=source.name,
        rows=source.rows,
        left=source.left,
        basis=basis,
        output_tokens_per_row=mean,
        output_tokens=None if mean is None else mean * source.left,
        prompt_tokens=prompt * source.left,
        most_output_tokens=source.cap_tokens * source.left,
    )


def _mean(
    source: SourceFacts, every: Sequence[SourceFacts], assumed: float | None
) -> tuple[Basis | None, float | None]:
    """Output tokens of a row, and what says so."""
    if source.made_rows:
        return Basis.MADE, source.made_output_tokens / source.made_rows
    if assumed is not None:
        lengths = _assumed_lengths(assumed * source.turns, source.cap_tokens)
        return Basis.ASSUMED, sum(tokens * rows for tokens, rows in lengths) / sum(rows for _, rows in lengths)
    turns = sum(other.made_rows * other.turns for other in every)
    if not turns:
        return None, None
    per_turn = sum(other.made_output_tokens for other in every) / turns
    return Basis.OTHERS, min(per_turn * source.turns, source.cap_tokens)


def _factors(each: Sequence[SourceEstimate]) -> tuple[float, float, float]:
    """How far assumed lengths may be off: low, middle, high."""
    is_assumed = any(one.basis is Basis.ASSUMED for one in each if one.left)
    return (1 / ASSUMED_OFF, 1.0, ASSUMED_OFF) if is_assumed else (1.0, 1.0, 1.0)


def _assumed_lengths(mean: float, cap: int) -> list[tuple[int, int]]:
    """(tokens, rows) of a lognormal with this mean, cut at the cap: its rows at even shares."""
    places = [(place + 0.5) / _ASSUMED_ROWS for place in range(_ASSUMED_ROWS)]
    drawn = [math.exp(ASSUMED_SPREAD * NormalDist().inv_cdf(place)) for place in places]
    unit = mean * _ASSUMED_ROWS / sum(drawn)
    return [(min(max(1, round(unit * one)), cap), _ROWS_EACH) for one in drawn]


class _Look:
    """The rest of the run with assumed lengths that are off by a factor."""

    def __init__(self, sources: Sequence[SourceFacts], assumed: float | None, factor: float) -> None:
        self._groups = {source.name: Group(source.cap_tokens, max(1.0, source.turns)) for source in sources}
        self._left = {source.name: source.left for source in sources if source.left}
        self._seen = [
            (source.name, tokens, rows)
            for source in sources
            for tokens, rows in self._lengths_of(source, assumed, factor)
            if rows
        ]

    @staticmethod
    def _lengths_of(source: SourceFacts, assumed: float | None, factor: float) -> Sequence[tuple[int, int]]:
        if source.made_rows or assumed is None:
            return source.lengths
        return _assumed_lengths(assumed * factor * source.turns, source.cap_tokens)

    @cached_property
    def tokens(self) -> Range:
        """Of all rows that are left, as the curves of their lengths have it."""
        lengths = Lengths(self._groups)
        for name, tokens, rows in self._seen:
            lengths.saw(name, tokens, is_earlier=True, rows=rows)
        middle, *others = [
            sum(rows * curves[name].made(math.inf) for name, rows in self._left.items())
            for curves in lengths.guesses((), _GUESSES)
        ]
        tenths, luck = quantiles(others, n=10), self._luck()
        low, high = (math.hypot(max(0.0, end), luck) for end in (middle - tenths[0], tenths[-1] - middle))
        return Range(max(0.0, middle - low), middle, middle + high)

    def _luck(self) -> float:
        """How far off the sum over the rows that are left may be if their lengths are known but for the draw."""
        seen: dict[str, list[tuple[int, int]]] = {}
        for name, tokens, rows in self._seen:
            seen.setdefault(name, []).append((tokens, rows))
        return _TENTH * math.sqrt(sum(self._left.get(name, 0) * _variance(lengths) for name, lengths in seen.items()))

    def seconds(self, tokens_per_second: float, slots: int) -> Range | None:
        """None: too few rows are known."""
        estimator = Estimator(self._groups, stalled_after_seconds=math.inf, rate_off=1.0)
        beats = _steady(tokens_per_second, slots)
        for name, tokens, rows in self._seen:
            estimator.row_finished_before(name, tokens, rows)
        for beat in beats:
            estimator.beat(beat)
        end = estimator.estimate(beats[-1].now, self._left, ())
        if end.low_seconds is None or end.mid_seconds is None or end.high_seconds is None:
            return None
        return Range(end.low_seconds, end.mid_seconds, end.high_seconds)


def _variance(lengths: Sequence[tuple[int, int]]) -> float:
    """Of (tokens, rows)."""
    count = sum(rows for _, rows in lengths)
    mean = sum(tokens * rows for tokens, rows in lengths) / count
    return sum(rows * (tokens - mean) ** 2 for tokens, rows in lengths) / count


def _steady(tokens_per_second: float, slots: int) -> list[Beat]:
    """Beats of engines that were always full: long enough for the estimator, with so many tokens that none is split."""
    step = max(60.0, 1e4 / tokens_per_second)
    return [Beat(number * step, round(number * step * tokens_per_second), slots, slots) for number in range(5)]


def _hours(looks: Sequence[_Look], rate: Range, slots: int, exact: float) -> Range | None:
    """Lengths and speed are off by themselves: the ends are those of both."""
    speeds = (rate.high, rate.mid, rate.low)
    low, middle, high = (look.seconds(speed, slots) for look, speed in zip(looks, speeds, strict=True))
    if low is None or middle is None or high is None:
        return None
    return Range(low.low, middle.mid, high.high).times(exact / 3600)


def _row_bytes(each: Sequence[SourceEstimate]) -> float | None:
    rows = sum(one.left for one in each)
    if not rows or any(one.output_tokens is None for one in each if one.left):
        return None
    prompt, output = sum(one.prompt_tokens for one in each), sum(one.output_tokens or 0.0 for one in each)
    return BYTES_PER_ROW + (BYTES_PER_PROMPT_TOKEN * prompt + BYTES_PER_OUTPUT_TOKEN * output) / rows
