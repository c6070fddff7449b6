"""Verify: silent on a sound folder, and loud on every kind of damage, naming the file."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from regen.errors import JournalDamaged
from regen.records import OutputRow, PlannedRow, Status
from regen.rows import SCHEMA, from_table, to_table
from regen.store.findings import Code
from regen.store.footer import Footer
from regen.store.layout import PLAN, SHARDS, journal_key, shard_key
from regen.store.local import LocalStorage
from regen.store.parquet import RowsFile, content_digest, encode_rows, integers, texts
from regen.store.replay import replay
from regen.store.shards import Shard, seal, shard_entry
from regen.store.verify import Verification, verify
from tests.memory_storage import MemoryStorage
from tests.output_rows import MemoryPlan, output_row, row_id
from tests.unit.store.journals import footer_of, opened, published, rewrite, table_of

PLAN_ROWS = 25
REFUSED = (3, 24)
PER_SHARD = 10
FILES = 9


@dataclass
class Folder:
    """A run that is complete and sealed."""

    storage: MemoryStorage
    plan: MemoryPlan

    def verify(self) -> Verification:
        return verify(self.storage, self.plan, PER_SHARD)

    def rows(self, number: int) -> list[OutputRow]:
        """The rows of a journal file."""
        return from_table(_table(self.storage, number))

    def rewrite(self, number: int, rows: Iterable[OutputRow]) -> None:
        """Put other rows into a journal file, with a footer that agrees with them as far as it can."""
        table = to_table(rows).sort_by("ordinal")
        ordinals = integers(table, "ordinal")
        footer = replace(
            footer_of(self.storage, number),
            rows=len(table),
            first=ordinals[0],
            last=ordinals[-1],
            digest=content_digest(ordinals, texts(table, "digest")),
        )
        rewrite(self.storage, number, table, footer)

    def rewrite_column(self, number: int, name: str, value: str) -> None:
        """Put one value into a column of a journal file, and leave every digest as it was."""
        table = _table(self.storage, number)
        index = table.schema.get_field_index(name)
        altered = table.set_column(index, table.schema.field(index), pa.array([value] * len(table)))
        rewrite(self.storage, number, altered, footer_of(self.storage, number))

    def rewrite_footer(self, number: int, footer: Footer) -> None:
        rewrite(self.storage, number, _table(self.storage, number), footer)


def _table(storage: MemoryStorage, number: int) -> pa.Table:
    return RowsFile(storage.read(journal_key(number)), "test").table()


@pytest.fixture
def folder() -> Folder:
    storage, plan = MemoryStorage(), MemoryPlan(PLAN_ROWS, REFUSED)
    ordinals = [ordinal for ordinal in range(PLAN_ROWS) if ordinal not in REFUSED]
    statuses = {5: Status.TRUNCATED, 6: Status.FAILED}
    rows = [output_row(ordinal, status=statuses.get(ordinal, Status.OK)) for ordinal in ordinals]
    published(storage, [rows[at : at + 3] for at in range(0, len(rows), 3)], PLAN_ROWS)
    seal(storage, plan, PER_SHARD, session="s1", fingerprint="f" * 32)
    return Folder(storage, plan)


def test_a_complete_run_is_sound_and_the_sum_is_right(folder: Folder) -> None:
    result = folder.verify()

    assert result.findings == ()
    assert result.is_sound
    assert result.is_complete
    assert result.outcomes == {
        Status.OK: 21,
        Status.TRUNCATED: 1,
        Status.FAILED: 1,
        Status.REJECTED: 2,
        Status.NATIVE: 0,
        Status.DEGENERATE: 0,
        Status.PARTIAL: 0,
    }
    assert sum(sum(counts.values()) for counts in result.by_source.values()) == result.planned == PLAN_ROWS
    assert (result.journal_files, result.shards, result.shards_planned) == (FILES, 3, 3)


def test_a_run_under_way_is_sound_and_not_complete() -> None:
    storage, plan = MemoryStorage(), MemoryPlan(PLAN_ROWS, REFUSED)
    published(storage, [[output_row(ordinal) for ordinal in (0, 1, 2, 9)]], PLAN_ROWS)

    result = verify(storage, plan, PER_SHARD)

    assert result.is_sound
    assert not result.is_complete
    assert (result.missing, result.first_missing[:3]) == (PLAN_ROWS - 6, (4, 5, 6))


def test_a_folder_with_several_sessions_and_rounds_is_sound(folder: Folder) -> None:
    again = opened(folder.storage, "s2", PLAN_ROWS)
    again.publish(to_table([output_row(6, round_=1), output_row(5, round_=1)]))
    for _ in range(5):
        again.publish(table_of())
    seal(folder.storage, folder.plan, PER_SHARD, session="s2", fingerprint="f" * 32)

    result = folder.verify()
    assert result.findings == ()
    assert result.is_complete
    assert result.outcomes[Status.OK] == 23


def test_a_local_folder_is_verified_the_same(folder: Folder, tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    for key, data in folder.storage.objects.items():
        storage.create(key, data)

    assert verify(storage, folder.plan, PER_SHARD) == folder.verify()


def _gap(folder: Folder) -> None:
    folder.storage.delete(journal_key(4))


def _truncated(folder: Folder) -> None:
    folder.storage.replace(journal_key(4), folder.storage.read(journal_key(4))[:-100])


def _swapped(folder: Folder) -> None:
    folder.storage.replace(journal_key(4), folder.storage.read(journal_key(5)))


def _replaced_by_well_formed(folder: Folder) -> None:
    """Everything agrees but the successor, which holds the digest of what was there."""
    folder.rewrite(4, [output_row(row.ordinal, text="something else") for row in folder.rows(4)])


def _wrong_digest(folder: Folder) -> None:
    folder.rewrite_column(4, "location", "elsewhere")


def _wrong_id(folder: Folder) -> None:
    first, *others = folder.rows(4)
    folder.rewrite(4, [replace(first, row_id=row_id(99)), *others])


def _wrong_source(folder: Folder) -> None:
    first, *others = folder.rows(4)
    folder.rewrite(4, [replace(first, source="another"), *others])


def _refused_row(folder: Folder) -> None:
    folder.rewrite(4, [output_row(3), *folder.rows(4)])


def _repeated_row(folder: Folder) -> None:
    folder.rewrite(4, [output_row(0), *folder.rows(4)])


def _lost_row(folder: Folder) -> None:
    folder.rewrite(4, folder.rows(4)[1:])


def _row_outside(folder: Folder) -> None:
    folder.rewrite(8, [*folder.rows(8), output_row(PLAN_ROWS)])


def _unknown_status(folder: Folder) -> None:
    folder.rewrite_column(8, "status", "fine")


def _wrong_totals(folder: Folder) -> None:
    footer = footer_of(folder.storage, 8)
    folder.rewrite_footer(8, replace(footer, totals=replace(footer.totals, output_tokens=1)))


def _wrong_part(folder: Folder, **parts: Any) -> None:
    footer = footer_of(folder.storage, 8)
    folder.rewrite_footer(8, replace(footer, totals=replace(footer.totals, **parts)))


def _wrong_sources(folder: Folder) -> None:
    totals = footer_of(folder.storage, 8).totals
    chat, math = totals.by_source["chat"], totals.by_source["math"]
    assert chat != math
    _wrong_part(folder, by_source={**totals.by_source, "chat": math, "math": chat})


def _wrong_lengths(folder: Folder) -> None:
    totals = footer_of(folder.storage, 8).totals
    chat = totals.by_source["chat"]
    _wrong_part(folder, by_source={**totals.by_source, "chat": replace(chat, lengths=(1, *chat.lengths[1:]))})


def _wrong_replicas(folder: Folder) -> None:
    totals = footer_of(folder.storage, 8).totals
    _wrong_part(folder, by_replica={replica + 1: part for replica, part in totals.by_replica.items()})


def _wrong_by_length(folder: Folder) -> None:
    _wrong_part(folder, by_length={})


def _wrong_published(folder: Folder) -> None:
    footer = footer_of(folder.storage, 8)
    folder.rewrite_footer(8, replace(footer, published=replace(footer.published, output_tokens=10**6)))


def _wrong_outcomes(folder: Folder) -> None:
    footer = footer_of(folder.storage, 8)
    outcomes = {**footer.totals.outcomes, ("chat", Status.OK): 1000}
    folder.rewrite_footer(8, replace(footer, totals=replace(footer.totals, outcomes=outcomes)))


def _wrong_snapshot(folder: Folder) -> None:
    older = footer_of(folder.storage, 3).snapshot
    folder.rewrite_footer(7, replace(footer_of(folder.storage, 7), snapshot=older))


def _foreign_session(folder: Folder) -> None:
    folder.rewrite_footer(8, replace(footer_of(folder.storage, 8), session="s9"))


def _another_plan(folder: Folder) -> None:
    folder.rewrite_footer(8, replace(footer_of(folder.storage, 8), plan_rows=PLAN_ROWS + 1))


def _unknown_journal_file(folder: Folder) -> None:
    folder.storage.create("journal/00000004.parquet.bak", b"")


def _unknown_shard_file(folder: Folder) -> None:
    folder.storage.create("shards/part-0003.parquet", b"")


def _truncated_shard(folder: Folder) -> None:
    folder.storage.replace(shard_key(10, 19), folder.storage.read(shard_key(10, 19))[:-100])


def _missing_shard(folder: Folder) -> None:
    folder.storage.delete(shard_key(10, 19))


def _shard_of_another_size(folder: Folder) -> None:
    folder.storage.create(shard_key(0, 4), folder.storage.read(shard_key(0, 9)))


def _swapped_shard(folder: Folder) -> None:
    folder.storage.replace(shard_key(10, 19), folder.storage.read(shard_key(0, 9)))


def _shard_of_other_rows(folder: Folder) -> None:
    """Whole, by its own footer, and with a row that was never in the journal."""
    key = shard_key(10, 19)
    rows = RowsFile(folder.storage.read(key), "test").table().to_pylist()
    rows[2] = to_table([output_row(12, text="never committed")]).to_pylist()[0]
    digest = content_digest([row["ordinal"] for row in rows], [row["digest"] for row in rows])
    entry = shard_entry(Shard(key, 10, 19, 10, digest), folder.plan)
    folder.storage.replace(key, encode_rows(pa.Table.from_pylist(rows, schema=SCHEMA), entry))


def _shard_with_less(folder: Folder) -> None:
    _rewrite_shard(folder, lambda rows: rows[:-1])


def _shard_out_of_order(folder: Folder) -> None:
    _rewrite_shard(folder, lambda rows: rows[::-1])


def _shard_with_another_entry(folder: Folder) -> None:
    _rewrite_shard(folder, lambda rows: rows, {"kind": "shard"})


def _rewrite_shard(
    folder: Folder,
    change: Callable[[list[dict[str, object]]], list[dict[str, object]]],
    entry: dict[str, object] | None = None,
) -> None:
    key = shard_key(10, 19)
    file = RowsFile(folder.storage.read(key), "test")
    found = file.entry
    table = pa.Table.from_pylist(change(file.table().to_pylist()), schema=file.table().schema)
    folder.storage.replace(key, encode_rows(table, found if entry is None else entry))


class _ChangedPlan(MemoryPlan):
    """A plan with one thing wrong."""

    def __init__(self, change: Callable[[list[PlannedRow]], list[PlannedRow]], breaks: bool = False) -> None:
        super().__init__(PLAN_ROWS, REFUSED)
        self._count = PLAN_ROWS
        self._breaks = breaks
        self._digest = super().digest
        self._rows = change(self._rows)

    @property
    def count(self) -> int:
        return self._count

    @property
    def digest(self) -> str:
        return self._digest

    def scan(self, start: int = 0, stop: int | None = None) -> Iterator[PlannedRow]:
        yield from self._rows[start:stop]
        if self._breaks:
            raise JournalDamaged("plan/s1/part-00000.parquet: is not what it was")


def _plan_short(folder: Folder) -> None:
    folder.plan = _ChangedPlan(lambda rows: rows[:-1])


def _plan_out_of_order(folder: Folder) -> None:
    folder.plan = _ChangedPlan(lambda rows: [*rows[:10], rows[11], rows[10], *rows[12:]])


def _plan_with_one_id_twice(folder: Folder) -> None:
    folder.plan = _ChangedPlan(lambda rows: [*rows[:24], replace(rows[24], row_id=rows[0].row_id)])


def _plan_with_odd_id(folder: Folder) -> None:
    folder.plan = _ChangedPlan(lambda rows: [*rows[:24], replace(rows[24], row_id="row 24")])


def _plan_damaged(folder: Folder) -> None:
    folder.plan = _ChangedPlan(lambda rows: rows, breaks=True)


def _plan_with_other_refusals(folder: Folder) -> None:
    class Other(_ChangedPlan):
        def settled(self) -> Iterator[tuple[int, str, Status]]:
            return iter([(3, "chat", Status.REJECTED)])

    folder.plan = Other(lambda rows: rows)


@pytest.mark.parametrize(
    ("damage", "code", "where"),
    [
        (_gap, Code.JOURNAL_GAP, journal_key(4)),
        (_truncated, Code.JOURNAL_DAMAGED, journal_key(4)),
        (_swapped, Code.JOURNAL_DAMAGED, journal_key(4)),
        (_replaced_by_well_formed, Code.JOURNAL_ALTERED, journal_key(4)),
        (_wrong_digest, Code.ROW_DIGEST, journal_key(4)),
        (_wrong_id, Code.ROW_ID, journal_key(4)),
        (_wrong_source, Code.ROW_ID, journal_key(4)),
        (_refused_row, Code.ROW_REFUSED, journal_key(4)),
        (_repeated_row, Code.ROW_REPEATED, journal_key(4)),
        (_lost_row, Code.JOURNAL_TOTALS, journal_key(4)),
        (_row_outside, Code.ROW_OUTSIDE, journal_key(8)),
        (_unknown_status, Code.ROW_STATUS, journal_key(8)),
        (_wrong_totals, Code.JOURNAL_TOTALS, journal_key(8)),
        (_wrong_outcomes, Code.JOURNAL_TOTALS, journal_key(8)),
        (_wrong_published, Code.JOURNAL_TOTALS, journal_key(8)),
        (_wrong_sources, Code.JOURNAL_TOTALS, journal_key(8)),
        (_wrong_lengths, Code.JOURNAL_TOTALS, journal_key(8)),
        (_wrong_replicas, Code.JOURNAL_TOTALS, journal_key(8)),
        (_wrong_by_length, Code.JOURNAL_TOTALS, journal_key(8)),
        (_wrong_snapshot, Code.JOURNAL_SNAPSHOT, journal_key(7)),
        (_another_plan, Code.JOURNAL_ALTERED, journal_key(8)),
        (_foreign_session, Code.JOURNAL_FENCE, journal_key(8)),
        (_unknown_journal_file, Code.UNKNOWN_FILE, "journal/00000004.parquet.bak"),
        (_unknown_shard_file, Code.UNKNOWN_FILE, "shards/part-0003.parquet"),
        (_truncated_shard, Code.SHARD_DAMAGED, shard_key(10, 19)),
        (_missing_shard, Code.SHARD_MISSING, shard_key(10, 19)),
        (_shard_of_another_size, Code.SHARD_RANGE, shard_key(0, 4)),
        (_swapped_shard, Code.SHARD_ROWS, shard_key(10, 19)),
        (_shard_of_other_rows, Code.SHARD_ROWS, shard_key(10, 19)),
        (_shard_with_less, Code.SHARD_ROWS, shard_key(10, 19)),
        (_shard_out_of_order, Code.SHARD_ROWS, shard_key(10, 19)),
        (_shard_with_another_entry, Code.SHARD_ROWS, shard_key(10, 19)),
        (_plan_short, Code.PLAN_COUNT, PLAN),
        (_plan_out_of_order, Code.PLAN_COUNT, PLAN),
        (_plan_with_one_id_twice, Code.PLAN_ID, PLAN),
        (_plan_with_odd_id, Code.PLAN_ID, PLAN),
        (_plan_damaged, Code.PLAN_DAMAGED, PLAN),
        (_plan_with_other_refusals, Code.PLAN_REFUSED, PLAN),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) else None,
)
def test_damage_is_found_and_named(folder: Folder, damage: Callable[[Folder], None], code: Code, where: str) -> None:
    damage(folder)

    result = folder.verify()

    assert (code, where) in [(finding.code, finding.where) for finding in result.findings]
    assert not result.is_sound
    assert not result.is_complete


def test_a_shard_older_than_a_retry_is_whole_and_outdated(folder: Folder) -> None:
    opened(folder.storage, "s2", PLAN_ROWS).publish(to_table([output_row(12, round_=1)]))

    result = folder.verify()

    assert result.is_complete
    assert result.shards_outdated == 1


def test_a_row_lost_after_a_retry_is_found() -> None:
    storage, plan = MemoryStorage(), MemoryPlan(PLAN_ROWS)
    journal = published(storage, [[output_row(0), output_row(1)], [output_row(0, round_=1)]], PLAN_ROWS)
    journal.publish(table_of(5, 6))
    Folder(storage, plan).rewrite(3, [output_row(5)])

    found = [(finding.code, finding.where) for finding in verify(storage, plan, PER_SHARD).findings]
    assert (Code.JOURNAL_TOTALS, journal_key(3)) in found


def test_alike_findings_of_a_file_are_told_once(folder: Folder) -> None:
    _wrong_digest(folder)

    found = [finding for finding in folder.verify().findings if finding.code is Code.ROW_DIGEST]

    assert len(found) == 1
    assert "2 more" in found[0].message


def test_native_rows_are_counted_sealed_and_checked() -> None:
    storage, plan = MemoryStorage(), MemoryPlan(PER_SHARD, [1], [2, 3])
    published(storage, [[output_row(ordinal) for ordinal in range(PER_SHARD) if ordinal not in (1, 2, 3)]], PER_SHARD)
    seal(storage, plan, PER_SHARD, session="s1", fingerprint="f")
    found = verify(storage, plan, PER_SHARD)

    assert found.is_complete, found.findings
    assert (found.outcomes[Status.NATIVE], found.outcomes[Status.REJECTED]) == (2, 1)
    assert replay(storage, PER_SHARD, plan.settled()).totals.by_status()[Status.NATIVE] == 2

    other = MemoryPlan(PER_SHARD, [1], [2])
    assert Code.SHARD_ROWS in [finding.code for finding in verify(storage, other, PER_SHARD).findings]


def test_a_plan_that_calls_a_native_row_rejected_is_found() -> None:
    class Lying(MemoryPlan):
        def settled(self) -> Iterator[tuple[int, str, Status]]:
            return ((ordinal, source, Status.REJECTED) for ordinal, source, _ in super().settled())

    found = verify(MemoryStorage(), Lying(3, [], [1]), PER_SHARD)
    assert Code.PLAN_REFUSED in [finding.code for finding in found.findings]


def test_a_shard_ahead_of_the_journal_is_found() -> None:
    storage, plan = MemoryStorage(), MemoryPlan(PER_SHARD)
    published(storage, [[output_row(ordinal) for ordinal in range(PER_SHARD)]], PER_SHARD)
    seal(storage, plan, PER_SHARD, session="s1", fingerprint="f")
    storage.delete(journal_key(1))

    assert Code.SHARD_ROWS in [finding.code for finding in verify(storage, plan, PER_SHARD).findings]


def _attempts(size: int, count: int) -> list[int]:
    return sorted({0, 1, 3, 4, size - 1, size - 2, size - 8, *random.Random(0).sample(range(size), count)})


@pytest.mark.parametrize("number", [2, FILES - 1])
def test_a_journal_file_cut_anywhere_is_found(folder: Folder, number: int) -> None:
    data = folder.storage.read(journal_key(number))
    for length in _attempts(len(data), 40):
        folder.storage.replace(journal_key(number), data[:length])

        assert journal_key(number) in {finding.where for finding in folder.verify().findings}, length
        with pytest.raises(JournalDamaged, match=rf"{number:08d}\.parquet"):
            replay(folder.storage, PLAN_ROWS, folder.plan.settled())


@pytest.mark.parametrize("number", [2, FILES - 1])
def test_any_altered_byte_of_a_journal_file_is_found(folder: Folder, number: int) -> None:
    key = journal_key(number)
    data, expected = folder.storage.read(key), replay(folder.storage, PLAN_ROWS, folder.plan.settled())
    for position in _attempts(len(data), 50):
        folder.storage.replace(key, _flipped(data, position))

        assert key in {finding.where for finding in folder.verify().findings}, position
        with suppress(JournalDamaged):  # replay does not read everything, but what it says is right
            assert replay(folder.storage, PLAN_ROWS, folder.plan.settled()) == expected, position


def test_any_altered_byte_of_a_shard_is_found(folder: Folder) -> None:
    key = shard_key(10, 19)
    data = folder.storage.read(key)
    for position in _attempts(len(data), 40):
        folder.storage.replace(key, _flipped(data, position))

        assert key in {finding.where for finding in folder.verify().findings}, position


def _flipped(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ (1 << position % 8)]) + data[position + 1 :]


def test_verify_reads_what_the_progress_says(folder: Folder) -> None:
    read: list[str] = []

    verify(folder.storage, folder.plan, PER_SHARD, progress=read.append)

    assert read == [journal_key(number) for number in range(FILES)] + [
        found.key for found in folder.storage.list(SHARDS)
    ]
