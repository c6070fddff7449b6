"""What is said of a generation: cut, looping, empty, out of its format; and what that means for its conversation. Pure.

Where an answer was cut is told by its format, loops by `regen.degenerate`. A loop that runs into the cap is a loop, not
a cut answer: a larger cap would only make more of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from regen.degenerate import TailKind, degenerate_tail, is_asked_for
from regen.protocols import ParsedAnswer
from regen.records import FinishReason, Label, Stage, Status
from regen.run.conversations.tool_results import is_readable

_TAILS = {TailKind.LOOP: Label.LOOP, TailKind.WALL: Label.WALL, TailKind.FEW_IDS: Label.FEW_IDS}
_TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a conversation ended, besides what it contains."""

    status: Status
    stage: Stage | None = None
    reason: str | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class Made:
    """One answer as it is judged. `request` is the last user turn."""

    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    parsed: ParsedAnswer
    has_parser: bool
    request: str


def labels_of(made: Made, decode: Callable[[tuple[int, ...]], str]) -> tuple[Label, ...]:
    """All that is wrong with an answer, the weightiest first; none for a good one. `decode` makes text of ids."""
    return tuple(dict.fromkeys(_labels(made, decode)))


def outcome_of(labels: Sequence[Label], turn: int, cap: int) -> Outcome | None:
    """How this turn ends the conversation; None: a good turn, go on."""
    bad = [label for label in labels if not label.is_note]
    if not bad:
        return None
    if bad[0].is_cut:
        return Outcome(Status.TRUNCATED, Stage.GENERATE, bad[0].value, f"turn {turn}: cut at {cap} tokens")
    status = Status.DEGENERATE if turn == 0 and bad[0].is_degenerate else Status.PARTIAL
    return Outcome(status, Stage.GENERATE, bad[0].value, f"turn {turn}")


def _labels(made: Made, decode: Callable[[tuple[int, ...]], str]) -> Iterator[Label]:
    if made.finish_reason is FinishReason.REPETITION:
        yield Label.REPETITION
    if (tail := _tail(made, decode)) is not None:
        yield tail
    if made.finish_reason is FinishReason.LENGTH:
        yield _where_cut(made.parsed)
    elif made.finish_reason is FinishReason.STOP:
        yield from _out_of_format(made)


def _tail(made: Made, decode: Callable[[tuple[int, ...]], str]) -> Label | None:
    """A loop at the end, unless it is what the user has asked for."""
    found = degenerate_tail(made.token_ids, has_ended=made.finish_reason is FinishReason.STOP)
    if found is None or is_asked_for(decode(found.unit), made.request):
        return None
    return _TAILS[found.kind]


def _where_cut(parsed: ParsedAnswer) -> Label:
    if parsed.is_thinking_open:
        return Label.CUT_IN_THINKING
    return Label.CUT_IN_TOOL_CALL if parsed.has_open_call else Label.CUT_IN_ANSWER


def _out_of_format(made: Made) -> Iterator[Label]:
    """Of an answer that ended by itself."""
    parsed = made.parsed
    is_unreadable = (parsed.has_open_call and not parsed.calls) or not all(map(is_readable, parsed.calls))
    if is_unreadable:
        yield Label.UNPARSABLE_TOOL_CALL
    elif not parsed.content.strip() and not parsed.calls:
        yield Label.NO_VISIBLE_ANSWER if parsed.reasoning else Label.EMPTY_ANSWER
    elif made.has_parser and not parsed.calls and _has_unbalanced_tags(parsed.content, made.request):
        yield Label.UNBALANCED_TAGS


def _has_unbalanced_tags(content: str, request: str) -> bool:
    """Tags of reasoning or calls left in what is visible, not in pairs, that the user has not written first."""
    for opening, closing in (_TAGS[:2], _TAGS[2:]):
        if content.count(opening) != content.count(closing) and opening not in request and closing not in request:
            return True
    return False
