"""Near the end of a run, the order in which its last rows begin: asks the plan, tells the schedule (longest_first.py).

Reading the plan, which happens once and takes some 20 microseconds a row, and ordering have a thread of their own. With
the store away it is tried again later. Memory: source and turns of the last rows, at most MOST_ROWS of them.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping

from regen.errors import StoreUnavailable
from regen.protocols import Plan
from regen.records import SourceTotals
from regen.run.longest_first import is_due, longest_first
from regen.run.schedule import Schedule

LOOK_SECONDS = 15.0
_ROWS_AT_ONCE = 500


class OrderDuty:
    """One coordinator's, from claim to end."""

    def __init__(self, plan: Plan, schedule: Schedule) -> None:
        self._plan = plan
        self._schedule = schedule
        self._looked_at = float("-inf")
        self._known: dict[int, tuple[str, int]] | None = None  # source and turns
        self._work: asyncio.Task[tuple[list[int], float]] | None = None
        self._is_off = False

    def tick(self, now: float, slots: int, by_source: Mapping[str, SourceTotals]) -> None:
        """Often. `slots` of all engines that work; `by_source`: what was made so far."""
        self._take_order()
        rows = self._schedule.not_begun
        is_early = now - self._looked_at < LOOK_SECONDS
        if self._is_off or is_early or self._work is not None or not is_due(rows, slots, by_source):
            return
        self._looked_at = now
        ordering = asyncio.to_thread(self._ordered, self._schedule.rest(), dict(by_source), slots)
        self._work = asyncio.ensure_future(ordering)

    async def cancel(self) -> None:
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)

    def _ordered(self, rest: list[int], by_source: Mapping[str, SourceTotals], slots: int) -> tuple[list[int], float]:
        """What is left to begin only becomes less, so what was read once is enough."""
        if self._known is None:
            self._known = self._read(rest)
        known = self._known
        return longest_first(((row, *known[row]) for row in rest), by_source, slots)

    def _read(self, rest: list[int]) -> dict[int, tuple[str, int]]:
        """A few rows at a time: only two small things are kept of each."""
        return {
            row.ordinal: (row.source, 1 if row.conversation is None else row.conversation.turns)
            for begin in range(0, len(rest), _ROWS_AT_ONCE)
            for row in self._plan.rows(rest[begin : begin + _ROWS_AT_ONCE])
        }

    def _take_order(self) -> None:
        """Rows that have begun meanwhile are no matter: the schedule passes over them."""
        if self._work is None or not self._work.done():
            return
        work, self._work = self._work, None
        try:
            self._schedule.line_up(*work.result())
        except StoreUnavailable:
            return
        except Exception as error:  # a defect here must not end a run that does without
            self._is_off = True
            print(f"regen: the last rows begin in the plan's order: {type(error).__name__}: {error}", file=sys.stderr)
