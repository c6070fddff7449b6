"""What a run will take, judged by a sample of its rows: tokens, hours, cost. Pure.

Tokens are each source's mean times its rows. Hours are a range: between an engine that always fills its slots with
sequences as fast as the sample's, and one that goes on as the sample did, whose slots were not full to the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance

# Two-sided 95 % of a normal distribution.
_Z = 1.96


@dataclass(frozen=True, slots=True)
class Stratum:
    """One source: rows that the target is to make, and the output tokens of each row of the sample."""

    rows: int
    tokens: Sequence[int]


@dataclass(frozen=True, slots=True)
class Pace:
    """How the sample was made: `tokens` in `seconds` of the clock, over `busy_seconds` of all sequences together."""

    tokens: int
    seconds: float
    busy_seconds: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """For all rows that the target is to make. None: nothing can be said.

    `tokens_give_or_take` is half of a 95 % interval. `gpu_hours` and `cost` belong to `hours`, the shorter first; they
    are None where the spec reserves no GPU, `cost` also without a price.
    """

    rows: int
    tokens: float | None
    tokens_give_or_take: float | None
    hours: tuple[float, float] | None
    gpu_hours: tuple[float, float] | None
    cost: tuple[float, float] | None


def estimate(
    strata: Sequence[Stratum], pace: Pace | None, slots: int, gpus: float, gpu_hour_price: float | None
) -> Estimate:
    """`slots` and `gpus` are those of all replicas together; sources without rows in the sample go by all others."""
    rows = sum(stratum.rows for stratum in strata)
    tokens = _tokens(strata)
    hours = None if tokens is None or pace is None else _hours(tokens, pace, slots)
    gpu_hours = (hours[0] * gpus, hours[1] * gpus) if hours and gpus else None
    cost = None
    if gpu_hours is not None and gpu_hour_price is not None:
        cost = (gpu_hours[0] * gpu_hour_price, gpu_hours[1] * gpu_hour_price)
    return Estimate(rows, tokens, _give_or_take(strata), hours, gpu_hours, cost)


def _tokens(strata: Sequence[Stratum]) -> float | None:
    seen = [stratum for stratum in strata if stratum.tokens]
    if not seen:
        return None
    known = sum(stratum.rows * fmean(stratum.tokens) for stratum in seen)
    unseen = sum(stratum.rows for stratum in strata if not stratum.tokens)
    return known + unseen * known / sum(stratum.rows for stratum in seen)


def _give_or_take(strata: Sequence[Stratum]) -> float | None:
    """The stratified standard error; None where one source has too few rows to say how they differ."""
    if any(stratum.rows and len(stratum.tokens) < min(2, stratum.rows) for stratum in strata):
        return None
    squares = [
        (1 - len(stratum.tokens) / stratum.rows) * stratum.rows**2 * variance(stratum.tokens) / len(stratum.tokens)
        for stratum in strata
        if stratum.rows > 1
    ]
    return _Z * math.sqrt(sum(squares))


def _hours(tokens: float, pace: Pace, slots: int) -> tuple[float, float] | None:
    """(with all slots full, as the sample went): the first is never the longer one."""
    if not pace.tokens or pace.seconds <= 0 or pace.busy_seconds <= 0:
        return None
    as_it_went = pace.tokens / pace.seconds
    filled = max(as_it_went, slots * pace.tokens / pace.busy_seconds)
    return tokens / filled / 3600, tokens / as_it_went / 3600
