"""What metrics are read from: one moment of a run, as values. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from regen.records import CoordinatorStatus, Totals

NO_CURRENCY = "none"


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What does not change within a session.

    `positions` is how many places a draft token may have in a step; `gpus` are those of all replicas together, 0 where
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
        """The replicas of the spec."""
        return range(self.facts.replicas)
