"""Rows as records of each format; what the trainers themselves make of them is tests/integration/test_trainers.py."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from regen.records import SampledTurn
from regen.store.export.conversation import Fields
from regen.store.export.format import Record
from regen.store.export.formats import FORMATS
from regen.store.export.selection import Kept, LeftOut, Row, Selection, select
from tests.exportable import PROMPT, finished, generation, message

TEXT_FORMATS = sorted(name for name, each in FORMATS.items() if each.reads_text)
TOKEN_FORMATS = sorted(set(FORMATS) - set(TEXT_FORMATS))
CALL = {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}


class Check:
    """Notes what it is asked, and answers what it was made with."""

    def __init__(self, answer: str | None = None) -> None:
        self.answer = answer
        self.messages: Sequence[Mapping[str, Any]] = ()
        self.turns: Sequence[SampledTurn] = ()
        self.tools_json: str | None = None
        self.kwargs_json: str | None = None

    def __call__(
        self,
        messages: Sequence[Mapping[str, object]],
        turns: Sequence[SampledTurn],
        tools_json: str | None,
        kwargs_json: str | None,
    ) -> str | None:
        self.messages, self.turns, self.tools_json, self.kwargs_json = messages, turns, tools_json, kwargs_json
        return self.answer


def records(name: str, row: Row, fields: Fields | None = None, check: Check | None = None) -> list[Record | LeftOut]:
    kept = select(row, Selection())
    assert isinstance(kept, Kept)
    return list(FORMATS[name].records(kept, fields or Fields(), check or Check()))


def record(name: str, row: Row, fields: Fields | None = None, check: Check | None = None) -> Record:
    (found,) = records(name, row, fields, check)
    assert isinstance(found, Record), found
    return found


@pytest.mark.parametrize("name", TOKEN_FORMATS)
def test_formats_of_ids_have_one_record_a_generation_and_look_at_no_text(name: str) -> None:
    row = finished(2, messages=[])
    first, second = records(name, row)
    assert isinstance(first, Record)
    assert isinstance(second, Record)
    assert first.values["input_ids"] == [*PROMPT, 7, 8, 9]
    assert second.values["input_ids"] == [*PROMPT, 4, 7, 8, 9]
    assert second.values["loss_mask"] == [0, 0, 0, 0, 1, 1, 1]
    assert (second.tokens, second.context_tokens, second.trained_tokens) == (7, 4, 3)
    assert first.values["id"] != second.values["id"]


@pytest.mark.parametrize("name", TEXT_FORMATS)
def test_formats_of_text_have_one_record_a_conversation_and_check_all_its_turns(name: str) -> None:
    check = Check()
    made = record(name, finished(2), check=check)
    assert (made.generations, made.trained_tokens, made.tokens) == (2, 6, 7)
    assert [turn.completion_token_ids for turn in check.turns] == [(7, 8, 9), (7, 8, 9)]
    assert {turn.stop_token_ids for turn in check.turns} == {(9,)}
    assert [each["content"] for each in check.messages] == ["q0", "a0", "q1", "a1"]


@pytest.mark.parametrize("name", TEXT_FORMATS)
def test_text_that_does_not_stand_for_its_ids_is_left_out_with_the_reason(name: str) -> None:
    assert records(name, finished(), check=Check("retokenises_differently")) == [LeftOut("retokenises_differently")]


@pytest.mark.parametrize("name", TEXT_FORMATS)
def test_what_follows_the_last_kept_turn_is_not_in_the_text(name: str) -> None:
    row = finished(2, status="partial", generations=[generation(0), generation(1)])
    row = {**row, "messages": row["messages"][:3]}
    kept = select(row, Selection(frozenset([*Selection().statuses, "partial"])))  # type: ignore[list-item]
    assert isinstance(kept, Kept)
    check = Check()
    (made,) = FORMATS[name].records(kept, Fields(), check)
    assert isinstance(made, Record)
    assert [each["content"] for each in check.messages] == ["q0", "a0"]


@pytest.mark.parametrize("name", TEXT_FORMATS)
def test_answers_that_are_not_those_of_the_generations_cannot_be_text(name: str) -> None:
    for row in (finished(messages=[]), finished(2, generations=[generation(0)])):
        assert records(name, row) == [LeftOut("answers in its text are not those of its generations")]


@pytest.mark.parametrize("name", TEXT_FORMATS)
def test_a_mask_of_its_own_cannot_be_said_in_text(name: str) -> None:
    own = finished(generations=[generation(loss_mask=[0, 1, 1])])
    assert records(name, own) == [LeftOut("a loss mask of its own, which text cannot carry")]
    same = finished(generations=[generation(loss_mask=[0, 0, 0, 1, 1, 1])])
    assert record(name, same).trained_tokens == 3


def with_calls(calls: object) -> Row:
    row = finished(2, tools='[{"type": "function"}]')
    messages = [
        message("user", "q0", tool_calls=None, tool_call_id=None, name=None),
        message("assistant", None, tool_calls=calls, tool_call_id=None, name=None),
        message("tool", "result", tool_calls=None, tool_call_id="functions.f:0", name="f"),
        message("assistant", "a1", tool_calls=None, tool_call_id=None, name=None),
    ]
    return {**row, "messages": messages}


WITH_CALLS = Fields(calls=True, tools=True)


@pytest.mark.parametrize("calls", [[CALL], json.dumps([CALL])], ids=["list", "json"])
def test_calls_in_messages_have_openais_shape_and_templates_get_objects(calls: object) -> None:
    check = Check()
    made = record("messages", with_calls(calls), WITH_CALLS, check)
    assert made.values["messages"][1] == {"role": "assistant", "content": "", "tool_calls": [CALL]}
    assert made.values["messages"][2] == {
        "role": "tool",
        "content": "result",
        "tool_call_id": "functions.f:0",
        "name": "f",
    }
    assert check.messages[1]["tool_calls"][0]["function"]["arguments"] == {"x": 1}
    assert check.tools_json == '[{"type": "function"}]'


def test_specforge_gets_the_same_keys_in_every_message_and_calls_as_text() -> None:
    check = Check()
    fields = Fields(reasoning=True, calls=True, tools=True)
    made = record("specforge", with_calls([CALL]), fields, check)
    keys = {"role", "content", "reasoning_content", "tool_calls", "tool_call_id", "name"}
    assert all(set(each) == keys and None not in each.values() for each in made.values["conversations"])
    assert json.loads(made.values["conversations"][1]["tool_calls"]) == [CALL]
    assert check.messages[1]["tool_calls"][0]["function"]["arguments"] == {"x": 1}
    assert check.messages[0]["tool_calls"] == []
    assert set(made.values) == {"id", "conversations", "tools"}


def test_automodel_gets_no_null_calls_and_hands_arguments_to_the_template_as_text() -> None:
    check = Check()
    made = record("automodel", with_calls([CALL]), WITH_CALLS, check)
    assert [each["tool_calls"] for each in made.values["messages"]] == [[], [CALL], [], []]
    assert check.messages[1]["tool_calls"][0]["function"]["arguments"] == '{"x": 1}'


def test_sharegpt_names_calls_and_results_as_it_does() -> None:
    made = record("sharegpt", with_calls([CALL]), WITH_CALLS)
    assert made.values["conversations"] == [
        {"from": "human", "value": "q0"},
        {"from": "function_call", "value": '{"name": "f", "arguments": {"x": 1}}'},
        {"from": "observation", "value": "result"},
        {"from": "gpt", "value": "a1"},
    ]


def test_sharegpt_has_no_place_for_reasoning() -> None:
    row = finished(messages=[message("user", "q"), message("assistant", "a", reasoning="hm")])
    assert records("sharegpt", row) == [LeftOut("reasoning has no place in this format")]
    made = record("messages", row, Fields(reasoning=True))
    assert made.values["messages"][1] == {"role": "assistant", "content": "a", "reasoning_content": "hm"}


@pytest.mark.parametrize(("name", "is_carried"), [("specforge", True), ("messages", True), ("automodel", False)])
def test_template_kwargs_are_passed_as_the_trainer_would_pass_them(name: str, is_carried: bool) -> None:
    row = finished(template_kwargs='{"thinking": true}')
    check = Check("retokenises_differently")
    (found,) = records(name, row, Fields(kwargs=("thinking",)), check)
    assert check.kwargs_json == ('{"thinking": true}' if is_carried else None)
    assert isinstance(found, LeftOut)
    assert ("no place for its template kwargs" in found.reason) is not is_carried


def test_a_row_without_the_kwarg_that_others_have_gets_null_from_specforges_loader() -> None:
    check = Check()
    made = record("specforge", finished(), Fields(kwargs=("thinking",)), check)
    assert made.values["thinking"] is None
    assert check.kwargs_json == '{"thinking": null}'


@pytest.mark.parametrize("roles", [["assistant"], ["system", "assistant"], ["user", "user", "system", "assistant"]])
def test_what_specforge_would_not_read_to_its_end_is_left_out(roles: list[str]) -> None:
    row = finished(messages=[message(role, "x") for role in roles])
    assert records("specforge", row) == [LeftOut("SpecForge would not read the conversation to its end")]
    assert record("messages", row).generations == 1
