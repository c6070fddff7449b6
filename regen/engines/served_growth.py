"""By how much a server's own totals have grown since a first reading of them, across its restarts. Pure.

A server that was started anew counts from zero again, engine by engine: what had grown until then is kept, and all that
it counts since is new. What it counted between the last reading and its end is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from regen.engines.served_gauges import Gauges
from regen.records import Acceptance


@dataclass(slots=True)
class Growth:
    """Made with the totals to count from, by engine (data-parallel rank): one that is not there counts from zero."""

    last: dict[str, Acceptance]
    gauges: Gauges
    last_output_tokens: int | None = None
    acceptance: Acceptance = field(default_factory=Acceptance)
    prefix_hit_tokens: int = 0
    preemptions: int = 0
    _output_tokens: int = 0

    @property
    def output_tokens(self) -> int | None:
        """None as long as the server has not told how many it has made."""
        return None if self.last_output_tokens is None else self._output_tokens

    def reading(self, by_rank: Mapping[str, Acceptance], now: Gauges, output_tokens: int | None = None) -> None:
        """The totals as they are now. `output_tokens`: None where the server does not tell."""
        for rank, total in by_rank.items():
            self.acceptance += _since(self.last.get(rank, Acceptance()), total)
            self.last[rank] = total
        self.prefix_hit_tokens += _more(self.gauges.prefix_hit_tokens, now.prefix_hit_tokens)
        self.preemptions += _more(self.gauges.preemptions, now.preemptions)
        self.gauges = now
        if output_tokens is not None:
            before = output_tokens if self.last_output_tokens is None else self.last_output_tokens
            self._output_tokens += _more(before, output_tokens)
            self.last_output_tokens = output_tokens


def _since(before: Acceptance, now: Acceptance) -> Acceptance:
    """All of it where any of its counts is lower than it was."""
    length = max(len(before.accepted_by_position), len(now.accepted_by_position))
    earlier, later = (_padded(total.accepted_by_position, length) for total in (before, now))
    counts = ((before.drafts, now.drafts), (before.drafted, now.drafted), (before.accepted, now.accepted))
    if any(count < past for past, count in (*counts, *zip(earlier, later, strict=True))):
        return now
    return Acceptance(
        now.drafts - before.drafts,
        now.drafted - before.drafted,
        now.accepted - before.accepted,
        tuple(count - past for past, count in zip(earlier, later, strict=True)),
    )


def _more(before: int, now: int) -> int:
    return now - before if now >= before else now


def _padded(counts: tuple[int, ...], length: int) -> tuple[int, ...]:
    return counts + (0,) * (length - len(counts))
