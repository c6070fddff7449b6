"""What a session has before it, by groups of rows that are alike in length. Pure.

A group is a source; rows that an earlier session had in work and did not end stand apart (they are long ones), and so
do rows that were opened again (they were chosen for something, and may have another cap). How long rows were in earlier
sessions is read from the totals.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from regen import length_buckets
from regen.data.plan_summary import SourceSummary
from regen.observe.lengths import Group
from regen.ordinals import OrdinalSet
from regen.records import Status, Totals
from regen.spec import RunSpec

# No source's name ends so: names are printable.
_AGAIN, _RETRIED = "\x00again", "\x00retried"
# So many rows at least were made of those around the last one that was begun: else it is a pilot's, or the plan's.
_FRONT_SHARE = 0.25
_FRONTS_TRIED = 64
# Of a plan that does not say how many turns its rows have at most.
_TURNS_OVER_MEAN = 4


@dataclass(frozen=True, slots=True)
class Grouping:
    """Which group a row is in. `interrupted`: in work when an earlier session ended; `retried`: opened again."""

    interrupted: frozenset[int] = frozenset()
    retried: OrdinalSet | None = None

    def group_of(self, ordinal: int, source: str) -> str:
        if ordinal in self.interrupted:
            return source + _AGAIN
        return source + _RETRIED if self.retried is not None and ordinal in self.retried else source

    def groups(self, sources: Iterable[SourceSummary], spec: RunSpec, retry_max_tokens: int | None) -> dict[str, Group]:
        """By name. `retry_max_tokens`: the cap of an answer that rows were opened again with, if another."""
        found: dict[str, Group] = {}
        for source in sources:
            turns, most = _turns(source)
            cap = most * _cap_per_turn(source.name, spec)
            found[source.name] = Group(cap, turns)
            if self.interrupted:
                found[source.name + _AGAIN] = Group(cap, turns, interrupted_of=source.name)
            if self.retried:
                retry_cap = max(cap, most * min(retry_max_tokens or 0, spec.engine.max_model_len))
                found[source.name + _RETRIED] = Group(retry_cap, turns)
        return found


class Remaining:
    """Rows of each group that this session has not ended yet."""

    def __init__(self, left: Mapping[str, int]) -> None:
        self._left = Counter(left)

    def move(self, rows: Iterable[tuple[str, str]]) -> None:
        """(group they were counted in, group they are in), for single rows."""
        for before, group in rows:
            self._left[before] -= 1
            self._left[group] += 1

    def add(self, groups: Iterable[str]) -> None:
        """Single rows more."""
        self._left.update(groups)

    def ended(self, rows: Mapping[str, int]) -> None:
        """So many of each group."""
        self._left.subtract(rows)

    def by_group(self, total: int) -> dict[str, int]:
        """As many as `total` says: what came back, or ended unseen, is spread over the groups as they are left."""
        left = {group: rows for group, rows in self._left.items() if rows > 0}
        counted = sum(left.values())
        if not left or not total:
            return {next(iter(self._left), ""): total} if total else {}
        made, given = {}, 0
        reached = 0
        for group, rows in left.items():
            reached += rows
            made[group] = round(total * reached / counted) - given
            given += made[group]
        return made


def left_by_source(sources: Iterable[SourceSummary], totals: Totals) -> dict[str, int]:
    """Rows of the plan that have no outcome yet."""
    done = Counter[str]()
    for (source, _), rows in totals.outcomes.items():
        done[source] += rows
    return {source.name: source.rows - done[source.name] for source in sources}


def interrupted(made: OrdinalSet, done: OrdinalSet, most: int) -> frozenset[int]:
    """Rows that an earlier session had begun and not ended: those below the last one that it has made.

    Rows are begun in the plan's order, so those are few: `most` at most. `made` are the rows of the journal, `done`
    those that are settled by the plan too. Rows that a pilot has made here and there say nothing. Costs milliseconds.
    """
    undone: list[int] = []
    at = done.first_absent(0)
    while at < done.size and len(undone) <= most:
        undone.append(at)
        at = done.first_absent(at + 1)
    end = done.size if len(undone) <= most else undone[-1]
    fronts = (ordinal for ordinal in range(end - 1, undone[0] if undone else end, -1) if ordinal in made)
    for front, _ in zip(fronts, range(_FRONTS_TRIED), strict=False):
        below = [ordinal for ordinal in undone if ordinal < front]
        nearest = range(max(0, front - len(below)), front + 1)
        if sum(ordinal in made for ordinal in nearest) >= _FRONT_SHARE * len(nearest):
            return frozenset(below)
    return frozenset()


def earlier_lengths(totals: Totals, caps: Mapping[str, int]) -> Iterator[tuple[str, int, int]]:
    """(source, tokens, rows) of all that is committed, by the sources that have a cap."""
    for source, cap in caps.items():
        if (seen := totals.by_source.get(source)) is not None:
            cut = totals.outcomes.get((source, Status.TRUNCATED), 0)
            for tokens, rows in _spread(seen.lengths, cut, cap):
                yield source, tokens, rows


def _spread(lengths: Sequence[int], cut: int, cap: int) -> Iterator[tuple[int, int]]:
    """(tokens, rows): each bucket's rows as two halves, within it, and below the cap; but those that were cut there."""
    for index, rows in enumerate(lengths):
        lowest, end = length_buckets.lowest(index), length_buckets.lowest(index + 1)
        if lowest <= cap < end:
            end = cap
            yield cap, min(cut, rows)
            rows -= min(cut, rows)
        for part, share in ((0.25, rows // 2), (0.75, rows - rows // 2)):
            yield max(1, lowest, math.floor(max(1, lowest) * (end / max(1, lowest)) ** part)), share


def waiting_last(listed: Collection[tuple[str, int]], decoding: int) -> list[tuple[str, int]]:
    """Of a replica's rows, (group, tokens so far) in the order they were begun, those that get tokens: engines serve in
    order, and rows without a token beyond `decoding` wait.
    """
    begun = [one for one in listed if one[1]]
    return begun + [one for one in listed if not one[1]][: max(0, decoding - len(begun))]


def _turns(source: SourceSummary) -> tuple[float, int]:
    """Answers of the target in a row: on average, and at most."""
    mean = max(1.0, source.turns / max(1, source.accepted - source.native))
    return mean, source.most_turns or math.ceil(1 if mean == 1 else _TURNS_OVER_MEAN * mean)


def _cap_per_turn(source: str, spec: RunSpec) -> int:
    own = next((one.sampling.max_tokens for one in spec.sources if one.name == source), None)
    return min(own or spec.sampling.max_tokens, spec.engine.max_model_len)
