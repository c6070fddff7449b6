"""In which order the last rows of a plan begin: those of which the longest answers are expected first. Pure.

A run ends with its last row, so a long one must not begin last. How long a row will be nobody knows; what is known is
how long the rows of its source were so far. The plan's order is a mixture of all sources, and a run that is stopped
should leave one: so the order changes only when what is left to begin takes no longer than a row or two of the longest.
What it costs and gains: docs/performance.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from regen import length_buckets
from regen.records import SourceTotals

# As many of the longest rows one after another.
_LONGEST_ROWS = 1.5
# More rows are never put in another order: they are looked at one by one.
MOST_ROWS = 200_000


def is_due(rows: int, slots: int, by_source: Mapping[str, SourceTotals]) -> bool:
    """Whether `rows` that have not begun are so few. `by_source`: what has ended so far."""
    mean = mean_tokens(by_source)
    return bool(mean and slots) and rows <= MOST_ROWS and rows * mean / slots <= _LONGEST_ROWS * _longest(by_source)


def mean_tokens(by_source: Mapping[str, SourceTotals]) -> float:
    """Of a row that has ended; 0 before any has."""
    ended = sum(sum(source.lengths) for source in by_source.values())
    return sum(source.output_tokens for source in by_source.values()) / max(1, ended)


def longest_first(rows: Iterable[tuple[int, str]], by_source: Mapping[str, SourceTotals]) -> tuple[list[int], float]:
    """The ordinals of (ordinal, source), and how many tokens a row of them is expected to have on average.

    Rows of one source stay in their order; those of a source that nothing was made of are taken for the longest.
    """
    means = {name: mean_tokens({name: each}) for name, each in by_source.items() if sum(each.lengths)}
    most = max(means.values(), default=0.0)
    expected = sorted((-means.get(source, most), ordinal) for ordinal, source in rows)
    return [ordinal for _, ordinal in expected], -sum(tokens for tokens, _ in expected) / max(1, len(expected))


def _longest(by_source: Mapping[str, SourceTotals]) -> int:
    return max(length_buckets.lowest(len(source.lengths)) for source in by_source.values())
