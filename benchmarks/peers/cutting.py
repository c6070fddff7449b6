"""What a log of an engine's steps says of an arm: pure.

The rate without ramp and tail is taken over the window in which there is a row for every slot, by the same rule in
every arm: from the end of the step in which the `slots`-th row was first scheduled, to the end of the one after which
fewer rows than slots were unfinished. An arm that leaves slots empty in between pays for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the engine. Times are seconds since the epoch."""

    ended_at: float
    tokens: int
    sequences: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Request:
    """One finished request, as the scheduler saw it."""

    came_at: float
    scheduled_at: float
    finished_at: float
    cached_tokens: int
    prompt: tuple[int, ...]
    completion: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EngineLog:
    """Steps and requests in the order of time."""

    steps: tuple[Step, ...]
    requests: tuple[Request, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """What lies between ramp and tail."""

    began_at: float
    ended_at: float
    tokens: int
    busy_share: float

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / (self.ended_at - self.began_at)


class NoWindow(Exception):
    """There is no time with a row for every slot: too few rows."""


def parse_log(lines: Iterable[str]) -> EngineLog:
    """From the lines that engine_log.py writes, of one process or of several."""
    steps, requests = [], []
    for line in lines:
        found = json.loads(line)
        if isinstance(found, list):
            steps.append(Step(*found))
        else:
            prompt, completion = tuple(found.pop("prompt")), tuple(found.pop("completion"))
            requests.append(Request(prompt=prompt, completion=completion, **found))
    return EngineLog(
        tuple(sorted(steps, key=lambda step: step.ended_at)),
        tuple(sorted(requests, key=lambda request: request.came_at)),
    )


def between(log: EngineLog, began_at: float, ended_at: float) -> EngineLog:
    """The part of an arm that shares its engine with another one."""
    return EngineLog(
        tuple(step for step in log.steps if began_at <= step.ended_at <= ended_at),
        tuple(request for request in log.requests if began_at <= request.came_at <= ended_at),
    )


def rows_of(requests: Iterable[Request], firsts: Sequence[tuple[int, ...]]) -> dict[int, list[Request]]:
    """Each row's requests, by turns. `firsts` are the rows' first prompts; other requests are nobody's.

    A later turn's prompt begins with its row's first one.
    """
    numbers = {prompt: number for number, prompt in enumerate(firsts)}
    lengths = sorted({len(prompt) for prompt in firsts}, reverse=True)
    rows: dict[int, list[Request]] = {}
    for request in requests:
        heads = (numbers.get(request.prompt[:length]) for length in lengths if length <= len(request.prompt))
        if (number := next((head for head in heads if head is not None), None)) is not None:
            rows.setdefault(number, []).append(request)
    for turns in rows.values():
        turns.sort(key=lambda request: len(request.prompt))
    return rows


def cut(steps: Sequence[Step], rows: Mapping[int, Sequence[Request]], slots: int) -> Cut:
    """The window with a row for every slot. Raises NoWindow."""
    started = sorted(turns[0].scheduled_at for turns in rows.values())
    finished = sorted(turns[-1].finished_at for turns in rows.values())
    if len(rows) < slots:
        raise NoWindow(f"{len(rows)} rows, {slots} slots")
    began_at, ended_at = started[slots - 1], finished[len(rows) - slots]
    inside = [step for step in steps if began_at < step.ended_at <= ended_at]
    if not inside:
        raise NoWindow(f"the first row had ended before {slots} had begun")
    return Cut(began_at, ended_at, sum(step.tokens for step in inside), _busy_share(inside, began_at, slots))


def _busy_share(steps: Sequence[Step], began_at: float, slots: int) -> float:
    """Sequences over slots, weighed by how long the steps took (the wait before a step included)."""
    before = [began_at, *(step.ended_at for step in steps)]
    held = sum(step.sequences * (step.ended_at - start) for step, start in zip(steps, before, strict=False))
    return held / (slots * (steps[-1].ended_at - began_at))


def hit_share(requests: Iterable[Request]) -> float:
    """Prompt tokens that were in the prefix cache, over all prompt tokens."""
    found = list(requests)
    return sum(request.cached_tokens for request in found) / sum(len(request.prompt) for request in found)
