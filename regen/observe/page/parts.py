"""What sections are made of: a section, a table in its box, a list of facts, a remark."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence

from regen.observe.page.facts import Fact
from regen.observe.page.html import Child, Element, Node, e

NAME_LENGTH = 60

Cell = Node | None


def section(name: str, title: str, *children: Child) -> Element:
    """`name` is its id, for links."""
    return e("section", e("h2", title, id=f"{name}-title"), *children, id=name, aria_labelledby=f"{name}-title")


def table(
    caption: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    total: Sequence[Cell] = (),
    left: Container[str] = (),
) -> Element:
    """The first cell of a row is what the row is about. It scrolls in its box where the page is too narrow for it.

    Columns in `left` begin at the left: words and bars; figures end at the right.
    """
    sides = ["left" if column in left else None for column in columns]
    name = "table-" + re.sub("[^a-z]+", "-", caption.lower()).strip("-")
    body = [_row(cells, sides) for cells in rows]
    return e(
        "div",
        e(
            "table",
            e("caption", caption),
            e(
                "thead",
                e(
                    "tr",
                    [e("th", column, scope="col", class_=side) for column, side in zip(columns, sides, strict=True)],
                ),
            ),
            e("tbody", body if body else e("tr", e("td", "none yet", colspan=len(columns), class_="soft"))),
            e("tfoot", _row(total, sides)) if total else None,
        ),
        class_="wide",
        id=name,
        tabindex=0,
        role="region",
        aria_label=caption,
    )


def facts_list(facts: Iterable[Fact]) -> Element:
    return e("dl", [[e("dt", fact.name), e("dd", fact.value)] for fact in facts])


def remark(*children: Child, is_bad: bool = False) -> Element:
    """A sentence beside the figures; a bad one is marked by a word, not by its colour alone."""
    return e("p", e("b", "Attention: ") if is_bad else None, *children, class_="bad" if is_bad else "soft")


def name_of(text: str) -> Element:
    """A name that the user or a data set has given: its direction of writing stays its own; a long one is cut."""
    if len(text) <= NAME_LENGTH:
        return e("bdi", text)
    return e("bdi", f"{text[: NAME_LENGTH - 1]}…", title=text)


def _row(cells: Sequence[Cell], sides: Sequence[str | None]) -> Element:
    first, *rest = cells
    further = [e("td", cell or "", class_=side) for cell, side in zip(rest, sides[1:], strict=True)]
    return e("tr", e("th", first or "", scope="row"), further)
