"""`regen estimate` for a terminal: by source, the whole run, what is missing, what it rests on. No decisions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rich.console import Group
from rich.table import Table
from rich.text import Text

from regen.observe.tables import facts_table

_COLUMNS = ("source", "rows left", "prompt tokens", "tokens a row", "output tokens", "by")


@dataclass(frozen=True, slots=True)
class Line:
    """One source, in words; `basis` says what its lengths go by."""

    source: str
    rows_left: str
    prompt_tokens: str
    tokens_per_row: str
    output_tokens: str
    basis: str


@dataclass(frozen=True, slots=True)
class EstimateView:
    """All that is shown."""

    title: str
    sources: tuple[Line, ...]
    facts: tuple[tuple[str, str], ...]
    needs: tuple[str, ...]
    notes: tuple[str, ...]


def estimate_tables(view: EstimateView) -> Group:
    """One line a source, then the facts; what is missing stands out."""
    table = Table(title=view.title, title_justify="left")
    for name in _COLUMNS:
        justify: Literal["left", "right"] = "left" if name in ("source", "by") else "right"
        table.add_column(name.replace(" ", "\n"), justify=justify, overflow="fold")
    for line in view.sources:
        cells = (line.source, line.rows_left, line.prompt_tokens, line.tokens_per_row, line.output_tokens, line.basis)
        table.add_row(*map(Text, cells))
    needs = (Text(f"needed for {need}", style="bold") for need in view.needs)
    notes = (Text(note, style="bright_black") for note in view.notes)
    return Group(table, facts_table("What is left of the run", view.facts), *needs, *notes)
