"""A pilot for a terminal: the page's tables, with the columns that 80 characters have room for. No decisions."""

from __future__ import annotations

from typing import Literal

from rich.console import Group
from rich.table import Table
from rich.text import Text

from regen.observe.pilot_page import SOURCE_COLUMNS, PilotView, source_cells
from regen.observe.tables import facts_table

_COLUMNS = ("source", "sampled", "truncated", "degenerate", "no answer", "tokens a row", "accept length")


def pilot_tables(view: PilotView) -> Group:
    """By source, then what the whole run will take, then what to mind."""
    table = Table(title=view.title, title_justify="left")
    for name in _COLUMNS:
        justify: Literal["left", "right"] = "left" if name == "source" else "right"
        head = "tokens\na row" if name == "tokens a row" else name.replace(" ", "\n")
        table.add_column(head, justify=justify, overflow="fold", min_width=max(map(len, name.split())))
    for source in view.sources:
        cells = dict(zip(SOURCE_COLUMNS, source_cells(source), strict=True))
        table.add_row(*(Text(cells[name]) for name in _COLUMNS))
    outlook = facts_table("The whole run", [(one.name, one.value) for one in view.outlook])
    return Group(table, outlook, *(Text(note, style="bright_black") for note in view.notes))
