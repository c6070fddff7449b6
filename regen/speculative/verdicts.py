"""What the guard says: of a replica, and of kinds of rows. Values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class GuardVerdict(StrEnum):
    HEALTHY = "healthy"
    COLLAPSED = "collapsed"  # drafts are made and hardly one is accepted
    DECAYED = "decayed"  # clearly less is accepted than of such rows before, or than by the other replicas
    ABSENT = "absent"  # tokens come and no drafts are counted
    UNKNOWN = "unknown"  # too few drafts, or no speculation on this engine

    @property
    def is_bad(self) -> bool:
        return self in (GuardVerdict.COLLAPSED, GuardVerdict.DECAYED, GuardVerdict.ABSENT)


@dataclass(frozen=True, slots=True)
class ReplicaVerdict:
    """One replica's verdict since `since` (seconds, the clock of `now`). `found` is a sentence with the figures.

    `accept_length` is of the last windows of drafts, None without one and while counters are absent.
    `reference_length` is what it should be: of the same rows where that is known, else the warm-up's.
    """

    slot: int
    verdict: GuardVerdict
    accept_length: float | None
    since: float
    found: str
    reference_length: float | None = None


@dataclass(frozen=True, slots=True)
class Cell:
    """How drafts fare on one kind of rows, over all replicas.

    `axis` is `source`, `prompt_length` (tokens, as a range) or `position` (of a draft token, from 1). `recent` and
    `reference` are accept lengths; for positions, shares of drafts that accepted at least so many tokens. `drafts` is
    what `recent` rests on.
    """

    axis: str
    value: str
    verdict: GuardVerdict
    recent: float | None
    reference: float | None
    drafts: int
