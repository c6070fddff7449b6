"""Which finished rows, and which of their turns, go into an export. Pure.

Rows are plain values in the shape of `rows.SCHEMA` (`to_pylist`); columns that only some versions have are read by name
where they are there (`split`). Every row is either kept or left out with a reason: nothing disappears uncounted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from regen.records import FinishReason, Role, Status

Row = Mapping[str, Any]

DEFAULT_STATUSES = frozenset({Status.OK, Status.NATIVE})
WITHOUT_ANSWERS = frozenset({Status.REJECTED, Status.FAILED})
TRAIN = "train"
EVERY_SPLIT = "all"


@dataclass(frozen=True, slots=True)
class Kept:
    """A row that is exported, with the generations that are. `turns_left_out` are its others."""

    row: Row
    generations: tuple[Row, ...]
    turns_left_out: int = 0

    @property
    def split(self) -> str:
        return split_of(self.row)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Why a row, or one turn of it, is not exported."""

    reason: str


@dataclass(frozen=True, slots=True)
class Selection:
    """What was asked for: statuses, and one split or `all`."""

    statuses: frozenset[Status] = DEFAULT_STATUSES
    split: str = TRAIN


def split_of(row: Row) -> str:
    """A row without a split is for training."""
    return row.get("split") or TRAIN


def select(row: Row, selection: Selection) -> Kept | LeftOut:
    """The row's part in the export.

    Of a `partial` row only the good turns are taken: those whose answer the conversation went on with. All turns of
    another status that was asked for are taken as they are.
    """
    if selection.split not in (EVERY_SPLIT, split_of(row)):
        return LeftOut(f"of the split {split_of(row)}")
    status = Status(row["status"])
    if status not in selection.statuses:
        return LeftOut(f"{status.value}: {row['reason']}" if row["reason"] else status.value)
    generations = tuple(row["generations"])
    kept = good_turns(row) if status is Status.PARTIAL else generations
    if not kept:
        return LeftOut("no good turn" if generations else "no generation")
    return Kept(row, kept, len(generations) - len(kept))


def good_turns(row: Row) -> tuple[Row, ...]:
    """Generations that ended by themselves and stand in the conversation: a bad turn ends it and is not in it."""
    answered = sum(1 for message in row["messages"] if message["role"] == Role.ASSISTANT)
    good = []
    for generation in row["generations"][:answered]:
        if generation["finish_reason"] != FinishReason.STOP:
            break
        good.append(generation)
    return tuple(good)
