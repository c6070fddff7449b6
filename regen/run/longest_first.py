"""In which order the last rows of a plan begin: those of which the longest answers are expected first. Pure.

A run ends with its last row, so a long one must not begin last. How long a row will be nobody knows; what is known is
how long the rows of its source were so far. The plan's order is a mixture of all sources, and a run that is stopped
should leave one: so the order changes only when what is left to begin takes no longer than a row or two of the longest.

Sources stand in the order of their reach: the longest row among those that are in work at once, were all of that
source. Not of their means: a source of short rows that vary much ends later than one of longer rows that do not. Reach
is that of a lognormal with the mean and the spread of ln(tokens) that its rows had; long rows are in work longer, so
those in work are longer than those that end. A row with twice as many turns as its source's usual one is taken for
twice as long. What all this costs and gains: docs/performance.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import NormalDist

from regen import length_buckets
from regen.records import SourceTotals

# As many of the longest rows one after another.
_LONGEST_ROWS = 1.5
# More rows are never put in another order: they are looked at one by one.
MOST_ROWS = 200_000
# So many steps of turns to a factor of e. The plan's rows are read in the order in which they begin, hundreds at once:
# with a step for each number of turns every part of the plan would be read again for each of them.
_TURN_STEPS = 2
# A source's spread is taken for that of all rows until it has about so many of its own.
_ROWS_FOR_A_SPREAD = 20


def is_due(rows: int, slots: int, by_source: Mapping[str, SourceTotals]) -> bool:
    """Whether `rows` that have not begun are so few. `by_source`: what has ended so far."""
    mean = mean_tokens(by_source)
    return bool(mean and slots) and rows <= MOST_ROWS and rows * mean / slots <= _LONGEST_ROWS * _longest(by_source)


def mean_tokens(by_source: Mapping[str, SourceTotals]) -> float:
    """Of a row that has ended; 0 before any has."""
    ended = sum(sum(source.lengths) for source in by_source.values())
    return sum(source.output_tokens for source in by_source.values()) / max(1, ended)


def longest_first(
    rows: Iterable[tuple[int, str, int]], by_source: Mapping[str, SourceTotals], slots: int
) -> tuple[list[int], float]:
    """The ordinals of (ordinal, source, turns), and how many tokens a row of them is expected to have on average.

    Rows that are alike stay in their order; those of a source that nothing was made of are taken for the longest.
    `slots` of all engines: so many rows are in work at once.
    """
    ended = {name: source for name, source in by_source.items() if sum(source.lengths)}
    means = {name: mean_tokens({name: source}) for name, source in ended.items()}
    turns = {name: max(1.0, source.generations / sum(source.lengths)) for name, source in ended.items()}
    reaches = reach(ended, slots)
    furthest, most = max(reaches.values(), default=0.0), max(means.values(), default=0.0)
    ranked, expected = list[tuple[float, int]](), 0.0
    for ordinal, source, asked in rows:
        share = max(1, asked) / turns.get(source, 1.0)
        ranked.append((-reaches.get(source, furthest) - round(_TURN_STEPS * math.log(share)) / _TURN_STEPS, ordinal))
        expected += means.get(source, most) * share
    return [ordinal for _, ordinal in sorted(ranked)], expected / max(1, len(ranked))


def reach(ended: Mapping[str, SourceTotals], slots: int) -> dict[str, float]:
    """ln of tokens by source, for sources of which rows have ended: one row in `slots` in work is longer."""
    logs = {name: _logs(source.lengths) for name, source in ended.items()}
    rows = sum(count for count, _, _ in logs.values())
    usual = sum(count * variance for count, _, variance in logs.values()) / max(1, rows)
    deviations = NormalDist().inv_cdf(1 - 1 / max(2, slots))
    found = {}
    for name, (count, mean, variance) in logs.items():
        spread = (count * variance + _ROWS_FOR_A_SPREAD * usual) / (count + _ROWS_FOR_A_SPREAD)
        found[name] = mean + spread + deviations * math.sqrt(spread)
    return found


def _logs(lengths: tuple[int, ...]) -> tuple[int, float, float]:
    """(rows, mean, variance) of ln(tokens)."""
    count = sum(lengths)
    logs = [math.log(length_buckets.middle(index)) for index in range(len(lengths))]
    mean = sum(rows * log for rows, log in zip(lengths, logs, strict=True)) / count
    squares = sum(rows * (log - mean) ** 2 for rows, log in zip(lengths, logs, strict=True))
    return count, mean, squares / count


def _longest(by_source: Mapping[str, SourceTotals]) -> int:
    return max(length_buckets.lowest(len(source.lengths)) for source in by_source.values())
