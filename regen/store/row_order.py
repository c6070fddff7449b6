"""Tables of finished rows by their ordinals: put in order, and cut. Pure.

Rows are large (tens of kilobytes), so each is copied once at most, into memory of the right size: slices of the given
chunks are put beside one another and combined. Arrow's `take` and `sort_by` need one chunk, which is a copy more, and
grow what they build step by step: five times the time in memory that was not touched yet.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import pyarrow as pa

from regen.store.parquet import integers

# A column of more than 2 GiB cannot be one chunk.
_MOST_COMBINED_BYTES = 2**30

Run = tuple[int, int]  # positions, from and to: the second is not included
Range = tuple[int, int]  # ordinals, both included


def in_order(table: pa.Table) -> pa.Table:
    """All rows by ascending ordinal. In one chunk, unless that is over a GiB."""
    ordinals = integers(table, "ordinal")
    if any(one > other for one, other in pairwise(ordinals)):
        positions = sorted(range(len(ordinals)), key=ordinals.__getitem__)
        table = _rows_at(table, runs_of(positions))
    return table.combine_chunks() if table.nbytes < _MOST_COMBINED_BYTES else table


class OrderedRows:
    """A table sorted by ordinal, to be cut again and again; its ordinals are read once."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self.ordinals = integers(table, "ordinal")

        self.mean_row_bytes = table.nbytes // max(1, len(table))

    def ordinals_within(self, limits: Range | None) -> Sequence[int]:
        """Those from the first to the last of `limits`, both included; all if there are none."""
        return self.ordinals if limits is None else self.ordinals[self._slice(*limits)]

    def between(self, first: int, last: int) -> pa.Table:
        """The rows from `first` to `last`, both included, not copied."""
        found = self._slice(first, last)
        return self._table.slice(found.start, found.stop - found.start)

    def of(self, ordinals: Sequence[int]) -> OrderedRows:
        """These rows, ascending, all of which are there. A few of them are copied out, so that the others can go."""
        if len(ordinals) == len(self.ordinals):
            return self
        position = {ordinal: row for row, ordinal in enumerate(self.ordinals)}
        chosen = _rows_at(self._table, runs_of(position[ordinal] for ordinal in ordinals))
        return OrderedRows(chosen.combine_chunks() if 2 * len(ordinals) < len(self.ordinals) else chosen)

    def _slice(self, first: int, last: int) -> slice:
        return slice(bisect_left(self.ordinals, first), bisect_right(self.ordinals, last))


def runs_of(positions: Iterable[int]) -> Iterator[Run]:
    """Positions that follow one another, taken together."""
    start = stop = -1
    for position in positions:
        if position != stop:
            if stop > start:
                yield start, stop
            start = position
        stop = position + 1
    if stop > start:
        yield start, stop


def _rows_at(table: pa.Table, runs: Iterable[Run]) -> pa.Table:
    """Slices of the table's chunks, in this order; nothing is copied."""
    batches = table.to_batches()
    starts = [0]
    for batch in batches:
        starts.append(starts[-1] + batch.num_rows)
    pieces = []
    for start, stop in runs:
        while start < stop:
            chunk = bisect_right(starts, start) - 1
            end = min(stop, starts[chunk + 1])
            pieces.append(batches[chunk].slice(start - starts[chunk], end - start))
            start = end
    return pa.Table.from_batches(pieces, table.schema)
