"""Which rows of a source are taken at all: filter by column, and weight. Pure.

A row that is not taken is no row of the plan; it is counted as left out, by why.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from enum import StrEnum

from regen.spec import ColumnRange, Scalar


class LeftOut(StrEnum):
    """Why a source row is not in the plan."""

    FILTER = "filter"
    NO_SUCH_COLUMN = "filter_column_missing"
    WEIGHT = "weight"
    TOKEN_QUOTA = "prompt_token_quota"


Wanted = Scalar | list[Scalar] | ColumnRange


def left_out(value: Mapping[str, object], wanted: Mapping[str, Wanted]) -> LeftOut | None:
    """Why the filter does not take this row; None if it does. A column is named, or a path of names with dots."""
    for name, condition in wanted.items():
        found = column(value, name)
        if found is None:
            return LeftOut.NO_SUCH_COLUMN
        if not _is_met(found, condition):
            return LeftOut.FILTER
    return None


def copies(key: bytes, n: int, weight: float) -> int:
    """How often a row is taken: the whole part of `weight`, and once more for its fraction of the rows.

    Drawn from the row's key and `n`, the count of equal rows before it: other rows change nothing.
    """
    whole, fraction = divmod(weight, 1)
    return int(whole) + (_point(b"weight", key, n) < fraction)


def share_of(purpose: bytes, key: bytes) -> float:
    """A point in 0..1, drawn from the key; different for each purpose."""
    return _point(purpose, key, 0)


def drawn(shares: Sequence[float], point: float) -> int:
    """Which part of a mix a point in 0..1 falls into."""
    reached = 0.0
    for number, share in enumerate(shares):
        reached += share
        if point < reached:
            return number
    return max(number for number, share in enumerate(shares) if share > 0)


def column(value: Mapping[str, object], name: str) -> object:
    """A column by its name, or by a path of names with dots; None if there is no such thing."""
    if name in value:
        return value[name]
    found: object = value
    for part in name.split("."):
        if not isinstance(found, Mapping):
            return None
        found = found.get(part)
    return found


def _is_met(found: object, condition: Wanted) -> bool:
    if isinstance(condition, ColumnRange):
        return _is_within(found, condition)
    wanted = condition if isinstance(condition, list) else [condition]
    return any(_is_same(found, value) for value in wanted)


def _is_same(found: object, wanted: Scalar) -> bool:
    """Numbers by value; true is not 1, and text is not a number, except in tables that have nothing but text."""
    if isinstance(found, bool) or isinstance(wanted, bool):
        return found is wanted or (isinstance(found, str) and found.lower() == str(wanted).lower())
    if isinstance(found, str) and not isinstance(wanted, str):
        return _number(found) == wanted
    return type(found) in (int, float, str) and found == wanted


def _is_within(found: object, limits: ColumnRange) -> bool:
    number = _number(found)
    if number is None:
        return False
    return (limits.min is None or number >= limits.min) and (limits.max is None or number <= limits.max)


def _number(found: object) -> float | None:
    if isinstance(found, bool) or not isinstance(found, int | float | str):
        return None
    try:
        return float(found)
    except (ValueError, OverflowError):
        return None


def _point(purpose: bytes, key: bytes, n: int) -> float:
    digest = hashlib.blake2b(purpose + b"\0" + key + n.to_bytes(8, "big"), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / 2**53
