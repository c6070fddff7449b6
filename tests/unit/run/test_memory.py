"""What is held in memory does not grow with the rows that were made, also while one early row is still being made.

All that an object refers to is measured as its pickle: no container can grow unseen. `make bench-memory` measures
processes.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator

from regen.ordinals import OrdinalSet
from regen.records import FailedAttempt, Label, WorkerId
from regen.run.fleet.garbage_duty import GarbageDuty
from regen.run.schedule import Report, Schedule
from regen.store.journal import Journal
from tests.memory_storage import MemoryStorage
from tests.unit.store.journals import opened, table_of

ROWS, AT_ONCE = 20_000, 50
# What rows in flight may differ by at two moments.
LITTLE = 2_000


def sizes(held: object, done: Iterator[int], of: int = ROWS) -> tuple[int, int]:
    """Bytes that are held after a tenth and after most of the rows."""
    early = next(len(pickle.dumps(held)) for rows in done if rows >= of // 10)
    late = next(len(pickle.dumps(held)) for rows in done if rows >= of - of // 20)
    return early, late


def test_a_schedule_with_one_row_that_takes_for_ever() -> None:
    schedule = Schedule(OrdinalSet(ROWS), attempts_allowed=3)

    def rows() -> Iterator[int]:
        slow, quick, now, seq, done = WorkerId(0, 0), WorkerId(1, 0), 0.0, 0, 0
        (grant,) = schedule.report(Report(slow, 1, (), (), (), (), 1), now).grants
        running: list[int] = []
        while done < ROWS - 1:
            now, seq = now + 1.0, seq + 1
            finished, failed = tuple(running[10:]), running[:10]  # these succeed in their second attempt
            attempts = tuple(FailedAttempt(ordinal, "stalled", "") for ordinal in failed)
            schedule.report(Report(slow, seq + 1, (grant.ordinal,), (), (), (), 0), now)
            orders = schedule.report(Report(quick, seq, (), (), finished, attempts, AT_ONCE), now)
            schedule.tick(now)
            schedule.committed([*orders.accepted, *(row.ordinal for row in orders.exhausted)])
            running = [grant.ordinal for grant in orders.grants]
            done = ROWS - schedule.left
            yield done

    early, late = sizes(schedule, rows())
    assert late - early < LITTLE


def test_the_watch_for_garbage_with_loops_now_and_then() -> None:
    duty = GarbageDuty(8, ROWS)

    def rows() -> Iterator[int]:
        for ordinal in range(ROWS):
            duty.finished(WorkerId(ordinal % 3, 0), [(ordinal, Label.LOOP if ordinal % 50 == 7 else None)])
            yield ordinal

    early, late = sizes(duty, rows())
    assert late - early < 12_000, "the latest thousand labels are kept, and no more"
    assert late < 40_000


def test_the_ledger_of_a_journal() -> None:
    plan_rows = 3000
    journal = opened(MemoryStorage(), plan_rows=plan_rows)

    def rows() -> Iterator[int]:
        for start in range(0, plan_rows, 50):
            journal.publish(table_of(*range(start, start + 50)))
            yield start + 50

    early, late = sizes(_State(journal), rows(), plan_rows)
    assert late - early < LITTLE


class _State:
    """A journal without its store."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def __reduce__(self) -> tuple[type[dict[str, object]], tuple[dict[str, object]]]:
        left_out = ("_storage", "_files")
        return dict, ({name: value for name, value in vars(self._journal).items() if name not in left_out},)
