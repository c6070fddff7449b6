"""What an export holds and what it left out, counted while it is written. Pure.

`rows_seen` is always `rows_kept` plus all of `rows_left_out`. A row is left out with the reason of its first record
where none of its records could be made; reasons of single turns are counted beside that.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from regen.store.export.format import Record
from regen.store.export.selection import Kept, LeftOut, Row

NOT_A_GOOD_TURN = "not a good turn of its row"


@dataclass(slots=True)
class Tally:
    """`kept` by (source, status), `rows_left_out` by (source, reason). `limit_tokens` is the trainer's own default.

    Of the records longer than that, `cut_records` lose their end, `lost_records` everything that is trained on.
    """

    limit_tokens: int | None
    kept: Counter[tuple[str, str]] = field(default_factory=Counter)
    rows_left_out: Counter[tuple[str, str]] = field(default_factory=Counter)
    turns_left_out: Counter[str] = field(default_factory=Counter)
    records: Counter[str] = field(default_factory=Counter)
    generations: int = 0
    tokens: int = 0
    trained_tokens: int = 0
    longest_tokens: int = 0
    cut_records: int = 0
    lost_records: int = 0

    @property
    def rows_kept(self) -> int:
        return self.kept.total()

    @property
    def rows_seen(self) -> int:
        return self.rows_kept + self.rows_left_out.total()

    def leave_out(self, row: Row, reason: str) -> None:
        self.rows_left_out[row["source"], reason] += 1

    def keep(self, kept: Kept, made: list[Record], refused: list[LeftOut]) -> None:
        """Count a selected row with what became of it."""
        if not made:
            self.leave_out(kept.row, refused[0].reason)
            return
        self.kept[kept.row["source"], kept.row["status"]] += 1
        self.turns_left_out.update(each.reason for each in refused)
        if kept.turns_left_out:
            self.turns_left_out[NOT_A_GOOD_TURN] += kept.turns_left_out
        for record in made:
            self._add(record)

    def reasons(self) -> Counter[str]:
        """Rows left out by reason, over all sources."""
        found: Counter[str] = Counter()
        for (_, reason), count in self.rows_left_out.items():
            found[reason] += count
        return found

    def to_json(self) -> dict[str, Any]:
        """Plain data in a fixed order."""
        return {
            "rows_seen": self.rows_seen,
            "rows_kept": self.rows_kept,
            "records": dict(sorted(self.records.items())),
            "generations": self.generations,
            "tokens": self.tokens,
            "trained_tokens": self.trained_tokens,
            "longest_record_tokens": self.longest_tokens,
            "trainer_default_tokens": self.limit_tokens,
            "records_cut_by_trainer_default": self.cut_records,
            "records_lost_by_trainer_default": self.lost_records,
            "kept": _nested(self.kept),
            "rows_left_out": _nested(self.rows_left_out),
            "turns_left_out": dict(sorted(self.turns_left_out.items())),
        }

    def _add(self, record: Record) -> None:
        self.records[record.split] += 1
        self.generations += record.generations
        self.tokens += record.tokens
        self.trained_tokens += record.trained_tokens
        self.longest_tokens = max(self.longest_tokens, record.tokens)
        if self.limit_tokens is not None and record.tokens > self.limit_tokens:
            is_lost = record.context_tokens >= self.limit_tokens
            self.lost_records += is_lost
            self.cut_records += not is_lost


def _nested(counts: Counter[tuple[str, str]]) -> dict[str, dict[str, int]]:
    made: dict[str, dict[str, int]] = {}
    for (outer, inner), count in sorted(counts.items()):
        made.setdefault(outer, {})[inner] = count
    return made
