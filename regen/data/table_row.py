"""A row of a table of typed columns (Parquet, Arrow) as a raw row. Pure.

A struct has every field of every row, those that a row does not have being null. Where keys are looked up one by one
a null key counts as absent; `tools` is printed as it stands, so the nulls that the columns put in are taken out here.
"""

from __future__ import annotations

from collections.abc import Mapping

from regen.data.raw import RawRow

_PRINTED_KEY = "tools"


def table_row(location: str, value: Mapping[str, object]) -> RawRow:
    if isinstance(value.get(_PRINTED_KEY), list):
        value = {**value, _PRINTED_KEY: _without_null_keys(value[_PRINTED_KEY])}
    return RawRow(location, value=value)


def _without_null_keys(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_null_keys(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_without_null_keys(inner) for inner in value]
    return value
