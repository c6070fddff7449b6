"""Steps laid on tokens, and the text that each token adds."""

from __future__ import annotations

from regen.observe.pilot_page import TokenKind
from regen.records import StepTrace
from regen.run.commands.pilot_tokens import drafts_always, token_kinds, token_texts

A, C, O = TokenKind.ACCEPTED, TokenKind.CORRECTED, TokenKind.OWN  # noqa: E741


def test_a_step_gives_its_accepted_tokens_and_one_of_the_target() -> None:
    trace = StepTrace((3, 3, 3), (2, 0, 3))
    assert token_kinds(1 + 3 + 1 + 4, trace, True) == [O, A, A, C, C, A, A, A, O]


def test_the_last_step_may_reach_beyond_the_end() -> None:
    trace = StepTrace((3, 3), (0, 3))
    assert token_kinds(4, trace, True) == [O, C, A, A]


def test_steps_that_drafted_nothing_have_no_known_place() -> None:
    assert token_kinds(6, StepTrace((3, 3), (1, 0)), True) is None
    assert token_kinds(9, StepTrace((3, 3), (3, 3)), True) == [O, A, A, A, O, A, A, A, O]
    assert token_kinds(3, StepTrace((3, 3), (3, 3)), True) is None, "fewer tokens than the steps before the last gave"


def test_where_steps_may_not_draft_only_one_reading_counts() -> None:
    """8 tokens: the last step's end lies behind the answer's, or one step more has drafted nothing."""
    trace = StepTrace((3, 3), (3, 3))
    assert token_kinds(8, trace, True) is not None
    assert token_kinds(8, trace, False) is None
    assert token_kinds(6, trace, False) == [O, A, A, A, O, A], "all of the last step's own lies behind the end"


def test_an_answer_of_one_token_has_no_steps() -> None:
    assert token_kinds(1, StepTrace((), ()), False) == [O]
    assert token_kinds(2, StepTrace((), ()), False) is None


def test_lookups_may_draft_nothing() -> None:
    assert drafts_always("eagle3")
    assert not drafts_always("ngram_gpu")


def decode(token_ids: tuple[int, ...]) -> str:
    """Bytes; a token that starts a text loses its space, as SentencePiece has it."""
    return bytes(token_ids).decode("utf-8", errors="replace").removeprefix(" ")


def test_a_character_over_several_tokens_is_with_the_last_and_spaces_stay() -> None:
    ids = tuple(" a é 漢!".encode())
    texts = token_texts(ids, decode)
    assert len(texts) == len(ids)
    assert "".join(texts) == "a é 漢!"
    assert texts == ["", "a", " ", "", "é", " ", "", "", "漢", "!"]


def test_a_character_that_is_cut_off_is_shown_as_such() -> None:
    assert token_texts(tuple("a漢".encode())[:-1], decode) == ["a", "", "\ufffd"]
