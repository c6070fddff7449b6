"""One arm's figures out of its engine's log, and the checks without which there are none. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.peers.cutting import EngineLog, NoWindow, Request, cut, hit_share, rows_of
from benchmarks.peers.rows import Row
from benchmarks.process_groups import Span

# Prompt ids of a history: rows.Row.messages, rendered by the target's template.
Render = Callable[[list[dict[str, str]]], tuple[int, ...]]
Decode = Callable[[tuple[int, ...]], str]


class Unfair(Exception):
    """The arm did not do the same work as the others."""


@dataclass(frozen=True, slots=True)
class Figures:
    """`whole` is from the first request to the last answer: by the arm's own clock where it has one, else the engine's.

    `cut` is without ramp and tail (cutting.py), by the engine's clock in every arm; None if there are too few rows.
    """

    prompt_tokens: int
    output_tokens: int
    start_seconds: float
    total_seconds: float
    whole_clock: str
    whole_seconds: float
    whole: float
    cut_seconds: float | None
    cut_tokens: int | None
    cut: float | None
    busy_share: float | None
    hit_share: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def figures(
    rows: Mapping[int, Sequence[Request]], log: EngineLog, process: Span, clock: Span | None, slots: int
) -> Figures:
    requests = [request for turns in rows.values() for request in turns]
    first_at = min(request.came_at for request in requests)
    span = clock or Span(first_at, max(request.finished_at for request in requests))
    tokens = sum(len(request.completion) for request in requests)
    try:
        inner = cut(log.steps, rows, slots)
    except NoWindow:
        inner = None
    return Figures(
        prompt_tokens=sum(len(request.prompt) for request in requests),
        output_tokens=tokens,
        start_seconds=span.began_at - process.began_at,
        total_seconds=process.ended_at - process.began_at,
        whole_clock="engine" if clock is None else "own",
        whole_seconds=span.ended_at - span.began_at,
        whole=tokens / (span.ended_at - span.began_at),
        cut_seconds=None if inner is None else inner.ended_at - inner.began_at,
        cut_tokens=None if inner is None else inner.tokens,
        cut=None if inner is None else inner.tokens_per_second,
        busy_share=None if inner is None else inner.busy_share,
        hit_share=hit_share(requests),
    )


def checked(
    log: EngineLog, rows: Sequence[Row], answers: int, cap: int, render: Render, decode: Decode
) -> dict[int, list[Request]]:
    """The requests of each row. Raises Unfair where the engine was not asked for just these rows, turn after turn."""
    found = rows_of(log.requests, [render(row.messages()) for row in rows])
    if len(found) != len(rows):
        raise Unfair(f"the engine saw the first prompts of {len(found)} rows of {len(rows)}")
    if (asked := sum(map(len, found.values()))) != answers:
        raise Unfair(f"{asked} answers were made, {answers} were delivered")
    for number, requests in found.items():
        _check_count(rows[number], requests, cap)
        _check_turns(rows[number], requests, render, decode)
    return found


def _check_count(row: Row, requests: Sequence[Request], cap: int) -> None:
    """Every turn, and none after an answer that was cut at the cap: there a conversation ends, in every arm."""
    cut_at = [number for number, request in enumerate(requests) if len(request.completion) >= cap]
    wanted = cut_at[0] + 1 if cut_at else len(row.turns)
    if len(requests) != wanted:
        raise Unfair(f"{row.turns[0]!r}: {wanted} turns were wanted, {len(requests)} were made")


def _check_turns(row: Row, requests: Sequence[Request], render: Render, decode: Decode) -> None:
    history: tuple[str, ...] = ()
    for number, request in enumerate(requests):
        if request.prompt != render(row.messages(history)):
            raise Unfair(f"turn {number + 1} of {row.turns[0]!r} was not asked with the arm's own answers before it")
        history = (*history, decode(request.completion))


def same_answers(ours: Mapping[int, Sequence[Request]], theirs: Mapping[int, Sequence[Request]]) -> int:
    """Rows whose answers are equal token for token. A batch's make-up moves last bits on a CPU: not all need be."""
    return sum(1 for number, turns in ours.items() if _answers(turns) == _answers(theirs[number]))


def _answers(turns: Sequence[Request]) -> list[tuple[int, ...]]:
    return [request.completion for request in turns]
