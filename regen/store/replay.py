"""What the journal amounts to, read back from the store.

Guarantees: the answer is that of all published files, or an error; per row the highest round counts, within a round the
first. Costs one listing, and the footers and id columns since the newest snapshot.
Does not read the rows themselves, nor the files before that snapshot: an altered byte there is found by `verify`, a
missing file or one of another size is found here. Files that a repair has voided are as if they had never been.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import pyarrow as pa

from regen.errors import JournalDamaged, UserError
from regen.ordinals import OrdinalSet
from regen.protocols import Storage
from regen.records import Status, Totals
from regen.store import totals
from regen.store.control import Claim, Record, Released, RunClosed, Standing
from regen.store.files import JournalFile, JournalFiles, voided_by
from regen.store.footer import Footer, Snapshot
from regen.store.layout import journal_key
from regen.store.parquet import damaged, integers, naming_damage
from regen.store.reopened import Reopened, reopened

Settled = tuple[int, str, Status]  # ordinal, source, outcome: `Plan.settled`


@dataclass(frozen=True, slots=True)
class Replayed:
    """`done` and `totals` count what the plan has settled too; `done` is the caller's own to change.

    `reopened` are rows among them that are wanted once more; until then their older result counts.

    `released` is set only if the session of `newest_claim` has let go of the run. `records` are all other control
    records that still matter, in order.
    """

    done: OrdinalSet
    totals: Totals
    next_number: int
    newest_claim: Claim | None
    released: Released | None
    records: tuple[Record, ...]
    reopened: Reopened


@dataclass(slots=True)
class Ledger:
    """The journal's own rows up to some file. `rounds` holds the rounds above 0; `published` as in a footer; sizes in
    bytes.
    """

    done: OrdinalSet
    rounds: dict[int, int]
    totals: Totals
    standing: Standing
    next_number: int = 0
    total_bytes: int = 0
    last_digest: str = ""
    published: Totals = field(default_factory=Totals)

    @classmethod
    def empty(cls, plan_rows: int) -> Ledger:
        return cls(OrdinalSet(plan_rows), {}, Totals(), Standing())

    def copy(self) -> Ledger:
        return replace(self, done=self.done.copy(), rounds=dict(self.rounds))

    def round_of(self, ordinal: int) -> int:
        """The round of the row that counts; -1 if there is none."""
        return self.rounds.get(ordinal, 0) if ordinal in self.done else -1

    def reopened(self) -> Reopened:
        """Rows that are done and wanted once more. Raises JournalDamaged."""
        with naming_damage("the journal's records of re-opened rows"):
            return reopened(self.standing.records, self.done.size, self.round_of)

    def add_row(self, ordinal: int, round_: int) -> None:
        """Take note of a row; one that is not above the round it has already changes nothing."""
        if round_ > self.round_of(ordinal):
            self.done.add(ordinal)
            if round_ > 0:
                self.rounds[ordinal] = round_

    def add_file(self, footer: Footer, ids: pa.Table, size: int, where: str) -> None:
        """Take in the next file. Raises JournalDamaged if it cannot follow what is here."""
        standing = self.standing.after(footer.records)
        if standing.claim is None or standing.claim.session != footer.session:
            holder = f"session {standing.claim.session}" if standing.claim else "nobody"
            raise damaged(where, f"it is of session {footer.session} while {holder} held the run")
        for ordinal, round_ in zip(integers(ids, "ordinal"), integers(ids, "round"), strict=True):
            self.add_row(ordinal, round_)
        self.totals, self.published, self.standing = footer.totals, footer.published, standing
        self.next_number, self.total_bytes = footer.number + 1, footer.bytes_before + size


def replay(storage: Storage, plan_rows: int, settled: Iterable[Settled]) -> Replayed:
    """For readers without a session (`regen status`). Raises JournalDamaged, StoreUnavailable, StoreRefused."""
    ledger = read_ledger(JournalFiles(storage), plan_rows)
    return summed_up(ledger, *count_settled(ledger, settled, storage))


def read_ledger(files: JournalFiles, plan_rows: int) -> Ledger:
    """The newest snapshot and all that came after it."""
    listed = list(files.listed())
    read = _since_snapshot(files, listed)
    listed = files.sequence(listed, voided_by([footer for _, footer, _ in read]))
    bytes_before = _bytes_before(listed)
    ledger = Ledger.empty(plan_rows)
    for file, footer, ids in reversed(read):
        _check_place(files, listed, footer, plan_rows, bytes_before[file.number])
        if footer.snapshot is not None:
            ledger = _from_snapshot(footer, footer.snapshot, plan_rows, file.size, files.where(file.number))
        else:
            ledger.add_file(footer, ids, file.size, files.where(file.number))
    if listed:
        newest = listed[-1].number
        ledger.last_digest = files.read_digest(newest)
        _check_sum(ledger, files.where(newest))
    return ledger


def count_settled(ledger: Ledger, settled: Iterable[Settled], storage: Storage) -> tuple[OrdinalSet, Totals]:
    """What the plan has settled, as a set and as totals. Raises JournalDamaged if the journal has such a row."""
    ordinals = OrdinalSet(ledger.done.size)
    outcomes: dict[tuple[str, Status], int] = {}
    for ordinal, source, status in settled:
        if ordinal in ledger.done:
            what = "refuses" if status is Status.REJECTED else "has already"
            raise JournalDamaged(
                f"{storage.url}: the journal holds a row {ordinal}, which the plan {what}:"
                " plan and journal are not of one run"
            )
        ordinals.add(ordinal)
        outcomes[source, status] = outcomes.get((source, status), 0) + 1
    return ordinals, Totals(outcomes)


def summed_up(ledger: Ledger, settled: OrdinalSet, settled_totals: Totals) -> Replayed:
    standing = ledger.standing
    return Replayed(
        done=ledger.done | settled,
        totals=totals.plus(ledger.totals, settled_totals),
        next_number=ledger.next_number,
        newest_claim=standing.claim,
        released=standing.released,
        records=standing.records,
        reopened=ledger.reopened(),
    )


def refuse_closed(records: Iterable[Record], url: str) -> None:
    """Raises UserError if nothing can be made for this run any more."""
    closed = next((record for record in records if isinstance(record, RunClosed)), None)
    if closed is not None:
        raise closed_error(url, closed)


def closed_error(url: str, closed: RunClosed) -> UserError:
    """For whatever needs the journal of a closed run."""
    return UserError(
        f"{url}: this run was closed at {closed.at} by `regen clean --journal`: its {closed.rows:,} rows are in"
        f" {closed.shards:,} shards, its journal is deleted, and nothing can be made, opened again or read from the"
        " journal any more. `regen export`, `regen verify` and `regen status` work"
    )


def _since_snapshot(files: JournalFiles, listed: list[JournalFile]) -> list[tuple[JournalFile, Footer, pa.Table]]:
    """The newest file first; the last one has a snapshot, or is the first of the journal."""
    read = []
    for file in files.back(listed):
        footer, ids = files.read_ids(file.number)
        read.append((file, footer, ids))
        if footer.snapshot is not None:
            break
    return read


def _bytes_before(listed: list[JournalFile]) -> dict[int, int]:
    before, total = {}, 0
    for file in listed:
        before[file.number] = total
        total += file.size
    return before


def _check_place(
    files: JournalFiles, listed: list[JournalFile], footer: Footer, plan_rows: int, bytes_before: int
) -> None:
    where = files.where(footer.number)
    if footer.plan_rows > plan_rows:  # fewer: it was written before the plan was extended
        raise damaged(
            where,
            f"it is of a plan of {footer.plan_rows} rows, and this plan has {plan_rows}: if the run was extended a"
            " moment ago, the same command again sees all of it",
        )
    if footer.last is not None and footer.last >= footer.plan_rows:
        raise damaged(where, f"it holds a row {footer.last}, outside a plan of {footer.plan_rows} rows")
    if footer.bytes_before != bytes_before and not any(isinstance(record, RunClosed) for record in footer.records):
        for file in listed:
            if file.number < footer.number:
                files.read_ids(file.number)  # names the damaged one, if that shows
        raise damaged(
            where,
            f"the files before it ({journal_key(0)} on) had {footer.bytes_before} bytes together when it was written,"
            f" and have {bytes_before} now",
        )


def _from_snapshot(footer: Footer, snapshot: Snapshot, plan_rows: int, size: int, where: str) -> Ledger:
    with naming_damage(where):
        done = OrdinalSet.from_text(footer.plan_rows, snapshot.done).grown(plan_rows)
    return Ledger(
        done=done,
        rounds=dict(snapshot.rounds),
        totals=footer.totals,
        published=footer.published,
        standing=snapshot.standing,
        next_number=footer.number + 1,
        total_bytes=footer.bytes_before + size,
    )


def _check_sum(ledger: Ledger, where: str) -> None:
    if ledger.totals.done != len(ledger.done):
        raise damaged(where, f"its totals count {ledger.totals.done} rows, and the journal has {len(ledger.done)}")
