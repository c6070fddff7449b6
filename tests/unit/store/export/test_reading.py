"""Committed rows as an export reads them: in order, sealed or not, and always the ones that count."""

from __future__ import annotations

import json
import random
from dataclasses import replace

from regen.protocols import Storage
from regen.records import Message, OutputRow, Role
from regen.rows import to_table
from regen.store.export.conversation import Fields
from regen.store.export.reading import fields_of, finished_rows
from regen.store.shards import committed, seal
from tests.memory_storage import MemoryStorage
from tests.output_rows import MemoryPlan, output_row
from tests.unit.store.journals import opened, published

PLAN_ROWS = 25
REFUSED = (3, 24)
PER_SHARD = 10
PLAN = MemoryPlan(PLAN_ROWS, REFUSED)
GIVEN = [ordinal for ordinal in range(PLAN_ROWS) if ordinal not in REFUSED]


def stored(rows: list[OutputRow] | None = None) -> MemoryStorage:
    storage = MemoryStorage()
    rows = [output_row(ordinal, text=f"answer {ordinal}") for ordinal in GIVEN] if rows is None else rows
    random.Random(0).shuffle(rows)
    published(storage, [rows[at : at + 4] for at in range(0, len(rows), 4)], PLAN_ROWS)
    return storage


def sealed(storage: Storage, *, complete_only: bool = False) -> None:
    seal(storage, PLAN, PER_SHARD, session="s1", fingerprint="f" * 32, complete_only=complete_only)


def read(storage: Storage) -> list[tuple[int, str, str]]:
    return [
        (row["ordinal"], row["status"], row["messages"][-1]["content"])
        for row in finished_rows(storage, PLAN, PER_SHARD)
    ]


def test_every_row_with_an_outcome_comes_in_order_sealed_or_not() -> None:
    storage = stored()
    before = read(storage)
    assert [ordinal for ordinal, _, _ in before] == list(range(PLAN_ROWS))
    assert [ordinal for ordinal, status, _ in before if status == "rejected"] == list(REFUSED)
    assert before[7] == (7, "ok", "answer 7")
    sealed(storage)
    assert read(storage) == before


def test_rows_that_are_not_done_are_not_there_and_refused_ones_are() -> None:
    storage = stored([output_row(ordinal) for ordinal in range(15) if ordinal not in REFUSED])
    sealed(storage, complete_only=True)
    assert [ordinal for ordinal, _, _ in read(storage)] == [*range(15), 24]


def test_a_row_that_was_made_again_after_sealing_counts_as_the_journal_has_it() -> None:
    storage = stored()
    sealed(storage)
    journal = opened(storage, session="s2", plan_rows=PLAN_ROWS)
    journal.publish(to_table([output_row(7, round_=1, text="another answer")]))
    assert read(storage)[7] == (7, "ok", "another answer")


def test_some_columns_alone() -> None:
    storage = stored()
    for _ in range(2):
        tables = list(committed(storage, PLAN, PER_SHARD, ("ordinal", "status")))
        assert {tuple(table.column_names) for table in tables} == {("ordinal", "status")}
        assert sum(len(table) for table in tables) == PLAN_ROWS
        sealed(storage)


def test_fields_are_those_that_occur_anywhere() -> None:
    def given(**more: object) -> Fields:
        return fields_of(stored([replace(output_row(0), **more), output_row(1)]), PLAN, PER_SHARD)  # type: ignore[arg-type]

    assert given() == Fields()
    assert given(tools_json="[]") == Fields(tools=True)
    reasoning = (Message(Role.USER, "q"), Message(Role.ASSISTANT, "a", "because"))
    assert given(messages=reasoning) == Fields(reasoning=True)
    assert given(messages=(Message(Role.USER, "q"), Message(Role.ASSISTANT, "a", ""))) == Fields()
    kwargs = json.dumps({"thinking": True, "effort": "low"})
    assert given(template_kwargs_json=kwargs) == Fields(kwargs=("effort", "thinking"))
