"""A curve of lengths: which share of rows is longer than so many tokens. Pure; no framework.

A table over bins a quarter of an octave wide, straight in between; looking something up costs less than a microsecond.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence

# The first bin is from 0 to here.
_FIRST_EDGE = 8.0
_PER_OCTAVE = 4


class Curve:
    """The share of rows longer than so many tokens, and the tokens that a row makes in its first so many."""

    __slots__ = ("_above", "_area", "_cap", "_edges", "_last")

    def __init__(self, edges: Sequence[float], above: Sequence[float]) -> None:
        """`edges` from `edges_to`; `above[i]` is the share longer than `edges[i]`, the last one that at the cap."""
        self._edges, self._above = edges, above
        self._cap, self._last = edges[-1], len(edges) - 2
        self._area = [0.0]
        for place in range(len(edges) - 1):
            width = edges[place + 1] - edges[place]
            self._area.append(self._area[-1] + width * (above[place] + above[place + 1]) / 2)

    def above(self, tokens: float) -> float:
        """The share of rows longer than this; 0 from the cap on."""
        if tokens >= self._cap:
            return 0.0
        place = self._place(tokens)
        start = self._edges[place]
        high = self._above[place]
        return high - (high - self._above[place + 1]) * (tokens - start) / (self._edges[place + 1] - start)

    def made(self, tokens: float) -> float:
        """Mean tokens of a row that is stopped after this many."""
        if tokens >= self._cap:
            return self._area[-1]
        place = self._place(tokens)
        past = tokens - self._edges[place]
        return self._area[place] + past * (self._above[place] + self.above(tokens)) / 2

    def table(self) -> Iterator[tuple[float, float, float]]:
        """(edge, share above it, mean tokens made up to it). At the cap the share is that of rows that reach it."""
        return zip(self._edges, self._above, self._area, strict=True)

    def stopped_after(self, made: float) -> float:
        """The inverse of `made`: where rows are stopped that make so many tokens on average."""
        place = min(self._last, bisect_right(self._area, made) - 1)
        width, more = self._edges[place + 1] - self._edges[place], self._area[place + 1] - self._area[place]
        return self._edges[place] + (width * (made - self._area[place]) / more if more else 0.0)

    def _place(self, tokens: float) -> int:
        return min(self._last, bin_of(tokens))


def edges_to(cap_tokens: int) -> list[float]:
    """Where bins begin and end: 0, then quarter octaves, the last one cut at the cap."""
    edges = [0.0, _FIRST_EDGE]
    while edges[-1] < cap_tokens:
        edges.append(_FIRST_EDGE * 2 ** ((len(edges) - 1) / _PER_OCTAVE))
    edges[-1] = float(cap_tokens)
    return edges


def bin_of(tokens: float) -> int:
    """Which bin so many tokens are in, whatever the cap."""
    return 0 if tokens < _FIRST_EDGE else 1 + int(_PER_OCTAVE * math.log2(tokens / _FIRST_EDGE))
