"""Replicas that decode rows with drafts, without an engine: counters and finished generations as the guard gets them.

Rows differ as real ones do: each has acceptance of its own around its source's (beta), half as much again or less by
source, less on long prompts, more in long answers, three in ten at a higher temperature; the share of each source in
the rows swings over the run, and each source's own acceptance drifts by 8 %. Prompt lookup drafts in a few rows a lot
and in most hardly at all. One reading is made after so many drafts of every slot, as an exchange would.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from regen.records import Acceptance

GSM8K = (0.53, 0.21, 0.07)
MT_BENCH = (0.32, 0.04, 0.01)
SOURCES = {"math": 1.0, "code": 1.15, "chat": 0.62, "summaries": 0.8, "qa": 0.7, "agentic": 0.9}


@dataclass(frozen=True)
class Drafter:
    """`shares`: of drafts that accept at least so many tokens. `concentration`: how alike rows are (beta)."""

    shares: tuple[float, ...]
    concentration: float = 10.0
    on_matches: bool = False


LOOKUP = Drafter((0.5, 0.4, 0.33, 0.28), concentration=1.2, on_matches=True)


@dataclass
class Row:
    source: str
    prompt_tokens: int
    tokens: int
    drafting: float  # share of steps that draft
    conditional: tuple[float, ...]  # P(position accepted | the one before was)
    done: int = 0
    acceptance: Acceptance = field(default_factory=Acceptance)


# (replica, drafts of that replica so far) -> what is left of acceptance; 1.0: all of it.
Fault = Callable[[int, int], float]


def healthy(replica: int, drafts: int) -> float:
    return 1.0


@dataclass
class Reading:
    """What one replica has shown since the last reading: totals, and the generations that finished."""

    replica: int
    output_tokens: int
    total: Acceptance
    finished: list[tuple[str, int, Acceptance]]


class SimulatedRun:
    def __init__(
        self, drafter: Drafter, seed: int, replicas: int, slots: int, rows: int, fault: Fault = healthy
    ) -> None:
        self._drafter = drafter
        self._random = random.Random(seed)
        self._fault = fault
        self._rows = rows
        self._made = 0
        self._lines: list[list[Row | None]] = [[None] * slots for _ in range(replicas)]
        self._totals = [Acceptance()] * replicas
        self._tokens = [0] * replicas

    def readings(self, steps: int = 40) -> Iterator[Reading]:
        """Until all rows are made: each replica in turn, after `steps` steps of its slots."""
        while self._made < self._rows:
            for replica in range(len(self._lines)):
                yield self._reading(replica, steps)

    def _reading(self, replica: int, steps: int) -> Reading:
        finished = []
        lines = self._lines[replica]
        left = self._fault(replica, self._totals[replica].drafts)
        counts = [0] * (1 + len(self._drafter.shares))
        for index, line in enumerate(lines):
            row = line or self._row()
            emitted = self._advance(row, steps, left, counts)
            self._tokens[replica] += emitted
            lines[index] = row
            if row.done >= row.tokens:
                finished.append((row.source, row.prompt_tokens, row.acceptance))
                lines[index] = None
        by_position = tuple(counts[1:])
        self._totals[replica] += Acceptance(counts[0], counts[0] * len(by_position), sum(by_position), by_position)
        return Reading(replica, self._tokens[replica], self._totals[replica], finished)

    def _advance(self, row: Row, steps: int, left: float, counts: list[int]) -> int:
        drafts = _binomial(self._random, steps, row.drafting)
        by_position = []
        reached = drafts
        for position, share in enumerate(row.conditional):
            reached = _binomial(self._random, reached, share * (left if position == 0 else 1.0))
            by_position.append(reached)
            counts[1 + position] += reached
        counts[0] += drafts
        emitted = steps + sum(by_position)
        row.done += emitted
        row.acceptance += Acceptance(drafts, drafts * len(by_position), sum(by_position), tuple(by_position))
        return emitted

    def _row(self) -> Row:
        draw, progress = self._random, self._made / self._rows
        self._made += 1
        names = list(SOURCES)
        weights = [1.05 + math.sin(2 * math.pi * (1.5 * progress + i / len(names))) for i in range(len(names))]
        source = draw.choices(names, weights)[0]
        prompt = min(30_000, int(draw.lognormvariate(6.0, 1.3)))
        tokens = min(4096, max(8, int(draw.lognormvariate(5.3, 0.9))))
        scale = SOURCES[source] * (1 + 0.08 * math.sin(2 * math.pi * progress * 2 + len(source)))
        scale *= (1.0 if prompt < 2048 else 0.8 if prompt < 8192 else 0.6) * (1.1 if tokens > 1000 else 1.0)
        scale *= 1.0 if draw.random() < 0.7 else 0.75  # greedy, and a share at a temperature
        return Row(source, prompt, tokens, self._drafting(), self._conditional(scale))

    def _drafting(self) -> float:
        return self._random.betavariate(0.4, 2.0) if self._drafter.on_matches else 1.0

    def _conditional(self, scale: float) -> tuple[float, ...]:
        shares = self._drafter.shares
        mean = min(0.95, shares[0] * scale)
        k = self._drafter.concentration
        first = self._random.betavariate(mean * k, (1 - mean) * k)
        later = (min(1.0, b / a * first / mean) for a, b in itertools.pairwise(shares))
        return (first, *later)


def _binomial(draw: random.Random, n: int, p: float) -> int:
    if n == 0 or p <= 0.0:
        return 0
    if p >= 1.0:
        return n
    if n * min(p, 1 - p) > 12:
        return min(n, max(0, round(draw.gauss(n * p, math.sqrt(n * p * (1 - p))))))
    return sum(1 for _ in range(n) if draw.random() < p)
