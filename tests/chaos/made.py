"""How many generations a disturbed run has made twice, and how many it may have: from the fake engine's log. Pure.

The promise: what a process was making when it was killed, and what it had finished and not yet committed, is made
again, and nothing else. A row that is not finished starts over, so all of its turns count.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

# A row is committed one interval after it was handed in at the latest, and it is handed in within a second; the rest is
# for the exchange, the write, and a machine that is busy.
COMMIT_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Made:
    """One generation that an engine has ended. `at` is in epoch seconds."""

    at: float
    pid: int
    row_id: str
    turn: int


@dataclass(frozen=True, slots=True)
class Loss:
    """A worker's process that was ended by trouble, and the commit interval that its session had."""

    pid: int
    at: float
    interval_seconds: float


@dataclass(frozen=True, slots=True)
class Outage:
    """When nothing could be committed."""

    begun_at: float
    ended_at: float


def parse_log(lines: Iterable[str]) -> list[Made]:
    """From the fake engine's `made_log`."""
    made = []
    for line in lines:
        seen = json.loads(line)
        row_id, turn, *_ = seen["request"].rsplit("-", 4)
        made.append(Made(seen["at"], seen["pid"], row_id, int(turn)))
    return made


def made_twice(made: Iterable[Made]) -> int:
    """Generations beyond the first of each turn of each row."""
    counts = Counter((one.row_id, one.turn) for one in made)
    return sum(count - 1 for count in counts.values())


def most_made_twice(
    made: Sequence[Made], turns: Mapping[str, int], losses: Iterable[Loss], outages: Sequence[Outage]
) -> int:
    """What the promise allows. `turns` says how many turns each row has in the end."""
    by_worker: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in made:
        by_worker[one.pid][one.row_id].append(one.at)
    allowed = 0
    for loss in losses:
        uncommitted_since = loss.at - _reach(loss, outages)
        for row_id, times in by_worker.get(loss.pid, {}).items():
            if len(times) < turns[row_id] or max(times) >= uncommitted_since:
                allowed += len(times)
    return allowed


def _reach(loss: Loss, outages: Sequence[Outage]) -> float:
    """How long before its end a worker may have finished rows that are not committed: an outage adds to it."""
    plain = loss.interval_seconds + COMMIT_SECONDS
    reach = plain
    for outage in sorted(outages, key=lambda one: one.begun_at, reverse=True):
        if outage.begun_at < loss.at and outage.ended_at > loss.at - reach:
            reach += min(outage.ended_at, loss.at) - outage.begun_at + plain
    return reach
