"""Which finished rows are meant by a status, a reason, a source: for opening them again.

Costs the id columns and a few small ones of every journal file, and 22 bytes a row of the plan.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from regen.ordinals import OrdinalSet
from regen.protocols import Storage
from regen.records import Status
from regen.store.files import JournalFiles
from regen.store.parquet import integers, naming_damage, texts
from regen.store.winners import Winners

_COLUMNS = ("ordinal", "round", "digest", "status", "reason", "source")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Rows of any of these statuses, and of these reasons and sources where any are named."""

    statuses: frozenset[Status]
    reasons: frozenset[str] = frozenset()
    sources: frozenset[str] = frozenset()

    def takes(self, status: str, reason: str | None, source: str) -> bool:
        return (
            status in self.statuses
            and (not self.reasons or reason in self.reasons)
            and (not self.sources or source in self.sources)
        )


def chosen(storage: Storage, plan_rows: int, wanted: Wanted) -> OrdinalSet:
    """The rows whose result that counts is wanted. Rows that the plan has settled are in no journal, so never chosen.

    Raises JournalDamaged, StoreUnavailable, StoreRefused.
    """
    files, winners, found = JournalFiles(storage), Winners(plan_rows), OrdinalSet(plan_rows)
    for file in files.files():
        table = files.read_table(file.number, _COLUMNS)
        with naming_damage(files.where(file.number)):
            _take(table, file.number, winners, found, wanted)
    return found


def _take(table: pa.Table, number: int, winners: Winners, found: OrdinalSet, wanted: Wanted) -> None:
    ids = zip(integers(table, "ordinal"), integers(table, "round"), texts(table, "digest"), strict=True)
    told = zip(texts(table, "status"), table["reason"].to_pylist(), texts(table, "source"), strict=True)
    for (ordinal, round_, digest), (status, reason, source) in zip(ids, told, strict=True):
        if winners.note(ordinal, round_, number, digest):
            (found.add if wanted.takes(status, reason, source) else found.discard)(ordinal)
