"""Does speculation pay, and which setting of it: a state machine over windows of the run's own work. Pure, no clock.

It says what each replica should run (`wanted`), is told what came of it, and ends with a `Choice`. Only windows with
full slots count, and only while every engine that is compared is past its ramp. How many engines may be started is
bounded before the first: a setting that the budget has no room for is left out. Docs: docs/speculation.md; why it is
decided this way: docs/decisions/0007-calibration-compares-within-replicas.md.

Replicas that join later, or again, are bystanders: they run what the others run that take no part, nothing that is
measured there counts, and they do not use up the engine starts. What is chosen holds for them too. Their work is a
clock all the same: where all that are compared fall silent, it ends undecided, and not never.

It does not know what a row is, how engines are drained, or whether the run is worth continuing. Rows made meanwhile
count like all others: no setting changes what is sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from regen.spec import CalibrationSpec
from regen.speculative import layout
from regen.speculative.arms import CONFIGURED, OFF, Arm, arms
from regen.speculative.comparison import Comparison
from regen.speculative.stretch import LEAST_PARTS, PARTS, Measured, Stretch, Window

__all__ = ["CONFIGURED", "OFF", "Arm", "ArmResult", "Calibration", "Choice", "Measured", "Window", "arms"]

# A stretch whose rate is not known well enough goes on for up to so many times its planned length.
LONGEST_STRETCH = 6
# Where differences stay unclear, every arm is measured at most so often.
MOST_VISITS = 4
# A replica whose slots are not full for so many windows' lengths shows nothing. A second with full slots makes up for
# so many without.
MOST_WAITING = 10
# A replica that says nothing for so many windows' lengths and engine starts is waited for no more. Starts differ: one
# may load from a cache what another fetches and compiles.
MOST_SILENT_WINDOWS, MOST_SILENT_STARTS = 30, 3
# What a better setting may plausibly save of a run's remaining time.
PLAUSIBLE_SAVING = 0.3


@dataclass(frozen=True, slots=True)
class ArmResult:
    """What was seen of one arm. Tokens per second are of one replica, with what replicas and time do taken out.

    `low` and `high` say how exactly these stretches were measured, and no more: how far replicas and time were told
    apart from arms is not in them. Two arms are compared by the choice's `reason`, not by whether these overlap.
    `prefix_hit_rate` is a share of prompt tokens, None before any;
    `prefill_tokens` were computed, not found. `engines` is how many stretches this is made of.
    """

    arm: str
    tokens_per_second: float
    low: float
    high: float
    accept_length: float | None
    prefix_hit_rate: float | None
    prefill_tokens: int
    preemptions: int
    seconds: float
    engines: int


@dataclass(frozen=True, slots=True)
class Choice:
    """What the run goes on with, and why: a sentence with figures. `is_measured` False: nothing was decided."""

    arm: Arm
    reason: str
    table: tuple[ArmResult, ...]
    is_measured: bool


class Calibration:
    """One run's calibration, from its first engine to the choice."""

    def __init__(
        self,
        arms: Sequence[Arm],
        slots: Sequence[int],
        spec: CalibrationSpec,
        is_required: bool,
        measured: Sequence[Measured] = (),
    ) -> None:
        """`arms` as `arms()` gives them; `slots` are the replicas that it begins with. `measured` is what the journal
        has of the same arms from before a restart.
        """
        self.choice: Choice | None = None
        self._spec = spec
        self._is_required = is_required
        self._arms = {arm.name: arm for arm in arms}
        self._present = list(slots)
        self._joined: set[int] = set()
        self._measured = [one for one in measured if one.arm in self._arms]
        self._unsaid: list[Measured] = []
        self._failed: dict[str, str] = {}  # arm -> why it does not run
        self._slower: set[str] = set()  # than another that runs, clearly
        self._lost: set[int] = set()
        self._start_seconds = [one.start_seconds for one in measured if one.start_seconds > 0]
        self._drain_seconds: list[float] = []
        history = _history(self._measured)
        self._starts = sum(layout.moves(history[:count], stage) for count, stage in enumerate(history))
        self._last = {slot: arm for stage in history for slot, arm in stage.items()}
        self._stage = -1
        self._assignment: dict[int, str] = {}
        self._stretches: dict[int, Stretch] = {}
        self._ready: set[int] = set()
        self._waiting: dict[int, float] = {}
        self._silent: dict[tuple[int, int], float] = {}  # (silent slot, the one that speaks) -> seconds
        self._leaving: dict[int, float] = {}
        self._most_starts = spec.max_engine_starts
        self._order: list[str] = [CONFIGURED, OFF]
        self._order, self._slots, self._bystanders = self._fit_budget()
        if self._slots:
            self._judge()

    # --- what happened ---------------------------------------------------------------------------

    def wanted(self, slot: int) -> Arm:
        """What this replica's engine should run now."""
        if self.choice is not None:
            return self.choice.arm
        return self._arms[self._assignment.get(slot, self._default())]

    def engine_started(self, slot: int, arm: str, seconds: float) -> None:
        """An engine is up, after so many seconds. Its first windows are a ramp."""
        self._start_seconds.append(seconds)
        self._heard(slot)
        if self.choice is None and self._assignment.get(slot) == arm:
            self._ready.discard(slot)
            self._stretches[slot].start_seconds = seconds

    def engine_failed(self, slot: int, arm: str) -> None:
        """An engine with this arm would not start, was judged bad or died: the arm is compared no more.

        Without `off` nothing says whether speculation pays: it ends undecided, unless that was clear already.
        """
        if self.choice is None and arm in self._order and arm not in self._failed:
            why = f"the engine of {arm!r} failed on replica {slot}"
            self._failed.update(dict.fromkeys(self._of_the_same_draft(arm), why))
            self._slower.clear()  # what was slower than this one may be the fastest of the rest
            self._judge()

    def has_joined(self, slot: int) -> bool:
        """Since this began: a bystander."""
        return slot in self._joined

    def slot_joined(self, slot: int) -> None:
        """A replica is there that was not when this began, or was lost since."""
        if slot not in self._present or slot in self._lost:
            self._joined.add(slot)

    def slot_left(self, slot: int) -> None:
        """This replica has gone, and may come back: the others go on without it. The last one is waited for."""
        if self._slots != [slot]:
            self.slot_lost(slot)

    def slot_lost(self, slot: int) -> None:
        """This replica is gone: the others go on without it. Without any that takes part: undecided."""
        self._joined.discard(slot)
        if self.choice is not None or slot in self._lost or slot not in self._present:
            return
        self._lost.add(slot)
        if slot not in self._slots:
            self._bystanders = max(0, self._bystanders - 1)
            return
        self._heard(slot)
        self._slots.remove(slot)
        self._ready.discard(slot)
        for of_slot in (self._assignment, self._stretches, self._waiting, self._leaving, self._last):
            of_slot.pop(slot, None)
        if not self._slots:
            self._leave_undecided(f"replica {slot} is lost, the last of those that were compared")

    def add(self, window: Window) -> None:
        """What one engine made since its last window. `window.arm` is what it runs, perhaps not what it should."""
        if self.choice is not None or window.seconds <= 0:
            return
        if window.slot in self._joined:
            self._miss_the_others(window)
            return
        if window.slot not in self._assignment:
            return
        self._heard(window.slot)
        if window.arm != self._assignment[window.slot]:
            self._leaving[window.slot] = self._leaving.get(window.slot, 0.0) + window.seconds
        elif window.is_full:
            self._add_full(window)
        else:
            self._wait(window)
        if self.choice is None:
            self._miss_the_others(window)

    def outlook(self, seconds_left: float | None) -> None:
        """The run's remaining seconds at its present rate; None: not known. May end calibration: too little to save."""
        if self.choice is not None or seconds_left is None or self._is_required or not self._start_seconds:
            return
        ahead = self._ahead()
        costs = ahead.starts * (_mean(self._start_seconds) + self._mean_drain_seconds()) / self._running()
        stage_seconds = self._spec.window_seconds + (_mean(self._start_seconds) if ahead.starts else 0.0)
        saved = PLAUSIBLE_SAVING * max(0.0, seconds_left - ahead.stages * stage_seconds)
        if saved < costs or saved == 0.0:
            self._leave_undecided(
                f"{seconds_left:,.0f} s are left, of which the best setting could save about {saved:,.0f} s;"
                f" finding it takes {ahead.starts} more engine starts, {costs:,.0f} s of the run"
            )

    def newly_measured(self) -> tuple[Measured, ...]:
        """Stretches that were completed since the last call: for the journal."""
        said, self._unsaid = tuple(self._unsaid), []
        return said

    def _of_the_same_draft(self, arm: str) -> list[str]:
        """With the configured arm goes all that is made of its draft: a dead draft is dead at any number of tokens."""
        failed = self._arms[arm].speculation
        if arm != CONFIGURED or failed is None:
            return [arm]
        return [
            name
            for name, other in self._arms.items()
            if name in self._order
            and other.speculation
            and (other.speculation.method, other.speculation.draft) == (failed.method, failed.draft)
        ]

    # --- the budget ------------------------------------------------------------------------------

    def _fit_budget(self) -> tuple[list[str], list[int], int]:
        """(arms, slots that take part, others whose last move counts): as many arms as the starts suffice for.

        The configured arm comes first: it runs if nothing is decided, and the way back ends with it.
        """
        known, grid = [CONFIGURED, OFF], [name for name in self._arms if name not in (CONFIGURED, OFF)]
        for count in range(len(grid), -1, -1):
            order = known + grid[:count]
            slots = self._taking_part(order)
            others = len(self._present) - len(slots)
            if self._planned_starts(order, others) <= self._spec.max_engine_starts:
                return order, slots, others
        if self._planned_starts(known, 0) <= self._spec.max_engine_starts:
            # So many replicas cannot all be moved within the bound: the least is spent, and they come on top.
            self._most_starts = self._planned_starts(known, 0)
            return known, self._taking_part(known), 0
        self._leave_undecided(
            f"calibration.max_engine_starts is {self._spec.max_engine_starts}, and comparing two settings may take"
            f" {self._planned_starts(known, 0)}"
        )
        return known, [], 0

    def _planned_starts(self, order: Sequence[str], bystanders: int) -> int:
        return layout.cost([], order, self._taking_part(order), bystanders, CONFIGURED).starts

    def _taking_part(self, order: Sequence[str]) -> list[int]:
        return self._present[: len(order)]

    def _ahead(self) -> layout.Cost:
        """What is still to come after the present stage; the present one counts as a stage."""
        history = [*_history(self._measured), self._assignment]
        bystanders = self._bystanders + len(self._joined)
        rest = layout.cost(history, self._alive(), self._slots, bystanders, self._default())
        return layout.Cost(rest.starts, rest.stages + 1)

    def _running(self) -> int:
        """Replicas that are there."""
        return max(1, len(self._present) - len(self._lost) + len(self._joined))

    def _mean_drain_seconds(self) -> float:
        """What one drain costs of a replica: slots empty one after the other, so about half the time it takes."""
        return _mean(self._drain_seconds) / 2 if self._drain_seconds else self._spec.window_seconds / 2

    # --- stages ----------------------------------------------------------------------------------

    def _runnable(self) -> list[str]:
        return [arm for arm in self._order if arm not in self._failed]

    def _alive(self) -> list[str]:
        """What is still compared. Never empty while anything runs: the fastest that was seen is not slower."""
        return [arm for arm in self._runnable() if arm not in self._slower]

    def _default(self) -> str:
        """What replicas run that take no part: only if it does not run at all is it changed before the end."""
        return next(iter(self._runnable()), OFF)

    def _begin_stage(self, assignment: dict[int, str]) -> None:
        """What goes on as it was keeps its windows: a stage is begun anew when an arm fails in the middle of it."""
        stage = max((one.stage for one in self._measured), default=-1) + 1
        kept = {slot for slot, arm in assignment.items() if stage == self._stage and self._assignment.get(slot) == arm}
        self._starts += layout.moves([self._last], assignment)
        self._last.update(assignment)
        self._stage, self._assignment = stage, assignment
        self._stretches = {
            slot: self._stretches[slot] if slot in kept else Stretch(self._spec.window_seconds / PARTS)
            for slot in assignment
        }
        self._ready &= kept
        self._waiting = {slot: self._waiting.get(slot, 0.0) if slot in kept else 0.0 for slot in assignment}
        self._silent.clear()

    def _add_full(self, window: Window) -> None:
        if (drained := self._leaving.pop(window.slot, None)) is not None:
            self._drain_seconds.append(drained)
        self._ready.add(window.slot)
        # Not simply begun anew: one full window now and then is no measurement either.
        self._waiting[window.slot] = max(0.0, self._waiting[window.slot] - MOST_WAITING * window.seconds)
        if not self._ready.issuperset(self._assignment):
            return  # engines that start beside it may take from what it runs on
        stretch = self._stretches[window.slot]
        # Whoever looks at noise often enough finds something in it: not at every part.
        is_time_to_look = stretch.add(window) and len(stretch.rates) % LEAST_PARTS == 0
        if is_time_to_look and all(map(self._is_long_enough, self._stretches.values())) and self._is_exact_enough():
            ended = self._current()
            self._measured += ended
            self._unsaid += ended
            self._judge()

    def _wait(self, window: Window) -> None:
        waited = self._waiting[window.slot] = self._waiting[window.slot] + window.seconds
        if waited > MOST_WAITING * self._spec.window_seconds:
            self._leave_undecided(
                f"replica {window.slot} had free slots for {waited:,.0f} s with {window.arm!r}:"
                " too few rows to measure with full slots"
            )

    def _heard(self, slot: int) -> None:
        self._silent = {pair: seconds for pair, seconds in self._silent.items() if pair[0] != slot}

    def _miss_the_others(self, window: Window) -> None:
        """A stage ends when all have been measured: one that says nothing any more is not waited for without end."""
        start_seconds = max(self._start_seconds, default=0.0)
        most = MOST_SILENT_WINDOWS * self._spec.window_seconds + MOST_SILENT_STARTS * start_seconds
        for other in self._assignment.keys() - {window.slot}:
            silent = self._silent[other, window.slot] = self._silent.get((other, window.slot), 0.0) + window.seconds
            if silent > most:
                self._leave_undecided(f"replica {other} has said nothing for {silent:,.0f} s")
                return

    def _is_long_enough(self, stretch: Stretch) -> bool:
        return stretch.seconds >= self._spec.window_seconds and len(stretch.rates) >= LEAST_PARTS

    def _is_exact_enough(self) -> bool:
        """Known well enough to tell `min_gain`; or long past its time; or the answer is clear whatever it is."""
        now = self._current()
        if min(one.seconds for one in now) >= LONGEST_STRETCH * self._spec.window_seconds:
            return True
        if max(one.noise for one in now) <= self._spec.min_gain / 6:
            return True
        return self._preferred([*self._measured, *now]) is not None

    def _current(self) -> list[Measured]:
        return [
            stretch.measured(slot, self._assignment[slot], self._stage) for slot, stretch in self._stretches.items()
        ]

    # --- judging ---------------------------------------------------------------------------------

    def _judge(self) -> None:
        """After each stage, and after a failure: leave out what is clearly slower, then decide or go on."""
        comparison = Comparison(self._measured) if self._measured else None
        if comparison is not None:
            seen = self._seen()
            self._slower |= {arm for arm in seen if any(self._is_better(comparison, other, arm) for other in seen)}
        if len(self._runnable()) <= 1:
            self._end_with_the_rest()
        elif OFF in self._failed and not self._is_off_beaten(comparison):
            self._leave_undecided(f"{self._failed[OFF]}, so nothing says whether speculation pays")
        elif comparison is not None and (preferred := self._preferred(self._measured)) is not None:
            self._choose(preferred, comparison)
        else:
            self._go_on(comparison)

    def _is_off_beaten(self, comparison: Comparison | None) -> bool:
        """By something that runs, whatever else is still unclear."""
        if comparison is None or OFF not in comparison.arms:
            return False
        return any(self._is_better(comparison, arm, OFF) for arm in self._seen())

    def _go_on(self, comparison: Comparison | None) -> None:
        """The next stage, if it may help and the starts suffice for it and for the last move."""
        alive, history = self._alive(), _history(self._measured)
        stage = layout.next_stage(history, alive, self._slots)
        last_moves = layout.last_moves(stage, alive, self._bystanders, self._default())
        needed = self._starts + layout.moves([self._last], stage) + last_moves
        if needed <= self._most_starts and min(map(self._visits, alive)) < MOST_VISITS:
            self._begin_stage(stage)
        elif comparison is not None and layout.is_balanced(history, alive, self._slots):
            self._choose(self._least_risky(comparison), comparison, "it did not become clear which is faster; ")
        else:
            self._leave_undecided(f"the {self._most_starts} engine starts of calibration are used up")

    def _visits(self, arm: str) -> int:
        return len({one.stage for one in self._measured if one.arm == arm})

    def _is_seen(self, arm: str) -> bool:
        return any(one.arm == arm for one in self._measured)

    def _seen(self) -> list[str]:
        return [arm for arm in sorted(self._alive(), key=self._rank) if self._is_seen(arm)]

    def _rank(self, arm: str) -> int:
        """Order of preference: ties go to off, and then to what the spec says."""
        return -1 if arm == OFF else self._order.index(arm)

    def _is_better(self, comparison: Comparison, one: str, other: str) -> bool:
        """Faster beyond doubt; and where `other` is preferred, perhaps by as much as is asked for."""
        if one == other:
            return False
        difference = comparison.difference(one, other)
        is_preferred = self._rank(one) < self._rank(other)
        return difference.low > 0 and (is_preferred or difference.high >= self._spec.min_gain)

    def _preferred(self, measured: Sequence[Measured]) -> str | None:
        """The first arm, in order of preference, that none can beat by `min_gain`. None: more has to be seen.

        That two settings are alike is only believed where they changed places.
        """
        comparison, alive = Comparison(measured), sorted(self._alive(), key=self._rank)
        if any(arm not in comparison.arms for arm in alive):
            return None
        is_balanced = layout.is_balanced(_history(measured), alive, self._slots)
        for arm in alive:
            others = [comparison.difference(other, arm) for other in alive if other != arm]
            if all(other.high < (self._spec.min_gain if is_balanced else 0.0) for other in others):
                return arm
            if not any(self._is_better(comparison, other, arm) for other in alive):
                return None
        return None

    def _least_risky(self, comparison: Comparison) -> str:
        """Where it stayed unclear: off, unless something looks faster by enough and is hardly slower at worst."""
        alive = sorted(self._alive(), key=self._rank)
        best = max(alive, key=lambda arm: comparison.difference(arm, alive[0]).gain)
        gain = self._spec.min_gain
        if OFF in alive:
            difference = comparison.difference(best, OFF)
            if difference.gain < gain / 2 or difference.low <= -gain / 2:
                return OFF
        speculating = [arm for arm in alive if arm != OFF]
        return next(arm for arm in speculating if comparison.difference(best, arm).gain <= gain)

    # --- the end ---------------------------------------------------------------------------------

    def _choose(self, arm: str, comparison: Comparison, preface: str = "") -> None:
        self.choice = Choice(self._arms[arm], preface + self._sentence(arm, comparison), self._table(), True)

    def _end_with_the_rest(self) -> None:
        """Nothing is left to compare with."""
        rest = self._default()
        failed = "; ".join(f"{arm!r}: {why}" for arm, why in self._failed.items())
        said = "is what is left" if self._runnable() else "is what a run falls back to: no setting runs"
        self.choice = Choice(self._arms[rest], f"{rest!r} {said} ({failed})", self._table(), False)

    def _leave_undecided(self, why: str) -> None:
        alive = self._alive()
        arm = CONFIGURED if CONFIGURED in alive else next(iter(sorted(alive, key=self._rank)), OFF)
        reason = f"not measured to the end: {why}; {arm!r} goes on"
        self.choice = Choice(self._arms[arm], reason, self._table(), False)

    def _sentence(self, arm: str, comparison: Comparison) -> str:
        rate, _, _ = comparison.rate(arm)
        against = [self._against(arm, other, comparison) for other in comparison.arms if other != arm]
        failed = "".join(f"; {why}" for why in dict.fromkeys(self._failed.values()))
        return f"{arm!r} makes {rate:,.1f} tokens/s per replica: {'; '.join(against)}{failed}"

    @staticmethod
    def _against(arm: str, other: str, comparison: Comparison) -> str:
        difference = comparison.difference(arm, other)
        return (
            f"{100 * difference.gain:+.1f} % ({100 * difference.low:+.1f} to {100 * difference.high:+.1f} %)"
            f" against {other!r}"
        )

    def _table(self) -> tuple[ArmResult, ...]:
        if not self._measured:
            return ()
        comparison = Comparison(self._measured)
        return tuple(_result(arm, comparison, self._measured) for arm in self._arms if arm in comparison.arms)


def _history(measured: Sequence[Measured]) -> list[dict[int, str]]:
    """Which replica ran what, stage by stage."""
    stages = sorted({one.stage for one in measured})
    return [{one.slot: one.arm for one in measured if one.stage == stage} for stage in stages]


def _result(arm: str, comparison: Comparison, measured: Sequence[Measured]) -> ArmResult:
    own = [one for one in measured if one.arm == arm]
    rate, low, high = comparison.rate(arm)
    drafts, prompt_tokens = sum(one.drafts for one in own), sum(one.prompt_tokens for one in own)
    hits = sum(one.prefix_hit_tokens for one in own)
    return ArmResult(
        arm=arm,
        tokens_per_second=rate,
        low=low,
        high=high,
        accept_length=1.0 + sum(one.accepted for one in own) / drafts if drafts else None,
        prefix_hit_rate=hits / prompt_tokens if prompt_tokens else None,
        prefill_tokens=prompt_tokens - hits,
        preemptions=sum(one.preemptions for one in own),
        seconds=sum(one.seconds for one in own),
        engines=len(own),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
