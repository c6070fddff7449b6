"""What a journal file says of itself and of all before it, in its footer. Pure.

Totals are in every footer, so that replay sums nothing up; the bitmap is in some, as a snapshot. Each footer also
holds the size of all files before it and the digest of the last one: a file that was altered as a whole
contradicts its successor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from regen.errors import StoreRefused
from regen.records import Totals
from regen.store import control, totals
from regen.store.control import Record, Standing
from regen.store.parquet import naming_damage

VERSION = 2


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that the journal amounts to, this file included. `done` is an OrdinalSet's text; `rounds` has rounds > 0."""

    done: str
    rounds: Mapping[int, int]
    standing: Standing


@dataclass(frozen=True, slots=True)
class Footer:
    """`rows`, `table_bytes` (as an Arrow table), `digest`, `first`, `last` are about this file's rows; `totals` are
    about all journal rows up to here. `published` counts all that were ever in it, also those that were made again
    since or lost to damage: no number of it falls.

    `writer` is unique to one Journal object: two incarnations of one session never take each other's file for their
    own. `at` is when the file was built, as ISO 8601 text in UTC by the clock of its writer: for people and pictures.
    Another machine's clock, or one that was put back, may make it earlier than that of the file before; only numbers
    give an order. `bytes_before` is the size of all earlier files together, `previous_digest` the digest of the last
    one (`RowsFile.digest`), empty in the first.
    """

    number: int
    session: str
    writer: str
    at: str
    plan_rows: int
    rows: int
    table_bytes: int
    digest: str
    first: int | None
    last: int | None
    totals: Totals
    published: Totals
    records: tuple[Record, ...]
    bytes_before: int
    previous_digest: str
    snapshot: Snapshot | None


def to_json(footer: Footer) -> dict[str, Any]:
    """Plain data for the file."""
    return {
        "version": VERSION,
        "kind": "journal",
        "number": footer.number,
        "session": footer.session,
        "writer": footer.writer,
        "at": footer.at,
        "plan_rows": footer.plan_rows,
        "rows": footer.rows,
        "table_bytes": footer.table_bytes,
        "digest": footer.digest,
        "first": footer.first,
        "last": footer.last,
        "totals": totals.to_json(footer.totals),
        "published": None if footer.published == footer.totals else totals.to_json(footer.published),
        "records": [control.to_json(record) for record in footer.records],
        "bytes_before": footer.bytes_before,
        "previous_digest": footer.previous_digest,
        "snapshot": None if footer.snapshot is None else _snapshot_json(footer.snapshot),
    }


def from_json(values: Mapping[str, Any], where: str) -> Footer:
    """The inverse. Raises JournalDamaged, or StoreRefused for a version or control record that is not known here."""
    with naming_damage(where):
        if values["kind"] != "journal":  # a shard has versions of its own
            raise ValueError(f"it is of kind {values['kind']!r}, not of the journal")
    if values.get("version") != VERSION:
        raise StoreRefused(
            f"{where}: has format version {values.get('version')!r}, this regen reads {VERSION}: use the other version"
        )
    with naming_damage(where):
        snapshot = values["snapshot"]
        return Footer(
            number=values["number"],
            session=values["session"],
            writer=values["writer"],
            at=values["at"],
            plan_rows=values["plan_rows"],
            rows=values["rows"],
            table_bytes=values["table_bytes"],
            digest=values["digest"],
            first=values["first"],
            last=values["last"],
            totals=totals.from_json(values["totals"]),
            published=totals.from_json(values["totals" if values["published"] is None else "published"]),
            records=tuple(control.from_json(record, where) for record in values["records"]),
            bytes_before=values["bytes_before"],
            previous_digest=values["previous_digest"],
            snapshot=None if snapshot is None else _snapshot(snapshot, where),
        )


def _snapshot_json(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "done": snapshot.done,
        "rounds": {str(ordinal): round_ for ordinal, round_ in sorted(snapshot.rounds.items())},
        "standing": snapshot.standing.to_json(),
    }


def _snapshot(values: Mapping[str, Any], where: str) -> Snapshot:
    return Snapshot(
        done=values["done"],
        rounds={int(ordinal): round_ for ordinal, round_ in values["rounds"].items()},
        standing=Standing().after(control.from_json(record, where) for record in values["standing"]),
    )
