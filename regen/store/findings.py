"""What `verify` finds, as values. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Code(StrEnum):
    """What can be wrong. A closed set, for scripts."""

    RUN_ALTERED = "run_altered"
    PLAN_DAMAGED = "plan_damaged"
    PLAN_COUNT = "plan_count"
    PLAN_REFUSED = "plan_refused"
    PLAN_ID = "plan_id"
    JOURNAL_GAP = "journal_gap"
    JOURNAL_DAMAGED = "journal_damaged"
    JOURNAL_ALTERED = "journal_altered"
    JOURNAL_FENCE = "journal_fence"
    JOURNAL_TOTALS = "journal_totals"
    JOURNAL_SNAPSHOT = "journal_snapshot"
    ROW_DIGEST = "row_digest"
    ROW_ID = "row_id"
    ROW_OUTSIDE = "row_outside"
    ROW_REFUSED = "row_refused"
    ROW_REPEATED = "row_repeated"
    ROW_STATUS = "row_status"
    SHARD_DAMAGED = "shard_damaged"
    SHARD_RANGE = "shard_range"
    SHARD_ROWS = "shard_rows"
    SHARD_MISSING = "shard_missing"
    UNKNOWN_FILE = "unknown_file"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong; `where` is the file's key. Alike ones of a file are told once, with their number."""

    code: Code
    where: str
    message: str


class Findings:
    """Collects; of many alike in one file the first is told and the others are counted."""

    def __init__(self) -> None:
        self._first: dict[tuple[Code, str], str] = {}
        self._counts: dict[tuple[Code, str], int] = {}

    def add(self, code: Code, where: str, message: str) -> None:
        key = (code, where)
        self._first.setdefault(key, message)
        self._counts[key] = self._counts.get(key, 0) + 1

    def all(self) -> tuple[Finding, ...]:
        return tuple(
            Finding(code, where, message + self._more(code, where)) for (code, where), message in self._first.items()
        )

    def _more(self, code: Code, where: str) -> str:
        more = self._counts[code, where] - 1
        return f" (and {more} more like it)" if more else ""
