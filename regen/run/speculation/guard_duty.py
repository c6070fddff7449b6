"""What follows from the guard's verdicts: told, ended, or switched off if that pays. Pure.

A bad verdict on which nothing was done is looked at again: with every minute it may have come to pay. While settings
are compared nothing follows: they are judged by their speed, and by their verdicts afterwards.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from regen.records import Acceptance
from regen.spec import SpeculationSpec
from regen.speculative.guard import Guard, GuardVerdict, ReplicaVerdict
from regen.speculative.payoff import disabling_pays

ASK_AGAIN_SECONDS = 60.0
_BAD = tuple(verdict.value for verdict in GuardVerdict if verdict.is_bad)


@dataclass(frozen=True, slots=True)
class Watched:
    """One engine that speculates: its arm, how long it took to load, and the latest verdict on it."""

    arm: str
    started_seconds: float
    verdict: str


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is left of the run, and what a restart costs: seconds, at the present rate. None: nobody knows yet."""

    replicas: int
    seconds_left: float | None = None
    row_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class GuardDecision:
    """To be written down, and obeyed."""

    slot: int
    verdict: str
    reason: str
    switches_off: bool = False
    is_fatal: bool = False


@dataclass(frozen=True, slots=True)
class _Doubt:
    """A bad verdict on an engine that goes on all the same. `is_told`: it was decided upon."""

    change: ReplicaVerdict
    asked_at: float
    is_told: bool


class GuardDuty:
    """One per coordinator, if the spec has speculation."""

    def __init__(self, speculation: SpeculationSpec, slots: Iterable[int], off: str) -> None:
        """`off` is the name of the arm without speculation."""
        self._policy = speculation.guard
        self._guard = Guard(speculation, slots)
        self._off = off
        self._doubts: dict[int, _Doubt] = {}
        # By arm, as calibration has measured them.
        self._rates: dict[str, float] = {}
        self._accept_lengths: dict[str, float] = {}

    def take_evidence(self, table: Iterable[Mapping[str, Any]]) -> None:
        """What calibration has measured: a row of figures for each arm."""
        for row in table:
            self._rates[row["arm"]] = row["tokens_per_second"]
            if row["accept_length"]:
                self._accept_lengths[row["arm"]] = row["accept_length"]

    def engine_started(
        self, slot: int, now: float, speculation: SpeculationSpec | None, warmup: Acceptance | None
    ) -> None:
        """A new engine works in this slot; `speculation` None: without."""
        self._doubts.pop(slot, None)
        self._guard.engine_started(slot, now, speculation is not None, warmup, speculation)

    def left(self, slot: int, now: float) -> None:
        """The slot has no engine now."""
        self._doubts.pop(slot, None)
        self._guard.left(slot, now)

    def counters(self, slot: int, now: float, output_tokens: int, acceptance: Acceptance | None) -> None:
        """Totals since the engine started: tokens that `acceptance` covers, and it."""
        self._guard.counters(slot, now, output_tokens, acceptance)

    def generation(self, slot: int, source: str, prompt_tokens: int, acceptance: Acceptance | None) -> None:
        """One finished generation."""
        self._guard.generation(slot, source, prompt_tokens, acceptance)

    def cells(self) -> tuple[dict[str, object], ...]:
        """How drafts fare by kind of rows, as plain data."""
        return tuple(asdict(cell) for cell in self._guard.cells())

    def changes(self, now: float) -> tuple[ReplicaVerdict, ...]:
        """Verdicts that have changed since the last call. A new verdict ends the doubt about the one before."""
        changed = self._guard.changes(now)
        for change in changed:
            self._doubts.pop(change.slot, None)
        return changed

    def decisions(
        self,
        now: float,
        changed: Collection[ReplicaVerdict],
        engines: Mapping[int, Watched],
        outlook: Outlook,
        is_calibrating: bool,
    ) -> list[GuardDecision]:
        """What follows from the changes, and from older doubts. `engines` are those that speculate and stay."""
        made = [self._on_change(change, engines[change.slot], now, outlook, is_calibrating) for change in changed]
        if not is_calibrating:
            doubts = [doubt for slot, doubt in self._doubts.items() if slot in engines and doubt.change not in changed]
            made += [self._again(doubt, engines[doubt.change.slot], now, outlook) for doubt in doubts]
        return [decision for decision in made if decision is not None]

    def _on_change(
        self, change: ReplicaVerdict, engine: Watched, now: float, outlook: Outlook, is_calibrating: bool
    ) -> GuardDecision | None:
        if not change.verdict.is_bad:
            return _told(change) if engine.verdict in _BAD else None
        if is_calibrating:
            self._doubts[change.slot] = _Doubt(change, now, is_told=False)
            return None
        return self._on_bad(change, engine, now, outlook)

    def _on_bad(self, change: ReplicaVerdict, engine: Watched, now: float, outlook: Outlook) -> GuardDecision:
        self._doubts.pop(change.slot, None)
        if self._policy == "disable":
            return self._off_if_it_pays(change, engine, now, outlook)
        return _told(change, is_fatal=self._policy == "fail")

    def _again(self, doubt: _Doubt, engine: Watched, now: float, outlook: Outlook) -> GuardDecision | None:
        if not doubt.is_told:
            return self._on_bad(doubt.change, engine, now, outlook)
        if now - doubt.asked_at < ASK_AGAIN_SECONDS:
            return None
        decision = self._off_if_it_pays(doubt.change, engine, now, outlook)
        return decision if decision.switches_off else None

    def _off_if_it_pays(self, change: ReplicaVerdict, engine: Watched, now: float, outlook: Outlook) -> GuardDecision:
        payoff = disabling_pays(
            seconds_left=outlook.seconds_left,
            replicas=outlook.replicas,
            start_seconds=engine.started_seconds,
            drain_seconds=outlook.row_seconds,
            rate_on=self._rates.get(engine.arm),
            rate_off=self._rates.get(self._off),
            accept_length_now=change.accept_length,
            accept_length_then=self._accept_lengths.get(engine.arm) or change.reference_length,
        )
        if not payoff.pays:
            self._doubts[change.slot] = _Doubt(change, now, is_told=True)
        return GuardDecision(
            change.slot, change.verdict.value, f"{_sentence(change)}; {payoff.reason}", switches_off=payoff.pays
        )


def _told(change: ReplicaVerdict, is_fatal: bool = False) -> GuardDecision:
    return GuardDecision(change.slot, change.verdict.value, _sentence(change), is_fatal=is_fatal)


def _sentence(change: ReplicaVerdict) -> str:
    return f"replica {change.slot}: {change.found}"
