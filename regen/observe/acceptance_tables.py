"""Acceptance for a terminal: what a run's rows say of its draft, and one head against another. No decisions.

Figures from few drafts are grey and carry a question mark, so that they are not read as more without colours either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from regen.observe.tables import facts_table

WEAK_SPOTS = 8


class TallyFacts(Protocol):
    """Counts of a group of generations."""

    @property
    def generations(self) -> int: ...
    @property
    def absent(self) -> int: ...
    @property
    def drafts(self) -> int: ...
    @property
    def accept_length(self) -> float | None: ...
    @property
    def interval(self) -> tuple[float, float] | None: ...
    @property
    def shares(self) -> Sequence[float]: ...
    @property
    def is_small(self) -> bool: ...


class ArmFacts(Protocol):
    @property
    def draft(self) -> str | None: ...
    @property
    def engine(self) -> str: ...


class WeakSpotFacts(Protocol):
    @property
    def source(self) -> str: ...
    @property
    def prompt_tokens(self) -> object: ...
    @property
    def tally(self) -> TallyFacts: ...
    @property
    def reference(self) -> float: ...
    @property
    def share(self) -> float: ...


class ArmReportFacts(Protocol):
    """One draft on one engine."""

    @property
    def arm(self) -> ArmFacts: ...
    @property
    def total(self) -> TallyFacts: ...
    @property
    def tables(self) -> Mapping[str, Mapping[Any, TallyFacts]]: ...
    @property
    def weak_spots(self) -> Sequence[WeakSpotFacts]: ...


class ReportFacts(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def url(self) -> str: ...
    @property
    def planned(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def degenerate_rows(self) -> int: ...
    @property
    def degenerate_generations(self) -> int: ...
    @property
    def arms(self) -> Sequence[ArmReportFacts]: ...


class DifferenceFacts(Protocol):
    @property
    def value(self) -> float: ...
    @property
    def interval(self) -> tuple[float, float] | None: ...


class ComparisonFacts(Protocol):
    """The same generations under two drafts; `source` is None for all of them."""

    @property
    def source(self) -> str | None: ...
    @property
    def generations(self) -> int: ...
    @property
    def identical(self) -> int: ...
    @property
    def recorded(self) -> TallyFacts: ...
    @property
    def now(self) -> TallyFacts: ...
    @property
    def difference(self) -> DifferenceFacts | None: ...


def report_tables(report: ReportFacts) -> Group:
    """What was read, then for each draft one table with every dimension, then where it has most to gain."""
    facts = [
        ("run", f"{report.name} in {report.url}"),
        ("rows", f"{report.rows:,} committed of {report.planned:,} planned"),
    ]
    if report.degenerate_generations or report.degenerate_rows:
        left_out = f"{report.degenerate_rows:,} rows, {report.degenerate_generations:,} answers: in no figure below"
        facts.append(("degenerate", left_out))
    parts: list[RenderableType] = [facts_table("Acceptance", facts)]
    arms = report.arms
    for arm in arms:
        parts += _arm_parts(arm)
    if any(arm.total.generations for arm in arms):
        parts.append(_note())
    return Group(*parts)


def evaluation_table(title: str, comparisons: Sequence[ComparisonFacts], total: ComparisonFacts) -> Table:
    """One line a source: what was recorded, what the head does now, and the difference over the same answers."""
    table = Table(title=title, title_justify="left")
    table.add_column("source", overflow="fold")
    for name in ("answers", "identical", "recorded", "now", "difference", "drafts", "by position"):
        table.add_column(name, justify="right")
    for one in comparisons:
        table.add_row(Text(one.source or ""), *_comparison_cells(one))
    table.add_section()
    table.add_row("all", *_comparison_cells(total))
    return table


def _arm_parts(arm: ArmReportFacts) -> Iterator[RenderableType]:
    title = f"{arm.arm.draft or 'no speculation'} on {arm.arm.engine}"
    if not arm.total.generations:
        said = "" if arm.arm.draft is None else ": the engine gave none, and absent is not zero"
        yield Text(f"{title}: {arm.total.absent:,} answers without counters{said}")
        return
    yield _arm_table(title, arm)
    if arm.weak_spots:
        yield _weak_spots_table(arm.weak_spots)


def _arm_table(title: str, arm: ArmReportFacts) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("")
    table.add_column("", overflow="fold")
    for name in ("accept length", "95 %", "by position", "drafts", "answers", "uncounted"):
        table.add_column(name, justify="right")
    for dimension, tallies in arm.tables.items():
        for number, (value, tally) in enumerate(tallies.items()):
            table.add_row("" if number else dimension.replace("_", " "), Text(str(value)), *_tally_cells(tally))
        table.add_section()
    table.add_row("all", "", *_tally_cells(arm.total))
    return table


def _weak_spots_table(spots: Sequence[WeakSpotFacts]) -> Table:
    table = Table(
        title=f"Most to gain, if drafted as the best source is ({spots[0].reference:.2f})", title_justify="left"
    )
    table.add_column("source", overflow="fold")
    for name in ("prompt tokens", "accept length", "drafts", "steps saved, of all"):
        table.add_column(name, justify="right")
    for spot in spots[:WEAK_SPOTS]:
        length = _length(spot.tally)
        table.add_row(Text(spot.source), str(spot.prompt_tokens), length, f"{spot.tally.drafts:,}", f"{spot.share:.1%}")
    return table


def _tally_cells(tally: TallyFacts) -> list[Text | str]:
    return [
        _length(tally),
        _interval(tally.interval),
        _shares(tally),
        f"{tally.drafts:,}",
        f"{tally.generations:,}",
        f"{tally.absent:,}" if tally.absent else "",
    ]


def _comparison_cells(one: ComparisonFacts) -> list[Text | str]:
    found = one.difference
    difference = "" if found is None else f"{found.value:+.2f} {_interval(found.interval, '+.2f')}".rstrip()
    return [
        f"{one.generations:,}",
        f"{one.identical:,}",
        _length(one.recorded),
        _length(one.now),
        difference,
        f"{one.now.drafts:,}",
        _shares(one.now),
    ]


def _length(tally: TallyFacts) -> Text:
    if tally.accept_length is None:
        return Text("no counters" if tally.absent else "no drafts", style="bright_black")
    mark, style = ("?", "bright_black") if tally.is_small else ("", "")
    return Text(f"{tally.accept_length:.2f}{mark}", style=style)


def _shares(tally: TallyFacts) -> str:
    return " ".join(f"{share:.2f}".removeprefix("0") for share in tally.shares)


def _interval(interval: tuple[float, float] | None, form: str = ".2f") -> str:
    return "" if interval is None else f"{interval[0]:{form}} to {interval[1]:{form}}"


def _note() -> Text:
    return Text(
        "?: few drafts or answers, little to go by. Drafts: verification steps. Uncounted: answers without counters.",
        style="bright_black",
    )
