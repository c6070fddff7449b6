"""Raw counts of a doctor's visit: what the server's totals grew by, what our own requests account for. Pure.

Counts per request are ours alone, so they come first; the server's totals, with everybody's traffic in them, otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from regen.records import Acceptance
from regen.served import Asked, Phase

# An answer of one token needs no verification: its prompt's last step made it.
_TOKENS_WITHOUT_VERIFICATION = 1


@dataclass(frozen=True, slots=True)
class Counted:
    """`total` is None where counters are absent, which is not the same as zero drafts.

    `is_per_request`: from our own requests; else the server's totals, and the only ones there are. `uncounted` answers
    of more than one token came without counts beside others that had them. `server_tokens` is what the server says it
    put out meanwhile, for everybody; None if it does not say. `has_restarted`: its totals went backwards.
    """

    total: Acceptance | None
    by_temperature: Mapping[float, Acceptance] = field(default_factory=dict)
    by_rank: Mapping[str, Acceptance] = field(default_factory=dict)
    is_per_request: bool = False
    answered: int = 0
    failed: int = 0
    uncounted: int = 0
    own_tokens: int = 0
    server_tokens: int | None = None
    has_restarted: bool = False

    @property
    def foreign_tokens(self) -> int | None:
        """Output tokens of somebody else's requests; None where that cannot be told: no total, requests cut short."""
        if self.server_tokens is None or self.failed or self.has_restarted:
            return None
        return max(0, self.server_tokens - self.own_tokens)


def count(phases: Iterable[Phase]) -> Counted:
    """Everything that was counted during these phases."""
    seen = tuple(phases)
    requests = [request for phase in seen for request in phase.requests]
    answers = [request for request in requests if request.error is None]
    decoded = [answer for answer in answers if (answer.output_tokens or 0) > _TOKENS_WITHOUT_VERIFICATION]
    told = [answer for answer in answers if answer.acceptance is not None]
    has_restarted = any(_went_backwards(phase) for phase in seen)
    of_server = _of_server(seen) if not told and not has_restarted else {}
    by_rank = _grouped(told) if told else _summed(of_server.values())
    by_temperature = (
        _at_temperatures(told) if told else {value: _sum(ranks.values()) for value, ranks in of_server.items()}
    )
    return Counted(
        total=_sum(by_temperature.values()) if by_temperature else None,
        by_temperature=by_temperature,
        by_rank=by_rank,
        is_per_request=bool(told),
        answered=len(answers),
        failed=len(requests) - len(answers),
        uncounted=sum(answer.acceptance is None for answer in decoded) if told else 0,
        own_tokens=sum(answer.output_tokens or 0 for answer in answers),
        server_tokens=_server_tokens(seen),
        has_restarted=has_restarted,
    )


def difference(before: Acceptance, after: Acceptance) -> Acceptance | None:
    """What was added; None if a count fell."""
    width = len(after.accepted_by_position)
    earlier = before.accepted_by_position if len(before.accepted_by_position) == width else (0,) * width
    positions = tuple(late - early for early, late in zip(earlier, after.accepted_by_position, strict=True))
    added = Acceptance(
        after.drafts - before.drafts, after.drafted - before.drafted, after.accepted - before.accepted, positions
    )
    return None if min(added.drafts, added.drafted, added.accepted, *positions) < 0 else added


def _went_backwards(phase: Phase) -> bool:
    before, after = phase.before, phase.after
    shared = before.by_rank.keys() & after.by_rank.keys()
    fell = (before.output_tokens or 0) > (after.output_tokens if after.output_tokens is not None else 2**63)
    return fell or any(difference(before.by_rank[rank], after.by_rank[rank]) is None for rank in shared)


def _of_server(phases: tuple[Phase, ...]) -> dict[float, dict[str, Acceptance]]:
    """By temperature and rank; empty where the counters are absent at either end of every phase."""
    found: dict[float, dict[str, Acceptance]] = {}
    for phase in phases:
        for rank in phase.before.by_rank.keys() & phase.after.by_rank.keys():
            added = difference(phase.before.by_rank[rank], phase.after.by_rank[rank])
            ranks = found.setdefault(phase.temperature, {})
            ranks[rank] = ranks.get(rank, Acceptance()) + (added or Acceptance())
    return found


def _server_tokens(phases: tuple[Phase, ...]) -> int | None:
    grown = [
        phase.after.output_tokens - phase.before.output_tokens
        for phase in phases
        if phase.after.output_tokens is not None and phase.before.output_tokens is not None
    ]
    return sum(grown) if grown and len(grown) == len(phases) else None


def _grouped(answers: list[Asked]) -> dict[str, Acceptance]:
    """By rank, where every answer names one."""
    if any(answer.rank is None for answer in answers):
        return {}
    return _summed([{str(answer.rank): answer.acceptance or Acceptance()} for answer in answers])


def _at_temperatures(answers: list[Asked]) -> dict[float, Acceptance]:
    found: dict[float, Acceptance] = {}
    for answer in answers:
        found[answer.temperature] = found.get(answer.temperature, Acceptance()) + (answer.acceptance or Acceptance())
    return found


def _summed(parts: Iterable[Mapping[str, Acceptance]]) -> dict[str, Acceptance]:
    found: dict[str, Acceptance] = {}
    for part in parts:
        for rank, added in part.items():
            found[rank] = found.get(rank, Acceptance()) + added
    return dict(sorted(found.items()))


def _sum(parts: Iterable[Acceptance]) -> Acceptance:
    return sum(parts, Acceptance())
