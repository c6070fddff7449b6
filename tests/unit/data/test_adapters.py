"""Every row shape, each with the odd ways in which sources write it."""

import json

import pytest

from regen.data.normalize import Rules, normalize
from regen.data.reasons import Note, Reason
from regen.errors import RowRefused
from regen.records import Message, Role
from regen.spec import PoliciesSpec

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1e2}'}}
USER = {"role": "user", "content": "ask"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


def read(value, native=False, **policies):
    return normalize(value, Rules(is_native=native, policies=PoliciesSpec(**policies)))


def messages(value, native=False, **policies):
    return read(value, native, **policies).conversation.messages


def refused(value, native=False, shape="auto", **policies):
    with pytest.raises(RowRefused) as caught:
        normalize(value, Rules(shape=shape, is_native=native, policies=PoliciesSpec(**policies)))
    return caught.value.reason


def chat(*given):
    return {"messages": list(given)}


def expected_calls(message):
    return [
        (call["function"]["name"], call["function"]["arguments"]) for call in json.loads(message.expected_calls_json)
    ]


# --- tool calls and results ----------------------------------------------------------------------


def test_a_tool_conversation_is_planned_with_slots_results_and_what_the_source_had_called():
    answer = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    result = {"role": "tool", "tool_call_id": "c1", "content": "42"}
    made = messages(chat(USER, answer, result, {"role": "assistant", "content": "OLD"}))
    assert [message.role for message in made] == [Role.USER, Role.ASSISTANT, Role.TOOL, Role.ASSISTANT]
    assert expected_calls(made[1]) == [("f", '{"x": 1e2}')]
    assert made[1].is_slot
    assert made[2] == Message(Role.TOOL, "42", tool_call_id="c1", name="f")
    assert made[3] == Message(Role.ASSISTANT, None)


@pytest.mark.parametrize("arguments", ['{"x": 1}', {"x": 1}, '{"x":1}'])
def test_arguments_may_be_text_or_an_object(arguments):
    call = {"id": "a", "function": {"name": "f", "arguments": arguments}}
    (_, slot) = messages(chat(USER, {"role": "assistant", "tool_calls": [call]}))
    ((name, text),) = expected_calls(slot)
    assert (name, json.loads(text)) == ("f", {"x": 1})
    if isinstance(arguments, str):
        assert text == arguments, "text stays as it was written"


@pytest.mark.parametrize("arguments", [None, ""])
def test_no_arguments_are_an_empty_object(arguments):
    call = {"function": {"name": "f", "arguments": arguments}}
    assert expected_calls(messages(chat(USER, {"role": "assistant", "tool_calls": [call]}))[1]) == [("f", "{}")]


@pytest.mark.parametrize(
    "arguments", ["{", "[1]", '"x"', 3, [1], '{"a": NaN}', '{"a": 1, "a": 2}', {"a": float("inf")}]
)
def test_arguments_that_are_no_object_follow_their_policy(arguments):
    value = chat(USER, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]})
    assert refused(value) == Reason.UNPARSABLE_ARGUMENTS
    kept = read(value, unparsable_arguments="keep")
    assert Note.ARGUMENTS_KEPT in kept.notes
    assert kept.conversation.messages[1].expected_calls_json


@pytest.mark.parametrize("calls", [["f"], [{"function": {}}], [{"name": ""}], "f()", {"a": 1}, [None], [[]]])
def test_calls_that_are_none_are_refused(calls):
    assert refused(chat(USER, {"role": "assistant", "tool_calls": calls})) == Reason.BAD_TOOL_CALLS


def test_parallel_calls_take_their_results_by_id_in_any_order():
    calls = [{"id": name, "function": {"name": name, "arguments": "{}"}} for name in ("a", "b")]
    results = [{"role": "tool", "tool_call_id": name, "content": name.upper()} for name in ("b", "a")]
    made = messages(chat(USER, {"role": "assistant", "tool_calls": calls}, *results))
    assert [(message.tool_call_id, message.content) for message in made[2:4]] == [("b", "B"), ("a", "A")]
    assert made[4].is_slot


def test_calls_of_one_answer_with_one_id_get_ids_of_their_own_and_results_in_order():
    calls = [{"id": "x", "function": {"name": name, "arguments": "{}"}} for name in ("f", "g", "h")]
    calls.append({"id": "x_2", "function": {"name": "i", "arguments": "{}"}})
    ids = ("x", "x_2", "x", "x")
    results = [{"role": "tool", "tool_call_id": id_, "content": f"r{n}"} for n, id_ in enumerate(ids)]
    made = read(chat(USER, {"role": "assistant", "tool_calls": calls}, *results))
    _, slot, *answered, _ = made.conversation.messages
    assert [call["id"] for call in json.loads(slot.expected_calls_json)] == ["x", "x_3", "x_4", "x_2"]
    linked = [(result.tool_call_id, result.name, result.content) for result in answered]
    assert linked == [("x", "f", "r0"), ("x_2", "i", "r1"), ("x_3", "g", "r2"), ("x_4", "h", "r3")]
    assert made.notes == (Note.TOOL_IDS_RENEWED,)


def test_an_id_may_come_again_in_a_later_answer():
    step = ({"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "c1", "content": "42"})
    made = read(chat(USER, *step, *step))
    assert [message.tool_call_id for message in made.conversation.messages if message.role is Role.TOOL] == ["c1", "c1"]
    assert made.notes == ()


def test_calls_without_ids_get_some_and_results_follow_in_order():
    value = {
        "conversations": [
            {"from": "human", "value": "x"},
            {"from": "function_call", "value": '{"name": "f", "arguments": {"a": 1}}'},
            {"from": "function_call", "value": '{"name": "g", "arguments": {}}'},
            {"from": "observation", "value": "of f"},
            {"from": "observation", "value": "of g"},
            {"from": "gpt", "value": "OLD"},
        ]
    }
    made = read(value)
    slot, one, other = made.conversation.messages[1:4]
    assert expected_calls(slot) == [("f", '{"a": 1}'), ("g", "{}")]
    assert [(turn.name, turn.tool_call_id, turn.content) for turn in (one, other)] == [
        ("f", "call_0", "of f"),
        ("g", "call_1", "of g"),
    ]
    assert {Note.TOOL_IDS_ASSIGNED, Note.ASSISTANT_TURNS_MERGED} <= set(made.notes)


@pytest.mark.parametrize(
    "results",
    [
        [{"role": "tool", "tool_call_id": "nobody", "content": "x"}],
        [{"role": "tool", "content": "1"}, {"role": "tool", "content": "2"}],
        [{"role": "tool", "name": "g", "content": "x"}],
        [
            {"role": "tool", "tool_call_id": "c1", "content": "1"},
            {"role": "tool", "tool_call_id": "c1", "content": "2"},
        ],
    ],
)
def test_results_that_answer_no_call_follow_their_policy(results):
    value = chat(USER, {"role": "assistant", "tool_calls": [CALL]}, *results, {"role": "user", "content": "go on"})
    assert refused(value) == Reason.ORPHAN_TOOL_RESULT
    dropped = read(value, orphan_tool_results="drop")
    assert Note.ORPHAN_RESULT_DROPPED in dropped.notes
    assert sum(message.role is Role.TOOL for message in dropped.conversation.messages) == len(results) - 1


def test_a_result_before_any_call_or_after_the_users_next_turn_is_an_orphan():
    assert refused(chat(USER, {"role": "tool", "content": "x"})) == Reason.ORPHAN_TOOL_RESULT
    late = [{"role": "assistant", "tool_calls": [CALL]}, USER, {"role": "tool", "tool_call_id": "c1", "content": "x"}]
    assert refused(chat(USER, *late)) == Reason.ORPHAN_TOOL_RESULT


def test_calls_and_results_in_tags_are_found():
    value = {
        "conversations": [
            {"from": "human", "value": "x"},
            {"from": "gpt", "value": 'Let me see.\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'},
            {"from": "tool", "value": '<tool_response>\n{"ok": true}\n</tool_response>'},
        ]
    }
    made = read(value)
    assert expected_calls(made.conversation.messages[1]) == [("f", '{"a": 1}')]
    assert made.conversation.messages[2].content == '{"ok": true}'
    assert {Note.TOOL_CALLS_FROM_TEXT, Note.TOOL_RESULT_UNWRAPPED} <= set(made.notes)


@pytest.mark.parametrize("native", [False, True])
def test_calls_in_tags_are_found_in_parts_too(native):
    tagged = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
    parts = [{"type": "text", "text": "See:"}, {"type": "text", "text": tagged}]
    last = {"role": "assistant", "content": "done"}
    made = read(chat(USER, {"role": "assistant", "content": parts}, {"role": "tool", "content": "r"}, last), native)
    answer, result = made.conversation.messages[1:3]
    calls = json.loads((answer.tool_calls_json if native else answer.expected_calls_json) or "")
    assert [call["function"] for call in calls] == [{"name": "f", "arguments": '{"a": 1}'}]
    assert (answer.content, result.name) == ("See:" if native else None, "f")
    assert Note.TOOL_CALLS_FROM_TEXT in made.notes


@pytest.mark.parametrize(
    ("content", "text"),
    [
        *(
            ({"a": 2**70}, '{"a": 1180591620717411303424}'),
            (3, "3"),
            (None, ""),
            ([], "[]"),
            (["a", "b"], '["a", "b"]'),
        ),
        ([{"type": "cafe", "text": "z"}], '[{"type": "cafe", "text": "z"}]'),
        ([{"type": "text", "n": 1}], '[{"type": "text", "n": 1}]'),
        ([{"type": "text", "text": "a"}, {"type": "output_text", "text": "b"}], "a\nb"),
    ],
)
def test_results_that_are_no_text_become_json(content, text):
    call, result = {"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "content": content}
    assert messages(chat(USER, call, result))[2].content == text


def test_tools_of_the_source_that_no_answer_called_change_nothing():
    plain, with_empty = chat(USER), chat(USER, {"role": "assistant", "content": "OLD", "tool_calls": []})
    assert messages(plain) == messages(with_empty)


# --- tools ---------------------------------------------------------------------------------------


def tools_of(value, **policies):
    made = read({"prompt": "x"} | value, **policies)
    return json.loads(made.conversation.tools_json), made.notes


def test_tools_in_openai_form_stay_as_they_are():
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "required": ["b", "a"]}}}]
    assert tools_of({"tools": tools}) == (tools, ())


def test_bare_functions_are_wrapped_and_types_renamed_where_schemas_name_them():
    parameters = {
        "type": "dict",
        "description": "dict of float",
        "properties": {
            "type": {"type": "float", "enum": ["float"], "default": "dict"},
            "items": {"type": "array", "items": {"type": "tuple", "items": {"type": "int"}}},
            "x": {"type": "any", "description": "float"},
            "y": {"anyOf": [{"type": "str, optional"}, {"type": "null"}]},
        },
    }
    tools, notes = tools_of({"tools": [{"name": "f", "parameters": parameters}]})
    assert tools == [
        {
            "type": "function",
            "function": {
                "name": "f",
                "parameters": {
                    "type": "object",
                    "description": "dict of float",
                    "properties": {
                        "type": {"type": "number", "enum": ["float"], "default": "dict"},
                        "items": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
                        "x": {"description": "float"},
                        "y": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                    },
                },
            },
        }
    ]
    assert set(notes) == {Note.TOOLS_WRAPPED, Note.TOOL_TYPES_RENAMED}


def test_properties_alone_get_their_object():
    flat = [{"name": "f", "parameters": {"type": {"type": "str"}, "n": {"type": "int"}}}]
    tools, _ = tools_of({"tools": json.dumps(flat), "query": "x"})
    schema = tools[0]["function"]["parameters"]
    assert schema == {"type": "object", "properties": {"type": {"type": "string"}, "n": {"type": "integer"}}}


def test_huge_integers_in_tools_and_arguments_follow_their_policy():
    tools = {"tools": [{"type": "function", "function": {"name": "f", "x": 2**70}}]}
    made, notes = tools_of(tools)
    assert made[0]["function"]["x"] == 2**70
    assert notes == (Note.HUGE_INTEGER_KEPT,)
    assert refused({"prompt": "x"} | tools, huge_integers="reject") == Reason.HUGE_INTEGER
    call = {"function": {"name": "f", "arguments": {"order_id": 2**70}}}
    slot = messages(chat(USER, {"role": "assistant", "tool_calls": [call]}))[1]
    assert json.loads(expected_calls(slot)[0][1]) == {"order_id": 2**70}
    assert (
        refused(chat(USER, {"role": "assistant", "tool_calls": [call]}), huge_integers="reject") == Reason.HUGE_INTEGER
    )


# --- other shapes --------------------------------------------------------------------------------


def test_bfcl_turns_of_messages_each_end_with_a_slot():
    value = {"question": [[{"role": "system", "content": "s"}, USER], [USER]], "function": [{"name": "f.g"}]}
    made = read(value)
    assert [message.role for message in made.conversation.messages] == [
        *(Role.SYSTEM, Role.USER, Role.ASSISTANT),
        *(Role.USER, Role.ASSISTANT),
    ]
    assert json.loads(made.conversation.tools_json)[0]["function"]["name"] == "f.g"
    assert refused({"question": []}) == Reason.EMPTY_CONVERSATION
    assert refused({"question": [[], []]}) == Reason.EMPTY_CONVERSATION
    assert refused({"question": [3]}) == Reason.WRONG_TYPE


def test_of_a_preference_what_was_asked_counts():
    assert messages({"prompt": "ask", "chosen": "OLD", "rejected": "OLD"}) == messages({"prompt": "ask"})
    listed = [USER, {"role": "assistant", "content": "OLD"}]
    assert messages({"chosen": listed, "rejected": listed}) == messages({"prompt": "ask"})
    assert messages({"prompt": [USER], "chosen": listed[1:], "rejected": listed[1:]}) == messages({"prompt": "ask"})
    assert refused({"chosen": "\n\nHuman: x\n\nAssistant: y", "rejected": "z"}) == Reason.MISSING_KEY


def test_batch_requests_are_read_by_their_body():
    body = {"model": "m", "messages": [USER], "tools": [TOOL], "temperature": 0.5, "max_tokens": 9, "n": 2}
    value = {"custom_id": "r-1", "method": "POST", "url": "/v1/chat/completions", "body": body}
    made = read(value)
    assert (made.source_id, made.conversation.sampling) == ("r-1", {})
    assert set(made.notes) == {Note.REQUEST_SAMPLING_IGNORED, Note.REQUEST_FIELDS_IGNORED}
    assert made.conversation.tools_json is not None
    used = read(value, request_sampling="use").conversation.sampling
    assert used == {"temperature": 0.5, "max_tokens": 9}
    assert refused(value | {"body": body | {"temperature": "hot"}}, request_sampling="use") == Reason.BAD_SAMPLING
    assert refused(value | {"url": "/v1/embeddings"}) == Reason.NOT_A_CHAT_REQUEST
    responses = {"custom_id": "r", "url": "/v1/responses", "body": {"input": "ask", "instructions": "be good"}}
    assert [message.content for message in messages(responses)] == ["be good", "ask", None]


def test_conversations_may_be_json_text_and_turns_may_be_messages():
    assert messages({"messages": json.dumps([USER])}) == messages(chat(USER)) == messages({"turns": [USER]})
    assert refused({"messages": "[1, 2"}) == Reason.WRONG_TYPE


def test_fields_say_where_keys_are():
    fields = {"messages": "data.dialog", "role": "speaker", "content": "says", "id": "uid"}
    value = {"data": {"dialog": [{"speaker": "user", "says": "ask"}]}, "uid": 7, "messages": None}
    made = normalize(value, Rules(fields=fields))
    assert made.conversation.messages == messages(chat(USER))
    assert made.source_id == "7"


# --- rows that pass through ----------------------------------------------------------------------


def test_native_answers_are_kept_with_their_reasoning():
    for key in ("reasoning_content", "reasoning", "thinking"):
        answer = {"role": "assistant", "content": "yes", key: "because"}
        assert messages(chat(USER, answer), native=True)[1] == Message(Role.ASSISTANT, "yes", "because")
    inline = read(chat(USER, {"role": "assistant", "content": "<think>\nbecause\n</think>\n\nyes"}), native=True)
    assert inline.conversation.messages[1] == Message(Role.ASSISTANT, "\n\nyes", "\nbecause\n")
    assert inline.notes == (Note.REASONING_FROM_TEXT,)


def test_native_rows_end_with_an_answer():
    answer = {"role": "assistant", "content": "yes"}
    made = read(chat(USER, answer, USER), native=True)
    assert [message.role for message in made.conversation.messages] == [Role.USER, Role.ASSISTANT]
    assert made.notes == (Note.TRAILING_TURNS_DROPPED,)
    assert refused(chat(USER), native=True) == Reason.NO_ANSWER
    assert refused(chat(USER, answer | {"content": " "}), native=True) == Reason.EMPTY_ANSWER
    assert refused(chat(USER, answer, answer), native=True) == Reason.CONSECUTIVE_ASSISTANTS
    assert refused({"turns": ["x"]}, native=True) == Reason.NO_ANSWER
    assert messages({"instruction": "do", "output": "done"}, native=True)[1] == Message(Role.ASSISTANT, "done")
    assert messages({"prompt": "do", "response": "done"}, native=True)[1] == Message(Role.ASSISTANT, "done")


def test_native_calls_are_kept():
    answer = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    made = messages(chat(USER, answer), native=True)[1]
    assert json.loads(made.tool_calls_json)[0]["function"]["name"] == "f"
    assert made.expected_calls_json is None


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"input_ids": [1, 2], "loss_mask": [0]}, Reason.BAD_TOKENS),
        ({"input_ids": [1, 2], "loss_mask": [0, 2]}, Reason.BAD_TOKENS),
        ({"input_ids": [1, 2.0], "loss_mask": [0, 1]}, Reason.BAD_TOKENS),
        ({"input_ids": [1, -2], "loss_mask": [0, 1]}, Reason.BAD_TOKENS),
        ({"input_ids": [1, 2**40], "loss_mask": [0, 1]}, Reason.BAD_TOKENS),
        ({"input_ids": [1, 2], "labels": [-100, 3]}, Reason.BAD_TOKENS),
        ({"input_ids": [1, 2], "loss_mask": [0, 0]}, Reason.NO_LOSS_TOKENS),
        ({"input_ids": [], "loss_mask": []}, Reason.NO_LOSS_TOKENS),
        ({"input_ids": [1, 2]}, Reason.MISSING_KEY),
        ({"input_ids": "1 2", "loss_mask": [0, 1]}, Reason.WRONG_TYPE),
    ],
)
def test_token_rows_that_are_no_tokens_are_refused(value, reason):
    assert refused(value, native=True) == reason


def test_tokens_are_kept_as_they_are_and_only_pass_through():
    by_mask = read({"input_ids": [5, 6, 7], "loss_mask": [False, True, True]}, native=True).tokens
    by_labels = read({"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}, native=True).tokens
    assert by_mask == by_labels
    assert (by_mask.input_ids, by_mask.loss_mask) == ((5, 6, 7), (0, 1, 1))
    assert refused({"input_ids": [1], "loss_mask": [1]}) == Reason.NEEDS_NATIVE


@pytest.mark.parametrize(
    "tool",
    [
        {"foo": 1},
        {"type": "function", "function": {"description": "no name"}},
        {"type": "function", "function": {"name": ""}},
        {"type": "function", "function": {"name": "f", "parameters": []}},
    ],
)
def test_tools_that_no_parser_of_calls_takes_are_refused_at_planning(tool):
    assert refused({"prompt": "x", "tools": [tool]}) == Reason.BAD_TOOLS
