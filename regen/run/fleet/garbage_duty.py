"""What follows when a replica's answers are garbage: it is dismissed, and which of its rows are made again. Pure.

Guarantees: nothing is taken from a dismissed engine any more. A row that was made again says nothing of the replica
that made it: one that is garbage everywhere is `degenerate`, and costs no second engine. It is made once more only if
the engine that made it again is dismissed too. A coordinator that was restarted knows such rows from the journal, and
looks at engines anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from regen.errors import RegenError
from regen.ordinals import OrdinalSet
from regen.records import Label, WorkerId
from regen.run.fleet.garbage import GarbageWatch
from regen.store.control import Record, RowsReopened

_KEY = "garbage"


@dataclass(frozen=True, slots=True)
class Dismissal:
    """`doubtful` rows are to be made again, committed or not. `why` is a sentence, `asked` is for the journal."""

    worker: WorkerId
    doubtful: tuple[int, ...]
    why: str
    asked: str


class GarbageDuty:
    """One per coordinator."""

    def __init__(self, slots: int, plan_rows: int, records: Iterable[Record] = ()) -> None:
        """`slots` as in `GarbageWatch`; `records` are the journal's."""
        self._watch = GarbageWatch(slots)
        self._dismissed: dict[WorkerId, str] = {}
        self._made_again = OrdinalSet(plan_rows)
        # By slot, what its engine has made again, and is garbage again.
        self._again: dict[int, list[int]] = {}
        for record in records:
            if isinstance(record, RowsReopened) and _KEY in json.loads(record.asked):
                # The plan may have grown since.
                self._made_again |= OrdinalSet.from_text(plan_rows, record.rows, may_be_shorter=True)

    @property
    def dismissed(self) -> tuple[str, ...]:
        """Why engines were dismissed, the newest last."""
        return tuple(self._dismissed.values())

    def why_dismissed(self, worker: WorkerId) -> str | None:
        """None: it was not."""
        return self._dismissed.get(worker)

    def finished(self, worker: WorkerId, rows: Iterable[tuple[int, Label | None]]) -> Dismissal | None:
        """Rows that were taken in from this replica: ordinal, and the label that makes one garbage."""
        alarm = self._watch.finished(worker, self._telling(worker.slot, rows))
        if alarm is None:
            return None
        doubtful = (*alarm.doubtful, *self._again.pop(worker.slot, ()))
        for ordinal in doubtful:
            self._made_again.add(ordinal)
        why = f"{alarm.found}; {len(doubtful)} rows are made again"
        self._dismissed[worker] = f"replica {worker.slot}: {why}"
        asked = json.dumps({_KEY: {"replica": worker.slot, "found": alarm.found}})
        return Dismissal(worker, doubtful, self._dismissed[worker], asked)

    def gone(self, worker: WorkerId) -> None:
        """This engine has ended."""
        self._watch.gone(worker)
        self._again.pop(worker.slot, None)

    def too_much_garbage(self, allowed_share: float | None, replicas: int = 1) -> RegenError | None:
        """As of `GarbageWatch`."""
        return self._watch.too_much_garbage(allowed_share, replicas)

    def _telling(self, slot: int, rows: Iterable[tuple[int, Label | None]]) -> Iterator[tuple[int, Label | None]]:
        """Rows that say something of the replica; the others are remembered."""
        for ordinal, label in rows:
            if ordinal not in self._made_again:
                yield ordinal, label
            elif label is not None:
                self._again.setdefault(slot, []).append(ordinal)
