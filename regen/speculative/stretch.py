"""What one engine made in one stretch of calibration: windows in, one measurement out. Pure.

Tokens come in bursts, so single windows say little: they are joined into parts of equal length, and how the parts vary
says how well the whole is known (batch means).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean

# A stretch is cut into so many parts while it has its planned length, and needs so many to be judged.
PARTS = 12
LEAST_PARTS = 6
# Longer stretches have longer parts, not ever more: what follows one another closely is alike.
_MOST_PARTS = 24
_MOST_ALIKE = 0.6


@dataclass(frozen=True, slots=True)
class Window:
    """What an engine made between two readings of its counters. `is_full`: all slots were decoding, at both ends."""

    slot: int
    arm: str
    seconds: float
    output_tokens: int
    is_full: bool
    drafts: int
    accepted: int
    prompt_tokens: int
    prefix_hit_tokens: int
    preemptions: int


@dataclass(frozen=True, slots=True)
class Measured:
    """One engine's stretch: full windows only. `rates` are its parts in output tokens per second, in order.

    `start_seconds` is how long the engine took to start, 0 where it was running already.
    """

    slot: int
    arm: str
    stage: int
    seconds: float
    output_tokens: int
    rates: tuple[float, ...]
    drafts: int
    accepted: int
    prompt_tokens: int
    prefix_hit_tokens: int
    preemptions: int
    start_seconds: float

    @property
    def rate(self) -> float:
        """Output tokens per second."""
        return self.output_tokens / self.seconds if self.seconds else 0.0

    @property
    def noise(self) -> float:
        """Standard error of the rate, as a share of it; 1.0 where there are too few parts to tell."""
        return noise(self.rates)


def noise(rates: Sequence[float]) -> float:
    """Standard error of the mean of `rates` as a share of it.

    Widened for how few they are (Student's t), and where neighbours are alike: then they say less than they count.
    """
    while len(rates) >= _MOST_PARTS:
        rates = [fmean(pair) for pair in zip(rates[::2], rates[1::2], strict=False)]
    count = len(rates)
    if count < 4 or not (mean := fmean(rates)):
        return 1.0
    off_mean = [rate - mean for rate in rates]
    squares = math.fsum(value * value for value in off_mean)
    alike = math.fsum(value * following for value, following in pairwise(off_mean)) / squares if squares else 0.0
    alike = min(max(0.0, alike), _MOST_ALIKE)
    return math.sqrt(squares / (count * (count - 3)) * (1 + alike) / (1 - alike)) / mean


@dataclass(slots=True)
class Stretch:
    """A stretch while it is being measured. `part_seconds` is the least length of a part."""

    part_seconds: float
    start_seconds: float = 0.0
    seconds: float = 0.0
    output_tokens: int = 0
    rates: list[float] = field(default_factory=list)
    drafts: int = 0
    accepted: int = 0
    prompt_tokens: int = 0
    prefix_hit_tokens: int = 0
    preemptions: int = 0
    _open_seconds: float = 0.0
    _open_tokens: int = 0

    def add(self, window: Window) -> bool:
        """Whether a part is complete with it."""
        self.seconds += window.seconds
        self.output_tokens += window.output_tokens
        self.drafts += window.drafts
        self.accepted += window.accepted
        self.prompt_tokens += window.prompt_tokens
        self.prefix_hit_tokens += window.prefix_hit_tokens
        self.preemptions += window.preemptions
        self._open_seconds += window.seconds
        self._open_tokens += window.output_tokens
        if self._open_seconds < self.part_seconds:
            return False
        self.rates.append(self._open_tokens / self._open_seconds)
        self._open_seconds, self._open_tokens = 0.0, 0
        return True

    def measured(self, slot: int, arm: str, stage: int) -> Measured:
        """As it stands now."""
        return Measured(
            slot=slot,
            arm=arm,
            stage=stage,
            seconds=self.seconds,
            output_tokens=self.output_tokens,
            rates=tuple(self.rates),
            drafts=self.drafts,
            accepted=self.accepted,
            prompt_tokens=self.prompt_tokens,
            prefix_hit_tokens=self.prefix_hit_tokens,
            preemptions=self.preemptions,
            start_seconds=self.start_seconds,
        )
