"""How fast, and how much longer: pure arithmetic over samples of one session.

The rate is of this session only and of the last minutes: rows done by earlier sessions are in no rate. The estimate is
rough, and says so: it takes the mean length of finished rows for all rows, too short while long rows still run.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

WINDOW_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Sample:
    """What was known at `now`: seconds on one clock; tokens and rows counted since the session began."""

    now: float
    output_tokens: int
    rows: int


@dataclass(frozen=True, slots=True)
class Progress:
    """`tokens_per_second` and `rough_seconds_left` are None as long as nothing can be said."""

    tokens_per_second: float | None
    rough_seconds_left: float | None


class Pace:
    """A window over the latest samples."""

    def __init__(self, window_seconds: float = WINDOW_SECONDS) -> None:
        self._window_seconds = window_seconds
        self._samples: deque[Sample] = deque()

    def add(self, sample: Sample) -> None:
        """Samples come in the order of time; a falling count (an engine was replaced) starts the window anew."""
        if self._samples and sample.output_tokens < self._samples[-1].output_tokens:
            self._samples.clear()
        self._samples.append(sample)
        while len(self._samples) > 2 and sample.now - self._samples[0].now > self._window_seconds:
            self._samples.popleft()

    def progress(self, rows_left: int) -> Progress:
        """The rate over the window, and the time for `rows_left` at that rate."""
        first, last = (self._samples[0], self._samples[-1]) if self._samples else (None, None)
        if first is None or last is None or last.now <= first.now:
            return Progress(None, None)
        rate = (last.output_tokens - first.output_tokens) / (last.now - first.now)
        if rate <= 0 or not last.rows:
            return Progress(rate, None)
        return Progress(rate, rows_left * (last.output_tokens / last.rows) / rate)
