"""Which rows and turns are exported: every one is kept or has a reason."""

from __future__ import annotations

import pytest

from regen.records import Status
from regen.store.export.selection import DEFAULT_STATUSES, Kept, LeftOut, Row, Selection, select
from regen.store.export.tokens import MaskedTokens, masked_tokens
from tests.exportable import finished, generation, message


def asking(*statuses: Status, split: str = "train") -> Selection:
    return Selection(DEFAULT_STATUSES | set(statuses), split)


def turns(found: Kept | LeftOut) -> list[int]:
    assert isinstance(found, Kept)
    return [each["turn"] for each in found.generations]


def test_good_and_native_rows_are_taken_with_all_their_turns() -> None:
    assert turns(select(finished(2), Selection())) == [0, 1]
    assert turns(select(finished(2, status="native"), Selection())) == [0, 1]


@pytest.mark.parametrize("status", ["truncated", "degenerate", "partial", "rejected", "failed"])
def test_all_others_are_left_out_with_their_own_reason(status: str) -> None:
    assert select(finished(status=status, reason="why"), Selection()) == LeftOut(f"{status}: why")


def test_a_status_that_is_asked_for_is_taken_as_it_is() -> None:
    cut = finished(2, status="truncated", reason="cap")
    cut = {**cut, "generations": [generation(0), generation(1, finish_reason="length")]}
    assert turns(select(cut, asking(Status.TRUNCATED))) == [0, 1]


def partial(generations: list[dict[str, object]], answers: int) -> Row:
    messages = [message("assistant", f"a{number}") for number in range(answers)]
    return finished(status="partial", reason="empty_answer", generations=generations, messages=messages)


def test_of_a_partial_row_only_the_turns_that_the_conversation_went_on_with_are_good() -> None:
    found = select(partial([generation(0), generation(1)], answers=1), asking(Status.PARTIAL))
    assert turns(found) == [0]
    assert isinstance(found, Kept)
    assert found.turns_left_out == 1


def test_a_turn_of_a_partial_row_that_did_not_end_by_itself_is_not_good() -> None:
    cut = [generation(0), generation(1, finish_reason="length")]
    assert turns(select(partial(cut, answers=2), asking(Status.PARTIAL))) == [0]
    assert select(partial(cut[1:], answers=1), asking(Status.PARTIAL)) == LeftOut("no good turn")


def test_a_row_without_any_generation_is_left_out() -> None:
    assert select(finished(generations=[]), Selection()) == LeftOut("no generation")


def test_the_split_decides_where_the_column_is_there() -> None:
    held_out = finished(split="eval")
    assert select(held_out, Selection()) == LeftOut("of the split eval")
    assert turns(select(held_out, asking(split="eval"))) == [0]
    assert turns(select(held_out, asking(split="all"))) == [0]
    assert select(finished(split=None), asking(split="eval")) == LeftOut("of the split train")
    assert turns(select(finished(), Selection())) == [0]


def test_ids_are_prompt_and_completion_and_only_the_completion_is_trained_on() -> None:
    assert masked_tokens(generation(ids=[7, 8])) == MaskedTokens([1, 2, 3, 7, 8], [0, 0, 0, 1, 1])


def test_a_native_generation_keeps_its_own_mask_over_the_completion_or_over_all() -> None:
    assert masked_tokens(generation(ids=[7, 8], loss_mask=[0, 1])) == MaskedTokens([1, 2, 3, 7, 8], [0, 0, 0, 0, 1])
    assert masked_tokens(generation(ids=[7, 8], loss_mask=[0, 1, 0, 1, 1])) == MaskedTokens(
        [1, 2, 3, 7, 8], [0, 1, 0, 1, 1]
    )


def test_a_mask_that_does_not_fit_or_trains_nothing_is_left_out() -> None:
    assert masked_tokens(generation(ids=[7, 8], loss_mask=[1])) == LeftOut(
        "its loss mask is of another length than its ids"
    )
    assert masked_tokens(generation(ids=[7, 8], loss_mask=[0, 0])) == LeftOut("no token to train on")
    assert masked_tokens(generation(ids=[])) == LeftOut("no token to train on")
