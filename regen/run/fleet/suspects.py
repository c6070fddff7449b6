"""Rows that were in work when an engine died: run apart, in halves, until it is known which of them kill engines. Pure.

Guarantees:
- A row is condemned only after it was alone on an engine that died, twice: on two slots where two are open, and where
  the second slot has shown since that it can finish rows at all. So neither one random kill nor a broken replica
  condemns anybody.
- A row that finishes is cleared at once. One that passes where it is said to have killed elsewhere speaks against that
  slot: deaths there blame nobody any more, until an engine of it has proven itself.
- One killer among n rows costs at most ceil(log2 n) + 2 engines.
- Slots that nothing is suspected on go on with ordinary rows.

Why so: docs/decisions/0010-suspects.md. Memory and time: rows under suspicion only, some hundreds after a death.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from regen.records import Death
from regen.store.control import SoloKill, SuspectGroup, SuspectRows

# So many deaths with nothing but this row in work. One can be chance: a kill -9 that had nothing to do with it.
SOLO_KILLS = 2


@dataclass(slots=True)
class _Group:
    """Rows that run together and with nobody else, in the order in which they were leased first.

    `slots` are those where engines died with them: none, if so far a slot has only gone silent. `home` is the slot that
    is to run them, while it is open; None: whichever asks. `awaited` is the silent slot that may yet come back with
    them.
    """

    rows: list[int]
    slots: frozenset[int]
    home: int | None
    awaited: int | None = None


@dataclass(frozen=True, slots=True)
class Condemned:
    """A row that kills engines, with the deaths that show it."""

    ordinal: int
    kills: tuple[SoloKill, ...]


@dataclass(frozen=True, slots=True)
class Ruling:
    """What a death has meant. `narrows`: it told suspects apart, or condemned one."""

    narrows: bool = False
    condemned: tuple[Condemned, ...] = ()


@dataclass(slots=True)
class Suspects:
    """Give it deaths, rows that finish and what slots list; ask it what a slot may be given.

    `slots` are open: an engine is there, or the next one is about to come. `has_worked`: engines have finished rows of
    this run before.
    """

    slots: frozenset[int]
    has_worked: bool = False
    is_changed: bool = False  # since `record` was last taken
    _groups: list[_Group] = field(default_factory=list)
    _trials: dict[int, _Group] = field(default_factory=dict)
    _kills: dict[int, list[SoloKill]] = field(default_factory=dict)
    _members: set[int] = field(default_factory=set)
    _condemned: set[int] = field(default_factory=set)
    _finished: Counter[int] = field(default_factory=Counter)
    _finished_before: dict[int, Counter[int]] = field(default_factory=dict)
    _lost: set[int] = field(default_factory=set)
    _distrusted: set[int] = field(default_factory=set)
    _elsewhere: SuspectRows = field(default_factory=lambda: SuspectRows("", (), (), ()))

    def __contains__(self, ordinal: int) -> bool:
        return ordinal in self._members

    def __len__(self) -> int:
        return len(self._members)

    @property
    def blamed(self) -> int:
        """Rows that have killed alone and are not settled yet."""
        return len(self._kills.keys() - self._condemned)

    # --- events ----------------------------------------------------------------------------------

    def died(self, slot: int, rows: Sequence[int], death: Death, unblamed: int) -> Ruling:
        """An engine has died with these rows in work. `unblamed`: unfinished rows that have not killed alone."""
        trial = self._trials.pop(slot, None)
        back = self._take_awaited(slot)
        if slot in self._distrusted:
            self._put_first([_Group(group.rows, group.slots, None) for group in (trial, *back) if group is not None])
            return Ruling()
        fresh = [row for row in rows if row not in self._members]
        known = [*reversed(back), *([trial] if trial is not None else [])]  # each is put before the last
        rulings = [self._split(group, slot, rows, death, unblamed) for group in known]
        if fresh:
            rulings.append(self._suspect(slot, fresh, death, unblamed, is_alone=len(rows) == 1))
        self.is_changed = True
        condemned = [row for ruling in rulings for row in ruling.condemned]
        return Ruling(any(ruling.narrows for ruling in rulings), tuple(condemned))

    def fell_silent(self, slot: int, rows: Sequence[int]) -> None:
        """This slot says nothing any more: it may come back with these rows, or they have hung its process."""
        if slot in self._distrusted:
            return
        if (trial := self._trials.pop(slot, None)) is not None:
            trial.awaited = slot
            self._put_first([trial])
        fresh = [row for row in rows if row not in self._members]
        self._put_first([_Group(half, frozenset(), slot, awaited=slot) for half in _halves(fresh)])

    def left(self, slot: int) -> tuple[int, ...]:
        """The slot's engine has ended, and not by dying. Answers rows that are suspected no longer."""
        if (trial := self._trials.pop(slot, None)) is not None:
            self._put_first([trial])
        return self._no_longer_awaited(slot, ())

    def opened(self, slot: int) -> None:
        """There is room for an engine in this slot, or one was heard there. No matter for one that is lost."""
        if slot not in self._lost:
            self.slots |= {slot}

    def closed(self, slot: int) -> None:
        """No engine is there, and none can be for now: nobody waits for this slot."""
        self.slots -= {slot}
        if not self._trusted():
            self._distrusted.clear()

    def lost(self, slot: int) -> None:
        """The slot gets no engine any more."""
        self._lost.add(slot)
        self.closed(slot)

    def finished(self, slot: int, ordinal: int) -> tuple[int, ...]:
        """The slot has finished this row. Answers rows that are suspected no longer because of it."""
        self._finished[slot] += 1
        self.has_worked = True
        killed_on = {kill.slot for kill in self._kills.get(ordinal, ())}
        self.clear(ordinal)
        return self._distrust(killed_on) if killed_on and slot not in killed_on else ()

    def failed(self, slot: int, ordinal: int) -> None:
        """An attempt failed and the engine lives: that clears the row, unless it was alone and may have hung it all."""
        trial = self._trials.get(slot)
        if trial is None or trial.rows != [ordinal]:
            self.clear(ordinal)

    def clear(self, ordinal: int) -> None:
        """This row is settled: nothing needs to be known of it any more."""
        if ordinal not in self._members and ordinal not in self._kills:
            return
        self._members.discard(ordinal)
        self._condemned.discard(ordinal)
        self._kills.pop(ordinal, None)
        self._finished_before.pop(ordinal, None)
        for group in (*self._groups, *self._trials.values()):
            if ordinal in group.rows:
                group.rows.remove(ordinal)
        self._groups = [group for group in self._groups if group.rows]
        self._trials = {slot: group for slot, group in self._trials.items() if group.rows}
        self.is_changed = self.is_changed or not (self._members or self._kills)

    def trust(self, slot: int) -> None:
        """An engine of this slot has proven itself."""
        if slot in self._distrusted:
            self._distrusted.discard(slot)
            self.is_changed = True

    def listed(self, slot: int, running: Collection[int]) -> tuple[int, ...]:
        """What the slot runs now. Answers rows that are suspected no longer: a slot that was silent has them."""
        released = self._no_longer_awaited(slot, running)
        trial = self._trials.pop(slot, None)
        if trial is None:
            trial = next((group for group in self._groups if any(row in running for row in group.rows)), None)
            self._groups = [group for group in self._groups if group is not trial]
        if trial is not None:
            here = [row for row in trial.rows if row in running]
            rest = [row for row in trial.rows if row not in running]
            if here:
                self._trials[slot] = _Group(here, trial.slots, slot)
            if rest:
                self._put_first([_Group(rest, trial.slots, trial.home)])
        return released

    # --- what a slot may be given ------------------------------------------------------------------

    def for_slot(self, slot: int, room: int, is_empty: bool, unblamed: int) -> tuple[int, ...] | None:
        """These rows and nothing else; none: nothing, until what it has is done. None: ordinary rows."""
        if slot in self._trials:
            return ()
        due = [group for group in self._groups if group.awaited is None and self._may_run(group, slot, unblamed)]
        group = next((group for group in due if group.home == slot), None)
        group = group or next((group for group in due if not self._has_home(group)), None)
        if group is None:
            return None
        group.home = slot
        return self._take(group, slot, room) if is_empty else ()

    def for_idle(self, slot: int, room: int, unblamed: int, is_alone: bool) -> tuple[int, ...]:
        """For an empty slot that has no ordinary row to take: any group will do. `is_alone`: nobody else works."""
        group = next((group for group in self._groups if self._may_run(group, slot, unblamed)), None)
        if group is None and is_alone:  # what is left cannot be told apart for sure, and has to be tried all the same
            group = next((group for group in self._groups if not self._is_barred(group, slot)), None)
        return () if group is None else self._take(group, slot, room)

    # --- the journal -------------------------------------------------------------------------------

    def record(self, session: str) -> SuspectRows:
        """All that must outlive this process. Rows of slots that are only silent are not among it."""
        self.is_changed = False
        groups = [*self._groups, *self._trials.values()]
        return SuspectRows(
            session,
            tuple(_recorded(group) for group in groups if group.slots) + self._elsewhere.groups,
            tuple(kill for kills in self._kills.values() for kill in kills) + self._elsewhere.kills,
            tuple(sorted(self._distrusted)),
        )

    def restore(self, record: SuspectRows, session: str, is_here: Callable[[int], bool]) -> None:
        """Go on where `record`, without rows that are done, was taken. Rows that are not `is_here` wait for a session
        that is for them. Slots of another session may be other machines: all are trusted again.
        """
        self._elsewhere = SuspectRows(
            "",
            tuple(group for group in record.groups if not is_here(group.rows[0])),
            tuple(kill for kill in record.kills if not is_here(kill.ordinal)),
            (),
        )
        for kill in record.kills:
            if is_here(kill.ordinal):
                self._kills.setdefault(kill.ordinal, []).append(kill)
        for group in record.groups:
            if is_here(group.rows[0]):
                self._put_last(_Group(list(group.rows), frozenset(group.slots), group.home))
        for row in self._kills.keys() - self._members:  # condemned, and not written down any more
            self._put_last(_Group([row], frozenset(kill.slot for kill in self._kills[row]), None))
        if record.session == session:
            self._distrusted.update(record.distrusted)

    # --- steps ---------------------------------------------------------------------------------------

    def _suspect(self, slot: int, rows: list[int], death: Death, unblamed: int, is_alone: bool) -> Ruling:
        """New suspects cost a restart: that a replica dies of its rows is not known yet."""
        self._members.update(rows)
        if is_alone:
            return Ruling(False, self._kill(_Group(rows, frozenset((slot,)), slot), slot, death, unblamed).condemned)
        self._put_first([_Group(half, frozenset((slot,)), slot) for half in _halves(rows)])
        return Ruling()

    def _split(self, group: _Group, slot: int, running: Sequence[int], death: Death, unblamed: int) -> Ruling:
        """A group's engine has died: it is split, or its only row has killed alone."""
        slots = group.slots | {slot}
        here = [row for row in group.rows if row in running]
        if not group.slots:  # they were on no trial: the slot had fallen silent, and is dead now
            self._put_first([_Group(group.rows, slots, slot)])
            return Ruling()
        if rest := [row for row in group.rows if row not in running]:
            self._put_first([_Group(rest, group.slots, slot)])
        if len(here) == 1:
            return self._kill(_Group(here, slots, slot), slot, death, unblamed)
        self._put_first([_Group(half, slots, slot) for half in _halves(here)])
        return Ruling(narrows=bool(here))

    def _kill(self, group: _Group, slot: int, death: Death, unblamed: int) -> Ruling:
        (ordinal,) = group.rows
        is_shown = self._is_shown_to_work(slot, ordinal, unblamed)
        kills = self._kills.setdefault(ordinal, [])
        kills.append(SoloKill(ordinal, slot, death.is_stall, death.told))
        self._finished_before.setdefault(ordinal, self._finished.copy())
        is_apart = len({kill.slot for kill in kills}) > 1 or not self._trusted() - {slot}
        if len(kills) >= SOLO_KILLS and is_shown and is_apart:
            self._members.discard(ordinal)
            self._condemned.add(ordinal)
            return Ruling(True, (Condemned(ordinal, tuple(kills)),))
        group.home = None if self._trusted() - {slot} else slot
        self._put_first([group])
        return Ruling(narrows=len(kills) == 1)

    def _may_run(self, group: _Group, slot: int, unblamed: int) -> bool:
        """A row that has killed alone waits until the slot could show that it is the row's fault."""
        if self._is_barred(group, slot):
            return False
        has_killed = len(group.rows) == 1 and group.rows[0] in self._kills
        return not has_killed or self._is_shown_to_work(slot, group.rows[0], unblamed)

    def _has_home(self, group: _Group) -> bool:
        """Not one that has closed, nor one that may not run it since another slot has opened."""
        return group.home is not None and not self._is_barred(group, group.home)

    def _is_barred(self, group: _Group, slot: int) -> bool:
        trusted = self._trusted()
        if slot not in trusted:
            return bool(trusted)
        killed_on = {kill.slot for kill in self._kills.get(group.rows[0], ())} if len(group.rows) == 1 else set()
        return slot in killed_on and not trusted <= killed_on

    def _is_shown_to_work(self, slot: int, ordinal: int, unblamed: int) -> bool:
        """The slot has finished other rows since this one's first kill; or there are none, and engines once worked."""
        before = self._finished_before.get(ordinal)
        seen = 0 if before is None else before[slot]
        return self._finished[slot] > seen or (not unblamed and self.has_worked)

    def _take(self, group: _Group, slot: int, room: int) -> tuple[int, ...]:
        self._groups.remove(group)
        if rest := group.rows[:-room]:
            self._put_first([_Group(rest, group.slots, group.home)])
        taken = group.rows[-room:]
        # A silent slot's rows that nobody else has anything to do with but these: from here on they are on trial.
        self._trials[slot] = _Group(taken, group.slots or frozenset((slot,)), slot)
        return tuple(taken)

    def _distrust(self, slots: Collection[int]) -> tuple[int, ...]:
        """Rows that died only there are suspected no longer."""
        self._distrusted.update(slots)
        if not self._trusted():
            self._distrusted.clear()
            return ()
        self.is_changed = True
        for ordinal, kills in list(self._kills.items()):
            kept = [kill for kill in kills if kill.slot not in self._distrusted]
            if ordinal not in self._condemned and not kept:
                del self._kills[ordinal]
            elif ordinal not in self._condemned:
                self._kills[ordinal] = kept
        for group in self._groups:
            group.home = None if group.home in self._distrusted else group.home
        released = [
            row for group in self._groups if group.slots and group.slots <= self._distrusted for row in group.rows
        ]
        for row in released:
            self.clear(row)
        return tuple(released)

    def _trusted(self) -> set[int]:
        return set(self.slots - self._distrusted)

    def _take_awaited(self, slot: int) -> list[_Group]:
        awaited = [group for group in self._groups if group.awaited == slot]
        self._groups = [group for group in self._groups if group.awaited != slot]
        return awaited

    def _no_longer_awaited(self, slot: int, running: Collection[int]) -> tuple[int, ...]:
        """The slot is heard of again: rows that were on trial there stay suspects, others never were any."""
        released: list[int] = []
        for group in reversed(self._take_awaited(slot)):
            if group.slots:
                group.awaited = None
                self._put_first([group])
            else:
                self._members.difference_update(group.rows)
                released += [row for row in group.rows if row not in running]
        return tuple(released)

    def _put_first(self, groups: Iterable[_Group]) -> None:
        groups = [group for group in groups if group.rows]
        self._groups = [*groups, *self._groups]
        self._members.update(row for group in groups for row in group.rows)

    def _put_last(self, group: _Group) -> None:
        self._groups.append(group)
        self._members.update(group.rows)


def _recorded(group: _Group) -> SuspectGroup:
    return SuspectGroup(tuple(group.rows), tuple(sorted(group.slots)), group.home)


def _halves(rows: list[int]) -> list[list[int]]:
    """The rows leased last first: engines die of a prompt when they first see it, as a rule."""
    return [half for half in (rows[len(rows) // 2 :], rows[: len(rows) // 2]) if half]
