"""A Weibull length (an exponential one among them) learned from ends and from what has not ended yet. Pure.

The other shape beside the lognormal: its tail is light, and how many rows are how long tells the two apart. The fit is
the most likely one, by bisection over its shape. Costs some microseconds for each kind of length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

_FLATTEST, _STEEPEST = 0.2, 20.0
_STEPS = 24


def fitted(ended: Sequence[tuple[float, float]], at_least: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """(shape, scale in tokens) from (ln(tokens), rows) of rows that have ended, not none, and of those still longer."""
    every = [*ended, *at_least]
    rows = sum(count for _, count in ended)
    mean = sum(log * count for log, count in ended) / rows
    longest = max(log for log, _ in every)

    def is_too_steep(shape: float) -> bool:
        """The slope of the likelihood in the shape, the scale being the likeliest for it."""
        weights = [(log, count * math.exp(shape * (log - longest))) for log, count in every]
        total = sum(weight for _, weight in weights)
        return 1 / shape + mean < sum(log * weight for log, weight in weights) / total

    low, high = _FLATTEST, _STEEPEST
    for _ in range(_STEPS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if is_too_steep(middle) else (middle, high)
    powers = sum(count * math.exp(low * (log - longest)) for log, count in every)
    return low, math.exp(longest + math.log(powers / rows) / low)


def share_above(shape: float, scale: float, tokens: float) -> float:
    """The share of rows that are longer."""
    return math.exp(-((tokens / scale) ** shape))
