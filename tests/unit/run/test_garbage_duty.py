"""What follows from an alarm: who is dismissed, what is made again, and that it is so only once."""

from __future__ import annotations

from collections.abc import Iterable

from regen.ordinals import OrdinalSet
from regen.records import Label, WorkerId
from regen.run.fleet.garbage import MARGIN_ROWS
from regen.run.fleet.garbage_duty import Dismissal, GarbageDuty
from regen.store.control import RowsReopened

ROWS = 5000


def settled_in(duty: GarbageDuty) -> GarbageDuty:
    """Two replicas that have made good rows."""
    for slot in (0, 1):
        assert duty.finished(WorkerId(slot, 0), [(slot * 500 + row, None) for row in range(500)]) is None
    return duty


def garbage(duty: GarbageDuty, worker: WorkerId, ordinals: Iterable[int]) -> Dismissal | None:
    """Row after row, while the other replica goes on making good ones."""
    for row, ordinal in enumerate(ordinals):
        duty.finished(WorkerId(0, 0), [(3000 + row, None), (4000 + row, None)])
        if (dismissal := duty.finished(worker, [(ordinal, Label.LOOP)])) is not None:
            return dismissal
    return None


def test_an_engine_is_dismissed_for_good_and_its_successor_is_not() -> None:
    duty = settled_in(GarbageDuty(8, ROWS))
    dismissal = garbage(duty, WorkerId(1, 0), range(2000, 2100))
    assert dismissal is not None
    assert dismissal.why == duty.why_dismissed(WorkerId(1, 0))
    assert duty.why_dismissed(WorkerId(1, 1)) is None
    assert duty.dismissed == (dismissal.why,)
    assert set(dismissal.doubtful) >= set(range(2000, 2000 + len(dismissal.doubtful) - MARGIN_ROWS))


def test_rows_that_are_garbage_everywhere_cost_one_engine() -> None:
    duty = settled_in(GarbageDuty(8, ROWS))
    dismissal = garbage(duty, WorkerId(1, 0), range(2000, 2100))
    assert dismissal is not None
    assert garbage(duty, WorkerId(1, 1), dismissal.doubtful) is None
    duty.gone(WorkerId(1, 1))
    again = garbage(duty, WorkerId(1, 2), range(2200, 2300))
    assert again is not None
    assert not set(again.doubtful) & set(dismissal.doubtful), "an engine that was not dismissed has made them again"


def test_rows_that_were_made_again_by_an_engine_that_is_dismissed_too_are_made_once_more() -> None:
    duty = settled_in(GarbageDuty(8, ROWS))
    dismissal = garbage(duty, WorkerId(1, 0), range(2000, 2100))
    assert dismissal is not None
    again = garbage(duty, WorkerId(1, 1), [*dismissal.doubtful[-5:], *range(2200, 2300)])
    assert again is not None
    assert set(dismissal.doubtful[-5:]) <= set(again.doubtful)


def test_a_coordinator_that_comes_after_knows_the_rows_from_the_journal() -> None:
    rows = range(2000, 2100)
    record = RowsReopened("s", 1, OrdinalSet(ROWS, rows).to_text(), 100, {}, '{"garbage": {"replica": 1}}', "now")
    assert garbage(settled_in(GarbageDuty(8, ROWS, [record])), WorkerId(1, 0), rows) is None
    asked_by_a_user = RowsReopened("s", 1, record.rows, 100, {}, '{"reasons": ["loop"]}', "now")
    assert garbage(settled_in(GarbageDuty(8, ROWS, [asked_by_a_user])), WorkerId(1, 0), rows) is not None


def test_rows_from_before_the_plan_was_extended_are_known_too() -> None:
    """The record's bitmap is that of the shorter plan."""
    rows = range(100, 200)
    record = RowsReopened("s", 1, OrdinalSet(1000, rows).to_text(), 100, {}, '{"garbage": {"replica": 1}}', "now")
    assert garbage(settled_in(GarbageDuty(8, ROWS, [record])), WorkerId(1, 0), rows) is None
