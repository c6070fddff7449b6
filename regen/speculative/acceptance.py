"""Acceptance as data: counts per source, turn, length and draft, what they say, and how sure it is. Pure.

Counts are mergeable: parts of a run can be counted apart and put together in any order. Generations without counters
are counted as such, never as zero. The unit of every interval is the generation, not the draft: the drafts of one
answer are alike, and an interval over drafts would look several times too sure.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

from regen.records import Acceptance
from regen.speculative.gate import DEAD_ACCEPT_LENGTH

ENOUGH_DRAFTS = 500
ENOUGH_GENERATIONS = 30
TURNS = (1, 2, 3, 4, 8)
PROMPT_TOKENS = (128, 512, 2048, 8192, 32768)
ANSWER_TOKENS = (64, 256, 1024, 4096, 16384)
_Z95 = 1.96

K = TypeVar("K", bound=Hashable)


class Measured(NamedTuple):
    """One generation: where it belongs, and its counters; `acceptance` is None where the engine gave none.

    `turn` counts from 0; lengths are in tokens; `draft` is None where speculation was off.
    """

    source: str
    turn: int
    prompt_tokens: int
    answer_tokens: int
    engine: str
    draft: str | None
    acceptance: Acceptance | None


class Arm(NamedTuple):
    """What was speculating: a run may change its draft or its engine's version in the middle."""

    draft: str | None
    engine: str


class Bucket(NamedTuple):
    """A range of whole numbers, both ends included; `last` is None for the open one."""

    first: int
    last: int | None

    def __str__(self) -> str:
        if self.last is None:
            return f"{self.first:,} and more"
        return f"{self.first:,}" if self.first == self.last else f"{self.first:,} to {self.last:,}"


class Cell(NamedTuple):
    """The finest division that is counted."""

    arm: Arm
    source: str
    turn: Bucket
    prompt_tokens: Bucket
    answer_tokens: Bucket


class Interval(NamedTuple):
    """95 %, by the normal approximation."""

    low: float
    high: float


@dataclass(slots=True)
class Tally:
    """Sums over generations. `absent` of them had no counters, and are in no other number.

    The squares are of drafts and accepted tokens per generation: they carry the interval.
    """

    generations: int = 0
    absent: int = 0
    answer_tokens: int = 0
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    by_position: list[int] = field(default_factory=list)
    drafts_squared: int = 0
    accepted_squared: int = 0
    drafts_by_accepted: int = 0

    def add(self, acceptance: Acceptance | None, answer_tokens: int) -> None:
        """One generation more."""
        if acceptance is None:
            self.absent += 1
            return
        drafts, accepted = acceptance.drafts, acceptance.accepted
        self.generations += 1
        self.answer_tokens += answer_tokens
        self.drafts += drafts
        self.drafted += acceptance.drafted
        self.accepted += accepted
        self._add_positions(acceptance.accepted_by_position)
        self.drafts_squared += drafts * drafts
        self.accepted_squared += accepted * accepted
        self.drafts_by_accepted += drafts * accepted

    def merge(self, other: Tally) -> None:
        """All of the other's generations more."""
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self._add_positions(other.by_position)

    def _add_positions(self, counts: Sequence[int]) -> None:
        self.by_position += [0] * (len(counts) - len(self.by_position))
        for position, count in enumerate(counts):
            self.by_position[position] += count

    @property
    def accept_length(self) -> float | None:
        """Tokens per verification step; None before any."""
        return 1.0 + self.accepted / self.drafts if self.drafts else None

    @property
    def interval(self) -> Interval | None:
        """Of the accept length, as a ratio of sums over generations; None for fewer than two of them."""
        n, drafts = self.generations, self.drafts
        if n < 2 or not drafts:
            return None
        ratio = self.accepted / drafts
        squares = self.accepted_squared - 2 * ratio * self.drafts_by_accepted + ratio * ratio * self.drafts_squared
        half = _Z95 * math.sqrt(max(0.0, squares) * n / (n - 1)) / drafts
        return Interval(1.0 + ratio - half, 1.0 + ratio + half)

    @property
    def shares(self) -> tuple[float, ...]:
        """Share of steps that accepted at least so many draft tokens."""
        return tuple(count / self.drafts for count in self.by_position) if self.drafts else ()

    @property
    def is_small(self) -> bool:
        """Too little to go by."""
        return self.drafts < ENOUGH_DRAFTS or self.generations < ENOUGH_GENERATIONS

    def to_json(self) -> dict[str, Any]:
        """Plain data; shares and lengths are None where nothing was counted."""
        interval = self.interval
        return {
            "accept_length": self.accept_length,
            "interval": list(interval) if interval else None,
            "accepted_by_position": list(self.shares),
            "drafts": self.drafts,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "generations": self.generations,
            "without_counters": self.absent,
            "answer_tokens": self.answer_tokens,
            "is_small": self.is_small,
        }


_SUMS = tuple(name for name in Tally.__dataclass_fields__ if name != "by_position")


class AcceptanceCounts:
    """All cells of a run, or of a part of one."""

    def __init__(self) -> None:
        self.cells: dict[Cell, Tally] = {}

    def add(self, seen: Measured) -> None:
        """One generation more. Degenerate ones are the caller's to leave out: a loop is accepted like nothing else."""
        cell = Cell(
            Arm(seen.draft, seen.engine),
            seen.source,
            bucket(seen.turn, TURNS),
            bucket(seen.prompt_tokens, PROMPT_TOKENS),
            bucket(seen.answer_tokens, ANSWER_TOKENS),
        )
        self.cells.setdefault(cell, Tally()).add(seen.acceptance, seen.answer_tokens)

    def merge(self, other: AcceptanceCounts) -> None:
        for cell, tally in other.cells.items():
            self.cells.setdefault(cell, Tally()).merge(tally)

    @property
    def arms(self) -> list[Arm]:
        """Every draft and engine, the one with the most drafts first."""
        tallies = self.by(lambda cell: cell.arm)
        return sorted(tallies, key=lambda arm: (-tallies[arm].drafts, -tallies[arm].absent, str(arm)))

    def of_arm(self, arm: Arm) -> AcceptanceCounts:
        chosen = AcceptanceCounts()
        chosen.cells = {cell: tally for cell, tally in self.cells.items() if cell.arm == arm}
        return chosen

    def by(self, key: Callable[[Cell], K]) -> dict[K, Tally]:
        """Cells added up by what `key` makes of them, in the order of the keys."""
        found: dict[K, Tally] = {}
        for cell, tally in self.cells.items():
            found.setdefault(key(cell), Tally()).merge(tally)
        return {one: found[one] for one in sorted(found, key=_order)}

    @property
    def total(self) -> Tally:
        whole = Tally()
        for tally in self.cells.values():
            whole.merge(tally)
        return whole


def _order(key: Any) -> Any:
    """Buckets by where they begin; None (no draft) before any name."""
    if isinstance(key, Bucket):
        return key.first
    return tuple(map(_order, key)) if isinstance(key, tuple) else (key is not None, key or "")


def bucket(value: int, bounds: Sequence[int]) -> Bucket:
    """Where a value falls; each bound begins a bucket, and the first begins at 0."""
    place = bisect_right(bounds, value)
    first = bounds[place - 1] if place else 0
    return Bucket(first, bounds[place] - 1 if place < len(bounds) else None)


# --- where to train next -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WeakSpot:
    """Rows of one source and prompt length that are drafted worse than `reference`, an accept length.

    `saved_steps` of their verification steps would not be needed at the reference; `share` is that of all steps.
    """

    source: str
    prompt_tokens: Bucket
    tally: Tally
    reference: float
    saved_steps: float
    share: float

    def to_json(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "prompt_tokens": bucket_json(self.prompt_tokens),
            "accept_length": self.tally.accept_length,
            "drafts": self.tally.drafts,
            "reference": self.reference,
            "saved_steps": self.saved_steps,
            "share": self.share,
        }


def weak_spots(counts: AcceptanceCounts) -> list[WeakSpot]:
    """Where one draft has most to gain, the largest first: what its next training rows should be like.

    The reference is the accept length of the source that is drafted best: no promise, and the same for all. Only a
    source that is not small can be it; without one there is nothing to rank by. A spot with few drafts has little to
    gain and ranks low without a rule of its own; one that may be below the reference by chance is left out.
    """
    lengths = [tally.accept_length for tally in counts.by(lambda cell: cell.source).values() if not tally.is_small]
    reference = max((length for length in lengths if length is not None), default=None)
    if reference is None:
        return []
    all_drafts = counts.total.drafts
    spots = [
        WeakSpot(source, prompt, tally, reference, saved, saved / all_drafts)
        for (source, prompt), tally in counts.by(lambda cell: (cell.source, cell.prompt_tokens)).items()
        if (saved := _saved_steps(tally, reference)) > 0 and _is_surely_below(tally, reference)
    ]
    return sorted(spots, key=lambda spot: -spot.saved_steps)


def _saved_steps(tally: Tally, reference: float) -> float:
    """The same tokens at the reference's accept length take drafts * length / reference steps."""
    return tally.drafts * (1.0 - (tally.accept_length or reference) / reference)


def _is_surely_below(tally: Tally, reference: float) -> bool:
    return tally.interval is not None and tally.interval.high < reference


def bucket_json(bucket: Bucket) -> dict[str, int | None]:
    return {"first": bucket.first, "last": bucket.last}


# --- one draft against another -------------------------------------------------------------------


class Pair(NamedTuple):
    """The same generation under two drafts; None where the engine gave no counters."""

    recorded: Acceptance | None
    now: Acceptance | None


@dataclass(frozen=True, slots=True)
class Difference:
    """Accept length now less recorded, over the generations that have both; the interval is paired by generation."""

    generations: int
    value: float
    interval: Interval | None

    def to_json(self) -> dict[str, Any]:
        return {
            "generations": self.generations,
            "value": self.value,
            "interval": list(self.interval) if self.interval else None,
        }


def difference(pairs: Iterable[Pair]) -> Difference | None:
    """None where no generation was drafted for both times."""
    both = [(old, new) for old, new in pairs if old is not None and new is not None]
    old_drafts, new_drafts = sum(old.drafts for old, _ in both), sum(new.drafts for _, new in both)
    if not old_drafts or not new_drafts:
        return None
    old_ratio = sum(old.accepted for old, _ in both) / old_drafts
    new_ratio = sum(new.accepted for _, new in both) / new_drafts
    value, n = new_ratio - old_ratio, len(both)
    if n < 2:
        return Difference(n, value, None)
    squares = sum(
        ((new.accepted - new_ratio * new.drafts) / new_drafts - (old.accepted - old_ratio * old.drafts) / old_drafts)
        ** 2
        for old, new in both
    )
    half = _Z95 * math.sqrt(squares * n / (n - 1))
    return Difference(n, value, Interval(value - half, value + half))


class Verdict(StrEnum):
    """Whether a head drafts at all."""

    ALIVE = "alive"
    DEAD = "dead"
    TOO_FEW_DRAFTS = "too few drafts"
    NO_COUNTERS = "no counters"


def verdict(tally: Tally) -> Verdict:
    """By counters alone: an accept length of 1.05 or less over 500 drafts is a dead head, whatever the reason."""
    if not tally.generations:
        return Verdict.NO_COUNTERS
    length = tally.accept_length
    if length is None or (length <= DEAD_ACCEPT_LENGTH and tally.drafts < ENOUGH_DRAFTS):
        return Verdict.TOO_FEW_DRAFTS
    return Verdict.DEAD if length <= DEAD_ACCEPT_LENGTH else Verdict.ALIVE
