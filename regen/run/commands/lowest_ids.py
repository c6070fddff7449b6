"""The rows with the lowest ids of each source: the same rows give the same ones, in whatever order they come. Pure."""

from __future__ import annotations

import heapq


class LowestIds:
    """The `per_source` lowest row ids of each source, out of any number. Pure."""

    def __init__(self, per_source: int) -> None:
        self._per_source = per_source
        self._heaps: dict[str, list[tuple[int, int]]] = {}

    def add(self, source: str, row_id: str, ordinal: int) -> None:
        """`row_id` in hex digits."""
        heap = self._heaps.setdefault(source, [])
        heapq.heappush(heap, (-int(row_id, 16), ordinal))
        if len(heap) > self._per_source:
            heapq.heappop(heap)

    def ordinals(self) -> list[int]:
        """What was taken, in order of the plan."""
        return sorted(ordinal for heap in self._heaps.values() for _, ordinal in heap)
