"""Small real run folders in memory: planned from a spec, journals of several sessions and rounds, shards, report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from regen.data.plan import RunPlan, open_plan
from regen.ordinals import OrdinalSet
from regen.protocols import Storage
from regen.records import OutputRow, Status
from regen.rows import to_table
from regen.run.session import seal_complete
from regen.store.committed import CommittedRows
from regen.store.control import Claim, Record, Released, ReleaseReason, RowsReopened
from regen.store.holder import Holder, HolderState, write_holder
from regen.store.journal import Journal
from regen.store.layout import REPORT
from regen.store.local import LocalStorage
from regen.store.winners import Winners
from tests.memory_storage import MemoryStorage
from tests.output_rows import observed, output_row
from tests.runs import begin_run, conversations, make_spec

AT = "2026-01-01T00:00:00+00:00"


@dataclass(frozen=True)
class Folder:
    """`objects` are a run folder's files by key; to be copied before anything is done to them."""

    objects: dict[str, bytes]

    def storage(self) -> MemoryStorage:
        storage = MemoryStorage()
        storage.objects.update(self.objects)
        return storage


def planned(folder: Path, rows: int = 30) -> Folder:
    """A folder with run.json and a plan; two of its rows are rejected."""
    broken: list[dict[str, object]] = [{"messages": []}, {"other": 1}]
    begun = begin_run(make_spec(folder, rows=[*conversations(rows - 2), *broken], checkpoint={"rows_per_shard": 7}))
    assert isinstance(begun.storage, LocalStorage)
    return Folder({stored.key: begun.storage.read(stored.key) for stored in begun.storage.list("")})


def run_folder(planned: Folder, is_complete: bool) -> Folder:
    """Two sessions and a retry of three rows; or the first session and a half, and no shards."""
    storage = planned.storage()
    plan = open_plan(storage)
    to_make = [ordinal for ordinal, _, _ in plan.to_make()]
    first = session(storage, plan, "s1")
    for batch in batches(to_make[:14], 3):
        first.publish(table(plan, batch, "s1"))
    release(first, "s1")
    second = session(storage, plan, "s2")
    for batch in batches(to_make[14:] if is_complete else to_make[14:22], 4):
        second.publish(table(plan, batch, "s2"))
    if is_complete:
        _retried(second, plan, to_make[4:7])
    write_holder(storage, Holder("s2", "host", "b" * 8, 1, 2, AT, 9, AT, HolderState.RUNNING))
    if is_complete:
        release(second, "s2")
        seal_complete(storage)
        storage.replace(REPORT, b'{"planned": 30}')
    return Folder(storage.objects)


def complete(storage: Storage, name: str) -> None:
    """What the next session does: claim, make what is missing or wanted once more, release, seal."""
    plan = open_plan(storage)
    journal = session(storage, plan, name)
    reopened = journal.reopened()
    settled = {ordinal for ordinal, _, _ in plan.settled()}
    done = journal.done - reopened.pending
    missing = [ordinal for ordinal in range(plan.count) if ordinal not in done and ordinal not in settled]
    for batch in batches(missing, 5):
        rows = [made(plan, ordinal, name, reopened.round_of(ordinal)) for ordinal in batch]
        journal.publish(to_table(rows))
    release(journal, name)
    seal_complete(storage)


def session(storage: Storage, plan: RunPlan, name: str) -> Journal:
    """A journal that was replayed and claimed, with a snapshot in every fourth file."""
    journal = Journal(storage, name, plan.count, snapshot_every=4)
    journal.replay(plan.settled())
    journal.claim(Claim(name, f"host-of-{name}", 11, 12, AT))
    return journal


def release(journal: Journal, name: str) -> None:
    journal.publish(to_table(()), (Released(name, ReleaseReason.DRAINED, AT),))


def made(plan: RunPlan, ordinal: int, session: str, round_: int = 0) -> OutputRow:
    """A finished row, whose text tells who made it."""
    (row,) = plan.rows([ordinal])
    status = Status.TRUNCATED if ordinal % 5 == 0 else Status.OK
    text = f"answer {ordinal} by {session}"
    made = output_row(ordinal, status=status, round_=round_, text=text, seen=observed(session=session))
    return replace(made, row_id=row.row_id, source=row.source, location=row.location)


def table(plan: RunPlan, ordinals: Iterable[int], session: str, round_: int = 0) -> pa.Table:
    return to_table(made(plan, ordinal, session, round_) for ordinal in ordinals)


def batches(ordinals: Sequence[int], size: int) -> list[Sequence[int]]:
    return [ordinals[start : start + size] for start in range(0, len(ordinals), size)]


def winners(storage: Storage, plan: RunPlan) -> Winners:
    """Which file has the row that counts, and its digest."""
    return CommittedRows(storage, plan.count).winners


def _retried(journal: Journal, plan: RunPlan, ordinals: Sequence[int]) -> None:
    rows = OrdinalSet(plan.count, ordinals)
    records: tuple[Record, ...] = (RowsReopened("s2", 1, rows.to_text(), len(rows), {}, "{}", AT),)
    journal.publish(to_table(()), records)
    journal.publish(to_table(made(plan, ordinal, "s2", 1) for ordinal in ordinals))
