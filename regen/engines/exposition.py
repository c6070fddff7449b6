"""Prometheus' text format, as far as reading counters needs it. Pure.

Takes hostile text: what does not parse is left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

_LINE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+\S+)?$")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_LONGEST_LINE = 4096


@dataclass(frozen=True, slots=True)
class Sample:
    """One line: a name, its labels, a finite value that is not negative."""

    name: str
    labels: Mapping[str, str]
    value: float


def samples(text: str, names: Collection[str]) -> Iterator[Sample]:
    """The samples of these names, in order."""
    for line in text.splitlines():
        if line.startswith("#") or len(line) > _LONGEST_LINE or not line.startswith(tuple(names)):
            continue
        match = _LINE.match(line.strip())
        if match is not None and match[1] in names and (value := _value(match[3])) is not None:
            yield Sample(match[1], dict(_LABEL.findall(match[2] or "")), value)


def _value(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and 0 <= value < 2**63 else None
