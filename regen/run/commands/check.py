"""`regen verify`: the whole run folder checked offline, as one list of findings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from regen.data.plan import damaged_parts, open_plan, read_summary
from regen.errors import JournalDamaged
from regen.protocols import Storage
from regen.run.record import altered, require_record_as_begun
from regen.store import layout
from regen.store.findings import Code, Finding
from regen.store.verify import Verification, verify


@dataclass(frozen=True, slots=True)
class Checked:
    """`verification` is None where the plan itself could not be opened: nothing can be compared then."""

    findings: tuple[Finding, ...]
    verification: Verification | None

    @property
    def is_right(self) -> bool:
        """Nothing is wrong, and planned == sum of outcomes."""
        return not self.findings and self.verification is not None and self.verification.is_complete

    def to_json(self) -> dict[str, Any]:
        """Plain data; `outcomes` has every status."""
        found = self.verification
        return {
            "is_right": self.is_right,
            "planned": found.planned if found else None,
            "outcomes": {status.value: count for status, count in found.outcomes.items()} if found else None,
            "missing": found.missing if found else None,
            "first_missing": list(found.first_missing) if found else None,
            "journal_files": found.journal_files if found else None,
            "shards": found.shards if found else None,
            "shards_planned": found.shards_planned if found else None,
            "shards_outdated": found.shards_outdated if found else None,
            "shards_outgrown": found.shards_outgrown if found else None,
            "reopened": found.reopened if found else None,
            "findings": [
                {"code": finding.code.value, "where": finding.where, "message": finding.message}
                for finding in self.findings
            ],
        }

    def summary(self) -> str:
        """The verdict in one sentence."""
        found = self.verification
        if found is None:
            return "the plan cannot be read, so nothing else can be checked"
        if found.missing:
            first = ", ".join(map(str, found.first_missing[:5]))
            return f"{found.missing:,} of {found.planned:,} rows have no outcome yet (first: {first})"
        total = sum(found.outcomes.values())
        files = f"{found.journal_files:,} journal files, {found.shards:,} of {found.shards_planned:,} shards"
        files += "" if found.shards == found.shards_planned else " (regen seal writes the others)"
        if found.shards_outdated:
            files += f" ({found.shards_outdated:,} are older than a retry or repair: regen seal writes them anew)"
        if found.shards_outgrown:
            files += f" ({found.shards_outgrown:,} are from before an extension: regen seal replaces them)"
        if found.reopened:
            files += f", {found.reopened:,} rows opened again and not made yet"
        return f"planned {found.planned:,} == {total:,} outcomes; {files}; every id, count and digest read again"


def check(storage: Storage) -> Checked:
    """Everything that `regen verify` checks. Raises SpecError if there is no run here, StoreError."""
    record = require_record_as_begun(storage)
    if read_summary(storage) is None:
        return Checked((Finding(Code.PLAN_DAMAGED, layout.PLAN, "is not there: planning has not ended yet"),), None)
    problem = altered(record)
    of_run = () if problem is None else (Finding(Code.RUN_ALTERED, layout.RUN, problem),)
    try:
        plan = open_plan(storage)
        damaged = tuple(_plan_finding(problem) for problem in damaged_parts(storage, plan.summary))
        verification = verify(storage, plan, record.spec.checkpoint.rows_per_shard)
    except JournalDamaged as error:
        return Checked((_plan_finding(str(error)),), None)
    return Checked((*of_run, *damaged, *verification.findings), verification)


def _plan_finding(problem: str) -> Finding:
    return Finding(Code.PLAN_DAMAGED, layout.PLAN, problem)
