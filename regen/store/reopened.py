"""Rows that are done and wanted once more: which, in what round, sampled how. Pure.

Memory: one byte a row of the plan, and one bit a row for every re-opening (127 at most).
Of several re-openings the newest that names a row counts. It is over when the row has a result of that round, or when
the retry has ended without an answer. A row without any result, its file having been voided, is not among them: it is
to be made like any other, in the round and with the sampling that it was re-opened with.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from regen.ordinals import OrdinalSet
from regen.store.control import Record, RetriesEnded, RowsReopened

LAST_ROUND = 127  # what `Winners` has room for


@dataclass(frozen=True, slots=True)
class Reopened:
    """`pending` are the rows that are still to be made again."""

    pending: OrdinalSet
    _rounds: array[int] = field(repr=False)
    _sampling: Sequence[tuple[OrdinalSet, Mapping[str, float | int]]] = field(repr=False)

    def round_of(self, ordinal: int) -> int:
        """The round in which a row is made: 0 for one that was never re-opened."""
        return self._rounds[ordinal] if self._rounds else 0

    def sampling_of(self, ordinal: int) -> Mapping[str, float | int]:
        """The sampling fields that it was re-opened with, in all rounds: of each field the newest."""
        return {name: value for rows, given in self._sampling if ordinal in rows for name, value in given.items()}


def reopened(records: Iterable[Record], plan_rows: int, round_of: Callable[[int], int]) -> Reopened:
    """From the journal's records, in order; `round_of` is the round of the result that a row has, -1 for none.

    Raises ValueError if a record's rows are not of this plan.
    """
    pending, rounds = OrdinalSet(plan_rows), array("b")
    sampling: list[tuple[OrdinalSet, Mapping[str, float | int]]] = []
    for record in records:
        if isinstance(record, RowsReopened):
            rounds = rounds or array("b", [0]) * plan_rows
            rows = OrdinalSet.from_text(plan_rows, record.rows, may_be_shorter=True)  # the plan may have grown since
            sampling.append((rows, record.sampling))
            for ordinal in rows:
                rounds[ordinal] = record.round
                pending.add(ordinal)
        elif isinstance(record, RetriesEnded):
            for ordinal, round_, _, _ in record.rows:
                if rounds and rounds[ordinal] == round_:
                    pending.discard(ordinal)
    for ordinal in list(pending):
        if not 0 <= round_of(ordinal) < rounds[ordinal]:
            pending.discard(ordinal)
    return Reopened(pending, rounds, sampling)


def next_round(records: Iterable[Record]) -> int:
    """Above every round so far."""
    return 1 + max((record.round for record in records if isinstance(record, RowsReopened)), default=0)
