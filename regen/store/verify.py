"""Is what lies in a run folder what was committed? Offline, from the store and the plan alone; changes nothing.

Guarantees: every journal file and shard is read in full and recomputed: counts, order, ids, each row's digest, each
file's digest, the running totals, the sequence of claims. What does not hold is a finding that names the file.
Does not judge what the plan's parts must be: whoever reads them checks that, and it is reported here.
Costs reading everything once, and in memory one journal file or row group, and about 45 bytes a row of the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from regen.errors import JournalDamaged, StoreRefused
from regen.protocols import Plan, Storage
from regen.records import Status
from regen.store.files import JournalFiles
from regen.store.findings import Code, Finding, Findings
from regen.store.layout import JOURNAL, SHARDS, journal_number, shard_range
from regen.store.shards import shard_ranges
from regen.store.verify_closed import ClosedCheck
from regen.store.verify_journal import JournalCheck
from regen.store.verify_plan import PlanIds, check_plan
from regen.store.verify_shards import ShardCheck

_MISSING_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Verification:
    """`outcomes` has every status; `by_source` only what occurs. `first_missing` are the first ordinals not done.

    `shards_outdated` are older than a retry or a repair of some of their rows; `reopened` rows are wanted once more.
    `shards_outgrown`, not counted among `shards`, are whole, and a part of the range that their rows are in since an
    extension. `shards_faulty` are the keys of those that a repair writes anew.
    """

    planned: int
    outcomes: Mapping[Status, int]
    by_source: Mapping[str, Mapping[Status, int]]
    missing: int
    first_missing: tuple[int, ...]
    journal_files: int
    shards: int
    shards_planned: int
    shards_outdated: int
    shards_outgrown: int
    shards_faulty: frozenset[str]
    reopened: int
    findings: tuple[Finding, ...]

    @property
    def is_sound(self) -> bool:
        """Nothing is wrong with what is there."""
        return not self.findings

    @property
    def is_complete(self) -> bool:
        """Nothing is wrong, and every planned row has its outcome: planned == sum(outcomes)."""
        return self.is_sound and self.missing == 0 and self.planned == sum(self.outcomes.values())


def verify(
    storage: Storage,
    plan: Plan,
    rows_per_shard: int,
    *,
    progress: Callable[[str], None] | None = None,
) -> Verification:
    """Check the whole run folder. `progress` is told the key of each file before it is read.

    Raises StoreUnavailable, StoreRefused; damage is not raised but found.
    """
    tell = progress or (lambda key: None)
    findings = Findings()
    _check_names(storage, findings)
    ids = check_plan(plan, findings)
    journal = (ClosedCheck if _is_closed(storage) else JournalCheck)(storage, ids, plan.stages, findings)
    journal.run(tell)
    shards = ShardCheck(storage, plan, journal, ids.settled, findings)
    shards.run(rows_per_shard, tell)
    by_source, missing, first_missing = _outcomes(plan.count, ids, journal)
    return Verification(
        planned=plan.count,
        outcomes={status: sum(counts.get(status, 0) for counts in by_source.values()) for status in Status},
        by_source=by_source,
        missing=missing,
        first_missing=tuple(first_missing),
        journal_files=journal.files,
        shards=shards.files - shards.outgrown,
        shards_planned=len(list(shard_ranges(plan.count, rows_per_shard))),
        shards_outdated=shards.outdated,
        shards_outgrown=shards.outgrown,
        shards_faulty=frozenset(shards.faulty),
        reopened=len(journal.reopened()),
        findings=findings.all(),
    )


def _is_closed(storage: Storage) -> bool:
    """Whether the journal was closed; not if its last file cannot be read: that is found as damage."""
    try:
        return JournalFiles(storage).closed() is not None
    except (JournalDamaged, StoreRefused):
        return False


def _check_names(storage: Storage, findings: Findings) -> None:
    known: tuple[tuple[str, Callable[[str], object]], ...] = ((JOURNAL, journal_number), (SHARDS, shard_range))
    for prefix, parse in known:
        for stored in storage.list(prefix):
            if parse(stored.key) is None:
                findings.add(Code.UNKNOWN_FILE, stored.key, "is not a name that regen gives: move it away")


def _outcomes(
    plan_rows: int, ids: PlanIds, journal: JournalCheck
) -> tuple[dict[str, dict[Status, int]], int, list[int]]:
    """Counts by source; how many ordinals have no outcome, and the first of them."""
    by_source: dict[str, dict[Status, int]] = {}
    missing, first_missing = 0, list[int]()
    for ordinal in range(plan_rows):
        status = ids.outcome_of(ordinal) or journal.status_of(ordinal)
        if status is None or ordinal >= ids.known:
            missing += 1
            if missing <= _MISSING_SHOWN:
                first_missing.append(ordinal)
        else:
            counts = by_source.setdefault(ids.source_of(ordinal), {})
            counts[status] = counts.get(status, 0) + 1
    return by_source, missing, first_missing
