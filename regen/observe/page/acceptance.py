"""Whether drafts are accepted: by source, by position in the draft, by length of the answer."""

from __future__ import annotations

from regen import length_buckets
from regen.observe.page import figures
from regen.observe.page.charts import bar
from regen.observe.page.facts import PageFacts
from regen.observe.page.html import Element, Node
from regen.observe.page.parts import name_of, remark, section, table
from regen.records import Acceptance


def acceptance_section(facts: PageFacts) -> Element:
    if not facts.acceptance.drafts:
        return section(
            "acceptance",
            "Acceptance",
            remark("No verification step is committed: speculation is off, or the engine gave no counters."),
        )
    most = _highest(facts)
    sources = [(name_of(source.name), *_cells(source.acceptance, most)) for source in facts.sources]
    lengths = [(_range(index), *_cells(seen, most)) for index, seen in sorted(facts.by_length.items())]
    columns = ("accept length", "of the best", "steps", "accepted tokens", "by position, %")
    left = ("of the best",)
    return section(
        "acceptance",
        "Acceptance",
        table("Accept length by source", ("source", *columns), sources, ("all", *_cells(facts.acceptance, most)), left),
        _positions(facts.acceptance),
        table("Accept length by length of the answer", ("output tokens", *columns), lengths, left=left),
        remark(
            "Accept length is 1 + accepted / steps, from the engine's own counters of committed rows; degenerate ones"
            " are not among them: a loop is easy to draft. By position: the share of steps that accepted as many."
        ),
    )


def shares(acceptance: Acceptance) -> list[float]:
    """Of all steps, those that accepted at least 1, 2, ... tokens."""
    if not acceptance.drafts:
        return []
    return [steps / acceptance.drafts for steps in acceptance.accepted_by_position]


def positions_told(acceptance: Acceptance) -> str:
    """In percent: `53 · 21 · 7.2`."""
    return " · ".join(f"{100 * one:.{0 if one >= 0.1 else 1}f}" for one in shares(acceptance)) or figures.UNKNOWN


def _positions(acceptance: Acceptance) -> Element:
    rows = [
        (f"{number}", figures.share(one), bar((("line", one),), figures.share(one)))
        for number, one in enumerate(shares(acceptance), start=1)
    ]
    return table(
        "Acceptance by position in the draft", ("position", "steps that accepted it", "share"), rows, left=("share",)
    )


def _cells(acceptance: Acceptance, most: float) -> tuple[Node, ...]:
    length = acceptance.accept_length
    gained = (length - 1.0) / (most - 1.0) if length is not None and most > 1.0 else 0.0
    return (
        figures.ratio(length),
        bar((("line", gained),), f"accept length {figures.ratio(length)}") if length is not None else figures.UNKNOWN,
        f"{acceptance.drafts:,}",
        f"{acceptance.accepted:,}",
        positions_told(acceptance),
    )


def _highest(facts: PageFacts) -> float:
    """Bars are over what exceeds 1, as a share of the best: 1 is what no speculation has."""
    every = (facts.acceptance, *(source.acceptance for source in facts.sources), *facts.by_length.values())
    return max((one.accept_length or 1.0 for one in every), default=1.0)


def _range(index: int) -> str:
    first, last = length_buckets.lowest(index), length_buckets.lowest(index + 1) - 1
    return f"{first:,}" if first == last else f"{first:,} to {last:,}"
