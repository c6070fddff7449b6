"""Which replica slots are open: how a fleet grows with what the cluster offers, and shrinks at the tail. Pure.

An *open* slot has an engine or is to get one; a closed one has none and wants none, and may be opened again; a *lost*
one never gets an engine again in this session. A slot is *placed* from when the cluster has given its engine room.

Guarantees, whatever the order of events:
- Servers (slots 0 to servers - 1) are open until they are lost, and never released.
- With a fixed number (`fewest == most`) all slots are open from the first look on, and none is ever released.
- Beyond `fewest` one slot more is opened when all that are open are placed, for rows that no engine has room for, and
  unless the run ends before an engine would be up. So an autoscaler sees what is wanted, and no sums are made over what
  others hold. A slot whose engine has ended stays open: its next engine is the driver's affair.
- A slot is released when the queue was empty and the slot without rows for `IDLE_SECONDS`. One that waits for room is
  closed then, or when for so long the run was to end before its engine would be up, or another waited too. Never below
  `fewest`, nor below two while there are suspects. So what was released is opened again only for rows that came back.
- While settings are compared none is released, and none waits for room: it would take that of an engine which makes way
  for the next setting. `fewest` may wait, but for `IDLE_SECONDS`, and are open again when the comparison has ended. One
  always may, and two while there are suspects.
- Where the number is not fixed, another number takes the place of a lost slot, up to `most`. When `MOST_NEVER_UP` slots
  were lost one after the other without an engine that was ever up, none does: the next ones would fail like them.

Nothing is opened or released but in `look`: a roster that takes over from another is told first what there is.
Memory: a few sets of slots.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# The queue may be empty for a moment, before rows come back or more are planned.
IDLE_SECONDS = 30.0
MOST_NEVER_UP = 2


@dataclass(frozen=True, slots=True)
class Work:
    """What there is to do. `rows_held`: by slot, of engines that are up, those without rows too.

    `queued` rows are with nobody, suspects among them; `free_slots` are sequences that engines which are up have room
    for, `engine_slots` those of one engine that is to come. `has_suspects`: or rows with failed attempts.
    `seconds_left` of the run at the present rate and `start_seconds` of an engine, where they are known.
    """

    queued: int
    free_slots: int
    rows_held: Mapping[int, int] = field(default_factory=dict)
    engine_slots: int = 1
    has_suspects: bool = False
    is_comparing: bool = False
    seconds_left: float | None = None
    start_seconds: float | None = None

    @property
    def ends_before_a_start(self) -> bool:
        if self.seconds_left is None or self.start_seconds is None:
            return False
        return self.seconds_left < self.start_seconds


class Roster:
    """One per coordinator. Events may be told again, and of slots that it has never heard of."""

    def __init__(self, servers: int, fewest: int, most: int) -> None:
        """`fewest` and `most` replicas, servers among them."""
        self._servers = range(servers)
        self._own = range(servers, most)
        self._fewest = fewest - servers
        self._is_fixed = fewest == most
        self._open = set(self._servers)
        self._placed: set[int] = set()
        self._new: set[int] = set()  # opened, and never placed since
        self._releasing: set[int] = set()
        # By this roster, or lost. What is said of such a slot is old, but that the cluster may have had room after all.
        self._closed: set[int] = set()
        self._withdrawn: set[int] = set()
        self._lost: set[int] = set()
        self._up: set[int] = set()
        self._ever_up: set[int] = set()
        self._never_up = 0
        self._idle_since: dict[int, float] = {}

    # --- answers -----------------------------------------------------------------------------------

    @property
    def open_slots(self) -> frozenset[int]:
        """Where an engine is, or is to be. One that waits for room and is not among them is wanted no more.

        None and rows left: no engine will come.
        """
        return frozenset(self._open)

    @property
    def to_release(self) -> frozenset[int]:
        """Open slots whose engine is to leave. It does not get back what was begun there."""
        return frozenset(self._releasing)

    @property
    def waiting(self) -> frozenset[int]:
        """Open slots of our own for whose engine there is no room yet."""
        return frozenset(self._open.intersection(self._own) - self._placed)

    # --- events ------------------------------------------------------------------------------------

    def placed(self, slot: int, now: float) -> None:
        """The cluster has room for the slot's engine, or an engine was heard there."""
        if slot not in self._closed - self._withdrawn:
            if slot not in self._placed:
                self._idle_since.pop(slot, None)  # it has waited for room until now, and not for rows
            self._open_slot(slot)
            self._placed.add(slot)
            self._new.discard(slot)

    def pending(self, slot: int, now: float) -> None:
        """The slot's engine waits for room."""
        if slot in self._releasing:
            self._close(slot)
        elif slot not in self._closed:
            if slot in self._placed:
                self._ended(slot)
            self._open_slot(slot)

    def gone(self, slot: int, now: float) -> None:
        """The slot's engine has ended, whatever way. The next one is the driver's affair, unless it was to leave."""
        if slot in self._releasing:
            self._close(slot)
        self._ended(slot)

    def released(self, slot: int, now: float) -> None:
        """The slot's engine has left since it was told to."""
        if slot in self._own:
            self._close(slot)

    def lost(self, slot: int, now: float, may_have_been_up: bool = False) -> None:
        """The slot never gets an engine again. `may_have_been_up`: before this roster, and nobody knows."""
        if slot in self._lost:
            return
        self._close(slot)
        self._lost.add(slot)
        if slot in self._own and slot not in self._ever_up and not may_have_been_up:
            self._never_up += 1

    def look(self, work: Work, now: float) -> None:
        """Open and release what is due."""
        self._see_who_is_up(work)
        floor = self._floor(work)
        if work.is_comparing:
            most, floor = floor, self._floor_of_comparison(work, floor)
            self._withdraw_waiting(floor, most, now)
        else:
            self._shrink(work, floor, now)
        self._grow(work, floor)

    # --- steps -------------------------------------------------------------------------------------

    def _see_who_is_up(self, work: Work) -> None:
        up = self._placed & work.rows_held.keys() & set(self._own)
        if up - self._up:
            self._never_up = 0
        self._up = up
        self._ever_up |= up

    def _floor(self, work: Work) -> int:
        """So many engines of our own are wanted, whatever there is to do."""
        servers = len(self._open & set(self._servers))
        fewest = self._fewest
        if work.queued:
            fewest = max(fewest, 1 - servers)
        if work.has_suspects:
            fewest = max(fewest, 2 - servers)
        return min(fewest, len(self._own))

    def _shrink(self, work: Work, floor: int, now: float) -> None:
        """The highest numbers first, those without room before engines that are there."""
        staying = self._staying
        placed = [slot for slot in staying if slot in self._placed]
        waiting = [slot for slot in staying if slot not in self._placed]
        is_unwanted = not work.queued or work.ends_before_a_start
        for slot in reversed(waiting):
            is_idle = self._is_idle(slot, is_unwanted or slot != waiting[0], now)
            if is_idle and len(staying) > floor:
                staying.remove(slot)
                self._withdraw(slot)
        for slot in reversed(placed):
            is_idle = self._is_idle(slot, not work.queued and not work.rows_held.get(slot), now)
            if is_idle and len(placed) > floor:
                placed.remove(slot)
                self._releasing.add(slot)

    def _floor_of_comparison(self, work: Work, floor: int) -> int:
        return floor if self._is_fixed or work.has_suspects else min(floor, 1)

    def _withdraw_waiting(self, floor: int, most: int, now: float) -> None:
        """The highest numbers first: new ones beyond `most` at once, any above `floor` that has waited long enough."""
        staying = self._staying
        for slot in sorted(set(staying) - self._placed, key=lambda slot: (slot in self._new, slot), reverse=True):
            has_waited = self._is_idle(slot, True, now)
            if len(staying) > (floor if has_waited else most if slot in self._new else len(staying)):
                staying.remove(slot)
                self._withdraw(slot)

    def _is_idle(self, slot: int, is_now: bool, now: float) -> bool:
        """Since long enough."""
        if not is_now:
            self._idle_since.pop(slot, None)
            return False
        return now - self._idle_since.setdefault(slot, now) >= IDLE_SECONDS

    def _grow(self, work: Work, floor: int) -> None:
        """The lowest numbers first. A fixed number is opened once, and again by a roster that has taken over."""
        free = [slot for slot in self._own if slot not in self._open | self._lost]
        if self._never_up >= MOST_NEVER_UP and not self._is_fixed:
            return
        while free and (len(self._staying) < floor or self._is_one_more_wanted(work)):
            self._open_slot(free.pop(0))

    def _is_one_more_wanted(self, work: Work) -> bool:
        if work.is_comparing or work.ends_before_a_start or not self._placed.issuperset(self._staying):
            return False
        to_come = len(set(self._staying) - self._up)
        return work.queued > work.free_slots + to_come * work.engine_slots

    @property
    def _staying(self) -> list[int]:
        """Open slots of our own that are not about to leave."""
        return [slot for slot in self._own if slot in self._open and slot not in self._releasing]

    def _open_slot(self, slot: int) -> None:
        if slot not in self._open:
            self._new.add(slot)
        self._open.add(slot)
        self._closed.discard(slot)
        self._withdrawn.discard(slot)

    def _ended(self, slot: int) -> None:
        self._placed.discard(slot)
        self._up.discard(slot)
        self._idle_since.pop(slot, None)

    def _withdraw(self, slot: int) -> None:
        self._close(slot)
        self._withdrawn.add(slot)

    def _close(self, slot: int) -> None:
        self._ended(slot)
        self._open.discard(slot)
        self._new.discard(slot)
        self._releasing.discard(slot)
        self._withdrawn.discard(slot)
        self._closed.add(slot)
