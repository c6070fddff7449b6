"""What metrics are read from: one moment of a run, as values. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from regen.records import CoordinatorStatus, Totals

NO_CURRENCY = "none"


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What does not change within a session.

    `positions` is how many places a draft token may have in a step; `replicas` are those that are there from the first
    moment, `servers` those of them that somebody else runs; `gpus` are those that one engine of our own holds, 0 where
    there are none. `price_per_gpu_hour` is None where nobody has said one, and then `currency` is `NO_CURRENCY`.
    """

    name: str
    version: str
    target: str
    draft: str
    positions: int
    replicas: int
    gpus: float
    commit_interval_seconds: float
    uncommitted_bytes_limit: int
    price_per_gpu_hour: float | None = None
    currency: str = NO_CURRENCY
    servers: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One moment. `planned` are rows by source, in the plan's order; `deadline_seconds` are left until the session
    drains by itself, None where it does not.
    """

    status: CoordinatorStatus
    planned: Mapping[str, int]
    facts: RunFacts
    deadline_seconds: float | None = None

    @property
    def published(self) -> Totals:
        """All that was ever committed, also what was made again since: what counters are read from."""
        status = self.status
        return status.totals if status.published is None else status.published

    @property
    def slots(self) -> range:
        """Replicas that are there from the first moment, and up to the highest that was ever opened in this run.

        So a series that has begun does not end.
        """
        opened = (*self.status.replicas, *self.status.tally.slots, *self.published.by_replica)
        return range(max(self.facts.replicas, 1 + max(opened, default=-1)))

    @property
    def engines_held(self) -> int:
        """Engines of our own that have a node, or are about to."""
        return sum(slot >= self.facts.servers for slot in self.status.open_slots - self.status.pending_slots)
