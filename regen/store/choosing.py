"""Which finished rows are meant by a status, a reason, a source: for opening them again.

Costs what `CommittedRows` costs, three small columns of every journal file, and a bit a row of the plan.
"""

from __future__ import annotations

from dataclasses import dataclass

from regen.ordinals import OrdinalSet
from regen.protocols import Storage
from regen.records import Status
from regen.store.committed import CommittedRows
from regen.store.parquet import integers, texts

_COLUMNS = ("status", "reason", "source")


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
    found = OrdinalSet(plan_rows)
    for table in CommittedRows(storage, plan_rows).tables(_COLUMNS):
        told = zip(texts(table, "status"), table["reason"].to_pylist(), texts(table, "source"), strict=True)
        for ordinal, (status, reason, source) in zip(integers(table, "ordinal"), told, strict=True):
            if wanted.takes(status, reason, source):
                found.add(ordinal)
    return found
