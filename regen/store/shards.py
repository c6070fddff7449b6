"""Sealing: finished rows as Parquet files of whole ordinal ranges, in order, for trainers.

Guarantees: the same rows give the same determined columns in the same order, however the journal came about; a shard is
replaced as a whole or not at all; one that is there with the right digest is left alone, so sealing can be repeated and
broken off at any time. Every row of the plan is in it: a refused one with stage and reason instead of an answer, a
native one as it is planned. After an extension of the plan its last shard has a longer range and so another name: the
shorter file goes once the longer one is there, and no reader here takes both.
Costs one pass over the journal's id columns and one over its rows per `BATCH_BYTES` of them (or per shard, if that is
larger), and as much memory, with 21 bytes a row of the plan.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import pyarrow as pa

from regen.errors import JournalDamaged, StoreUnavailable, UserError
from regen.ordinals import OrdinalSet
from regen.protocols import Plan, Storage, StoredObject
from regen.records import Message, Observed, OutputRow, PlannedRow, Role
from regen.rows import SCHEMA, to_table
from regen.store.committed import CommittedRows
from regen.store.files import JournalFiles
from regen.store.layout import SHARDS, shard_key, shard_range
from regen.store.parquet import ROW_GROUP_BYTES, RowsFile, content_digest, damaged, integers, texts, write_rows
from regen.store.row_order import OrderedRows, in_order

VERSION = 1
BATCH_BYTES = 256 * 2**20
_ROWS_AT_ONCE = 64

Range = tuple[int, int]  # ordinals, both included


@dataclass(frozen=True, slots=True)
class Shard:
    """One sealed file. `first` and `last` are ordinals, both included; `digest` is over its rows' digests."""

    key: str
    first: int
    last: int
    rows: int
    digest: str


def seal(
    storage: Storage,
    plan: Plan,
    rows_per_shard: int,
    *,
    session: str,
    fingerprint: str,
    complete_only: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> list[Shard]:
    """Write every shard that is not there yet, and return all that are there then; outgrown ones are removed.

    `complete_only`: leave out ranges with rows that are not done; otherwise such a row is a UserError, before anything
    is written. `session` and `fingerprint` go into the `observed` column of rows that no worker made. Of a closed run
    nothing is written: its shards are all there, or JournalDamaged names one.
    `progress(sealed, of)`. Raises JournalDamaged, StoreUnavailable, StoreRefused.
    """
    if JournalFiles(storage).closed() is not None:
        return [shard for shard, _ in _closed_shards(storage, plan, rows_per_shard)]
    sealer = _Sealer(storage, plan, rows_per_shard, session, fingerprint)
    shards = [sealer.described(limits) for limits in sealer.complete_ranges(complete_only)]
    unsealed = [shard for shard in shards if not sealer.is_sealed(shard)]
    sealed = len(shards) - len(unsealed)
    for batch in sealer.batches(unsealed):
        for _ in sealer.write_batch(batch):
            sealed += 1
            if progress is not None:
                progress(sealed, len(shards))
    for outgrown in outgrown_shards(storage, plan, rows_per_shard, frozenset(shard.first for shard in shards)):
        storage.delete(outgrown.key)
    return shards


def seal_again(
    storage: Storage, plan: Plan, rows_per_shard: int, keys: Collection[str], *, session: str, fingerprint: str
) -> list[str]:
    """Write these shards anew, whatever is there; those with rows that are not done are left. The keys of the written.

    Raises JournalDamaged, StoreUnavailable, StoreRefused.
    """
    sealer = _Sealer(storage, plan, rows_per_shard, session, fingerprint)
    shards = [sealer.described(limits) for limits in sealer.complete_ranges(complete_only=True)]
    batches = sealer.batches([shard for shard in shards if shard.key in keys])
    return [shard.key for batch in batches for shard in sealer.write_batch(batch)]


def committed(
    storage: Storage, plan: Plan, rows_per_shard: int, columns: Sequence[str] | None = None
) -> Iterator[pa.Table]:
    """Every row that has an outcome, in order of ordinals, in tables of about `ROW_GROUP_BYTES` at most.

    Read from the shard where it is sealed as the journal has it, from the journal and the plan otherwise; of a closed
    run from the shards alone. Rows that are not done yet are not there. `columns` must hold `ordinal`.
    Raises JournalDamaged, StoreUnavailable, StoreRefused.
    """
    if JournalFiles(storage).closed() is not None:
        for _, file in _closed_shards(storage, plan, rows_per_shard):
            yield from file.groups(columns)
        return
    sealer = _Sealer(storage, plan, rows_per_shard, session="", fingerprint="")
    complete = set(sealer.complete_ranges(complete_only=True))
    for limits in shard_ranges(plan.count, rows_per_shard):
        shard = sealer.described(limits) if limits in complete else None
        if shard is not None and sealer.is_sealed(shard):
            yield from sealer.sealed_groups(shard, columns)
        else:
            yield from sealer.journal_groups(limits, columns)


def settled_row(row: PlannedRow, session: str, fingerprint: str) -> OutputRow:
    """What a row that is terminal from the start looks like in a shard.

    A refused one has the messages that were given before the first answer; a native one is whole, with its turns.
    """
    refusal, conversation = row.refusal, row.conversation
    if row.settled is None:
        raise ValueError(f"row {row.ordinal} is not settled in the plan")
    messages = conversation.messages if conversation else ()
    return OutputRow(
        ordinal=row.ordinal,
        row_id=row.row_id,
        source=row.source,
        location=row.location,
        source_id=row.source_id,
        status=row.settled,
        round=0,
        messages=messages if row.native else _before_first_answer(messages),
        generations=row.native,
        observed=Observed(-1, session, 0, "", None, fingerprint),
        tools_json=conversation.tools_json if conversation else None,
        template_kwargs_json=conversation.template_kwargs_json if conversation else None,
        stage=refusal.stage if refusal else None,
        reason=refusal.reason if refusal else None,
        detail=refusal.detail if refusal else None,
        split=row.split,
    )


def settled_table(plan: Plan, ordinals: Sequence[int], session: str, fingerprint: str) -> pa.Table:
    """These rows, all settled in the plan, as a table; a bounded number of them as Python values at a time."""
    tables = [SCHEMA.empty_table()]
    for start in range(0, len(ordinals), _ROWS_AT_ONCE):
        planned = plan.rows(ordinals[start : start + _ROWS_AT_ONCE])
        tables.append(to_table(settled_row(row, session, fingerprint) for row in planned))
    return pa.concat_tables(tables)


def shard_entry(shard: Shard, plan: Plan) -> dict[str, Any]:
    """What a shard says of itself in its footer.

    Its plan is the one that first had all its rows: a shard outlives extensions that add nothing to it.
    """
    return {
        "version": VERSION,
        "kind": "shard",
        "first": shard.first,
        "last": shard.last,
        "rows": shard.rows,
        "digest": shard.digest,
        "plan": next(stage.digest for stage in plan.stages if shard.last < stage.rows),
    }


def shard_ranges(plan_rows: int, rows_per_shard: int) -> Iterator[Range]:
    """(first, last) of every shard of a plan."""
    for first in range(0, plan_rows, rows_per_shard):
        yield first, min(first + rows_per_shard, plan_rows) - 1


def outgrown_ranges(plan: Plan, rows_per_shard: int) -> set[Range]:
    """Ranges that were the last one before an extension, and are a part of a longer one now."""
    before = {found for stage in plan.stages[:-1] for found in shard_ranges(stage.rows, rows_per_shard)}
    return before - set(shard_ranges(plan.count, rows_per_shard))


def outgrown_shards(
    storage: Storage, plan: Plan, rows_per_shard: int, sealed_from: Collection[int]
) -> list[StoredObject]:
    """Files of such ranges, whose rows are all in a shard that is there: those begin at the ordinals given."""
    outgrown = outgrown_ranges(plan, rows_per_shard)
    found = ((stored, shard_range(stored.key)) for stored in storage.list(SHARDS)) if outgrown else ()
    return [stored for stored, limits in found if limits in outgrown and limits[0] in sealed_from]


def _closed_shards(storage: Storage, plan: Plan, rows_per_shard: int) -> Iterator[tuple[Shard, RowsFile]]:
    """Every shard of a run that has nothing else, each open until the next is asked for."""
    for first, last in shard_ranges(plan.count, rows_per_shard):
        key = shard_key(first, last)
        where = f"{storage.url}/{key}"
        try:
            source = storage.open(key)
        except KeyError:
            raise damaged(where, "it is missing, and the run is closed: its rows were nowhere else") from None
        with source:
            file = RowsFile(source, where)
            shard = Shard(key, first, last, file.rows, str(file.entry.get("digest")))
            if file.entry != shard_entry(shard, plan) or file.rows != last - first + 1:
                raise damaged(where, "its footer is not that of its range and plan")
            yield shard, file


class _Sealer:
    def __init__(self, storage: Storage, plan: Plan, rows_per_shard: int, session: str, fingerprint: str) -> None:
        self._storage = storage
        self._plan = plan
        self._rows_per_shard = rows_per_shard
        self._session, self._fingerprint = session, fingerprint
        self._settled = OrdinalSet(plan.count, (ordinal for ordinal, _, _ in plan.settled()))
        self._rows = CommittedRows(storage, plan.count)

    def complete_ranges(self, complete_only: bool) -> list[Range]:
        complete = []
        for first, last in shard_ranges(self._plan.count, self._rows_per_shard):
            missing = self._missing(first, last)
            if missing is None:
                complete.append((first, last))
            elif not complete_only:
                raise UserError(
                    f"{self._storage.url}: row {missing} is not done yet, so shard {first} to {last} cannot be sealed;"
                    " finish the run, or seal only what is complete so far"
                )
        return complete

    def described(self, limits: Range) -> Shard:
        """What the shard of this range must be."""
        first, last = limits
        settled = self._settled_table(limits)
        settled_digests = dict(zip(integers(settled, "ordinal"), texts(settled, "digest"), strict=True))
        ordinals = range(first, last + 1)
        digests = [settled_digests.get(ordinal) or self._rows.winners.digest_of(ordinal) for ordinal in ordinals]
        return Shard(shard_key(first, last), first, last, len(ordinals), content_digest(ordinals, digests))

    def is_sealed(self, shard: Shard) -> bool:
        """Whether it is there. One that cannot be read is not: it is derived, and made anew.

        Once journal files were damaged, so may the shards have been: each is read in full then.
        """
        try:
            with self._storage.open(shard.key) as source:
                file = RowsFile(source, f"{self._storage.url}/{shard.key}")
                if file.entry != shard_entry(shard, self._plan):
                    return False
                if self._rows.has_voided_files:
                    file.check_bytes()
                return True
        except (KeyError, JournalDamaged):
            return False

    def sealed_groups(self, shard: Shard, columns: Sequence[str] | None) -> Iterator[pa.Table]:
        """The rows of a shard that is there."""
        with self._storage.open(shard.key) as source:
            yield from RowsFile(source, f"{self._storage.url}/{shard.key}").groups(columns)

    def journal_groups(self, limits: Range, columns: Sequence[str] | None) -> Iterator[pa.Table]:
        """The rows of a range that are done, as a shard would hold them."""
        first, last = limits
        parts = self._rows.tables_of(self._rows.parts(range(first, last + 1)), columns)
        settled = self._settled_table(limits)
        parts.append(OrderedRows(settled if columns is None else settled.select(columns)))
        yield from in_row_groups(parts)

    def batches(self, shards: Sequence[Shard]) -> Iterator[list[Shard]]:
        """Consecutive shards that are made together, so that a journal file is not read anew for each."""
        batch: list[Shard] = []
        collected = 0
        for shard in shards:
            size = self._rows.bytes_of(self._parts([shard]))
            if batch and collected + size > BATCH_BYTES:
                yield batch
                batch, collected = [], 0
            batch.append(shard)
            collected += size
        if batch:
            yield batch

    def write_batch(self, batch: Sequence[Shard]) -> Iterator[Shard]:
        """Write these, each yielded when it is durable."""
        parts = self._rows.tables_of(self._parts(batch))
        for shard in batch:
            settled = OrderedRows(self._settled_table((shard.first, shard.last)))
            self._write(shard, in_row_groups([*parts, settled], (shard.first, shard.last)))
            yield shard

    def _missing(self, first: int, last: int) -> int | None:
        for ordinal in range(first, last + 1):
            if self._rows.winners.number_of(ordinal) is None and ordinal not in self._settled:
                return ordinal
        return None

    def _parts(self, shards: Sequence[Shard]) -> dict[int, list[int]]:
        """The ordinals that each journal file contributes, ascending."""
        return self._rows.parts(ordinal for shard in shards for ordinal in range(shard.first, shard.last + 1))

    def _settled_table(self, limits: Range) -> pa.Table:
        first, last = limits
        ordinals = [ordinal for ordinal in range(first, last + 1) if ordinal in self._settled]
        return settled_table(self._plan, ordinals, self._session, self._fingerprint)

    def _write(self, shard: Shard, groups: Iterator[pa.Table]) -> None:
        entry = shard_entry(shard, self._plan)
        with _temporary_folder() as folder:
            path = Path(folder, "shard.parquet")
            try:
                write_rows(path, groups, entry)
            except OSError as error:
                raise _no_room(path, error) from error
            self._storage.replace(shard.key, path)


def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    try:
        return tempfile.TemporaryDirectory(prefix="regen-seal-")
    except OSError as error:
        raise _no_room("a temporary folder", error) from error


def _no_room(what: object, error: OSError) -> StoreUnavailable:
    return StoreUnavailable(f"{what}: cannot be written: {error}; set TMPDIR to a place with room")


def in_row_groups(
    parts: Sequence[OrderedRows], limits: Range | None = None, limit_bytes: int = ROW_GROUP_BYTES
) -> Iterator[pa.Table]:
    """The rows of all parts, or those within `limits`, as consecutive tables of about `limit_bytes` at most."""
    sizes: dict[int, int] = {}
    for part in parts:
        sizes.update(dict.fromkeys(part.ordinals_within(limits), part.mean_row_bytes))
    for first, last in _windows(sorted(sizes.items()), limit_bytes):
        pieces = (part.between(first, last) for part in parts)
        yield in_order(pa.concat_tables(piece for piece in pieces if len(piece)))


def _windows(sizes: list[tuple[int, int]], limit_bytes: int) -> Iterator[Range]:
    start, collected = 0, 0
    for index, (_, size) in enumerate(sizes):
        if index > start and collected + size > limit_bytes:
            yield sizes[start][0], sizes[index - 1][0]
            start, collected = index, 0
        collected += size
    if sizes:
        yield sizes[start][0], sizes[-1][0]


def _before_first_answer(messages: Sequence[Message]) -> tuple[Message, ...]:
    return tuple(takewhile(lambda message: message.role is not Role.ASSISTANT, messages))
