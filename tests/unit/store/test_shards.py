"""Sealing: whole ranges, in order, the same whatever order the journal came about in."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from regen.errors import JournalDamaged, StoreUnavailable, UserError
from regen.protocols import Storage
from regen.records import OutputRow, Role, Split, Stage, Status
from regen.rows import SCHEMA, from_table, to_table
from regen.store import row_order
from regen.store import shards as shards_module
from regen.store.layout import JOURNAL, SHARDS, journal_key, shard_key
from regen.store.local import LocalStorage
from regen.store.parquet import RowsFile, integers
from regen.store.row_order import OrderedRows
from regen.store.shards import Shard, in_row_groups, seal, settled_row
from tests.memory_storage import MemoryStorage
from tests.output_rows import MemoryPlan, native_row, observed, output_row, planned_row
from tests.unit.store.faulty_storage import FaultyStorage
from tests.unit.store.journals import opened, published

PLAN_ROWS = 25
REFUSED = (3, 24)
PER_SHARD = 10


@pytest.fixture
def plan() -> MemoryPlan:
    return MemoryPlan(PLAN_ROWS, REFUSED)


def _finished(storage: Storage, seed: int = 0, per_file: int = 4) -> None:
    ordinals = [ordinal for ordinal in range(PLAN_ROWS) if ordinal not in REFUSED]
    random.Random(seed).shuffle(ordinals)
    seen = observed(session=f"session {seed}", replica=seed)
    rows = [output_row(ordinal, text=f"answer {ordinal}", seen=seen) for ordinal in ordinals]
    published(storage, [rows[at : at + per_file] for at in range(0, len(rows), per_file)], PLAN_ROWS)


def _seal(storage: Storage, plan: MemoryPlan, *, complete_only: bool = False) -> list[Shard]:
    return seal(storage, plan, PER_SHARD, session="s1", fingerprint="f" * 32, complete_only=complete_only)


def _rows(storage: Storage, key: str) -> list[OutputRow]:
    return from_table(RowsFile(storage.read(key), key).table())


def test_shards_hold_every_row_of_the_plan_in_order(plan: MemoryPlan) -> None:
    storage = MemoryStorage()
    _finished(storage)

    shards = _seal(storage, plan)

    assert [(shard.key, shard.rows) for shard in shards] == [
        (shard_key(0, 9), 10),
        (shard_key(10, 19), 10),
        (shard_key(20, 24), 5),
    ]
    rows = [row for shard in shards for row in _rows(storage, shard.key)]
    assert [row.ordinal for row in rows] == list(range(PLAN_ROWS))
    assert [row.ordinal for row in rows if row.status is Status.REJECTED] == list(REFUSED)
    assert rows[7].messages[-1].content == "answer 7"
    assert rows[7].observed.session == "session 0"


def test_settled_rows_say_why_and_hold_no_answer(plan: MemoryPlan) -> None:
    storage = MemoryStorage()
    _finished(storage)
    _seal(storage, plan)

    row = _rows(storage, shard_key(0, 9))[3]

    assert (row.status, row.stage, row.reason, row.detail) == (
        Status.REJECTED,
        Stage.LENGTH,
        "prompt_too_long",
        "3 tokens",
    )
    assert [(message.role, message.content) for message in row.messages] == [(Role.USER, "question 3")]
    assert row.generations == ()
    assert row.observed.fingerprint == "f" * 32


def test_a_settled_row_without_a_conversation_has_no_messages() -> None:
    planned = replace(MemoryPlan(1, [0]).rows([0])[0], conversation=None)

    assert settled_row(planned, "s1", "f").messages == ()
    with pytest.raises(ValueError, match="not settled"):
        settled_row(planned_row(0), "s1", "f")


def test_a_native_row_is_whole_and_as_it_is_planned() -> None:
    planned = native_row(3)
    row = settled_row(planned, "s1", "f" * 32)

    assert (row.status, row.split, row.reason) == (Status.NATIVE, Split.EVAL, None)
    assert planned.conversation is not None
    assert row.messages == planned.conversation.messages
    assert row.generations == planned.native
    assert row.generations[0].sampling is None
    assert from_table(to_table([row])) == [row]


@pytest.mark.parametrize("per_file", [1, 3, 100])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_same_rows_in_another_order_give_the_same_shards(plan: MemoryPlan, seed: int, per_file: int) -> None:
    one, other = MemoryStorage(), MemoryStorage()
    _finished(one)
    _finished(other, seed, per_file)

    assert _seal(one, plan) == _seal(other, plan)

    determined = [name for name in SCHEMA.names if name != "observed"]
    for shard in _seal(one, plan):
        tables = [RowsFile(storage.read(shard.key), "test").table(determined) for storage in (one, other)]
        assert tables[0].equals(tables[1])


def test_sealing_again_writes_nothing(plan: MemoryPlan) -> None:
    storage = MemoryStorage()
    _finished(storage)
    first = _seal(storage, plan)
    before = dict(storage.objects)

    assert _seal(storage, plan) == first
    assert all(storage.objects[key] is data for key, data in before.items())


def test_sealing_goes_on_where_it_was_broken_off(plan: MemoryPlan) -> None:
    storage = MemoryStorage()
    _finished(storage)
    whole = _seal(storage, plan)
    complete = dict(storage.objects)
    storage.delete(shard_key(10, 19))
    storage.replace(shard_key(20, 24), storage.read(shard_key(20, 24))[:-30])
    told: list[tuple[int, int]] = []

    shards = seal(
        storage, plan, PER_SHARD, session="s1", fingerprint="f" * 32, progress=lambda done, of: told.append((done, of))
    )

    assert shards == whole
    assert storage.objects == complete
    assert told == [(2, 3), (3, 3)]


def test_a_higher_round_takes_its_place_in_a_sealed_shard(plan: MemoryPlan) -> None:
    storage = MemoryStorage()
    _finished(storage)
    before = _seal(storage, plan)
    opened(storage, "s2", PLAN_ROWS).publish(to_table([output_row(12, round_=1, text="better")]))

    after = _seal(storage, plan)

    assert [one == other for one, other in zip(before, after, strict=True)] == [True, False, True]
    assert _rows(storage, shard_key(10, 19))[2].messages[-1].content == "better"


def test_what_is_not_complete_is_not_sealed(plan: MemoryPlan) -> None:
    storage = MemoryStorage()
    published(storage, [[output_row(ordinal) for ordinal in range(20) if ordinal not in (3, 15)]], PLAN_ROWS)

    with pytest.raises(UserError, match="row 15 is not done"):
        _seal(storage, plan)
    assert list(storage.list(SHARDS)) == []
    assert [shard.key for shard in _seal(storage, plan, complete_only=True)] == [shard_key(0, 9)]


def test_damage_stops_sealing(plan: MemoryPlan) -> None:
    storage = MemoryStorage()
    _finished(storage)
    storage.replace(journal_key(2), storage.read(journal_key(2))[:-9])

    with pytest.raises(JournalDamaged, match=r"00000002\.parquet"):
        _seal(storage, plan)
    assert list(storage.list(SHARDS)) == []


@pytest.mark.parametrize("number", [2, 6])
def test_an_altered_journal_file_is_never_sealed_as_something_else(plan: MemoryPlan, number: int) -> None:
    storage = MemoryStorage()
    _finished(storage)
    whole = _seal(storage, plan)
    sealed = {shard.key: storage.objects.pop(shard.key) for shard in whole}
    data = storage.read(journal_key(number))
    for position in range(0, len(data), len(data) // 60):
        storage.replace(journal_key(number), data[:position] + bytes([data[position] ^ 4]) + data[position + 1 :])
        try:
            _seal(storage, plan)
        except JournalDamaged as error:
            assert journal_key(number) in str(error)  # noqa: PT017 - refusing is right, and so is the right content
        for key in sealed:
            if (found := storage.objects.pop(key, None)) is not None:
                assert found == sealed[key], position


class _Noting(FaultyStorage):
    """Notes in which order journal files are read and shards written."""

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage)
        self.events: list[str] = []

    def open(self, key: str) -> BinaryIO:
        self.events.append("read" if key.startswith(JOURNAL) else "look")
        return super().open(key)

    def replace(self, key: str, data: bytes | Path) -> None:
        self.events.append("write")
        super().replace(key, data)


def test_batches_bound_memory_and_change_nothing(plan: MemoryPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = MemoryStorage(), MemoryStorage()
    for storage in (one, other):
        _finished(storage)
    at_once, in_turn = _Noting(one), _Noting(other)
    whole = _seal(at_once, plan)
    monkeypatch.setattr(shards_module, "BATCH_BYTES", 1)

    assert _seal(in_turn, plan) == whole
    assert "read" not in at_once.events[at_once.events.index("write") :]
    assert in_turn.events[in_turn.events.index("write") :].count("read") > 1
    assert {key: data for key, data in one.objects.items() if key.startswith(SHARDS)} == {
        key: data for key, data in other.objects.items() if key.startswith(SHARDS)
    }


def test_memory_of_sealing_is_that_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    per_row, per_file, batch_bytes = 20_000, 20, 1_000_000
    storage, large = MemoryStorage(), MemoryPlan(400)
    rows = (output_row(ordinal, text=random.Random(ordinal).randbytes(per_row // 2).hex()) for ordinal in range(400))
    batches = iter(lambda: [row for _, row in zip(range(per_file), rows, strict=False)], [])
    published(storage, batches, 400)
    held: list[int] = []

    class Measuring(FaultyStorage):
        def replace(self, key: str, data: bytes | Path) -> None:
            held.append(pa.total_allocated_bytes())
            super().replace(key, data)

    monkeypatch.setattr(shards_module, "BATCH_BYTES", batch_bytes)
    before = pa.total_allocated_bytes()
    seal(Measuring(storage), large, PER_SHARD, session="s1", fingerprint="f" * 32)
    assert len(held) == 40
    assert max(held) - before < 3 * batch_bytes < 400 * per_row


def test_ordinals_of_a_file_are_read_once_however_many_shards_are_made_of_it(
    plan: MemoryPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, read = MemoryStorage(), list[int]()
    _finished(storage, per_file=PLAN_ROWS)

    def reading(table: pa.Table, name: str) -> list[int]:
        read.append(len(table))
        return integers(table, name)

    monkeypatch.setattr(row_order, "integers", reading)

    assert len(_seal(storage, plan)) == 3
    assert read.count(PLAN_ROWS - len(REFUSED)) == 1


def test_row_groups_are_bounded_in_bytes() -> None:
    tables = [to_table(output_row(ordinal, text="x" * 1000) for ordinal in range(start, 40, 4)) for start in range(4)]
    limit_bytes = 5 * tables[0].nbytes // len(tables[0])

    parts = [OrderedRows(table) for table in tables]

    groups = list(in_row_groups(parts, limit_bytes=limit_bytes))

    assert [ordinal for group in groups for ordinal in group["ordinal"].to_pylist()] == list(range(40))
    assert [len(group) for group in groups] == [5] * 8
    within = list(in_row_groups(parts, (7, 18), limit_bytes))
    assert [group["ordinal"].to_pylist() for group in within] == [[7, 8, 9, 10, 11], [12, 13, 14, 15, 16], [17, 18]]
    assert list(in_row_groups([], limit_bytes=limit_bytes)) == []


def test_shards_load_with_nothing_but_pyarrow(plan: MemoryPlan, tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "run")
    _finished(storage)
    _seal(storage, plan)

    table = pq.read_table(tmp_path / "run" / "shards")

    assert table["ordinal"].to_pylist() == list(range(PLAN_ROWS))
    assert table.schema.remove_metadata().equals(SCHEMA)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["journal", "shards"]


def test_a_store_that_is_away_breaks_sealing_off_and_it_can_go_on(plan: MemoryPlan) -> None:
    class Full(FaultyStorage):
        def replace(self, key: str, data: bytes | Path) -> None:
            raise StoreUnavailable(f"{key}: no room")

    storage = MemoryStorage()
    _finished(storage)

    with pytest.raises(StoreUnavailable):
        _seal(Full(storage), plan)
    assert len(_seal(storage, plan)) == 3


def test_a_plan_of_no_rows_has_no_shards() -> None:
    storage = MemoryStorage()
    published(storage, [], 0)

    assert _seal(storage, MemoryPlan(0)) == []
