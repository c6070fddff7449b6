"""How often one slot's engine may be replaced yet: a budget that deaths use up and good work restores. Pure.

- `engine.restarts` deaths, as the spec has it, and none at all when it is 0.
- A death that told suspects apart (suspects.py) uses up none of them, for `FREE_DEATHS` such in a row: one killer
  among 320 rows (256 slots and what waits for them) takes 11 engines, so that two at once fit, with two to spare.
- One that was nobody's fault (a node went) uses up none, whatever the number is. What bounds those is time: the slot's
  next engine is started after a pause that doubles, up to `LONGEST_PAUSE_SECONDS`, until one proves itself.
- A server that somebody else runs and that goes away is no engine of ours that dies: any row that was finished with it
  restores the budget. What is bounded is how often it comes back and does nothing.
- An engine that finished `PROVEN_FILLS` times as many rows as it has slots has proven itself: its death counts as a
  slot's first. So five deaths over 55 hours of work lose no replica, and between two proofs deaths are bounded.
"""

from __future__ import annotations

from regen.records import Toll

FREE_DEATHS = 24
PROVEN_FILLS = 4
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 64.0


class Restarts:
    """Of one slot in one session."""

    def __init__(self, allowed: int) -> None:
        self._allowed = allowed
        self.left = allowed
        self._free_left = FREE_DEATHS
        self._pause_seconds = FIRST_PAUSE_SECONDS

    def was_taken(self, toll: Toll) -> float:
        """An engine is gone through nobody's fault: how many seconds to wait before the next one is started."""
        if toll.is_proven:
            self._pause_seconds = FIRST_PAUSE_SECONDS
        pause, self._pause_seconds = self._pause_seconds, min(2 * self._pause_seconds, LONGEST_PAUSE_SECONDS)
        return pause

    def died(self, toll: Toll, is_outage: bool = False) -> bool:
        """Whether another engine may be started after this death, or after this outage of a server."""
        if toll.is_proven or (is_outage and toll.has_worked):
            self.left, self._free_left = self._allowed, FREE_DEATHS
        if toll.narrows and self._free_left and self._allowed:
            self._free_left -= 1
            return True
        if not self.left:
            return False
        self.left -= 1
        return True
