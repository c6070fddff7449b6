"""The plan's part of `verify`: is it of one piece, and what must each row be called. 18 bytes a row of the plan."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from regen.errors import JournalDamaged
from regen.ordinals import OrdinalSet
from regen.protocols import Plan
from regen.records import Status
from regen.store.findings import Code, Findings
from regen.store.layout import PLAN

_ID_BYTES = 16


class PlanIds:
    """What each row of the plan must be called, by ordinal; known up to where the plan could be read."""

    def __init__(self, plan_rows: int) -> None:
        self.known = 0
        self.ids = bytearray(_ID_BYTES * plan_rows)
        self.sources = array("H", [0]) * plan_rows
        self.source_names: list[str] = []
        self.settled = OrdinalSet(plan_rows)
        self.native = OrdinalSet(plan_rows)
        self._source_numbers: dict[str, int] = {}

    def add(self, row_id: str, source: str, settled: Status | None) -> None:
        ordinal = self.known
        self.ids[ordinal * _ID_BYTES : (ordinal + 1) * _ID_BYTES] = bytes.fromhex(row_id)
        if source not in self._source_numbers:
            self._source_numbers[source] = len(self.source_names)
            self.source_names.append(source)
        self.sources[ordinal] = self._source_numbers[source]
        if settled is not None:
            self.settled.add(ordinal)
        if settled is Status.NATIVE:
            self.native.add(ordinal)
        self.known += 1

    def outcome_of(self, ordinal: int) -> Status | None:
        """The outcome that the row has from the start; None if it is to be made."""
        if ordinal not in self.settled:
            return None
        return Status.NATIVE if ordinal in self.native else Status.REJECTED

    def id_of(self, ordinal: int) -> str:
        return self.ids[ordinal * _ID_BYTES : (ordinal + 1) * _ID_BYTES].hex()

    def source_of(self, ordinal: int) -> str:
        return self.source_names[self.sources[ordinal]]

    def repeated(self) -> Iterator[tuple[int, int]]:
        """Pairs of ordinals with one id. Sorted by Arrow, not by Python: 10 million ids in seconds."""
        buffer = pa.py_buffer(bytes(self.ids[: self.known * _ID_BYTES]))
        ids = pa.FixedSizeBinaryArray.from_buffers(pa.binary(_ID_BYTES), self.known, [None, buffer])
        order = pc.array_sort_indices(ids)
        in_order = ids.take(order)
        same = pc.equal(in_order.slice(1), in_order.slice(0, max(0, self.known - 1)))
        firsts = pc.indices_nonzero(same)
        seconds = pc.add(firsts, 1)
        yield from zip(order.take(firsts).to_pylist(), order.take(seconds).to_pylist(), strict=True)


def check_plan(plan: Plan, findings: Findings) -> PlanIds:
    """Read the whole plan once. What cannot be read, or is not of one piece, is a finding."""
    ids = PlanIds(plan.count)
    try:
        _scan(plan, ids, findings)
        _check_settled(plan, ids, findings)
    except JournalDamaged as error:
        findings.add(Code.PLAN_DAMAGED, PLAN, str(error))
    for one, other in ids.repeated():
        findings.add(Code.PLAN_ID, PLAN, f"rows {one} and {other} have one id, {ids.id_of(one)}")
    return ids


def _scan(plan: Plan, ids: PlanIds, findings: Findings) -> None:
    for row in plan.scan():
        if row.ordinal != ids.known or row.ordinal >= plan.count:
            findings.add(Code.PLAN_COUNT, PLAN, f"row {ids.known} of {plan.count} has ordinal {row.ordinal}")
            return
        if not _is_id(row.row_id):
            findings.add(Code.PLAN_ID, PLAN, f"row {row.ordinal} has id {row.row_id!r}, not 32 hex digits")
            return
        ids.add(row.row_id, row.source, row.settled)
    if ids.known != plan.count:
        findings.add(Code.PLAN_COUNT, PLAN, f"says {plan.count} rows and its parts have {ids.known}")


def _check_settled(plan: Plan, ids: PlanIds, findings: Findings) -> None:
    settled, native = OrdinalSet(plan.count), OrdinalSet(plan.count)
    for ordinal, _, outcome in plan.settled():
        settled.add(ordinal)
        if outcome is Status.NATIVE:
            native.add(ordinal)
    if ids.known == plan.count and (settled != ids.settled or native != ids.native):
        findings.add(Code.PLAN_REFUSED, PLAN, "its list of refused and native rows is not that of its rows")


def _is_id(row_id: str) -> bool:
    try:
        return len(row_id) == 2 * _ID_BYTES and len(bytes.fromhex(row_id)) == _ID_BYTES
    except ValueError:
        return False
