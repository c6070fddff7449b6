"""The shards' part of `verify`: every sealed file read in full, and compared with the journal's rows that count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from regen.errors import JournalDamaged
from regen.ordinals import OrdinalSet
from regen.protocols import Plan, Storage
from regen.rows import determined_digest
from regen.store.findings import Code, Findings
from regen.store.layout import SHARDS, shard_key, shard_range
from regen.store.parquet import RowsFile, content_digest, damaged, integers, naming_damage, texts, what_is_wrong
from regen.store.shards import Shard, outgrown_ranges, settled_table, shard_entry, shard_ranges
from regen.store.verify_journal import BATCH_ROWS, JournalCheck


class ShardCheck:
    """Compares with what `journal` has found; `settled` are the plan's rows that are terminal from the start.

    Once rows of the journal were voided, a shard that has others, or more, is older and not wrong. `faulty` are keys of
    planned shards that must be written anew.
    """

    def __init__(
        self, storage: Storage, plan: Plan, journal: JournalCheck, settled: OrdinalSet, findings: Findings
    ) -> None:
        self._storage = storage
        self._plan = plan
        self._done, self._settled, self._winners = journal.done, settled, journal.winners
        self._is_closed, self._unreadable = journal.is_closed, journal.unreadable
        self._findings = findings
        self._is_repaired = bool(journal.voided)
        self.faulty: set[str] = set()
        self.files = 0
        self.outdated = 0
        self.outgrown = 0

    def run(self, rows_per_shard: int, progress: Callable[[str], None]) -> None:
        planned = set(shard_ranges(self._plan.count, rows_per_shard))
        outgrown = outgrown_ranges(self._plan, rows_per_shard)
        for stored in self._storage.list(SHARDS):
            limits = shard_range(stored.key)
            if limits is None:
                continue
            progress(stored.key)
            self.files += 1
            if limits in planned:
                planned.remove(limits)
                if stored.key not in self._unreadable:
                    self._check_file(stored.key, *limits)
            elif limits in outgrown:
                self.outgrown += 1
                self._check_file(stored.key, *limits)
            else:
                message = f"is not one of the ranges of {rows_per_shard} rows that this run has"
                self._findings.add(Code.SHARD_RANGE, stored.key, message)
        is_due = self.files and len(self._done | self._settled) == self._plan.count
        if is_due or self._is_closed:
            for first, last in sorted(planned - self._of_the_newest_extension(rows_per_shard)):
                self._find(Code.SHARD_MISSING, shard_key(first, last), "is missing: seal again")

    def _of_the_newest_extension(self, rows_per_shard: int) -> set[tuple[int, int]]:
        """Ranges that came with it: that nobody has sealed them yet is no damage, unless the run is closed."""
        is_extended = len(self._plan.stages) > 1 and not self._is_closed
        before = self._plan.stages[-2].rows if is_extended else self._plan.count
        return {(first, last) for first, last in shard_ranges(self._plan.count, rows_per_shard) if last >= before}

    def _find(self, code: Code, key: str, message: str) -> None:
        self._findings.add(code, key, message)
        self.faulty.add(key)

    def _check_file(self, key: str, first: int, last: int) -> None:
        expected = self._expected(key, first, last)
        if expected is None and self._is_repaired:
            self.outdated += 1
            return
        if expected is None:
            self._find(Code.SHARD_ROWS, key, "has rows that the journal does not have")
            return
        try:
            self._check_content(expected)
        except JournalDamaged as error:
            self._find(Code.SHARD_DAMAGED, key, what_is_wrong(error, f"{self._storage.url}/{key}"))

    def _check_content(self, expected: Shard) -> None:
        ordinals: list[int] = []
        digests: list[str] = []
        rounds: list[int] = []
        where = f"{self._storage.url}/{expected.key}"
        try:
            source = self._storage.open(expected.key)
        except KeyError:
            raise damaged(where, "it is missing") from None
        with source:
            file = RowsFile(source, where)
            file.check_bytes()
            for group in file.groups():
                for batch in group.to_batches(max_chunksize=BATCH_ROWS):
                    with naming_damage(where):
                        rows = batch.to_pylist()
                    ordinals += [values["ordinal"] for values in rows]
                    rounds += [values["round"] for values in rows]
                    digests += [self._checked_digest(expected.key, values) for values in rows]
        if ordinals != list(range(expected.first, expected.last + 1)):
            self._find(Code.SHARD_ROWS, expected.key, "does not have each row of its range once and in order")
        elif self._is_outdated(file, replace(expected, digest=content_digest(ordinals, digests)), rounds, digests):
            self.outdated += 1
        elif content_digest(ordinals, digests) != expected.digest:
            self._find(Code.SHARD_ROWS, expected.key, "its rows are not the journal's")
        elif file.entry != shard_entry(expected, self._plan):
            self._find(Code.SHARD_ROWS, expected.key, "its footer is not that of its rows and plan")

    def _is_outdated(self, file: RowsFile, found: Shard, rounds: Sequence[int], digests: Sequence[str]) -> bool:
        """Whether it is what its footer says, and differs from the journal only in rows that were made again since."""
        differing = 0
        for ordinal, round_, digest in zip(range(found.first, found.last + 1), rounds, digests, strict=True):
            if self._winners.number_of(ordinal) is None or digest == self._winners.digest_of(ordinal):
                continue
            if round_ >= self._winners.round_of(ordinal) and not self._is_repaired:
                return False
            differing += 1
        return differing > 0 and file.entry == shard_entry(found, self._plan)

    def _checked_digest(self, key: str, values: dict[str, Any]) -> str:
        digest = determined_digest(values)
        if digest != values["digest"]:
            self._find(Code.ROW_DIGEST, key, f"row {values['ordinal']} is not what its digest was made from")
        return digest

    def _expected(self, key: str, first: int, last: int) -> Shard | None:
        """What the shard must be; None if some of its rows are not done."""
        ordinals = range(first, last + 1)
        if any(ordinal not in self._done and ordinal not in self._settled for ordinal in ordinals):
            return None
        settled = settled_table(self._plan, [ordinal for ordinal in ordinals if ordinal in self._settled], "", "")
        settled_digests = dict(zip(integers(settled, "ordinal"), texts(settled, "digest"), strict=True))
        digests = [settled_digests.get(ordinal) or self._winners.digest_of(ordinal) for ordinal in ordinals]
        return Shard(key, first, last, len(ordinals), content_digest(ordinals, digests))
