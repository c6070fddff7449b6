"""The journal: the numbered sequence of files that is the only record of what is done.

Guarantees: `commit` returns only when its rows are durable and part of the sequence; a number is used once; as soon as
another session has claimed the run, nothing of this one is published any more (Fenced). The first result of a row
within its round counts, and no later one is ever written.
Knows nothing of schedules, and reads a clock only to tell people. Blocking: call it from a thread, one call at a time;
all properties but `pending` may be read from other threads. Costs one file per commit,
and one copy of the bitmap; the first row that is made again, one pass over ids of older files, and then 4 bytes a row
of the plan.

    journal = Journal(storage, session, plan.count)
    replayed = journal.replay(plan.settled())
    journal.claim(claim)                      # or resume_own(claim), in a coordinator that was restarted
    prepared = journal.prepare(table)         # built once ...
    journal.commit(prepared)                  # ... and tried again with the same bytes on StoreUnavailable
"""

from __future__ import annotations

import uuid
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from regen.errors import Fenced, JournalDamaged, StoreUnavailable
from regen.ordinals import OrdinalSet
from regen.protocols import Storage
from regen.records import Totals
from regen.rows import SCHEMA
from regen.store import footer as footers
from regen.store import totals
from regen.store.control import Claim, Record, RunClosed, Voided
from regen.store.files import JournalFile, JournalFiles
from regen.store.footer import Footer, Snapshot
from regen.store.layout import journal_key
from regen.store.machine import utc_now
from regen.store.parquet import RowsFile, content_digest, damaged, encode_rows, integers, texts
from regen.store.reopened import Reopened, next_round
from regen.store.replay import Ledger, Replayed, Settled, count_settled, read_ledger, refuse_closed, summed_up

SNAPSHOT_EVERY = 32
# Instead of a file's number. Nowhere: what there was of the row is in a file that does not count any more.
_NOT_LOOKED_FOR, _NOWHERE = -1, -2
# A column of more than 2 GiB cannot be one chunk.
_MOST_COMBINED_BYTES = 2**30
_VANISHED = "it is gone, and was there: somebody has removed or emptied the folder while this session wrote to it"


@dataclass(frozen=True, slots=True)
class Prepared:
    """A file that is built and not yet known to be published.

    `repeated` are ordinals that were in the table and left out, because their round has a result already; `replaced`
    are those whose older result these rows take the place of.
    """

    number: int
    data: bytes
    rows: int
    repeated: tuple[int, ...]
    replaced: tuple[int, ...] = field(repr=False)
    after: Ledger = field(repr=False)


@dataclass(frozen=True, slots=True)
class Published:
    """What a commit has put into the journal. `repeated` as in `Prepared`."""

    number: int
    rows: int
    bytes: int
    repeated: tuple[int, ...]


class Journal:
    """One session's access to the journal. The order is: replay, claim (or resume_own), then prepare and commit."""

    def __init__(
        self,
        storage: Storage,
        session: str,
        plan_rows: int,
        *,
        snapshot_every: int = SNAPSHOT_EVERY,
        clock: Callable[[], str] = utc_now,
    ) -> None:
        """`clock` gives each file's `at`: see `Footer`. Nothing here depends on what it says."""
        self._files = JournalFiles(storage)
        self._storage = storage
        self._session = session
        self._plan_rows = plan_rows
        self._snapshot_every = snapshot_every
        self._clock = clock
        self._writer = uuid.uuid4().hex
        self._ledger: Ledger | None = None
        self._settled = OrdinalSet(plan_rows)
        self._settled_totals = Totals()
        self._pending: Prepared | None = None
        self._claim: Prepared | None = None
        # Of each row that is re-opened, in which file its older result is: found once, not at each commit.
        self._places = array("i")
        self._is_claimed = False
        self._fenced: Fenced | None = None

    # --- what is done ----------------------------------------------------------------------------

    def replay(self, settled: Iterable[Settled]) -> Replayed:
        """Read back what is published. `settled` are the plan's rows that are terminal from the start.

        Raises JournalDamaged, StoreUnavailable, StoreRefused.
        """
        ledger = read_ledger(self._files, self._plan_rows)
        self._settled, self._settled_totals = count_settled(ledger, settled, self._storage)
        self._ledger = ledger
        return summed_up(ledger, self._settled, self._settled_totals)

    @property
    def session(self) -> str:
        """Whose access this is."""
        return self._session

    @property
    def totals(self) -> Totals:
        """Of everything committed, settled rows of the plan included."""
        return totals.plus(self._known().totals, self._settled_totals)

    @property
    def published(self) -> Totals:
        """Of everything that was ever committed, settled rows too: a row that was made again counts each time."""
        return totals.plus(self._known().published, self._settled_totals)

    @property
    def made(self) -> OrdinalSet:
        """Rows that the run has made: those that the plan has settled are not among them. The caller's to change."""
        return self._known().done.copy()

    @property
    def done(self) -> OrdinalSet:
        """Everything committed, settled rows of the plan included: a new set, the caller's own."""
        return self._known().done | self._settled

    def reopened(self) -> Reopened:
        """Rows among those that are done that are wanted once more. Costs a pass over what was re-opened."""
        return self._known().reopened()

    @property
    def records(self) -> tuple[Record, ...]:
        """Control records that still matter, in order: all but claims and releases."""
        return self._known().standing.records

    @property
    def next_round(self) -> int:
        """For rows that are opened again now: above every round so far."""
        return next_round(self.records)

    @property
    def next_number(self) -> int:
        """The number of the next commit."""
        return self._known().next_number

    # --- the fence -------------------------------------------------------------------------------

    def claim(self, claim: Claim, also: Callable[[Sequence[Record]], Sequence[Record]] = lambda records: ()) -> None:
        """Make the run this session's. May be called again after StoreUnavailable.

        `also` gives records that the claim's file is to carry, from those that stand before it.
        Files that the previous holder has published since `replay` are read and counted: look at `done` afterwards.
        Raises Fenced, naming who, when another claim came first; UserError if the run is closed;
        JournalDamaged when the journal went since `replay` (`regen clean`, and we were frozen).
        """
        if claim.session != self._session:
            raise ValueError(f"a claim of session {claim.session} in the journal of session {self._session}")
        if self._fenced is not None:
            raise self._fenced
        refuse_closed(self._known().standing.records, self._storage.url)
        while not self._is_claimed:
            prepared = self._claiming(claim, also)
            self._require_predecessor(prepared.number)
            if self._put(prepared):
                self._ledger, self._is_claimed = prepared.after, True
            else:
                self._read_on(prepared.number)

    def _claiming(self, claim: Claim, also: Callable[[Sequence[Record]], Sequence[Record]]) -> Prepared:
        """The same bytes when it is tried again: else a claim whose answer was lost would look like another's."""
        if self._claim is None or self._claim.number != self.next_number:
            self._claim = self._build(SCHEMA.empty_table(), (claim, *also(self.records)), ())
        return self._claim

    def resume_own(
        self, claim: Claim, also: Callable[[Sequence[Record]], Sequence[Record]] = lambda records: ()
    ) -> None:
        """Go on in a coordinator that was restarted within its session: unless another session holds the run.

        It claims anew, so that whatever its predecessor still has under way finds the number taken.
        Raises Fenced, naming who, when the newest claim is another session's that has not let go.
        """
        standing = self._known().standing
        newest = standing.claim
        if newest is not None and newest.session != self._session and standing.released is None:
            raise self._fence(_Taker(newest.session, newest))
        self.claim(claim, also)

    def check_fence(self) -> None:
        """Raises Fenced if somebody else has published under the next number. For intervals without rows."""
        self._require_claimed()
        number = self._known().next_number
        if self._files.exists(number) and not self._is_own(self._pending):
            raise self._fence(self._taker(number))

    # --- publishing ------------------------------------------------------------------------------

    def prepare(self, table: pa.Table, records: Sequence[Record] = ()) -> Prepared:
        """Build the next file from finished rows (`rows.SCHEMA`, any order, possibly none) and control records.

        Rows whose round has a result already are left out and named in `repeated`. What was prepared before must be
        committed first. Raises ValueError for what is a programming error: another schema, an ordinal twice in the
        table, outside the plan, or of a row that the plan has settled.
        """
        self._require_claimed()
        if self._pending is not None:
            raise RuntimeError(f"journal file {self._pending.number} is prepared and not committed yet")
        fresh, repeated = self._fresh(_checked(table))
        self._pending = self._build(fresh, tuple(records), repeated)
        return self._pending

    def commit(self, prepared: Prepared) -> Published:
        """Publish what was prepared. On StoreUnavailable call it again with the same `prepared`: same bytes.

        A write of its own whose answer was lost counts as success. Raises Fenced when the number is another's, and
        JournalDamaged when the file before it is gone: a folder that was emptied meanwhile is not begun anew.
        """
        self._require_claimed()
        if prepared is not self._pending:
            raise RuntimeError(f"journal file {prepared.number} is not the one that was prepared last")
        self._require_predecessor(prepared.number)
        if not self._put(prepared):
            raise self._fence(self._taker(prepared.number))
        self._ledger, self._pending = prepared.after, None
        for ordinal in prepared.replaced:
            self._places[ordinal] = _NOT_LOOKED_FOR
        return Published(prepared.number, prepared.rows, len(prepared.data), prepared.repeated)

    def publish(self, table: pa.Table, records: Sequence[Record] = ()) -> Published:
        """`prepare` and `commit` in one. After StoreUnavailable go on with `commit(journal.pending)`."""
        return self.commit(self.prepare(table, records))

    @property
    def pending(self) -> Prepared | None:
        """What was prepared and is not known to be published."""
        return self._pending

    # --- read access -----------------------------------------------------------------------------

    def files(self) -> list[JournalFile]:
        """See `JournalFiles.files`."""
        return self._files.files()

    def read_footer(self, number: int) -> Footer:
        """See `JournalFiles.read_footer`."""
        return self._files.read_footer(number)

    def read_table(self, number: int, columns: Sequence[str] | None = None) -> pa.Table:
        """See `JournalFiles.read_table`."""
        return self._files.read_table(number, columns)

    # --- inside ----------------------------------------------------------------------------------

    def _known(self) -> Ledger:
        if self._ledger is None:
            raise RuntimeError("the journal was not replayed yet")
        return self._ledger

    def _require_claimed(self) -> None:
        if self._fenced is not None:
            raise self._fenced
        if not self._is_claimed:
            raise RuntimeError("the journal was not claimed yet")

    def _fresh(self, table: pa.Table) -> tuple[pa.Table, tuple[int, ...]]:
        """Rows that count, sorted; and the ordinals of the others."""
        ledger = self._known()
        ordinals, rounds = integers(table, "ordinal"), integers(table, "round")
        self._check_ordinals(ordinals)
        is_fresh = [round_ > ledger.round_of(ordinal) for ordinal, round_ in zip(ordinals, rounds, strict=True)]
        repeated = tuple(ordinal for ordinal, fresh in zip(ordinals, is_fresh, strict=True) if not fresh)
        return (table.filter(pa.array(is_fresh, pa.bool_())) if repeated else table), repeated

    def _check_ordinals(self, ordinals: list[int]) -> None:
        for one, other in pairwise(ordinals):
            if one == other:
                raise ValueError(f"row {one} is twice in one table")
        for ordinal in ordinals:
            if not 0 <= ordinal < self._plan_rows:
                raise ValueError(f"row {ordinal} is outside a plan of {self._plan_rows} rows")
            if ordinal in self._settled:
                raise ValueError(f"row {ordinal} is settled in the plan and cannot have a result")

    def _build(self, table: pa.Table, records: tuple[Record, ...], repeated: tuple[int, ...]) -> Prepared:
        before = self._known()
        after = before.copy()
        made = totals.count(table)
        after.totals = totals.plus(self._totals_without(table), made)
        after.published = totals.plus(before.published, made)
        after.standing = before.standing.after(records)
        after.next_number += 1
        for ordinal, round_ in zip(integers(table, "ordinal"), integers(table, "round"), strict=True):
            after.add_row(ordinal, round_)
        footer = self._footer(before, after, table, records)
        data = encode_rows(table, footers.to_json(footer))
        after.total_bytes += len(data)
        after.last_digest = RowsFile(data, "what was just built").digest
        replaced = tuple(ordinal for ordinal in integers(table, "ordinal") if before.round_of(ordinal) >= 0)
        return Prepared(before.next_number, data, len(table), repeated, replaced, after)

    def _footer(self, before: Ledger, after: Ledger, table: pa.Table, records: tuple[Record, ...]) -> Footer:
        ordinals = integers(table, "ordinal")
        is_closing = any(isinstance(record, RunClosed) for record in records)
        is_snapshot = is_closing or after.next_number % self._snapshot_every == 0
        return Footer(
            number=before.next_number,
            session=self._session,
            writer=self._writer,
            at=self._clock(),
            plan_rows=self._plan_rows,
            rows=len(ordinals),
            table_bytes=table.nbytes,
            digest=content_digest(ordinals, texts(table, "digest")),
            first=ordinals[0] if ordinals else None,
            last=ordinals[-1] if ordinals else None,
            totals=after.totals,
            published=after.published,
            records=records,
            bytes_before=before.total_bytes,
            previous_digest=before.last_digest,
            snapshot=Snapshot(after.done.to_text(), after.rounds, after.standing) if is_snapshot else None,
        )

    def _totals_without(self, table: pa.Table) -> Totals:
        """The totals without the rows that these ones, of a higher round, take the place of."""
        ledger = self._known()
        left = ledger.totals
        for number, replaced in self._where_they_are(integers(table, "ordinal")).items():
            ids = self._files.read_table(number, ("ordinal", "round"))
            pairs = zip(integers(ids, "ordinal"), integers(ids, "round"), strict=True)
            rows = [
                row
                for row, (ordinal, round_) in enumerate(pairs)
                if ordinal in replaced and ledger.round_of(ordinal) == round_
            ]
            older = self._files.read_table(number, totals.COLUMNS).take(rows)
            left = totals.minus(left, totals.count(older))
        return left

    def _where_they_are(self, ordinals: Sequence[int]) -> dict[int, set[int]]:
        """By file, those of these rows whose result that counts is in it."""
        ledger = self._known()
        places: dict[int, set[int]] = {}
        for ordinal in ordinals:
            if ledger.round_of(ordinal) >= 0:
                if not self._places or self._places[ordinal] == _NOT_LOOKED_FOR:
                    self._find_reopened(ordinal)
                if (number := self._places[ordinal]) >= 0:
                    places.setdefault(number, set()).add(ordinal)
        return places

    def _find_reopened(self, also: int) -> None:
        """Where the results of all re-opened rows are, and of this one: one pass over the files, the newest first."""
        ledger = self._known()
        self._places = self._places or array("i", [_NOT_LOOKED_FOR]) * self._plan_rows
        again = (row for row in ledger.reopened().pending if self._places[row] == _NOT_LOOKED_FOR)
        wanted = OrdinalSet(self._plan_rows, again)
        wanted.add(also)
        voided = Voided(self.records)
        for number in reversed(range(ledger.next_number)):
            if not len(wanted) or number in voided:
                continue
            ids = self._files.read_table(number, ("ordinal", "round"))
            for ordinal, round_ in zip(integers(ids, "ordinal"), integers(ids, "round"), strict=True):
                if ordinal in wanted and ledger.round_of(ordinal) == round_:
                    wanted.discard(ordinal)
                    self._places[ordinal] = number
        for ordinal in wanted:
            self._places[ordinal] = _NOWHERE

    def _put(self, prepared: Prepared) -> bool:
        if self._storage.create(journal_key(prepared.number), prepared.data):
            return True
        return self._is_own(prepared)

    def _is_own(self, prepared: Prepared | None) -> bool:
        """The name is taken: by our own write, whose answer was lost?"""
        if prepared is None:
            return False
        try:
            return self._storage.read(journal_key(prepared.number)) == prepared.data
        except KeyError:
            where = self._files.where(prepared.number)
            raise StoreUnavailable(f"{where}: the store says that it is there, and does not give it") from None

    def _read_on(self, number: int) -> None:
        """Take in a file that came in between. Raises Fenced if it is another session's claim.

        A claim of this very session is a predecessor's, which was still under way when it was killed: it is claimed
        over. Killed, it has had that one request under way, and cannot claim over its successor in turn. Should two of
        a session live after all, the one that claims last goes on, and the other finds its next number taken.
        """
        data = self._files.read_bytes(number)
        where = self._files.where(number)
        file = RowsFile(data, where)
        footer, ids = self._files.decode_ids(number, file)
        if any(isinstance(record, Claim) and record.session != self._session for record in footer.records):
            raise self._fence(_taker(footer))
        ledger = self._known().copy()
        ledger.add_file(footer, ids, len(data), where)
        ledger.last_digest = file.digest
        self._ledger = ledger

    def _require_predecessor(self, number: int) -> None:
        if number and not self._files.exists(number - 1):
            raise damaged(self._files.where(number - 1), _VANISHED)

    def _taker(self, number: int) -> _Taker:
        """Who has published under our next number. Whoever it was, the number is not ours: also where it is damaged."""
        try:
            return _taker(self._files.read_footer(number))
        except JournalDamaged as error:
            return _Taker(f"unknown ({error})", None)

    def _fence(self, taker: _Taker) -> Fenced:
        """From now on nothing is written any more, whatever is called."""
        who = f"{taker}, a later coordinator of it," if taker.session == self._session else str(taker)
        self._fenced = Fenced(
            f"{self._storage.url}: {who} has claimed this run; session {self._session} stops here and writes no more"
        )
        return self._fenced


@dataclass(frozen=True, slots=True)
class _Taker:
    """Who has taken a number."""

    session: str
    claim: Claim | None

    def __str__(self) -> str:
        if self.claim is None:
            return f"session {self.session}"
        claim = self.claim
        return (
            f"session {self.session} (host {claim.host}, coordinator pid {claim.pid}, driver pid {claim.driver_pid},"
            f" started {claim.started_at})"
        )


def _taker(footer: Footer) -> _Taker:
    claims = [record for record in footer.records if isinstance(record, Claim)]
    return _Taker(footer.session, claims[-1] if claims else None)


def _checked(table: pa.Table) -> pa.Table:
    """Sorted by ordinal."""
    if not table.schema.equals(SCHEMA):
        raise ValueError("a table for the journal must have the schema of finished rows")
    if table.nbytes < _MOST_COMBINED_BYTES:  # taking from the chunks of many small tables costs six times as much
        table = table.combine_chunks()
    return table.take(pc.sort_indices(table["ordinal"]))
