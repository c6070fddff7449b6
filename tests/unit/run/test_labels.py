"""What is said of an answer, and how that ends its conversation."""

from __future__ import annotations

import pytest

from regen.protocols import ParsedAnswer, ToolCall
from regen.records import FinishReason, Label, Status
from regen.run.conversations.labels import Made, labels_of, outcome_of

PROSE = tuple(range(100, 160))


def made(
    parsed: ParsedAnswer | None = None,
    finish: FinishReason = FinishReason.STOP,
    ids: tuple[int, ...] = PROSE,
    request: str = "Tell me.",
    has_parser: bool = True,
) -> Made:
    return Made(ids, finish, parsed or ParsedAnswer("Good."), has_parser, request)


def labels(answer: Made) -> tuple[Label, ...]:
    return labels_of(answer, lambda ids: "".join(map(chr, ids)))


def test_a_good_answer_has_none() -> None:
    assert labels(made()) == ()
    assert labels(made(ParsedAnswer("", calls=(ToolCall("f", "{}"),)))) == ()


@pytest.mark.parametrize(
    ("parsed", "label"),
    [
        (ParsedAnswer("So far"), Label.CUT_IN_ANSWER),
        (ParsedAnswer("", "Hm", is_thinking_open=True), Label.CUT_IN_THINKING),
        (ParsedAnswer("", calls=(ToolCall("f", "{}"),), has_open_call=True), Label.CUT_IN_TOOL_CALL),
    ],
)
def test_where_an_answer_was_cut(parsed: ParsedAnswer, label: Label) -> None:
    found = labels(made(parsed, FinishReason.LENGTH))
    assert found == (label,)
    outcome = outcome_of(found, turn=1, cap=60)
    assert outcome is not None
    assert (outcome.status, outcome.reason) == (Status.TRUNCATED, label.value)


@pytest.mark.parametrize(
    ("parsed", "label", "first", "later"),
    [
        (ParsedAnswer(" \n"), Label.EMPTY_ANSWER, Status.DEGENERATE, Status.PARTIAL),
        (ParsedAnswer("", "Good morning", is_thinking_open=True), Label.NO_VISIBLE_ANSWER, "degenerate", "partial"),
        (ParsedAnswer("a</think>b"), Label.UNBALANCED_TAGS, Status.DEGENERATE, Status.PARTIAL),
        (ParsedAnswer("x<tool_call>"), Label.UNBALANCED_TAGS, Status.DEGENERATE, Status.PARTIAL),
        (ParsedAnswer("x", has_open_call=True), Label.UNPARSABLE_TOOL_CALL, Status.PARTIAL, Status.PARTIAL),
        (ParsedAnswer("", calls=(ToolCall("f", "{"),)), Label.UNPARSABLE_TOOL_CALL, Status.PARTIAL, Status.PARTIAL),
    ],
)
def test_answers_out_of_their_format(parsed: ParsedAnswer, label: Label, first: Status, later: Status) -> None:
    found = labels(made(parsed))
    assert found == (label,)
    for turn, status in ((0, first), (2, later)):
        outcome = outcome_of(found, turn, cap=60)
        assert outcome is not None
        assert (outcome.status, outcome.reason) == (status, label.value)


def test_tags_that_the_user_writes_about_are_fine_and_so_is_a_target_without_a_parser() -> None:
    answer = ParsedAnswer("It closes with </think>.")
    assert labels(made(answer, request="What does </think> mean?")) == ()
    assert labels(made(answer, has_parser=False)) == ()


def test_a_loop_into_the_cap_is_a_loop_first() -> None:
    found = labels(made(finish=FinishReason.LENGTH, ids=(70, 71, 72) * 100))
    assert found == (Label.LOOP, Label.CUT_IN_ANSWER)
    outcome = outcome_of(found, turn=0, cap=300)
    assert outcome is not None
    assert outcome.status is Status.DEGENERATE


def test_a_loop_that_was_asked_for_is_none() -> None:
    zeros = tuple(map(ord, "0 " * 300))
    asked = made(finish=FinishReason.LENGTH, ids=zeros, request="Write 0 three hundred times.")
    assert labels(asked) == (Label.CUT_IN_ANSWER,)
    assert labels(made(ids=zeros, request="How are you?")) == (Label.LOOP,)


def test_the_engines_own_detector_ends_a_turn_as_degenerate() -> None:
    found = labels(made(finish=FinishReason.REPETITION))
    assert found == (Label.REPETITION,)
    outcome = outcome_of(found, turn=0, cap=300)
    assert outcome is not None
    assert (outcome.status, outcome.reason) == (Status.DEGENERATE, "repetition")


def test_a_note_is_no_fault() -> None:
    assert outcome_of((Label.RETOKENISES_DIFFERENTLY,), turn=0, cap=60) is None
