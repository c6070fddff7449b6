"""`make bench-tail`: how long a run takes over the least that is possible, simulated on the very Schedule class.

Discrete events on a simulated clock: rows of several sources with lognormal lengths, cut at a cap; replicas that decode
`slots` rows at once, each row at its replica's speed; workers that speak as run/worker.py does (at most every
PACE_SECONDS, at least every EXCHANGE_SECONDS, sooner when rows run low) and hold OVERSUBSCRIPTION times their slots.
Some replicas are slow, some die and come back or stay away. No two arms differ in the rows or in the replicas.

The least possible is max(longest row, work / slots): tokens over the tokens per second of all slots that are there.
Beside it stand static shards (every replica has its part of the plan from the start), a schedule in plan order
that makes nothing twice, and the same schedule with lengths that nobody can know before: what is lost to that is not
to be had. Costs two minutes on one core.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import math
import platform
import random
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from regen import length_buckets
from regen.data.interleave import interleaved
from regen.ordinals import OrdinalSet
from regen.records import SourceTotals, WorkerId
from regen.run.fleet.fleet import OVERSUBSCRIPTION
from regen.run.longest_first import is_due, longest_first
from regen.run.schedule import Report, Schedule
from regen.run.worker import EXCHANGE_SECONDS, PACE_SECONDS

RESULTS = Path(__file__).parent / "results" / "tail.json"
TOKENS_PER_SECOND = 50.0  # of one row in work
COMMIT_SECONDS = 5.0  # from a finished row to its commit
TICK_SECONDS = 1.0
ORDER_SECONDS = 10.0
START_SECONDS = 120.0  # a new engine
STATIC, PLAN_ORDER, REGEN, KNOWN = ARMS = ("static shards", "plan order", "regen", "lengths known")


@dataclass(frozen=True, slots=True)
class Source:
    """Lengths of its rows: a lognormal's, in output tokens."""

    name: str
    share: float
    median: float
    sigma: float


@dataclass(frozen=True, slots=True)
class Scenario:
    """`slow`: so many replicas work at a third of the speed. `dying`: these die at that share of the least time; a
    second share, when there is one, is the time after which there is an engine again.
    """

    name: str
    rows: int
    replicas: int
    slots: int
    cap: int
    sources: tuple[Source, ...]
    slow: int = 0
    dying: int = 0
    lost: int = 0


MIXED = (
    Source("chat", 0.30, 350, 0.7),
    Source("instructions", 0.25, 500, 0.6),
    Source("code", 0.20, 900, 0.7),
    Source("tools", 0.10, 250, 0.8),
    Source("mathematics", 0.10, 2200, 0.8),
    Source("proofs", 0.05, 4500, 0.7),
)
ALIKE = (Source("chat", 1.0, 800, 0.9),)
SCENARIOS = (
    Scenario("64 replicas", 83_000, 64, 32, 16_384, MIXED),
    Scenario("64, 4 slow", 83_000, 64, 32, 16_384, MIXED, slow=4),
    Scenario("64, 4 slow, 4 die, 2 lost", 83_000, 64, 32, 16_384, MIXED, slow=4, dying=4, lost=2),
    Scenario("64, one source", 83_000, 64, 32, 16_384, ALIKE),
    Scenario("64 of 128 slots", 83_000, 64, 128, 16_384, MIXED),
    Scenario("8 replicas", 83_000, 8, 64, 16_384, MIXED, slow=1),
    Scenario("4, one slow, 400 rows", 400, 4, 16, 16_384, ALIKE, slow=1),
)


@dataclass(slots=True)
class Result:
    """`ratio` is the time over the least possible. Wasted tokens are of rows that somebody else finished, or that
    were moved; tokens that died with an engine are counted apart. As shares of all tokens that count.
    """

    arm: str
    seconds: float
    least_seconds: float
    ratio: float
    wasted_share: float
    died_share: float
    made_twice: int
    busy_share: float
    cpu_seconds: float


class Lengths:
    """The rows of a scenario: the source and the length of each, in plan order."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        draw = random.Random(seed)
        counts = [round(scenario.rows * source.share) for source in scenario.sources]
        counts[0] += scenario.rows - sum(counts)
        self.source = list(interleaved(counts))
        self.tokens = [
            max(1, min(scenario.cap, round(source.median * math.exp(source.sigma * draw.gauss()))))
            for source in (scenario.sources[number] for number in self.source)
        ]


def speeds(scenario: Scenario) -> list[float]:
    """Of each replica, in tokens per second of a row. The slow ones are spread."""
    slow = {number * scenario.replicas // max(1, scenario.slow) for number in range(scenario.slow)}
    return [TOKENS_PER_SECOND / 3 if slot in slow else TOKENS_PER_SECOND for slot in range(scenario.replicas)]


def least_seconds(scenario: Scenario, lengths: Lengths) -> float:
    at_once = sum(speed * scenario.slots for speed in speeds(scenario))
    return max(max(lengths.tokens) / TOKENS_PER_SECOND, sum(lengths.tokens) / at_once)


# --- one engine and its worker ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Replica:
    """Rows in work by when they began; waiting rows in the engine's queue; finished and not known to be committed."""

    worker: WorkerId
    slots: int
    speed: float
    running: dict[int, float] = field(default_factory=dict)
    waiting: deque[int] = field(default_factory=deque)
    listed: dict[int, None] = field(default_factory=dict)
    unsent: list[int] = field(default_factory=list)
    awaiting: set[int] = field(default_factory=set)
    seq: int = 0
    spoke_at: float = -1.0
    next_at: float = 0.0
    busy_seconds: float = 0.0
    is_alive: bool = True


@dataclass(slots=True)
class _Ended:
    """What is known of a source by rows that have ended."""

    tokens: int = 0
    rows: list[int] = field(default_factory=lambda: [0] * length_buckets.COUNT)

    def add(self, tokens: int) -> None:
        self.tokens += tokens
        self.rows[length_buckets.bucket(tokens)] += 1

    def totals(self) -> SourceTotals:
        longest = max((place for place, rows in enumerate(self.rows) if rows), default=-1)
        return SourceTotals(0, self.tokens, sum(self.rows), tuple(self.rows[: longest + 1]))


class Simulation:
    """One run: all events in the order of time."""

    def __init__(self, scenario: Scenario, lengths: Lengths, schedule: Schedule, least: float, arm: str) -> None:
        self.scenario, self.lengths, self.schedule = scenario, lengths, schedule
        self._is_told = arm != PLAN_ORDER
        self._arm = arm
        self._by_source = {source.name: _Ended() for source in scenario.sources}
        self._ordered_at = 0.0
        self.now = 0.0
        self.ended_at = 0.0
        self.wasted_tokens, self.died_tokens, self.made_twice = 0.0, 0.0, 0
        self._events: list[tuple[float, int, str, int, int]] = []
        self._tie = itertools.count()
        self._replicas = [
            _Replica(WorkerId(slot, 0), scenario.slots, speed) for slot, speed in enumerate(speeds(scenario))
        ]
        self._accepted = OrdinalSet(scenario.rows)
        self._commits: deque[tuple[float, tuple[int, ...]]] = deque()
        draw = random.Random(scenario.name)
        for replica in self._replicas:
            self._at(draw.random() * EXCHANGE_SECONDS, "exchange", replica)
        victims = draw.sample(
            [replica for replica in self._replicas if replica.speed == TOKENS_PER_SECOND], scenario.dying
        )
        for number, replica in enumerate(victims):
            place = (number + 0.5) / max(1, scenario.dying)
            self._at(least * place, "lost" if number < scenario.lost else "dies", replica)
        self._push(TICK_SECONDS, "tick", -1, 0)

    def run(self) -> None:
        """Until every row is in. The time of the commit is not counted."""
        while len(self._accepted) < self.scenario.rows:
            self.now, _, what, slot, ordinal = heapq.heappop(self._events)
            if what == "tick":
                self._tick()
            elif what == "ends":
                self._ends(self._replicas[slot], ordinal)
            elif what == "exchange":
                self._exchange(self._replicas[slot])
            elif what == "starts":
                self._starts(self._replicas[slot])
            else:
                self._dies(self._replicas[slot], what == "dies")
        self.ended_at = self.now

    @property
    def busy_seconds(self) -> float:
        return sum(replica.busy_seconds for replica in self._replicas)

    # --- events --------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        while self._commits and self._commits[0][0] <= self.now:
            self.schedule.committed(self._commits.popleft()[1])
        self.schedule.tick(self.now)
        if self.now - self._ordered_at >= ORDER_SECONDS:
            self._ordered_at = self.now
            if self._arm == KNOWN:
                self.line_up_known()
            elif self._arm == REGEN:
                self._order()
        self._push(self.now + TICK_SECONDS, "tick", -1, 0)

    def line_up_known(self) -> None:
        rest, tokens = self.schedule.rest(), self.lengths.tokens
        mean = sum(tokens[row] for row in rest) / max(1, len(rest))
        self.schedule.line_up(sorted(rest, key=lambda row: -tokens[row]), mean)

    def _order(self) -> None:
        slots = sum(replica.slots for replica in self._replicas if replica.is_alive)
        by_source = {name: ended.totals() for name, ended in self._by_source.items()}
        if self.schedule.not_begun and is_due(self.schedule.not_begun, slots, by_source):
            names = [source.name for source in self.scenario.sources]
            rest = [(ordinal, names[self.lengths.source[ordinal]]) for ordinal in self.schedule.rest()]
            self.schedule.line_up(*longest_first(rest, by_source))

    def _ends(self, replica: _Replica, ordinal: int) -> None:
        began = replica.running.get(ordinal)
        if not replica.is_alive or began is None or not self._is_end(replica, ordinal, began):
            return  # of a row that was dropped
        del replica.running[ordinal], replica.listed[ordinal]
        replica.busy_seconds += self.now - began
        replica.unsent.append(ordinal)
        self._fill(replica)
        margin = math.ceil(replica.slots * OVERSUBSCRIPTION) - replica.slots
        if len(replica.listed) <= replica.slots + margin // 2:
            self._speak(replica, max(self.now, replica.spoke_at + PACE_SECONDS))

    def _is_end(self, replica: _Replica, ordinal: int, began: float) -> bool:
        return abs(began + self.lengths.tokens[ordinal] / replica.speed - self.now) < 1e-6

    def _exchange(self, replica: _Replica) -> None:
        if not replica.is_alive or replica.next_at != self.now:
            return  # it has spoken sooner
        replica.seq += 1
        finished = tuple(replica.unsent)
        room = max(0, math.ceil(replica.slots * OVERSUBSCRIPTION) - len(replica.listed))
        report = self._report(replica, finished, room)
        orders = self.schedule.report(report, self.now)
        replica.unsent.clear()
        replica.awaiting.update(finished)
        self._take_in(finished, orders.accepted)
        for ordinal in orders.settled:
            replica.awaiting.discard(ordinal)
            self._drop(replica, ordinal)
        for grant in orders.grants:
            replica.listed[grant.ordinal] = None
            replica.waiting.append(grant.ordinal)
        self._fill(replica)
        replica.spoke_at = self.now
        self._speak(replica, self.now + EXCHANGE_SECONDS, is_next=True)

    def _report(self, replica: _Replica, finished: tuple[int, ...], room: int) -> Report:
        return Report(
            worker=replica.worker,
            seq=replica.seq,
            running=tuple(replica.listed),
            awaiting=tuple(replica.awaiting),
            finished=finished,
            failed=(),
            free_slots=room,
            tokens=tuple(self._tokens(replica)) if self._is_told else (),
            slots=replica.slots if self._is_told else 0,
        )

    def _tokens(self, replica: _Replica) -> Iterator[int]:
        for ordinal in replica.listed:
            began = replica.running.get(ordinal)
            yield 0 if began is None else int((self.now - began) * replica.speed)

    def _take_in(self, finished: Sequence[int], accepted: frozenset[int]) -> None:
        for ordinal in finished:
            if ordinal in accepted:
                self._accepted.add(ordinal)
                name = self.scenario.sources[self.lengths.source[ordinal]].name
                self._by_source[name].add(self.lengths.tokens[ordinal])
            else:
                self.wasted_tokens += self.lengths.tokens[ordinal]
                self.made_twice += 1
        if accepted:
            self._commits.append((self.now + COMMIT_SECONDS, tuple(accepted)))

    def _dies(self, replica: _Replica, comes_back: bool) -> None:
        replica.is_alive = False
        for began in replica.running.values():
            self.died_tokens += (self.now - began) * replica.speed
            replica.busy_seconds += self.now - began
        self.schedule.worker_gone(replica.worker)
        if comes_back:
            self._push(self.now + START_SECONDS, "starts", replica.worker.slot, 0)
        else:
            self.schedule.slot_lost(replica.worker.slot)

    def _starts(self, replica: _Replica) -> None:
        worker = WorkerId(replica.worker.slot, replica.worker.incarnation + 1)
        fresh = _Replica(worker, replica.slots, replica.speed, busy_seconds=replica.busy_seconds)
        self._replicas[worker.slot] = fresh
        self._at(self.now, "exchange", fresh)

    # --- steps ---------------------------------------------------------------------------------------------------

    def _fill(self, replica: _Replica) -> None:
        while replica.waiting and len(replica.running) < replica.slots:
            ordinal = replica.waiting.popleft()
            replica.running[ordinal] = self.now
            ends = self.now + self.lengths.tokens[ordinal] / replica.speed
            self._push(ends, "ends", replica.worker.slot, ordinal)

    def _drop(self, replica: _Replica, ordinal: int) -> None:
        if ordinal not in replica.listed:
            return
        del replica.listed[ordinal]
        if (began := replica.running.pop(ordinal, None)) is None:
            replica.waiting.remove(ordinal)
            return
        self.made_twice += 1
        self.wasted_tokens += (self.now - began) * replica.speed
        replica.busy_seconds += self.now - began

    def _speak(self, replica: _Replica, at: float, is_next: bool = False) -> None:
        if is_next or at < replica.next_at:
            self._at(at, "exchange", replica)

    def _at(self, at: float, what: str, replica: _Replica) -> None:
        if what == "exchange":
            replica.next_at = at
        self._push(at, what, replica.worker.slot, 0)

    def _push(self, at: float, what: str, slot: int, ordinal: int) -> None:
        heapq.heappush(self._events, (at, next(self._tie), what, slot, ordinal))


# --- arms -------------------------------------------------------------------------------------------------------------


def simulated(arm: str, scenario: Scenario, lengths: Lengths) -> Result:
    began, least = time.process_time(), least_seconds(scenario, lengths)
    if arm == STATIC:
        return sharded(scenario, lengths, least)
    schedule = Schedule(OrdinalSet(scenario.rows), attempts_allowed=3)
    run = Simulation(scenario, lengths, schedule, least, arm)
    if arm == KNOWN:
        run.line_up_known()
    run.run()
    tokens = sum(lengths.tokens)
    return Result(
        arm,
        run.ended_at,
        least,
        run.ended_at / least,
        run.wasted_tokens / tokens,
        run.died_tokens / tokens,
        run.made_twice,
        run.busy_seconds / (run.ended_at * scenario.replicas * scenario.slots),
        time.process_time() - began,
    )


def sharded(scenario: Scenario, lengths: Lengths, least: float) -> Result:
    """Every replica has each n-th row, and no other. Nobody dies: that would only make it worse."""
    ends, busy, began = [], 0.0, time.process_time()
    for slot, speed in enumerate(speeds(scenario)):
        free = [0.0] * scenario.slots
        for tokens in lengths.tokens[slot :: scenario.replicas]:
            heapq.heapreplace(free, free[0] + tokens / speed)
            busy += tokens / speed
        ends.append(max(free))
    seconds = max(ends)
    share = busy / (seconds * scenario.replicas * scenario.slots)
    return Result(STATIC, seconds, least, seconds / least, 0.0, 0.0, 0, share, time.process_time() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", help="the name of a scenario; may be repeated")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    found: dict[str, list[Result]] = {}
    for scenario in SCENARIOS:
        if arguments.only is None or scenario.name in arguments.only:
            lengths = Lengths(scenario, arguments.seed)
            found[scenario.name] = results = []
            print(f"{scenario.name}: {told(scenario, lengths)}")
            for arm in ARMS:
                results.append(simulated(arm, scenario, lengths))
                print(line(results[-1]), flush=True)
    arguments.results.parent.mkdir(exist_ok=True)
    arguments.results.write_text(json.dumps(summary(found, arguments.seed), indent=2) + "\n")
    print(f"written to {arguments.results}")


def told(scenario: Scenario, lengths: Lengths) -> str:
    mean = sum(lengths.tokens) / len(lengths.tokens)
    least = least_seconds(scenario, lengths)
    return (
        f"{scenario.rows:,} rows of {mean:,.0f} tokens, the longest {max(lengths.tokens):,}; {scenario.replicas} x"
        f" {scenario.slots} slots, {scenario.slow} slow, {scenario.dying} die; at least {least:,.0f} s"
    )


def line(result: Result) -> str:
    return (
        f"  {result.arm:<14} {result.ratio:6.3f} of the least time   slots busy {result.busy_share:6.1%}   wasted"
        f" {result.wasted_share:6.2%}   died {result.died_share:6.2%}   {result.made_twice:,} rows moved or made twice"
    )


def summary(found: Mapping[str, Sequence[Result]], seed: int) -> dict[str, object]:
    return {
        "seed": seed,
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "results": {name: [asdict(result) for result in results] for name, results in found.items()},
    }


if __name__ == "__main__":
    main()
