"""Tokens per second over the last minutes of one session, stalls included. Pure; no clock."""

from __future__ import annotations

from collections import deque

WINDOW_SECONDS = 120.0
_SAMPLES_EVERY_SECONDS = 1.0


class RecentRate:
    """Give it the count of tokens now and then. Memory: a sample a second of the window."""

    def __init__(self, window_seconds: float = WINDOW_SECONDS) -> None:
        self._window_seconds = window_seconds
        self._samples: deque[tuple[float, int]] = deque()

    def add(self, now: float, tokens: int) -> None:
        """In the order of time, seconds on one clock; a count that falls starts the window anew."""
        if self._samples and tokens < self._samples[-1][1]:
            self._samples.clear()
        if len(self._samples) > 1 and now - self._samples[-2][0] < _SAMPLES_EVERY_SECONDS:
            self._samples.pop()
        self._samples.append((now, tokens))
        while len(self._samples) > 2 and now - self._samples[1][0] >= self._window_seconds:
            self._samples.popleft()

    @property
    def per_second(self) -> float | None:
        """None as long as there were no tokens at all, or no time."""
        if not self._samples or not self._samples[-1][1]:
            return None
        (began, before), (now, tokens) = self._samples[0], self._samples[-1]
        return (tokens - before) / (now - began) if now > began else None
