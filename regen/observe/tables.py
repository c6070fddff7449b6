"""Tables for a terminal: what a plan holds, what a run has done, what verification found. No decisions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from rich.console import Group
from rich.table import Table
from rich.text import Text

from regen.records import Acceptance, Status, Totals


class RejectedFacts(Protocol):
    """A rejected row, as an example."""

    @property
    def location(self) -> str: ...
    @property
    def detail(self) -> str: ...


class SourceFacts(Protocol):
    """What the plan's table shows of one source."""

    @property
    def name(self) -> str: ...
    @property
    def rows(self) -> int: ...
    @property
    def accepted(self) -> int: ...
    @property
    def rejected(self) -> Mapping[str, int]: ...
    @property
    def first_rejected(self) -> Mapping[str, RejectedFacts]: ...
    @property
    def notes(self) -> Mapping[str, int]: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def longest_prompt_tokens(self) -> int: ...
    @property
    def turns(self) -> int: ...
    @property
    def native(self) -> int: ...
    @property
    def changed(self) -> int: ...
    @property
    def eval_rows(self) -> int: ...
    @property
    def left_out(self) -> Mapping[str, int]: ...


class FindingFacts(Protocol):
    """What preflight's table shows of one finding."""

    @property
    def code(self) -> str: ...
    @property
    def severity(self) -> str: ...
    @property
    def found(self) -> str: ...
    @property
    def why(self) -> str: ...
    @property
    def fix(self) -> str: ...


def findings_table(findings: Sequence[FindingFacts], title: str = "Preflight") -> Table:
    """One line a finding: how bad, its code, what was found, why it matters and what to do."""
    table = _left(title)
    for name in ("", "code"):
        table.add_column(name, no_wrap=True)
    for name in ("found", "why, and what to do"):
        table.add_column(name, overflow="fold")
    for finding in findings:
        table.add_row(
            *map(_plain, (str(finding.severity), finding.code, finding.found, f"{finding.why} {finding.fix}"))
        )
    return table


def acceptance_table(title: str, rows: Iterable[tuple[str, Acceptance]]) -> Table:
    """One line a name: verifications, draft tokens, accepted, accept length, and the share accepted by position."""
    table = _left(title)
    table.add_column("", no_wrap=True)
    for name in ("verifications", "drafted", "accepted", "accept length", "by position"):
        table.add_column(name, justify="right")
    for name, seen in rows:
        length = "-" if seen.accept_length is None else f"{seen.accept_length:.2f}"
        shares = [f"{count / seen.drafts:.2f}" for count in seen.accepted_by_position if seen.drafts]
        table.add_row(Text(name), *_numbers(seen.drafts, seen.drafted, seen.accepted), length, " ".join(shares))
    return table


def plan_table(sources: Sequence[SourceFacts], digest: str) -> Group:
    """One line a source: rows, accepted, rejected, changed by a policy, turns and tokens of first prompts.

    Below it the reasons and changes, what is not in the plan, and the digest. `native` rows are among the accepted.
    """
    table = _left("Plan")
    table.padding = 0  # nine columns: that of millions of tokens is as wide as it is, and 80 columns have to do
    table.add_column("source", overflow="fold")
    for name in ("rows", "accepted", "native", "rejected", "changed", "turns", "prompt tokens", "longest"):
        table.add_column(name.replace(" ", "\n"), justify="right", no_wrap=True)
    lines = [_plan_numbers(source) for source in sources]
    for source, numbers in zip(sources, lines, strict=True):
        table.add_row(Text(source.name), *_numbers(*numbers))
    table.add_section()
    columns = list(zip(*lines, strict=True)) or [(0,)] * 8
    table.add_row("all", *_numbers(*map(sum, columns[:-1]), max(columns[-1])))
    reasons = [line for source in sources for line in _rejected(source)]
    notes = [f"{source.name}: changed: {_counts(source.notes)}" for source in sources if source.notes]
    left_out = [f"{source.name}: not in the plan: {_counts(source.left_out)}" for source in sources if source.left_out]
    splits = [f"{source.name}: split: {source.eval_rows:,} eval rows" for source in sources if source.eval_rows]
    return Group(table, *map(_plain, [*reasons, *notes, *left_out, *splits, f"plan digest {digest}"]))


def plan_line(sources: Sequence[SourceFacts], digest: str) -> str:
    """The same in one line, over all sources."""
    rows, accepted = sum(source.rows for source in sources), sum(source.accepted for source in sources)
    return f"{rows:,} rows planned from {len(sources)} sources, {rows - accepted:,} of them rejected; digest {digest}"


def _plan_numbers(source: SourceFacts) -> tuple[int, ...]:
    rejected = source.rows - source.accepted
    counts = (source.rows, source.accepted, source.native, rejected, source.changed, source.turns)
    return (*counts, source.prompt_tokens, source.longest_prompt_tokens)


def totals_table(planned: int, totals: Totals) -> Group:
    """Outcomes by source, and whether they add up."""
    statuses = [status for status in Status if any(found is status for _, found in totals.outcomes)]
    table = _left("Outcomes")
    table.add_column("source")
    for status in statuses:
        table.add_column(status.value, justify="right")
    table.add_column("sum", justify="right")
    for source in sorted({source for source, _ in totals.outcomes}):
        counts = [totals.outcomes.get((source, status), 0) for status in statuses]
        table.add_row(Text(source), *_numbers(*counts, sum(counts)))
    by_status = totals.by_status()
    table.add_section()
    table.add_row("all", *_numbers(*(by_status[status] for status in statuses), totals.done))
    return Group(table, _plain(_verdict(planned, totals)))


def totals_line(planned: int, totals: Totals) -> str:
    """The same in one line, over all sources."""
    counts = ", ".join(f"{status.value} {count:,}" for status, count in totals.by_status().items() if count)
    return f"{counts or 'nothing done'}; {_verdict(planned, totals)}"


def _verdict(planned: int, totals: Totals) -> str:
    verdict = "every one has its outcome" if totals.done == planned else f"{planned - totals.done:,} still to do"
    return f"{planned:,} planned, {verdict}; {tokens_line(totals)}"


class ChoiceFacts(Protocol):
    """What the calibration's table shows: a row of figures for each arm, and what follows from them."""

    @property
    def arm(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def arms(self) -> Sequence[Mapping[str, object]]: ...


def calibration_table(choice: ChoiceFacts) -> Group:
    """A column a setting, a line a figure, as they were measured; below it the choice and why."""
    table = _left("Calibration")
    table.add_column("")
    for figures in choice.arms:
        table.add_column(str(figures.get("arm", "")), justify="right", overflow="fold")
    for name in (name for name in (choice.arms[0] if choice.arms else {}) if name != "arm"):
        table.add_row(name.replace("_", " "), *(_figure(figures.get(name)) for figures in choice.arms))
    return Group(table, _plain(f"chosen: {choice.arm}. {choice.reason}"))


def _figure(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.3g}" if abs(value) < 100 else f"{value:,.0f}"
    if isinstance(value, list | tuple):
        return " to ".join(map(_figure, value))
    return "" if value is None else str(value)


def facts_table(title: str, facts: Iterable[tuple[str, str]]) -> Table:
    """Names and values."""
    table = _left(title)
    table.show_header = False
    table.add_column()
    table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(name, _plain(value))
    return table


def tokens_line(totals: Totals) -> str:
    """Tokens, turns and accept length in words."""
    accept_length = totals.acceptance.accept_length
    speculation = "no speculation" if accept_length is None else f"accept length {accept_length:.2f}"
    return f"{totals.output_tokens:,} tokens in {totals.generations:,} answers, {speculation}"


def _rejected(source: SourceFacts) -> Iterator[str]:
    """One line a reason, the most frequent first: how many rows, and where the first of them is."""
    for reason, count in sorted(source.rejected.items(), key=lambda item: -item[1]):
        first = source.first_rejected.get(reason)
        example = "" if first is None else f", first: {first.location} ({first.detail})"
        yield _one_line(f"{source.name}: rejected: {reason} {count:,}{example}")


def _one_line(text: str) -> str:
    """What a row says may hold line breaks and a terminal's control characters."""
    return "".join(char if char.isprintable() else " " for char in text)


def _counts(counted: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counted.items(), key=lambda item: -item[1]))


def _numbers(*values: int) -> list[str]:
    return [f"{value:,}" for value in values]


def _left(title: str) -> Table:
    return Table(title=title, title_justify="left")


def _plain(text: str) -> Text:
    """Its lines, without what a terminal would obey."""
    return Text("\n".join(map(_one_line, text.split("\n"))), overflow="fold")
