"""Whether speculation still works, in every hour of a run: a state machine over counters and finished rows. Pure.

It says nothing of whether speculation pays (`payoff.py`) and does nothing about it. Windows are counted in drafts, so
that idle engines are not judged. It never averages over replicas: each has its own verdict. Memory: a few numbers for
each replica and kind of rows, whose number is bounded. docs/speculation.md has the rules and how sure they are.
"""

from __future__ import annotations

from collections.abc import Iterable

from regen.records import Acceptance
from regen.spec import SpeculationSpec
from regen.speculative.cells import cells
from regen.speculative.like_with_like import (
    ANSWER_BOUNDS,
    OTHER_SOURCES,
    PROMPT_BOUNDS,
    SOURCES,
    Expectation,
    Recent,
    RowsLike,
    Sums,
    bucket,
    is_learned,
    is_usable,
)
from regen.speculative.verdicts import Cell, GuardVerdict, ReplicaVerdict
from regen.speculative.watched import Watched

__all__ = ["Cell", "Guard", "GuardVerdict", "ReplicaVerdict"]


class Guard:
    """Give it every engine start, every reading of counters and every finished generation; ask it with `now`.

    Times in seconds on one clock. `slots` are the replicas; of a slot whose engine was not announced nothing is judged.
    """

    def __init__(self, speculation: SpeculationSpec, slots: Iterable[int]) -> None:
        self._speculation = speculation
        self._watched: dict[int, Watched | None] = dict.fromkeys(slots)
        self._settled = {slot: _nothing_known(slot, 0.0) for slot in self._watched}
        self._told = dict.fromkeys(self._watched, GuardVerdict.UNKNOWN)
        self._arms = [speculation]
        self._references: list[dict[RowsLike, Sums]] = [{}]
        self._sources: set[str] = set()

    def engine_started(
        self,
        slot: int,
        now: float,
        arm_speculates: bool,
        warmup: Acceptance | None,
        speculation: SpeculationSpec | None = None,
    ) -> None:
        """A new engine: all counts of this slot begin anew. `speculation` is what it was started with, where that is
        not the configured one (an arm of calibration): only engines with the same are compared.
        """
        speculation = self._speculation if speculation is None else speculation
        arm = self._arm(speculation)
        self._watched[slot] = Watched(arm, speculation if arm_speculates else None, warmup)
        self._settled[slot] = _nothing_known(slot, now)
        self._settle(slot, now)

    def left(self, slot: int, now: float) -> None:
        """The slot has no engine now: nothing is judged of it, and it is nobody's fellow."""
        self._watched[slot] = None
        self._settled[slot] = _nothing_known(slot, now)

    def counters(self, slot: int, now: float, output_tokens: int, acceptance: Acceptance | None) -> None:
        """Totals since the engine started; of its tokens those that `acceptance` covers.

        Tokens that fell mean an engine that started again without saying so.
        """
        watched = self._speculating(slot)
        if watched is None:
            return
        if output_tokens < watched.output_tokens:
            watched = self._watched[slot] = Watched(watched.arm, watched.speculation, watched.warmup)
        watched.reading(output_tokens, acceptance)
        self._settle(slot, now)

    def generation(self, slot: int, source: str, prompt_tokens: int, acceptance: Acceptance | None) -> None:
        """A finished generation. One whose acceptance is not known, or that had no drafts, is not compared."""
        watched = self._speculating(slot)
        if watched is None:
            return
        watched.finished(acceptance)
        if acceptance is None or not acceptance.drafts:
            return
        like = self._like(source, prompt_tokens, acceptance)
        past = self._past(slot, watched, like, acceptance)
        watched.row(acceptance, past, self._fellows(slot, watched, like))
        watched.recent.setdefault(like, Recent()).add(acceptance, watched.measured(acceptance))

    def verdicts(self, now: float) -> tuple[ReplicaVerdict, ...]:
        """Every replica's verdict, by slot."""
        for slot in self._watched:
            self._settle(slot, now)
        return tuple(self._settled[slot] for slot in sorted(self._settled))

    def changes(self, now: float) -> tuple[ReplicaVerdict, ...]:
        """The verdicts that are not what they were at the last call; before the first call all are unknown."""
        changed = tuple(verdict for verdict in self.verdicts(now) if verdict.verdict is not self._told[verdict.slot])
        self._told.update((verdict.slot, verdict.verdict) for verdict in changed)
        return changed

    def cells(self) -> tuple[Cell, ...]:
        """How drafts fare by source, prompt length and position, over all replicas that speculate as configured."""
        as_configured = [
            watched.recent for watched in self._watched.values() if watched is not None and watched.arm == 0
        ]
        return cells(as_configured, self._references[0], self._speculation.expected)

    def _speculating(self, slot: int) -> Watched | None:
        watched = self._watched[slot]
        return None if watched is None or watched.speculation is None else watched

    def _settle(self, slot: int, now: float) -> None:
        watched, before = self._watched[slot], self._settled[slot]
        if watched is None:
            return
        verdict = watched.verdict
        since = before.since if verdict is before.verdict else now
        self._settled[slot] = ReplicaVerdict(
            slot, verdict, watched.accept_length, since, watched.found, watched.reference_length
        )

    def _like(self, source: str, prompt_tokens: int, acceptance: Acceptance) -> RowsLike:
        if source not in self._sources and len(self._sources) >= SOURCES:
            source = OTHER_SOURCES
        else:
            self._sources.add(source)
        # What was emitted, hence the same for an answer however much of it was drafted well.
        answer_tokens = acceptance.drafts + acceptance.accepted
        return RowsLike(source, bucket(prompt_tokens, PROMPT_BOUNDS), bucket(answer_tokens, ANSWER_BOUNDS))

    def _past(self, slot: int, watched: Watched, like: RowsLike, acceptance: Acceptance) -> Expectation | None:
        """What rows like this have shown since the run began, on any replica, which they teach."""
        reference = self._references[watched.arm].setdefault(like, Sums())
        expectation = Expectation.of(like, reference) if is_usable(reference) else None
        if not is_learned(reference) and not self._settled[slot].verdict.is_bad:
            reference.add(acceptance, watched.measured(acceptance))
        return expectation

    def _fellows(self, slot: int, watched: Watched, like: RowsLike) -> Expectation | None:
        """What rows like this show now on the other replicas that have the same draft and are not bad themselves."""
        sums = Sums()
        for other, fellow in self._watched.items():
            if other == slot or fellow is None or fellow.arm != watched.arm:
                continue
            if like in fellow.recent and not self._settled[other].verdict.is_bad:
                fellow.recent[like].into(sums)
        return Expectation.of(like, sums) if is_usable(sums) else None

    def _arm(self, speculation: SpeculationSpec) -> int:
        """Which arm this is: 0 is the configured one."""
        if speculation not in self._arms:
            self._arms.append(speculation)
            self._references.append({})
        return self._arms.index(speculation)


def _nothing_known(slot: int, now: float) -> ReplicaVerdict:
    return ReplicaVerdict(slot, GuardVerdict.UNKNOWN, None, now, "no engine yet")
