"""Which rows a pilot makes: a sample of the plan, stratified by source, the same whenever it is drawn. Pure.

Half of the rows are spread evenly over the sources, so that each can be judged; the other half goes by their size.
Within a source the rows with the lowest ids are taken: ids are hashes, so they are no order of the data. Rows that the
plan settles are not given to this, and rows that are done stay in the sample: a pilot done again makes none twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from regen.run.commands.lowest_ids import LowestIds


def draw(rows: Callable[[], Iterable[tuple[int, str, str]]], wanted: int) -> tuple[int, ...]:
    """The ordinals, in order of the plan; all rows if there are not more than `wanted`.

    `rows` gives (ordinal, row id in hex digits, source) of every row, and is called twice.
    """
    shares = allotted(Counter(source for _, _, source in rows()), wanted)
    lowest = {source: LowestIds(share) for source, share in shares.items() if share}
    for ordinal, row_id, source in rows():
        if source in lowest:
            lowest[source].add(source, row_id, ordinal)
    return tuple(sorted(ordinal for taken in lowest.values() for ordinal in taken.ordinals()))


def allotted(sizes: Mapping[str, int], wanted: int) -> dict[str, int]:
    """How many rows of each source; they add up to `wanted`, or to all there are."""
    given = dict.fromkeys(sizes, 0)
    _deal_evenly(given, sizes, (wanted + 1) // 2)
    left = min(wanted, sum(sizes.values())) - sum(given.values())
    room = {source: size - given[source] for source, size in sizes.items()}
    for source, share in _by_size(room, left):
        given[source] += share
    return given


def _deal_evenly(given: dict[str, int], sizes: Mapping[str, int], rows: int) -> None:
    """One row at a time in turn, the largest source first, to every source that has one left."""
    turns = sorted(sizes, key=lambda source: (-sizes[source], source))
    while rows and any(given[source] < sizes[source] for source in turns):
        for source in turns:
            if rows and given[source] < sizes[source]:
                given[source] += 1
                rows -= 1


def _by_size(room: Mapping[str, int], rows: int) -> Iterator[tuple[str, int]]:
    """In proportion, by largest remainders; `rows` is not more than there is room for."""
    whole = max(1, sum(room.values()))
    rest = rows - sum(rows * size // whole for size in room.values())
    by_remainder = sorted(room, key=lambda source: (-(rows * room[source] % whole), source))
    for place, source in enumerate(by_remainder):
        yield source, rows * room[source] // whole + (place < rest)
