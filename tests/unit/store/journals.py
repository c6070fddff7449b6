"""Journals to test with: claimed, filled, and by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from regen.protocols import Storage
from regen.records import OutputRow, Status
from regen.rows import to_table
from regen.store import footer as footers
from regen.store.control import Claim, Record
from regen.store.footer import Footer
from regen.store.journal import Journal
from regen.store.layout import journal_key
from regen.store.parquet import RowsFile, encode_rows
from tests.output_rows import output_row


def claim_of(session: str, pid: int = 11, take_over: bool = False) -> Claim:
    return Claim(session, f"host-of-{session}", pid, pid + 1, "2026-01-01T00:00:00+00:00", take_over)


def opened(
    storage: Storage,
    session: str = "s1",
    plan_rows: int = 100,
    settled: Iterable[tuple[int, str, Status]] = (),
    snapshot_every: int = 4,
) -> Journal:
    """A journal that was replayed and claimed."""
    journal = Journal(storage, session, plan_rows, snapshot_every=snapshot_every)
    journal.replay(settled)
    journal.claim(claim_of(session))
    return journal


def table_of(*ordinals: int, round_: int = 0) -> pa.Table:
    return to_table(output_row(ordinal, round_=round_) for ordinal in ordinals)


def published(storage: Storage, batches: Iterable[Sequence[OutputRow]], plan_rows: int = 100) -> Journal:
    """A journal with the claim of `s1` and one file per batch."""
    journal = opened(storage, plan_rows=plan_rows)
    for batch in batches:
        journal.publish(to_table(batch))
    return journal


def footer_of(storage: Storage, number: int) -> Footer:
    return footers.from_json(RowsFile(storage.read(journal_key(number)), "test").entry, "test")


def rewrite(storage: Storage, number: int, table: pa.Table, footer: Footer) -> None:
    """Put a well-formed file in the place of another: what no writer of regen's would do."""
    storage.replace(journal_key(number), encode_rows(table, footers.to_json(footer)))


def records_of(storage: Storage, count: int) -> list[Record]:
    return [record for number in range(count) for record in footer_of(storage, number).records]
