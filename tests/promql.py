"""What a PromQL expression names, and Grafana's way of filling in variables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

SELECTOR = re.compile(r"\b((?:regen_|up\b|ALERTS\b)[a-z_]*)(?:\{([^{}]*)\})?")
MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"((?:[^"\\]|\\.)*)"')
GROUPING = re.compile(r"\b(?:by|on|ignoring|without|group_left|group_right)\s*\(([^()]*)\)")
VARIABLE = re.compile(r"\$(\w+)|\$\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class Selector:
    """One selector of an expression: the series' name and its matchers as (label, operator, value)."""

    name: str
    matchers: tuple[tuple[str, str, str], ...]


def selectors(expr: str) -> list[Selector]:
    return [
        Selector(name, tuple((label, sign, value) for label, sign, value in MATCHER.findall(inner)))
        for name, inner in SELECTOR.findall(expr)
    ]


def grouped_by(expr: str) -> set[str]:
    """Labels that the expression sums or joins by."""
    return {label.strip() for inner in GROUPING.findall(expr) for label in inner.split(",") if label.strip()}


def filled(expr: str, **values: str | Sequence[str]) -> str:
    """The expression as Grafana sends it. A sequence is what was chosen of a variable with several values."""
    return VARIABLE.sub(lambda found: _text(values[found[1] or found[2]]), expr)


def _text(value: str | Sequence[str]) -> str:
    """A string goes in as it is: of Grafana's own variables, and what stands for All."""
    if isinstance(value, str):
        return value
    escaped = [_escaped(one) for one in value]
    return escaped[0] if len(escaped) == 1 else f"({'|'.join(escaped)})"


def _escaped(value: str) -> str:
    """For a regular expression, and again for the string that it stands in, as Grafana's data source does it."""
    return re.sub(r"[$^*{}\[\]'+?.()|]", lambda found: "\\\\" + found[0], value.replace("\\", "\\\\\\\\"))


def names(exprs: Iterable[str]) -> set[str]:
    """Of all series."""
    return {selector.name for expr in exprs for selector in selectors(expr)}
