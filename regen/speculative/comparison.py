"""Stretches in, differences between arms out, each with an interval. Pure; small dense algebra, microseconds.

One linear model of the logarithm of the rate: arm + replica + time. Replicas may be of different speed and machines
drift: both are unknowns with a prior, so that a comparison across replicas or across time alone is worth only what the
prior allows (a factor of two shows at once, five per cent does not), while arms that swapped places are compared within
replicas, as exactly as the stretches were measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from regen.speculative.stretch import Measured

# Half an interval, in standard errors. Wide, since it is looked at again and again until something is clear.
Z = 3.0
# Standard deviations, as shares: how replicas differ, how all of them together change from stage to stage, how one
# replica drifts per stage, and how two stretches of one setting differ though each is steady.
_REPLICA, _STAGE, _DRIFT, _AGAIN = 0.1, 0.1, 0.05, 0.002
_FLAT = 1e-6  # precision of what nothing is known about


@dataclass(frozen=True, slots=True)
class Difference:
    """By how much one arm is faster than another, as a share: the best guess and the interval's ends."""

    gain: float
    low: float
    high: float


class Comparison:
    """What a set of stretches says about its arms."""

    def __init__(self, measured: Sequence[Measured]) -> None:
        """At least one stretch."""
        self._measured = measured
        self.arms = tuple(dict.fromkeys(one.arm for one in measured))
        rows, prior = _design(measured, self.arms)
        logs = [math.log(max(one.rate, 1e-9)) for one in measured]
        self._centre = sum(logs) / len(logs)
        weights = [1.0 / (one.noise**2 + _AGAIN**2) for one in measured]
        normal = [[0.0] * len(prior) for _ in prior]
        right = [0.0] * len(prior)
        for row, log, weight in zip(rows, logs, weights, strict=True):
            for i, left in enumerate(row):
                right[i] += weight * left * (log - self._centre)
                for j, other in enumerate(row):
                    normal[i][j] += weight * left * other
        for i, precision in enumerate(prior):
            normal[i][i] += precision
        self._covariance = _inverse(normal)
        self._effects = [sum(a * b for a, b in zip(line, right, strict=True)) for line in self._covariance]
        self._weights = weights

    def difference(self, faster: str, slower: str) -> Difference:
        """How much faster `faster` is than `slower`."""
        i, j = self.arms.index(faster), self.arms.index(slower)
        variance = self._covariance[i][i] + self._covariance[j][j] - 2 * self._covariance[i][j]
        guess, half = self._effects[i] - self._effects[j], Z * math.sqrt(max(0.0, variance))
        return Difference(*(math.expm1(min(value, 50.0)) for value in (guess, guess - half, guess + half)))

    def rate(self, arm: str) -> tuple[float, float, float]:
        """(output tokens per second of one replica, low, high) with what is known of replicas and time taken out.

        The interval is that of the arm's stretches alone; how well replicas and time are known is in `difference`.
        """
        weight = sum(w for w, one in zip(self._weights, self._measured, strict=True) if one.arm == arm)
        rate = math.exp(self._centre + self._effects[self.arms.index(arm)])
        half = Z / math.sqrt(weight)
        return rate, rate * math.exp(-half), rate * math.exp(half)


def _design(measured: Sequence[Measured], arms: Sequence[str]) -> tuple[list[list[float]], list[float]]:
    """(one row of regressors per stretch, precision of each unknown): arms, then replicas, then time."""
    slots = sorted({one.slot for one in measured})
    stages = sorted({one.stage for one in measured})
    rows = [[float(one.arm == arm) for arm in arms] + [float(one.slot == slot) for slot in slots] for one in measured]
    prior = [_FLAT] * len(arms) + [_REPLICA**-2] * len(slots)
    if len(slots) == 1:  # nothing runs beside it: time can only be told by the order
        return [[*row, when] for row, when in zip(rows, _times(measured), strict=True)], [*prior, _DRIFT**-2]
    shared = [[float(one.stage == stage) for stage in stages] for one in measured]
    return [row + extra for row, extra in zip(rows, shared, strict=True)], prior + [_STAGE**-2] * len(stages)


def _times(measured: Sequence[Measured]) -> list[float]:
    """When each stretch was, in stages: its middle on a clock that runs while engines start or are measured."""
    ends = list(accumulate(one.start_seconds + one.seconds for one in measured))
    stage_seconds = ends[-1] / len(ends)
    return [(end - one.seconds / 2 - ends[-1] / 2) / stage_seconds for end, one in zip(ends, measured, strict=True)]


def _inverse(matrix: Sequence[Sequence[float]]) -> list[list[float]]:
    """Of a symmetric positive definite matrix, by elimination."""
    size = len(matrix)
    work = [list(row) + [float(i == j) for j in range(size)] for i, row in enumerate(matrix)]
    for i in range(size):
        pivot = max(range(i, size), key=lambda row: abs(work[row][i]))
        work[i], work[pivot] = work[pivot], work[i]
        scale = work[i][i]
        work[i] = [value / scale for value in work[i]]
        for j in range(size):
            if j != i and (factor := work[j][i]):
                work[j] = [value - factor * above for value, above in zip(work[j], work[i], strict=True)]
    return [row[size:] for row in work]
