"""How long rows are, by source: counts by bucket of `length_buckets`, and what they say of the middle and the tail."""

from __future__ import annotations

from collections.abc import Sequence

from regen import length_buckets
from regen.observe.page import figures
from regen.observe.page.charts import histogram
from regen.observe.page.facts import PageFacts, SourceFacts
from regen.observe.page.html import Element, Node, e
from regen.observe.page.parts import name_of, remark, section, table

_COLUMNS = (
    "source",
    "distribution",
    "answered rows",
    "half below",
    "9 of 10 below",
    "longest",
    "mean",
    "output tokens",
)


def lengths_section(facts: PageFacts) -> Element:
    summed = _sum([source.lengths for source in facts.sources])
    low, high = _reach([summed])
    return section(
        "lengths",
        "Output tokens a row",
        _whole(summed, low, high),
        table(
            "Lengths by source", _COLUMNS, [_row(source, low, high) for source in facts.sources], left=("distribution",)
        ),
        remark(
            "Rows made by the target, in buckets of half an octave: figures are a bucket's upper end. Short rows end"
            " first, so the distribution of an unfinished run leans to the short side."
        ),
    )


def quantile(lengths: Sequence[int], part: float) -> int | None:
    """The upper end of the bucket that the `part`-th row is in; None without rows."""
    wanted, seen = part * sum(lengths), 0
    for index, counted in enumerate(lengths):
        seen += counted
        if counted and seen >= wanted:
            return length_buckets.lowest(index + 1) - 1
    return None


def _whole(summed: Sequence[int], low: int, high: int) -> Element | None:
    if not any(summed):
        return None
    said = (
        f"{sum(summed):,} rows: half have at most {figures.count(quantile(summed, 0.5))} output tokens,"
        f" nine of ten at most {figures.count(quantile(summed, 0.9))}"
    )
    ends = (figures.count(length_buckets.lowest(low)), figures.count(length_buckets.lowest(high) - 1))
    chart = histogram(summed[low:high], said, ends)
    return e(
        "figure", e("figcaption", e("b", "All sources"), ", rows by output tokens, each bar half an octave"), chart
    )


def _row(source: SourceFacts, low: int, high: int) -> tuple[Node, ...]:
    rows = sum(source.lengths)
    half, most, longest = (quantile(source.lengths, part) for part in (0.5, 0.9, 1.0))
    said = f"half at most {figures.count(half)} tokens, nine of ten at most {figures.count(most)}"
    padded = [*source.lengths, *[0] * high][low:high]
    return (
        name_of(source.name),
        histogram(padded, said) if rows else figures.UNKNOWN,
        f"{rows:,}",
        *(figures.count(value) for value in (half, most, longest)),
        figures.count(source.output_tokens / rows if rows else None),
        f"{source.output_tokens:,}",
    )


def _sum(many: Sequence[Sequence[int]]) -> list[int]:
    width = max(map(len, many), default=0)
    return [sum(lengths[index] if index < len(lengths) else 0 for lengths in many) for index in range(width)]


def _reach(many: Sequence[Sequence[int]]) -> tuple[int, int]:
    """From the first bucket that is used to behind the last one: one axis for all sources."""
    used = [index for lengths in many for index, counted in enumerate(lengths) if counted]
    return (min(used), max(used) + 1) if used else (0, 1)
