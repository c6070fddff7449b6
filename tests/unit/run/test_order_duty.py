"""In which order the last rows begin: the plan is asked once, in a thread, and the schedule is told."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from regen.errors import StoreUnavailable
from regen.ordinals import OrdinalSet
from regen.records import Message, PlannedRow, Role, SourceTotals, WorkerId
from regen.run.order_duty import LOOK_SECONDS, OrderDuty
from regen.run.schedule import Report, Schedule
from tests.output_rows import MemoryPlan, source_of

ROWS = 9
# Ten rows of each source have ended: those of the mathematics were the longest.
MADE = {
    name: SourceTotals(0, 0, 10, (*(0,) * bucket, 10)) for name, bucket in (("chat", 8), ("math", 14), ("code", 10))
}
MADE = {name: replace(made, output_tokens=10 * 2 ** (len(made.lengths) // 2)) for name, made in MADE.items()}


class Plan(MemoryPlan):
    """The store is away at first. The last row asks for thirty turns."""

    def __init__(self, is_away: bool = False) -> None:
        super().__init__(ROWS)
        self.is_away, self.asked = is_away, list[int]()

    def rows(self, ordinals: Sequence[int]) -> list[PlannedRow]:
        if self.is_away:
            raise StoreUnavailable("the store is away")
        self.asked += ordinals
        return [self._of_turns(row, 30 if row.ordinal == ROWS - 1 else 1) for row in super().rows(ordinals)]

    @staticmethod
    def _of_turns(row: PlannedRow, turns: int) -> PlannedRow:
        assert row.conversation is not None
        asked = (Message(Role.USER, "and?"), Message(Role.ASSISTANT, None)) * turns
        return replace(row, conversation=replace(row.conversation, messages=asked))


async def ticked(duty: OrderDuty, now: float, slots: int = 100) -> None:
    duty.tick(now, slots, MADE)
    for _ in range(50):
        await asyncio.sleep(0.001)


def leased(schedule: Schedule) -> list[int]:
    orders = schedule.report(Report(WorkerId(0, 0), 1, (), (), (), (), ROWS), 0.0)
    return [grant.ordinal for grant in orders.grants]


def test_the_last_rows_begin_with_the_longest_source_and_the_row_of_most_turns() -> None:
    plan, schedule = Plan(), Schedule(OrdinalSet(ROWS), attempts_allowed=1)

    async def run() -> None:
        duty = OrderDuty(plan, schedule)
        await ticked(duty, 0.0)
        await ticked(duty, 1.0)  # what was read is used as soon as it is there
        await ticked(duty, 1.0 + LOOK_SECONDS)
        await duty.cancel()

    asyncio.run(run())
    order = leased(schedule)
    assert order[0] == ROWS - 1
    assert [source_of(row) for row in order[1:]] == sorted(
        (source_of(row) for row in range(ROWS - 1)), key=["math", "code", "chat"].index
    )
    assert plan.asked == list(range(ROWS)), "once"


def test_with_the_store_away_it_is_tried_again_and_the_plans_order_stays_meanwhile() -> None:
    plan, schedule = Plan(is_away=True), Schedule(OrdinalSet(ROWS), attempts_allowed=1)

    async def run() -> None:
        duty = OrderDuty(plan, schedule)
        await ticked(duty, 0.0)
        await ticked(duty, 1.0)
        plan.is_away = False
        await ticked(duty, 2.0 * LOOK_SECONDS)
        assert schedule.rest() == list(range(ROWS))
        await ticked(duty, 2.0 * LOOK_SECONDS + 1.0)
        await duty.cancel()

    asyncio.run(run())
    assert leased(schedule)[0] == ROWS - 1


def test_nothing_is_read_while_the_end_is_far() -> None:
    plan, schedule = Plan(), Schedule(OrdinalSet(ROWS), attempts_allowed=1)
    asyncio.run(ticked(OrderDuty(plan, schedule), 0.0, slots=0))
    assert not plan.asked


def test_a_defect_of_it_is_said_and_leaves_the_plans_order(capsys: pytest.CaptureFixture[str]) -> None:
    class Broken(Plan):
        def rows(self, ordinals: Sequence[int]) -> list[PlannedRow]:
            self.asked += ordinals
            raise ZeroDivisionError("no")

    plan, schedule = Broken(), Schedule(OrdinalSet(ROWS), attempts_allowed=1)

    async def run() -> None:
        duty = OrderDuty(plan, schedule)
        for now in range(3):
            await ticked(duty, now * 2 * LOOK_SECONDS)
        await duty.cancel()

    asyncio.run(run())
    assert leased(schedule) == list(range(ROWS))
    assert len(plan.asked) == ROWS, "it is not tried again"
    assert "ZeroDivisionError: no" in capsys.readouterr().err
