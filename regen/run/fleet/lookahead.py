"""How many rows a replica holds beyond those that its engine decodes. Pure.

A row that ends is replaced by one that the engine has already, so no slot waits for an exchange. A quarter of the slots
is enough where rows end one by one. Where many end in one step (equal caps, short answers), as many are kept ready as
have ended at once lately: with a quarter, each such wave had a step at half of 32 slots, and the prefill of the next
rows took two steps instead of one, in all 1 to 2 % of the time at a cap of 128 tokens.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise

from regen.run.fleet.fleet import rows_held_at_most

# What ended in so many seconds ended at once: the rows of one step come out of the text threads one after another.
_AT_ONCE_SECONDS = 0.5
# Waves are remembered for so long, counted in stretches in which anything ended: a minute or more.
_REMEMBERED_STRETCHES = 120


class Lookahead:
    """Tell it of each row that ends."""

    def __init__(self) -> None:
        self._ended: deque[tuple[int, int]] = deque([(-1, 0)], maxlen=_REMEMBERED_STRETCHES)

    def ended(self, now: float) -> None:
        stretch = int(now / _AT_ONCE_SECONDS)
        last, count = self._ended[-1]
        if stretch == last:
            self._ended[-1] = (stretch, count + 1)
        else:
            self._ended.append((stretch, 1))

    def rows(self, slots: int) -> int:
        """At least a quarter of the slots, at most as many again."""
        usual = rows_held_at_most(slots) - slots
        return min(slots, max(usual, self._largest_wave()))

    def _largest_wave(self) -> int:
        """It may lie across the border of two stretches."""
        alone = max(count for _, count in self._ended)
        both = (first + second for (at, first), (then, second) in pairwise(self._ended) if then == at + 1)
        return max(alone, max(both, default=0))
