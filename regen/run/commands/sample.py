"""A deterministic, stratified sample of committed rows: the same rows give the same sample, however they came about.

Takes, of every source, the rows with the lowest ids (which are hashes, and so no order of the data). Rows whose answers
say nothing of a draft are not taken: rejected, failed, degenerate, and rows without an answer of the target.
Costs two passes over the journal: one over small columns, one over the files that hold what was taken.
"""

from __future__ import annotations

from collections.abc import Iterable

from regen.protocols import Storage
from regen.records import OutputRow, Status
from regen.run.commands.lowest_ids import LowestIds
from regen.store.committed import CommittedRows

ANSWERED = frozenset({Status.OK, Status.TRUNCATED, Status.PARTIAL})


def sample_rows(storage: Storage, plan_rows: int, per_source: int) -> list[OutputRow]:
    """In order of the plan. Raises JournalDamaged, StoreError."""
    committed = CommittedRows(storage, plan_rows)
    lowest = LowestIds(per_source)
    for table in committed.tables(("source", "row_id", "status")):
        columns: Iterable[tuple[str, str, str, int]] = zip(
            *(table[name].to_pylist() for name in ("source", "row_id", "status", "ordinal")), strict=True
        )
        for source, row_id, status, ordinal in columns:
            if status in ANSWERED:
                lowest.add(source, row_id, ordinal)
    return sorted(committed.rows(lowest.ordinals()), key=lambda row: row.ordinal)
