"""The journal and the shards of a run whose plan has grown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from regen.errors import JournalDamaged, StoreUnavailable, UserError
from regen.ordinals import OrdinalSet
from regen.protocols import Storage
from regen.records import PlanStage
from regen.rows import to_table
from regen.store.committed import CommittedRows
from regen.store.control import PlanExtended, Released, ReleaseReason, RowsReopened, RunClosed
from regen.store.findings import Code
from regen.store.journal import Journal
from regen.store.layout import SHARDS, shard_key
from regen.store.parquet import RowsFile, integers
from regen.store.replay import replay
from regen.store.shards import committed, seal
from regen.store.verify import verify
from tests.memory_storage import MemoryStorage
from tests.output_rows import MemoryPlan, output_row
from tests.unit.store.faulty_storage import FaultyStorage
from tests.unit.store.journals import claim_of, footer_of, opened, published, rewrite, table_of

OLD, NEW, PER_SHARD = 25, 43, 10
OLD_LAST, NEW_LAST = shard_key(20, 24), shard_key(20, 29)
PLAN = MemoryPlan(OLD, refused_ordinals=(3,))
LARGER = PLAN.extended(NEW)


def sealed(storage: Storage, plan: MemoryPlan, *, complete_only: bool = False) -> list[str]:
    made = seal(storage, plan, PER_SHARD, session="s1", fingerprint="f", complete_only=complete_only)
    return [shard.key for shard in made]


def old_run(*, is_sealed: bool = True) -> MemoryStorage:
    storage = MemoryStorage()
    rows = [output_row(ordinal) for ordinal in range(OLD) if ordinal != 3]
    published(storage, [rows[at : at + 5] for at in range(0, len(rows), 5)], OLD)
    if is_sealed:
        sealed(storage, PLAN)
    return storage


def finish(storage: Storage, *more: int) -> None:
    opened(storage, "s2", NEW, LARGER.settled()).publish(
        to_table(output_row(ordinal) for ordinal in more or range(OLD, NEW))
    )


def ordinals(storage: Storage) -> list[int]:
    return [one for table in committed(storage, LARGER, PER_SHARD, ["ordinal"]) for one in integers(table, "ordinal")]


# --- the journal -----------------------------------------------------------------------------------


@pytest.mark.parametrize("snapshot_every", [1, 3, 100])
def test_files_of_the_smaller_plan_are_read_with_the_larger_one(snapshot_every: int) -> None:
    storage = MemoryStorage()
    opened(storage, "s1", 10, snapshot_every=snapshot_every).publish(table_of(0, 9))
    opened(storage, "s2", 21, snapshot_every=snapshot_every).publish(table_of(10, 20))
    found = replay(storage, 21, ())
    assert found.done == OrdinalSet(21, (0, 9, 10, 20))
    assert found.totals.done == 4
    assert replay(storage, 30, ()).done == OrdinalSet(30, (0, 9, 10, 20))


def test_a_file_of_a_larger_plan_is_damage() -> None:
    storage = MemoryStorage()
    opened(storage, "s1", 21).publish(table_of(20))
    with pytest.raises(JournalDamaged, match="plan of 21 rows, and this plan has 10: if the run was extended a moment"):
        replay(storage, 10, ())


def test_a_file_with_a_row_outside_its_own_plan_is_damage() -> None:
    storage = MemoryStorage()
    opened(storage, "s1", 21).publish(table_of(20))
    rewrite(storage, 1, table_of(20), replace(footer_of(storage, 1), plan_rows=20))
    with pytest.raises(JournalDamaged, match="row 20, outside a plan of 20 rows"):
        replay(storage, 21, ())


def test_rows_opened_again_in_the_smaller_plan_are_still_known() -> None:
    storage = MemoryStorage()
    journal = opened(storage, "s1", 10)
    journal.publish(table_of(2, 9))
    wanted = OrdinalSet(10, (2, 9))
    journal.publish(table_of(), [RowsReopened("s1", 1, wanted.to_text(), 2, {}, "{}", "now")])
    assert replay(storage, 2000, ()).reopened.pending == OrdinalSet(2000, (2, 9))


def test_an_extension_is_one_of_the_records_that_matter() -> None:
    storage = MemoryStorage()
    record = PlanExtended("s1", 18, NEW, "d" * 32, "now")
    opened(storage, "s1", OLD, snapshot_every=1).publish(table_of(), [record])
    assert replay(storage, NEW, ()).records == (record,)


def test_sets_grow_and_do_not_shrink() -> None:
    small = OrdinalSet(10, (0, 7, 9))
    grown = small.grown(17)
    assert (list(grown), len(grown), grown.size) == ([0, 7, 9], 3, 17)
    assert grown.add(16)
    assert list(small) == [0, 7, 9]
    with pytest.raises(ValueError, match="cannot shrink"):
        grown.grown(10)
    assert OrdinalSet.from_text(17, small.to_text(), may_be_shorter=True) == small.grown(17)
    with pytest.raises(ValueError, match="cannot hold"):
        OrdinalSet.from_text(17, small.to_text())
    with pytest.raises(ValueError, match="cannot hold"):
        OrdinalSet.from_text(8, small.to_text(), may_be_shorter=True)


# --- the shards ------------------------------------------------------------------------------------


def test_until_the_longer_shard_is_there_the_shorter_one_stays() -> None:
    storage = old_run()
    assert OLD_LAST not in sealed(storage, LARGER, complete_only=True)
    assert OLD_LAST in storage.objects
    assert ordinals(storage) == list(range(OLD))
    found = verify(storage, LARGER, PER_SHARD)
    assert (found.findings, found.missing, found.shards, found.shards_outgrown) == ((), NEW - OLD, 2, 1)


def test_what_an_extension_does_not_touch_is_not_written_again() -> None:
    storage = old_run()
    before = dict(storage.objects)
    finish(storage)
    keys = sealed(storage, LARGER)
    assert keys == [shard_key(0, 9), shard_key(10, 19), NEW_LAST, shard_key(30, 39), shard_key(40, 42)]
    assert all(storage.objects[key] is before[key] for key in keys[:2])
    assert [stored.key for stored in storage.list(SHARDS)] == keys
    assert verify(storage, LARGER, PER_SHARD).is_complete


def test_shards_are_the_same_whether_sealed_before_the_extension_or_not() -> None:
    one, other = old_run(is_sealed=True), old_run(is_sealed=False)
    for storage in (one, other):
        finish(storage)
        sealed(storage, LARGER)
    for stored in one.list(SHARDS):
        files = [RowsFile(storage.read(stored.key), "test") for storage in (one, other)]
        assert files[0].entry == files[1].entry


class _Killed(FaultyStorage):
    """Every write after so many is the one at which the process was killed."""

    def __init__(self, storage: Storage, writes: int) -> None:
        super().__init__(storage)
        self.left = writes

    def replace(self, key: str, data: bytes | Path) -> None:
        self._count()
        super().replace(key, data)

    def delete(self, key: str) -> None:
        self._count()
        super().delete(key)

    def _count(self) -> None:
        if not self.left:
            raise StoreUnavailable("killed")
        self.left -= 1


@pytest.mark.parametrize("writes", range(4))
def test_killed_at_every_write_of_sealing_it_is_right_meanwhile_and_ends_the_same(writes: int) -> None:
    whole, storage = old_run(), old_run()
    for one in (whole, storage):
        finish(one)
    sealed(whole, LARGER)
    with pytest.raises(StoreUnavailable, match="killed"):
        sealed(_Killed(storage, writes), LARGER)
    assert ordinals(storage) == list(range(NEW))
    found = verify(storage, LARGER, PER_SHARD)
    assert found.findings == ()
    assert found.shards_outgrown == 1
    sealed(storage, LARGER)
    before = dict(storage.objects)
    shards, expected = (
        {key: data for key, data in one.objects.items() if key.startswith(SHARDS)} for one in (storage, whole)
    )
    assert shards == expected
    sealed(_Killed(storage, 0), LARGER)
    assert storage.objects == before


def test_a_shorter_shard_that_is_damaged_is_found() -> None:
    storage = old_run()
    storage.replace(OLD_LAST, storage.read(OLD_LAST)[:-9])
    assert [one.code for one in verify(storage, LARGER, PER_SHARD).findings] == [Code.SHARD_DAMAGED]


def test_a_shard_from_before_and_of_no_such_range_is_found() -> None:
    storage = old_run()
    storage.replace(shard_key(20, 27), storage.read(OLD_LAST))
    assert [one.code for one in verify(storage, LARGER, PER_SHARD).findings] == [Code.SHARD_RANGE]


def test_extended_twice_the_shards_of_each_plan_are_known() -> None:
    largest = LARGER.extended(60)
    storage = old_run()
    finish(storage)
    sealed(storage, LARGER)
    storage.replace(OLD_LAST, old_run().read(OLD_LAST))
    found = verify(storage, largest, PER_SHARD)
    assert (found.findings, found.shards_outgrown, found.shards) == ((), 2, 4)


@pytest.mark.parametrize("plan_rows", [24, 26])
def test_a_journal_file_of_no_plan_that_this_one_was_is_found(plan_rows: int) -> None:
    storage = old_run(is_sealed=False)
    finish(storage)
    data = footer_of(storage, 0)
    rewrite(storage, 0, table_of(), replace(data, plan_rows=plan_rows))
    messages = [one.message for one in verify(storage, LARGER, PER_SHARD).findings if one.where.endswith("00.parquet")]
    assert any(f"is of a plan of {plan_rows} rows, and this plan has 43 and before 25" in text for text in messages)


def test_a_journal_file_of_the_smaller_plan_behind_one_of_the_larger_is_found() -> None:
    storage = old_run(is_sealed=False)
    finish(storage)
    last = max(int(stored.key[8:16]) for stored in storage.list("journal/"))
    footer = footer_of(storage, last)
    table = RowsFile(storage.read(f"journal/{last:08d}.parquet"), "test").table()
    rewrite(storage, last, table, replace(footer, plan_rows=OLD))
    messages = [one.message for one in verify(storage, LARGER, PER_SHARD).findings]
    assert any("is of a plan of 25 rows, and a file before it of 43" in text for text in messages)


def test_stages_are_those_of_a_plan_that_was_never_extended_too() -> None:
    assert PLAN.stages == (PlanStage(OLD, PLAN.digest),)
    assert LARGER.stages == (*PLAN.stages, PlanStage(NEW, LARGER.digest))


# --- closed ----------------------------------------------------------------------------------------


def closed_run() -> MemoryStorage:
    storage = old_run()
    journal = opened(storage, "s9", OLD, PLAN.settled(), snapshot_every=100)
    journal.publish(
        table_of(),
        [RunClosed("s9", journal.next_number, OLD, 3, "then"), Released("s9", ReleaseReason.DRAINED, "then")],
    )
    return storage


@pytest.mark.parametrize("deleted", range(8))
def test_a_closed_run_is_read_from_its_last_file_whatever_is_left_of_the_others(deleted: int) -> None:
    storage = closed_run()
    whole = replay(storage, OLD, PLAN.settled())
    files = [stored.key for stored in storage.list("journal/")]
    assert len(files) == 8
    for key in files[: min(deleted, 7)]:
        storage.delete(key)
    found = replay(storage, OLD, PLAN.settled())
    assert (found.done, found.totals, found.records) == (whole.done, whole.totals, whole.records)
    assert found.next_number == 8
    assert verify(storage, PLAN, PER_SHARD).is_complete
    assert [len(table) for table in committed(storage, PLAN, PER_SHARD)] == [10, 10, 5]
    before = dict(storage.objects)
    assert len(sealed(storage, PLAN)) == 3
    assert storage.objects == before


def test_nobody_claims_a_closed_run() -> None:
    storage = closed_run()
    before = dict(storage.objects)
    journal = Journal(storage, "s10", OLD)
    journal.replay(PLAN.settled())
    for take in (journal.claim, journal.resume_own):
        with pytest.raises(UserError, match="this run was closed at then"):
            take(claim_of("s10"))
    with pytest.raises(UserError, match="this run was closed at then"):
        CommittedRows(storage, OLD)
    assert storage.objects == before


def test_a_gap_in_a_journal_that_is_not_closed_is_damage() -> None:
    storage = old_run()
    storage.delete("journal/00000000.parquet")
    with pytest.raises(JournalDamaged, match=r"00000000\.parquet: it is missing"):
        replay(storage, OLD, ())


def test_a_closed_run_whose_totals_are_not_those_of_its_shards_is_found() -> None:
    storage = closed_run()
    footer = footer_of(storage, 7)
    outcomes = {key: count + 1 for key, count in footer.totals.outcomes.items()}
    rewrite(storage, 7, table_of(), replace(footer, totals=replace(footer.totals, outcomes=outcomes)))
    assert [one.code for one in verify(storage, PLAN, PER_SHARD).findings] == [Code.JOURNAL_TOTALS]
