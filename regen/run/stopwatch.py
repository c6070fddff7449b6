"""How long the stages of a start take, each from the end of the one before.

Seconds are of a clock that never jumps; the time of day of a stage's begin is for laying stages of several processes
beside one another, and as good as their clocks agree.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from regen.records import StartStage

Lap = Callable[[str], None]


class Stopwatch:
    """The stages of one process so far, in order."""

    def __init__(
        self, where: str, now: Callable[[], float] = time.monotonic, time_of_day: Callable[[], float] = time.time
    ) -> None:
        self._where = where
        self._now = now
        self._began, self._began_at = now(), time_of_day()
        self._last = self._began
        self.stages: tuple[StartStage, ...] = ()

    def lap(self, name: str) -> None:
        """The stage `name` ends now, and the next one begins."""
        began, self._last = self._last, self._now()
        begun_at = self._began_at + began - self._began
        self.stages += (StartStage(self._where, name, begun_at, self._last - began),)


def untimed(name: str) -> None:
    """A lap that nobody writes down."""
