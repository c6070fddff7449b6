"""How rows ended, by source, and why those that are not ok are not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from regen.observe.page import figures
from regen.observe.page.charts import bar
from regen.observe.page.facts import PageFacts, SourceFacts
from regen.observe.page.html import Element, Node, e
from regen.observe.page.parts import name_of, remark, section, table
from regen.records import Status

MOST_REASONS = 40
# A page of any run names these, so that nobody asks whether there are none.
_ALWAYS = (Status.OK, Status.TRUNCATED, Status.DEGENERATE, Status.REJECTED, Status.FAILED)


def outcomes_section(facts: PageFacts) -> Element:
    seen = {status for source in facts.sources for status, count in source.outcomes.items() if count}
    statuses = [status for status in Status if status in seen or status in _ALWAYS]
    columns = ("source", "planned", "done", "so far", *statuses, "to do")
    rows = [(name_of(source.name), *_cells(source.planned, source.outcomes, statuses)) for source in facts.sources]
    return section(
        "outcomes",
        "Outcomes by source",
        table("Rows by source and outcome", columns, rows, _total(facts.sources, statuses), left=("so far",)),
        e("div", _reasons(facts), _labels(facts.sources), class_="pair"),
    )


def _cells(planned: int, outcomes: Mapping[Status, int], statuses: Sequence[Status]) -> tuple[Node, ...]:
    done = sum(outcomes.values())
    parts = [(f"s-{status}", outcomes.get(status, 0) / planned if planned else 0.0) for status in statuses]
    said = f"{figures.share(done, planned)} done: " + ", ".join(
        f"{status} {outcomes[status]:,}" for status in statuses if outcomes.get(status)
    )
    counts = (f"{outcomes.get(status, 0):,}" for status in statuses)
    return (f"{planned:,}", f"{done:,}", bar(parts, said), *counts, f"{max(0, planned - done):,}")


def _total(sources: Sequence[SourceFacts], statuses: Sequence[Status]) -> tuple[Node, ...]:
    if len(sources) < 2:
        return ()
    summed: Counter[Status] = Counter()
    for source in sources:
        summed.update(source.outcomes)
    return ("all", *_cells(sum(source.planned for source in sources), summed, statuses))


def _reasons(facts: PageFacts) -> Element:
    if not facts.reasons:
        return remark("No row was refused, failed or cut so far.")
    ordered = sorted(facts.reasons, key=lambda reason: -reason.rows)
    shown = [(one.reason, one.status, f"{one.rows:,}") for one in ordered[:MOST_REASONS]]
    left = len(ordered) - len(shown)
    return e(
        "div",
        table("Why rows are not ok", ("reason", "outcome", "rows"), shown, left=("outcome",)),
        remark(f"And {left:,} rarer reasons.") if left else None,
    )


def _labels(sources: Sequence[SourceFacts]) -> Element | None:
    """What is said of single answers: a row that is ok may have a cut one."""
    summed: Counter[str] = Counter()
    for source in sources:
        summed.update(source.labels)
    generations = sum(source.generations for source in sources)
    if not summed:
        return None
    rows = [
        (label.replace("_", " "), f"{count:,}", figures.share(count, generations))
        for label, count in summed.most_common()
    ]
    return table("What is said of single answers", ("label", "answers", "of all answers"), rows)
