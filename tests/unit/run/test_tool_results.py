"""Which recorded result answers which call of the target."""

from __future__ import annotations

import json

import pytest

from regen.protocols import ToolCall
from regen.records import Message, Role
from regen.run.conversations.tool_results import calls_json, canonical, ids_of, is_readable, matched_results

KIMI = "functions.{name}:{index}"


def calls(*pairs: tuple[str, str], start: str = "t") -> str:
    return calls_json([ToolCall(name, arguments) for name, arguments in pairs], start + "{index}", ())


def result(call_id: str, text: str) -> Message:
    return Message(Role.TOOL, text, tool_call_id=call_id, name="whatever")


RECORDED = calls(("look", '{"x": 1}'), ("look", '{"x": 2}'), ("sum", '{"of": [1, 2]}'), start="r")
RESULTS = (result("r0", "one"), result("r1", "two"), result("r2", "three"))


def test_results_come_in_the_order_of_the_targets_calls_and_under_its_ids() -> None:
    made = calls(("sum", '{"of":[1,2]}'), ("look", '{"x": 2}'), ("look", '{"x":1.0}'))
    found = matched_results(made, RECORDED, RESULTS, "name_and_arguments")
    assert found is not None
    assert [(message.content, message.tool_call_id, message.name) for message in found] == [
        ("three", "t0", "sum"),
        ("two", "t1", "look"),
        ("one", "t2", "look"),
    ]


def test_other_arguments_match_by_name_only() -> None:
    made = calls(("look", '{"x": 9}'), ("sum", "{}"), ("look", '{"x": 8}'))
    assert matched_results(made, RECORDED, RESULTS, "name_and_arguments") is None
    found = matched_results(made, RECORDED, RESULTS, "name")
    assert found is not None
    assert [message.content for message in found] == ["one", "three", "two"]


def test_by_order_only_the_place_counts() -> None:
    made = calls(("other", "{}"), ("look", "{}"), ("more", "{}"))
    assert matched_results(made, RECORDED, RESULTS, "name") is None
    found = matched_results(made, RECORDED, RESULTS, "order")
    assert found is not None
    assert [(message.content, message.name) for message in found] == [
        ("one", "other"),
        ("two", "look"),
        ("three", "more"),
    ]


@pytest.mark.parametrize("policy", ["name_and_arguments", "name", "order"])
def test_a_call_too_many_or_too_few_matches_nothing(policy: str) -> None:
    same = [("look", '{"x": 1}'), ("look", '{"x": 2}'), ("sum", '{"of": [1, 2]}')]
    for made in (calls(*same[:2]), calls(*same, ("look", '{"x": 3}'))):
        assert matched_results(made, RECORDED, RESULTS, policy) is None  # type: ignore[arg-type]
    assert matched_results(calls(*same), RECORDED, (), policy) is None  # type: ignore[arg-type]
    twice = (*RESULTS, result("r0", "once more"))
    assert matched_results(calls(*same), RECORDED, twice, policy) is None  # type: ignore[arg-type]


def test_arguments_that_are_no_json_match_nothing() -> None:
    broken = calls(("look", "{x"), start="r")
    assert matched_results(calls(("look", "{x")), broken, (result("r0", "?"),), "name_and_arguments") is None


def test_equal_arguments_have_one_text_and_others_not() -> None:
    assert canonical('{"b": [1.0, "x"], "a": null}') == canonical('{"a":null,"b":[1,"x"]}')
    assert canonical('{"a": 1}') != canonical('{"a": true}')
    assert canonical('{"a": "1"}') != canonical('{"a": 1}')
    assert canonical('{"a": 1180591620717411303424}') != canonical('{"a": 1180591620717411303425}')
    assert canonical("{") is None


def test_ids_count_over_the_conversation_and_the_targets_own_stay() -> None:
    first = calls_json([ToolCall("look", "{}"), ToolCall("look", "{}", "functions.look:7")], KIMI, ())
    assert ids_of(first) == ["functions.look:0", "functions.look:7"]
    again = calls_json([ToolCall("look", "{}", "functions.look:7"), ToolCall("sum", "{}")], KIMI, ids_of(first))
    assert ids_of(again) == ["functions.look:2", "functions.sum:3"]
    assert json.loads(first)[0] == {
        "id": "functions.look:0",
        "type": "function",
        "function": {"name": "look", "arguments": "{}"},
    }


def test_only_objects_are_arguments() -> None:
    assert is_readable(ToolCall("f", '{"a": 1}'))
    assert not is_readable(ToolCall("f", "[1]"))
    assert not is_readable(ToolCall("f", '{"a": '))


def test_two_recorded_calls_of_one_id_keep_their_own_results() -> None:
    recorded = json.loads(calls(("look", '{"x": 1}'), ("look", '{"x": 2}')))
    for call in recorded:
        call["id"] = "same"
    made = calls(("look", '{"x": 1}'), ("look", '{"x": 2}'))
    results = (result("same", "one"), result("same", "two"))
    found = matched_results(made, json.dumps(recorded), results, "name_and_arguments")
    assert found is not None
    assert [message.content for message in found] == ["one", "two"]
    assert matched_results(made, json.dumps(recorded), results[:1], "name_and_arguments") is None
