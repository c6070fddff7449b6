"""The order of a plan over several sources, so that any prefix is a usable mixture. Pure.

The k-th of N rows of a source (k from 0) stands at (k + 0.5) / N of the way; ties go by the order of the sources.
Floats are exact enough: equal fractions round to the same float, and different ones differ by 1 / (2 N M) or more.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence


def interleaved(counts: Sequence[int]) -> Iterator[int]:
    """Which source the next row is taken from, `sum(counts)` times. Memory: one entry a source."""
    heads = [(0.5 / count, source, 0) for source, count in enumerate(counts) if count]
    heapq.heapify(heads)
    while heads:
        _, source, row = heads[0]
        yield source
        following = row + 1
        if following < counts[source]:
            heapq.heapreplace(heads, ((following + 0.5) / counts[source], source, following))
        else:
            heapq.heappop(heads)
