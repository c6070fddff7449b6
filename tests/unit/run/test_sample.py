"""Which rows a head is evaluated on: the same ones for the same rows, of every source."""

from __future__ import annotations

import random

from regen.records import Status
from regen.run.commands.lowest_ids import LowestIds
from regen.run.commands.sample import sample_rows
from tests.memory_storage import MemoryStorage
from tests.output_rows import output_row, row_id, source_of
from tests.unit.store.journals import published


def test_every_source_gives_its_share_whatever_the_order_and_the_sizes() -> None:
    rows = [("large", number) for number in range(100)] + [("small", number) for number in range(100, 103)]
    taken = []
    for seed in range(3):
        random.Random(seed).shuffle(rows)
        lowest = LowestIds(5)
        for source, number in rows:
            lowest.add(source, row_id(number), number)
        taken.append(lowest.ordinals())
    assert taken[0] == taken[1] == taken[2]
    assert taken[0][:5] == sorted(sorted(range(100), key=row_id)[:5])
    assert taken[0][5:] == [100, 101, 102]


def test_rows_whose_answers_say_nothing_are_not_taken() -> None:
    storage = MemoryStorage()
    silent = (Status.DEGENERATE, Status.REJECTED, Status.FAILED, Status.NATIVE)
    rows = [output_row(number, status=silent[number % 4] if number < 8 else Status.TRUNCATED) for number in range(12)]
    published(storage, [rows], plan_rows=12)
    assert [row.ordinal for row in sample_rows(storage, 12, per_source=10)] == [8, 9, 10, 11]
    one_each = sample_rows(storage, 12, per_source=1)
    assert sorted(row.source for row in one_each) == sorted({source_of(number) for number in (8, 9, 10, 11)})
