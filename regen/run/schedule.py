"""Who makes which row: a state machine that takes events and `now`, and neither waits nor reads a clock. Pure.

Invariants:
- What a worker lists is the truth. Leased but unlisted goes back to the queue; listed but unknown is adopted. So a lost
  reply leaks nothing, and a coordinator that lost its memory learns it again without running a row twice.
- A row is settled when it is committed. Until then its worker holds the finished row and can be asked to send it again.
- The first result of a row wins; a second one is told to go.
- Once the queue is empty, a replica with nothing to do gets rows that wait elsewhere, and rows in work on a much slower
  one (run/last_rows.py). No row is with more than two.
- A newer incarnation of a slot ends the older one for good, and so does its death; within one, an older `seq` changes
  nothing, and the same one again gets the same rows.
- Rows that an engine died with cost no attempt, and are leased apart until it is known which of them kill engines
  (run/fleet/suspects.py).

Memory: two bitmaps over the plan and entries for rows in flight, and for rows that have failed, only.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from regen.ordinals import OrdinalSet
from regen.records import Death, FailedAttempt, Toll, WorkerId
from regen.run.fleet.suspects import Condemned, Ruling, Suspects
from regen.run.last_rows import LastRows
from regen.store.control import SuspectGroup, SuspectRows

# A worker says something every second or so. This long without a word, its rows go to others: the process may hang on a
# live node, which nothing else would tell. It may still come back; then the first result wins.
SILENT_SECONDS = 30.0
# And this long without a word, its process is hung and must be replaced.
HUNG_SECONDS = 120.0
# When long rows come first, an engine gets so many rows more than it has slots, as a share of these.
_AHEAD_AT_THE_END = 0.05
KILLS_ENGINE, STALLED = "kills_engine", "stalled"


@dataclass(frozen=True, slots=True)
class Report:
    """One exchange as the schedule sees it: ordinals only.

    `tokens` says how many output tokens each of `running` has so far, `slots` how many rows its engine decodes at once:
    where they are not known, its rows stay where they are until it is silent.
    """

    worker: WorkerId
    seq: int
    running: tuple[int, ...]
    awaiting: tuple[int, ...]
    finished: tuple[int, ...]
    failed: tuple[FailedAttempt, ...]
    free_slots: int
    tokens: tuple[int, ...] = ()
    slots: int = 0


@dataclass(frozen=True, slots=True)
class Exhausted:
    """A row whose attempts are used up: the coordinator writes it down as failed."""

    ordinal: int
    attempts: int
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class Grant:
    """One ordinal leased; `attempt` counts from 1."""

    ordinal: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Orders:
    """What follows from one report. `superseded`: this worker was replaced, it must stop.

    `failed` are attempts that count: at rows that are still wanted, and told for the first time. `is_repeat`: this
    report was taken in before, and its worker may have the grants already.
    """

    superseded: bool = False
    accepted: frozenset[int] = frozenset()
    settled: tuple[int, ...] = ()
    resend: tuple[int, ...] = ()
    grants: tuple[Grant, ...] = ()
    exhausted: tuple[Exhausted, ...] = ()
    failed: tuple[FailedAttempt, ...] = ()
    is_repeat: bool = False


@dataclass(frozen=True, slots=True)
class Farewell:
    """What follows from the end of an incarnation: what it has meant, and rows that are found to kill engines."""

    toll: Toll
    exhausted: tuple[Exhausted, ...] = ()


@dataclass(slots=True)
class _View:
    """What is known of one slot. `running` is what was in work when it was last heard, in the order it was leased."""

    incarnation: int
    seq: int
    seen_at: float
    held: set[int] = field(default_factory=set)
    granted: tuple[Grant, ...] = ()
    running: list[int] = field(default_factory=list)
    finished: int = 0
    toll: Toll = field(default_factory=Toll)
    is_gone: bool = False


class Schedule:
    """Rows of one plan over replicas. Give it every event; it never acts by itself."""

    def __init__(
        self,
        done: OrdinalSet,
        attempts_allowed: int,
        expected_slots: Iterable[int] = (),
        adopt_until: float = 0.0,
        only: Collection[int] | None = None,
        failures: Mapping[int, int] | None = None,
        suspects: Suspects | None = None,
        proven_rows: int = 0,
    ) -> None:
        """`done` are committed rows (copied). Nothing is leased until every expected slot was heard, or `adopt_until`.

        The expected slots are those that may hold rows from before: none on a fresh start. `only` these rows are for
        this session, in their order; None: all that are not done. `failures` are attempts that have failed before, by
        row. An engine that has finished `proven_rows` is a good one.
        """
        self._committed = done.copy()
        self._taken = done.copy()  # committed, leased, received or queued again
        self._attempts_allowed = attempts_allowed
        self._unheard = set(expected_slots)
        self._adopt_until = adopt_until
        self._received: set[int] = set()
        self._failures = {row: count for row, count in (failures or {}).items() if row not in done}
        self._written_failures = dict(failures or {})
        self._suspects = Suspects(frozenset()) if suspects is None else suspects
        self._proven_rows = proven_rows
        self._queue: deque[int] = deque()
        self._lined_up: deque[int] = deque()
        self._mean_tokens = 0.0
        self._last_rows = LastRows()
        self._moved: dict[int, tuple[int, int]] = {}  # rows that were taken from one slot for another
        self._cursor = 0
        self._only_left: set[int] | None = None
        if only is not None:
            self._queue.extend(ordinal for ordinal in only if ordinal not in done)
            self._only_left = set(self._queue)
            self._cursor = done.size  # the plan's order leases nothing: these rows stand in the queue
        self._holders: dict[int, set[int]] = {}
        self._views: dict[int, _View] = {}

    # --- what is known ---------------------------------------------------------------------------

    @property
    def is_finished(self) -> bool:
        """Every row that this session is for is committed."""
        return not self.left

    @property
    def left(self) -> int:
        """Rows that this session is for and that are not committed yet."""
        return self.plan_left if self._only_left is None else len(self._only_left)

    @property
    def plan_left(self) -> int:
        """Rows of the plan that are not committed yet."""
        return self._committed.size - len(self._committed)

    @property
    def in_flight(self) -> int:
        """Rows that some worker holds and that were not received yet."""
        return len(self._holders)

    @property
    def received(self) -> int:
        """Rows received and not committed yet."""
        return len(self._received)

    @property
    def queued(self) -> int:
        """Rows that are with nobody."""
        return self.left - len(self._received) - len(self._holders)

    @property
    def suspects(self) -> int:
        """Rows that are leased apart."""
        return len(self._suspects)

    @property
    def not_begun(self) -> int:
        """Rows of the plan that were never leased, by anybody that this schedule knows of."""
        return 0 if self._only_left is not None else self._taken.size - len(self._taken)

    def rest(self) -> list[int]:
        """Those rows, in the plan's order. Costs a pass over the bitmap's bytes, and them."""
        if self._only_left is not None:
            return []
        return list(self._taken.absent(self._cursor))

    @property
    def has_failures(self) -> bool:
        """Rows that are not done have failed before."""
        return bool(self._failures)

    def held_by(self, slot: int) -> int:
        """Rows that it holds and that were not received yet."""
        view = self._views.get(slot)
        return 0 if view is None else len(view.held)

    def is_adopting(self, now: float) -> bool:
        """Still hearing what the workers hold from before."""
        return bool(self._unheard) and now < self._adopt_until

    def hung(self, now: float) -> tuple[int, ...]:
        """Slots whose process has said nothing for so long that it must be replaced."""
        return tuple(
            slot for slot, view in self._views.items() if not view.is_gone and now - view.seen_at > HUNG_SECONDS
        )

    # --- events ----------------------------------------------------------------------------------

    def expect(self, slots: Iterable[int]) -> None:
        """Of the expected slots only these have engines from before. What is said later can but make them fewer."""
        self._unheard &= set(slots)

    def report(self, report: Report, now: float, may_lease: bool = True) -> Orders:
        """One worker's exchange: take in what it lists; `may_lease`: hand out what it has room for."""
        view = self._views.get(report.worker.slot)
        if view is not None and self._is_over(report.worker, view):
            return Orders(superseded=True)
        if view is None or report.worker.incarnation > view.incarnation:
            view = self._new_incarnation(report.worker, now)
            self._suspects.opened(report.worker.slot)
        elif report.seq < view.seq:
            return Orders()
        elif report.seq == view.seq:
            view.seen_at = now
            return self._again(report, view)
        view.seq, view.seen_at = report.seq, now
        self._unheard.discard(report.worker.slot)
        accepted = self._receive(report, view)
        self._update_held(report, view)
        slot = report.worker.slot
        if report.slots and len(report.tokens) == len(report.running):
            self._last_rows.listed(slot, report.running, report.tokens, report.slots, now)
        else:
            self._last_rows.gone(slot)
        failed, exhausted = self._take_failed(report)
        self._requeue(self._suspects.listed(slot, set(view.running)))
        view.granted = self._grant(report, view, now) if may_lease else ()
        return Orders(
            accepted=accepted,
            settled=self._settled(report),
            resend=self._resend(report),
            grants=view.granted,
            exhausted=exhausted,
            failed=failed,
        )

    def committed(self, ordinals: Iterable[int]) -> None:
        """These rows are in the journal."""
        for ordinal in ordinals:
            self._committed.add(ordinal)
            self._taken.add(ordinal)
            if self._only_left is not None:
                self._only_left.discard(ordinal)
            self._received.discard(ordinal)
            self._failures.pop(ordinal, None)
            self._suspects.clear(ordinal)
            self._release(ordinal)

    def worker_gone(self, worker: WorkerId, death: Death | None = None) -> Farewell:
        """This incarnation has ended: what it held and had not sent goes back at once. `death`: perhaps of its rows.

        Told again, the answer is the same and nothing happens. Nothing is handed to it any more, whatever of it is
        still on its way or comes back from a lost node.
        """
        view = self._views.get(worker.slot)
        if view is None or view.incarnation < worker.incarnation:
            view = self._new_incarnation(worker, seen_at=0.0)
        if view.incarnation != worker.incarnation:
            return Farewell(Toll())
        self._unheard.discard(worker.slot)
        self._last_rows.gone(worker.slot)
        if view.is_gone:
            return Farewell(view.toll)
        view.is_gone = True
        rows = self._in_work_only_at(worker.slot, view)
        ruling = Ruling()
        if death is not None and rows:
            ruling = self._suspects.died(worker.slot, rows, death, self._unblamed)
        else:
            self._requeue(self._suspects.left(worker.slot))
        exhausted = tuple(map(self._condemn, ruling.condemned))
        self._let_go(worker.slot, set(view.held))
        view.toll = Toll(
            ruling.narrows, self._is_proven(view), len(self._suspects), len(exhausted), has_worked=view.finished > 0
        )
        return Farewell(view.toll, exhausted)

    def slot_opened(self, slot: int) -> None:
        """There is room for this slot's engine."""
        self._suspects.opened(slot)

    def slot_closed(self, slot: int) -> None:
        """This slot's engine has left or ended, and there is no room for another or none is wanted, for now."""
        self._suspects.closed(slot)

    def slot_lost(self, slot: int) -> None:
        """No engine will be started in this slot any more."""
        self._suspects.lost(slot)

    def take_back(self, worker: WorkerId, ordinals: Collection[int]) -> None:
        """These grants never left the coordinator. Reading their rows took time: the engine may be gone by now."""
        view = self._views[worker.slot]
        if view.incarnation != worker.incarnation:
            return
        view.running = [ordinal for ordinal in view.running if ordinal not in ordinals]
        self._let_go(worker.slot, ordinals)

    def dismiss(self, worker: WorkerId) -> None:
        """Nothing of this engine is wanted: what it holds goes back, and is not to blame. From here on it is silent."""
        view = self._views.get(worker.slot)
        if view is not None and view.incarnation == worker.incarnation:
            view.running, view.finished = [], 0  # what it has made proves nothing
            self._requeue(self._suspects.left(worker.slot))
            self._last_rows.gone(worker.slot)
            self._let_go(worker.slot, set(view.held))

    def make_again(self, ordinals: Iterable[int]) -> None:
        """Rows that were received, and will not be committed."""
        for ordinal in ordinals:
            self._received.discard(ordinal)
            self._requeue((ordinal,))

    def line_up(self, ordinals: Iterable[int], mean_tokens: float) -> None:
        """The end is near: rows that have not begun are to begin in this order, before any others of the plan.

        `mean_tokens` is how long they are expected to be. The longest come first, so nothing is to wait behind them:
        engines get few rows more than they have slots. Slow replicas get the last ones.
        """
        if self._only_left is None:
            self._lined_up, self._mean_tokens = deque(ordinals), mean_tokens

    def reopen(self, ordinals: Iterable[int]) -> None:
        """Rows that are committed and wanted once more, by this session."""
        for ordinal in ordinals:
            if self._committed.discard(ordinal):
                if self._only_left is not None:
                    self._only_left.add(ordinal)
                self._requeue((ordinal,))

    def tick(self, now: float) -> tuple[int, ...]:
        """Take rows from slots that were silent too long; which slots those are."""
        silent = tuple(slot for slot, view in self._views.items() if view.held and now - view.seen_at > SILENT_SECONDS)
        for slot in silent:
            view = self._views[slot]
            self._last_rows.gone(slot)
            self._suspects.fell_silent(slot, self._in_work_only_at(slot, view))
            self._let_go(slot, set(view.held))
        return silent

    # --- what the journal must know ----------------------------------------------------------------

    def restore_suspects(self, record: SuspectRows, session: str) -> None:
        """Go on telling suspects apart where `record` was taken. Before any report."""
        groups = (
            SuspectGroup(tuple(row for row in group.rows if self._is_wanted(row)), group.slots, group.home)
            for group in record.groups
        )
        kills = tuple(kill for kill in record.kills if self._is_wanted(kill.ordinal))
        known = SuspectRows(record.session, tuple(group for group in groups if group.rows), kills, record.distrusted)
        self._suspects.restore(known, session, lambda row: self._only_left is None or row in self._only_left)
        for ordinal in (*(row for group in known.groups for row in group.rows), *(kill.ordinal for kill in kills)):
            self._taken.add(ordinal)

    def changed_suspects(self, session: str) -> SuspectRows | None:
        """All suspects, if a death has changed them since this was last asked."""
        return self._suspects.record(session) if self._suspects.is_changed else None

    def changed_failures(self) -> dict[int, int]:
        """Rows whose failed attempts have changed since this was last asked; 0 for those that are done."""
        changed = {row: count for row, count in self._failures.items() if self._written_failures.get(row) != count}
        changed |= dict.fromkeys(self._written_failures.keys() - self._failures.keys(), 0)
        self._written_failures = dict(self._failures)
        return changed

    # --- steps of a report -----------------------------------------------------------------------

    @staticmethod
    def _is_over(worker: WorkerId, view: _View) -> bool:
        """Replaced, or known to be dead."""
        return worker.incarnation < view.incarnation or (worker.incarnation == view.incarnation and view.is_gone)

    def _again(self, report: Report, view: _View) -> Orders:
        """The newest report once more: taken in already. Rows that it was handed, and has not lost since, are its."""
        return Orders(
            settled=self._settled(report),
            resend=self._resend(report),
            grants=tuple(grant for grant in view.granted if grant.ordinal in view.held),
            is_repeat=True,
        )

    def _new_incarnation(self, worker: WorkerId, seen_at: float) -> _View:
        before = self._views.get(worker.slot)
        if before is not None:
            if not before.is_gone:
                self._requeue(self._suspects.left(worker.slot))
            self._let_go(worker.slot, set(before.held))
        view = _View(worker.incarnation, -1, seen_at)
        self._views[worker.slot] = view
        return view

    def _receive(self, report: Report, view: _View) -> frozenset[int]:
        accepted = frozenset(ordinal for ordinal in report.finished if self._is_wanted(ordinal))
        for ordinal in accepted:
            self._received.add(ordinal)
            self._taken.add(ordinal)
            view.finished += 1
            self._requeue(self._suspects.finished(report.worker.slot, ordinal))
        if accepted and self._is_proven(view):
            self._suspects.trust(report.worker.slot)
        return accepted

    def _update_held(self, report: Report, view: _View) -> None:
        """The listed rows become what the slot holds; rows that were leased and are not listed go back."""
        # Awaiting rows that are wanted were lost with an earlier coordinator: nobody else may start them meanwhile.
        listed = self._wanted_of({*report.running, *report.awaiting}, view)
        failed = {attempt.ordinal for attempt in report.failed}
        self._let_go(report.worker.slot, view.held - listed - failed)
        for ordinal in view.held - listed:
            self._unhold(ordinal, report.worker.slot)
        for ordinal in listed - view.held:  # what it held before is known
            self._holders.setdefault(ordinal, set()).add(report.worker.slot)
            self._taken.add(ordinal)
        view.held = listed
        view.running = [ordinal for ordinal in report.running if ordinal in listed]
        for ordinal in report.finished:
            self._release(ordinal)

    def _take_failed(self, report: Report) -> tuple[tuple[FailedAttempt, ...], tuple[Exhausted, ...]]:
        """The attempts that count, and the rows that have none left."""
        failed, exhausted = list[FailedAttempt](), list[Exhausted]()
        for attempt in report.failed:
            if self._is_wanted(attempt.ordinal):
                failed.append(attempt)
                if (last := self._fail(report.worker.slot, attempt)) is not None:
                    exhausted.append(last)
        return tuple(failed), tuple(exhausted)

    def _fail(self, slot: int, attempt: FailedAttempt) -> Exhausted | None:
        self._taken.add(attempt.ordinal)  # a restarted coordinator may hear of this row here first
        failures = self._failures.get(attempt.ordinal, 0) + 1
        self._failures[attempt.ordinal] = failures
        if failures < self._attempts_allowed or attempt.ordinal in self._holders:  # it is being made elsewhere, too
            self._suspects.failed(slot, attempt.ordinal)
            self._requeue((attempt.ordinal,))
            return None
        self._suspects.clear(attempt.ordinal)
        self._received.add(attempt.ordinal)
        self._release(attempt.ordinal)
        return Exhausted(attempt.ordinal, failures, attempt.reason, attempt.detail)

    def _resend(self, report: Report) -> tuple[int, ...]:
        """Finished rows that were received by an earlier coordinator, and lost with it."""
        if self._received.issuperset(report.awaiting):
            return ()
        return tuple(ordinal for ordinal in report.awaiting if self._is_wanted(ordinal))

    def _condemn(self, condemned: Condemned) -> Exhausted:
        kills = condemned.kills
        self._received.add(condemned.ordinal)
        self._release(condemned.ordinal)
        reason = STALLED if all(kill.is_stall for kill in kills) else KILLS_ENGINE
        told = "; ".join(f"replica {kill.slot}: {kill.told}" for kill in kills)
        return Exhausted(
            condemned.ordinal, len(kills), reason, f"{len(kills)} engines died with this row alone: {told}"
        )

    def _settled(self, report: Report) -> tuple[int, ...]:
        """What the worker need not hold: committed rows, and running rows that somebody else has finished or taken."""
        slot, running = report.worker.slot, set(report.running)
        elsewhere = running & self._received
        if self._moved:
            begun = {row for row, tokens in zip(report.running, report.tokens, strict=False) if tokens}
            elsewhere |= {row for row in running - begun if self._is_moved(row, slot)}
        unknown = {*report.running, *report.awaiting, *report.finished} - self._received - self._views[slot].held
        return tuple({*(ordinal for ordinal in unknown if ordinal in self._committed), *elsewhere})

    def _is_moved(self, ordinal: int, slot: int) -> bool:
        """It waited here, and somebody else has it by now."""
        holder, taker = self._moved.get(ordinal, (slot, slot))
        return holder == slot and taker != slot and taker in self._holders.get(ordinal, ())

    def _grant(self, report: Report, view: _View, now: float) -> tuple[Grant, ...]:
        if self.is_adopting(now):
            return ()
        self._unheard.clear()
        if not report.free_slots:
            return ()
        return tuple(Grant(ordinal, self._failures.get(ordinal, 0) + 1) for ordinal in self._leased(report, view, now))

    def _leased(self, report: Report, view: _View, now: float) -> Iterator[int]:
        """Suspects that this slot is to run apart, else ordinary rows, else what is better made here."""
        slot, room, is_empty = report.worker.slot, report.free_slots, not view.running
        apart = self._suspects.for_slot(slot, room, is_empty, self._unblamed)
        if apart is None:
            leased = 0
            for ordinal in self._not_apart(report, view, now):
                leased += 1
                yield ordinal
            if leased or not is_empty:
                return
            apart = self._suspects.for_idle(slot, room, self._unblamed, is_alone=not self._holders)
        for ordinal in apart:
            if self._is_wanted(ordinal) and ordinal not in self._holders:
                self._hold(ordinal, slot, view)
                yield ordinal

    def _not_apart(self, report: Report, view: _View, now: float) -> Iterator[int]:
        """Rows on slow replicas when they are what ends last, then the queue, then rows that wait elsewhere."""
        slot, room, leased = report.worker.slot, self._room(report), 0
        for ordinal in self._late(report, room, now):
            self._hold(ordinal, slot, view)
            leased += 1
            yield ordinal
        for ordinal in self._ordinary(slot, room - leased):
            self._hold(ordinal, slot, view)
            leased += 1
            yield ordinal
        for ordinal, holder in self._waiting(report, leased, now):
            self._hold(ordinal, slot, view)
            self._moved[ordinal] = (holder, slot)
            yield ordinal

    def _room(self, report: Report) -> int:
        """How many rows it may get. At the end few wait in an engine's queue: they could begin elsewhere."""
        if not self._lined_up or not report.slots:
            return report.free_slots
        most = report.slots + math.ceil(report.slots * _AHEAD_AT_THE_END)
        return max(0, min(report.free_slots, most - len(report.running)))

    def _late(self, report: Report, room: int, now: float) -> Iterator[int]:
        """Rows in work on slow replicas that would end after all others: they are made here too."""
        queued = len(self._queue) + self.not_begun
        if queued and not self._lined_up:
            return  # the end is not near
        if not queued:
            room = min(room, report.slots - len(report.running))
        if room > 0:
            queued_tokens = queued * self._mean_tokens / max(1, self._last_rows.slots)
            late = self._last_rows.late(report.worker.slot, queued_tokens, now)
            yield from islice((row for row, holder in late if self._is_only_with(row, holder)), room)

    def _ordinary(self, slot: int, room: int) -> Iterator[int]:
        if self._last_rows.is_better_left(slot, len(self._queue) + self.not_begun):
            return
        is_slow = bool(self._lined_up) and self._last_rows.is_slow(slot)
        for _ in range(room):
            if (ordinal := self._next(is_slow)) is None:
                return
            yield ordinal

    def _waiting(self, report: Report, leased: int, now: float) -> Iterator[tuple[int, int]]:
        """Rows that wait with others, for slots that have nothing to do, and with whom: they are taken from there."""
        idle = min(report.slots - len(report.running), report.free_slots) - leased
        if idle > 0 and not self._queue and not self.not_begun:
            waiting = self._last_rows.waiting(report.worker.slot, now)
            yield from islice(((row, holder) for row, holder in waiting if self._is_only_with(row, holder)), idle)

    def _in_work_only_at(self, slot: int, view: _View) -> list[int]:
        """What an engine may have died of, and nobody else has: a row that is made twice is proved by the other."""
        return [row for row in view.running if self._is_wanted(row) and self._holders.get(row, set()) <= {slot}]

    def _is_only_with(self, ordinal: int, holder: int) -> bool:
        return self._is_wanted(ordinal) and self._holders.get(ordinal) == {holder} and ordinal not in self._suspects

    @property
    def _unblamed(self) -> int:
        """Rows that this session is still to make, but for those that have killed engines alone."""
        return self.left - len(self._received) - self._suspects.blamed

    def _is_proven(self, view: _View) -> bool:
        return view.finished >= self._proven_rows > 0

    def _next(self, is_slow: bool) -> int | None:
        """Rows that came back first, then those that are lined up, then the plan in order."""
        while self._queue:
            ordinal = self._queue.popleft()
            if self._is_wanted(ordinal) and ordinal not in self._holders and ordinal not in self._suspects:
                return ordinal
        while self._lined_up:
            if self._taken.add(ordinal := self._lined_up.pop() if is_slow else self._lined_up.popleft()):
                return ordinal
        self._cursor = self._taken.first_absent(self._cursor)
        if self._cursor == self._taken.size:
            return None
        self._taken.add(self._cursor)
        return self._cursor

    # --- bookkeeping -----------------------------------------------------------------------------

    def _is_wanted(self, ordinal: int) -> bool:
        return ordinal not in self._committed and ordinal not in self._received

    def _wanted_of(self, ordinals: set[int], view: _View) -> set[int]:
        """Those that are wanted. What a slot holds is: set operations for these, the bitmap for the few others."""
        unreceived = ordinals - self._received
        known = unreceived & view.held
        return known | {ordinal for ordinal in unreceived - known if ordinal not in self._committed}

    def _let_go(self, slot: int, ordinals: Collection[int]) -> None:
        """This slot does not hold them any more; rows that nobody else holds or has sent are queued again."""
        for ordinal in sorted(ordinals):
            self._unhold(ordinal, slot)
            self._requeue((ordinal,))

    def _hold(self, ordinal: int, slot: int, view: _View) -> None:
        view.held.add(ordinal)
        view.running.append(ordinal)
        self._moved.pop(ordinal, None)
        self._holders.setdefault(ordinal, set()).add(slot)

    def _unhold(self, ordinal: int, slot: int) -> None:
        self._views[slot].held.discard(ordinal)
        if (holders := self._holders.get(ordinal)) is not None:
            holders.discard(slot)
            if not holders:
                del self._holders[ordinal]

    def _release(self, ordinal: int) -> None:
        """Nobody needs to make this row any more."""
        self._moved.pop(ordinal, None)
        for slot in self._holders.pop(ordinal, set()):
            self._views[slot].held.discard(ordinal)

    def _requeue(self, ordinals: Iterable[int]) -> None:
        """Suspects do not stand in the queue: they are leased apart."""
        for ordinal in ordinals:
            if self._is_wanted(ordinal) and ordinal not in self._holders and ordinal not in self._suspects:
                self._queue.append(ordinal)
