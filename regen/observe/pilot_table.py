"""A pilot for a terminal: the page's tables, without the answers. No decisions."""

from __future__ import annotations

from rich.console import Group
from rich.table import Table
from rich.text import Text

from regen.observe.pilot_page import SOURCE_COLUMNS, PilotView, source_cells
from regen.observe.tables import facts_table


def pilot_tables(view: PilotView) -> Group:
    """By source, then what the whole run will take, then what to mind."""
    table = Table(title=view.title, title_justify="left")
    for place, name in enumerate(SOURCE_COLUMNS):
        table.add_column(name, justify="right" if place else "left", overflow="fold")
    for source in view.sources:
        table.add_row(*(Text(cell) for cell in source_cells(source)))
    outlook = facts_table("The whole run", [(one.name, one.value) for one in view.outlook])
    return Group(table, outlook, *(Text(note, style="bright_black") for note in view.notes))
