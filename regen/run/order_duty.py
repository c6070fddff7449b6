"""Near the end of a run, the order in which its last rows begin: asks the plan, tells the schedule (longest_first.py).

Everything happens on the coordinator's event loop but reading the plan, which has a thread of its own and happens
once. With the store away it is tried again later. Memory: the last rows, at most MOST_ROWS of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from regen.errors import StoreUnavailable
from regen.protocols import Plan
from regen.records import SourceTotals
from regen.run.longest_first import is_due, longest_first
from regen.run.schedule import Schedule

LOOK_SECONDS = 15.0


class OrderDuty:
    """One coordinator's, from claim to end."""

    def __init__(self, plan: Plan, schedule: Schedule) -> None:
        self._plan = plan
        self._schedule = schedule
        self._looked_at = float("-inf")
        self._sources: dict[int, str] | None = None
        self._work: asyncio.Task[dict[int, str]] | None = None

    def tick(self, now: float, slots: int, by_source: Mapping[str, SourceTotals]) -> None:
        """Often. `slots` of all engines that work; `by_source`: what was made so far."""
        self._take_sources()
        rows = self._schedule.not_begun
        if now - self._looked_at < LOOK_SECONDS or self._work is not None or not is_due(rows, slots, by_source):
            return
        self._looked_at = now
        rest = self._schedule.rest()
        if self._sources is None:
            self._work = asyncio.ensure_future(asyncio.to_thread(self._read, rest))
        else:
            self._schedule.line_up(*longest_first(((row, self._sources[row]) for row in rest), by_source))

    async def cancel(self) -> None:
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)

    def _read(self, rest: list[int]) -> dict[int, str]:
        return dict(zip(rest, self._plan.sources_of(rest), strict=True))

    def _take_sources(self) -> None:
        """What is left to begin only becomes less, so what was read once is enough."""
        if self._work is None or not self._work.done():
            return
        work, self._work = self._work, None
        try:
            self._sources = work.result()
        except StoreUnavailable:
            return
        self._looked_at = float("-inf")
