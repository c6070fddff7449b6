"""Rows -> records -> files: the loop of an export, whatever its format."""

from __future__ import annotations

from collections.abc import Iterable

from regen.store.export.conversation import Fields
from regen.store.export.files import ExportFolder
from regen.store.export.format import Format, Record, TextCheck
from regen.store.export.selection import Kept, LeftOut, Row, Selection, select
from regen.store.export.tally import Tally


def write_records(
    rows: Iterable[Row],
    selection: Selection,
    format_: Format,
    fields: Fields,
    check: TextCheck | None,
    folder: ExportFolder,
) -> Tally:
    """Write every record that can be made, and count the rest. One row is in memory besides what the folder holds."""
    tally = Tally(format_.limit.default_tokens if format_.limit else None)
    for row in rows:
        kept = select(row, selection)
        if isinstance(kept, LeftOut):
            tally.leave_out(row, kept.reason)
        else:
            _write_row(kept, format_, fields, check, folder, tally)
    folder.finish_files()
    return tally


def _write_row(
    kept: Kept, format_: Format, fields: Fields, check: TextCheck | None, folder: ExportFolder, tally: Tally
) -> None:
    made: list[Record] = []
    refused: list[LeftOut] = []
    for found in format_.records(kept, fields, check):
        if isinstance(found, Record):
            folder.write(found)
            made.append(found)
        else:
            refused.append(found)
    tally.keep(kept, made, refused)
