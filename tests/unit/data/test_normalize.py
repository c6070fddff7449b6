import json
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regen.data.identity import row_id, unreadable_row_id
from regen.data.normalize import Rules, normalize
from regen.data.reasons import Note, Reason
from regen.errors import RowRefused
from regen.records import Conversation, Message, Role, Stage
from regen.spec import Shape

SHAPES = get_args(Shape)


def shown(value, shape="auto", system_prompt=None):
    """The conversation as text: s, u and a for the roles, `_` for a slot."""
    messages = normalize(value, Rules(shape, system_prompt)).conversation.messages
    return [f"{message.role[0]}:{'_' if message.content is None else message.content}" for message in messages]


def refused(value, shape="auto"):
    with pytest.raises(RowRefused) as caught:
        normalize(value, Rules(shape))
    assert caught.value.stage == Stage.NORMALIZE
    return caught.value.reason


def chat(*turns):
    names = {"s": "system", "u": "user", "a": "assistant"}
    return {"messages": [{"role": names[turn[0]], "content": turn[2:]} for turn in turns]}


# --- shapes --------------------------------------------------------------------------------------


def test_each_shape_is_known_by_its_keys():
    assert shown(chat("u:hi", "a:OLD")) == ["u:hi", "a:_"]
    assert shown({"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "OLD"}]}) == [
        "u:hi",
        "a:_",
    ]
    assert shown({"conversation": [{"role": "User", "content": "hi"}]}) == ["u:hi", "a:_"]
    assert shown({"prompt": "hi", "response": "OLD"}) == ["u:hi", "a:_"]
    assert shown({"question": "hi", "answer": "OLD"}) == ["u:hi", "a:_"]
    assert shown({"turns": ["one", "two"], "reference": ["OLD"]}) == ["u:one", "a:_", "u:two", "a:_"]
    assert shown({"instruction": "do", "input": "this", "output": "OLD"}) == ["u:do\n\nthis", "a:_"]
    assert shown({"instruction": "do", "input": ""}) == ["u:do", "a:_"]


def test_a_conversation_wins_over_a_bare_prompt_and_nulls_are_absent():
    assert shown(chat("u:from messages") | {"prompt": "x", "conversations": None}) == ["u:from messages", "a:_"]


@pytest.mark.parametrize(
    "value",
    [{}, {"text": "x"}, {"prompt": "a", "question": "b"}, chat("u:a") | {"conversations": []}, {"messages": None}],
)
def test_ambiguous_or_unknown_keys_are_named(value):
    assert refused(value) == Reason.UNKNOWN_SHAPE
    with pytest.raises(RowRefused, match="|".join(value) or "none"):
        normalize(value, Rules())


def test_a_named_shape_asks_for_its_key():
    assert refused({"prompt": "x"}, "messages") == Reason.MISSING_KEY
    assert shown({"prompt": "x", "messages": []}, "prompt") == ["u:x", "a:_"]


def test_roles_of_many_datasets():
    for name in ("human", "user", "Human", "prompter"):
        assert shown({"conversations": [{"from": name, "value": "x"}]}) == ["u:x", "a:_"]
    for name in ("gpt", "chatgpt", "assistant", "model", "bot"):
        value = {"conversations": [{"from": "human", "value": "x"}, {"from": name, "value": "OLD"}]}
        assert shown(value) == ["u:x", "a:_"]


# --- slots ---------------------------------------------------------------------------------------


def test_every_answer_of_the_source_becomes_a_slot():
    assert shown(chat("s:sys", "u:1", "a:OLD", "u:2", "a:OLD")) == ["s:sys", "u:1", "a:_", "u:2", "a:_"]
    assert shown(chat("u:1", "a:OLD", "u:2")) == ["u:1", "a:_", "u:2", "a:_"]


def test_leading_answers_are_dropped_and_noted():
    made = normalize(chat("s:sys", "a:hello", "a:again", "u:1"), Rules())
    assert [message.role for message in made.conversation.messages] == [Role.SYSTEM, Role.USER, Role.ASSISTANT]
    assert made.notes == (Note.LEADING_ASSISTANT_DROPPED,)


def test_answers_in_a_row_are_one_slot_and_noted():
    made = normalize(chat("u:1", "a:x", "a:y", "u:2"), Rules())
    assert made.conversation.turns == 2
    assert made.notes == (Note.ASSISTANT_TURNS_MERGED,)


def test_a_system_message_after_the_last_slot_says_nothing_to_nobody():
    made = normalize(chat("u:1", "a:x", "s:late"), Rules())
    assert made.conversation.messages == (Message(Role.USER, "1"), Message(Role.ASSISTANT, None))
    assert made.notes == (Note.TRAILING_SYSTEM_DROPPED,)


@pytest.mark.parametrize("turns", [("s:a", "u:b", "u:c"), ("s:a", "s:b", "u:c"), ("u:a", "s:b", "u:c"), ("u:a", "s:b")])
def test_odd_orders_are_kept_for_the_targets_template_to_judge(turns):
    assert shown(chat(*turns)) == [*turns, "a:_"]


# --- system prompts ------------------------------------------------------------------------------


def test_the_specs_system_prompt_goes_where_there_is_none():
    assert shown(chat("u:1"), system_prompt="be good") == ["s:be good", "u:1", "a:_"]
    assert shown(chat("s:own", "u:1"), system_prompt="be good") == ["s:own", "u:1", "a:_"]


def test_a_system_prompt_beside_the_conversation_is_kept():
    assert shown({"system_prompt": "sys", "question": "q"}) == ["s:sys", "u:q", "a:_"]
    assert shown(chat("u:1") | {"system": "sys"}, system_prompt="other") == ["s:sys", "u:1", "a:_"]
    assert shown(chat("s:sys", "u:1") | {"system": "sys"}) == ["s:sys", "u:1", "a:_"]
    assert shown(chat("u:1") | {"system": ""}) == ["u:1", "a:_"]
    assert shown(chat("u:1") | {"system": 7}) == ["u:1", "a:_"]


@pytest.mark.parametrize("key", ["system", "system_prompt"])
def test_a_system_prompt_in_parts_is_read_as_content_is_and_an_object_is_refused(key):
    for row in (chat("u:1"), {"prompt": "1"}, {"instruction": "1"}, {"question": [[{"role": "user", "content": "1"}]]}):
        assert shown(row | {key: [{"type": "text", "text": "SYS"}, "more"]}) == ["s:SYS\nmore", "u:1", "a:_"]
        assert refused(row | {key: {"content": "SYS"}}) == Reason.WRONG_TYPE
        assert refused(row | {key: [{"type": "image_url"}]}) == Reason.NON_TEXT_PART


def test_instructions_of_a_request_are_read_as_content_is():
    def asked(instructions):
        return {"custom_id": "a", "body": {"input": "1", "instructions": instructions}}

    assert shown(asked(["SYS", {"type": "input_text", "text": "more"}])) == ["s:SYS\nmore", "u:1", "a:_"]
    assert refused(asked({"content": "SYS"})) == Reason.WRONG_TYPE


# --- content -------------------------------------------------------------------------------------


def parts(*content):
    return {"messages": [{"role": "user", "content": list(content)}]}


def test_text_parts_are_joined_with_a_newline():
    assert shown(parts({"type": "text", "text": "hi"}, {"type": "text", "text": "there"})) == ["u:hi\nthere", "a:_"]
    assert shown(parts("bare", {"type": "text", "text": "part", "image_url": None})) == ["u:bare\npart", "a:_"]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (parts({"type": "text", "text": "see"}, {"type": "image_url", "image_url": {}}), Reason.NON_TEXT_PART),
        (parts({"type": "text", "text": 3}), Reason.WRONG_TYPE),
        (parts({"type": "text"}), Reason.NO_CONTENT),
        (parts(3), Reason.WRONG_TYPE),
        (parts(), Reason.EMPTY_USER_TURN),
        ({"messages": []}, Reason.EMPTY_CONVERSATION),
        ({"turns": []}, Reason.EMPTY_CONVERSATION),
        ({"conversations": [{"from": "gpt", "value": "x"}]}, Reason.NO_USER_TURN),
        (chat("s:only"), Reason.NO_USER_TURN),
        (chat("u:  "), Reason.EMPTY_USER_TURN),
        (chat("u:x", "a:y", "u:\n"), Reason.EMPTY_USER_TURN),
        ({"prompt": ""}, Reason.EMPTY_USER_TURN),
        ({"prompt": 123}, Reason.WRONG_TYPE),
        ({"prompt": {"a": 1}}, Reason.WRONG_TYPE),
        ({"messages": "x"}, Reason.WRONG_TYPE),
        ({"messages": ["x"]}, Reason.WRONG_TYPE),
        ({"messages": [{"role": "user", "content": None}]}, Reason.NO_CONTENT),
        ({"messages": [{"role": "user", "content": {"text": "x"}}]}, Reason.WRONG_TYPE),
        ({"messages": [{"role": "narrator", "content": "x"}]}, Reason.UNKNOWN_ROLE),
        ({"messages": [{"content": "x"}]}, Reason.UNKNOWN_ROLE),
        ({"messages": [{"role": 7, "content": "x"}]}, Reason.UNKNOWN_ROLE),
        ({"turns": ["x", 2]}, Reason.WRONG_TYPE),
        ({"instruction": "x", "history": [["a", "b"]]}, Reason.HISTORY),
        (chat("u:\ud83d"), Reason.UNPAIRED_SURROGATE),
        (chat("s:\ud83d", "u:x"), Reason.UNPAIRED_SURROGATE),
    ],
)
def test_what_cannot_be_sent_has_a_reason(value, reason):
    assert refused(value) == reason


def test_an_answer_of_the_source_is_not_even_looked_at():
    for content in (None, "\ud83d", 3, [{"type": "image"}], ""):
        value = {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": content}]}
        assert shown(value) == ["u:x", "a:_"]


# --- tools ---------------------------------------------------------------------------------------


def test_an_empty_list_of_calls_is_no_call():
    message: dict[str, object] = {"role": "assistant", "content": "x", "tool_calls": [], "function_call": None}
    assert shown({"messages": [{"role": "user", "content": "x"}, message]}) == ["u:x", "a:_"]


def test_tools_are_kept_whether_list_or_text():
    tools = [{"type": "function", "function": {"name": "f", "x": {"b": 2**70, "a": -0.0}}}]
    as_list = normalize(chat("u:x") | {"tools": tools}, Rules()).conversation
    as_text = normalize(chat("u:x") | {"tools": json.dumps(tools, indent=3)}, Rules()).conversation
    assert as_list == as_text
    assert json.loads(as_list.tools_json or "") == tools
    empties: list[object] = [None, [], "", "[]"]
    for absent in empties:
        assert normalize(chat("u:x") | {"tools": absent}, Rules()).conversation.tools_json is None


@pytest.mark.parametrize(
    "tools",
    [
        *("[", "{}", {"a": 1}, ["f"], 3, [{"x": b"1"}]),
        *('[{"x": NaN}]', '[{"x": 1e400}]', [{"x": [float("-inf")]}], '[{"x": 1, "x": 2}]'),
    ],
)
def test_tools_that_are_no_list_of_objects_are_refused(tools):
    assert refused(chat("u:x") | {"tools": tools}) == Reason.BAD_TOOLS


# --- ids -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "text"),
    [("a", "a"), (7, "7"), (2**70, str(2**70)), (1.0, "1.0"), (True, "true"), ("\ud83d", "\\ud83d"), ([1], "[1]")],
)
def test_source_ids_keep_their_text(given, text):
    assert normalize(chat("u:x") | {"id": given}, Rules()).source_id == text


def test_the_first_id_key_that_is_there_counts():
    assert normalize({"prompt": "x", "task_id": "t", "id": None}, Rules()).source_id == "t"
    assert normalize({"prompt": "x"}, Rules()).source_id is None


def one(content="x", **fields):
    return Conversation((Message(Role.USER, content), Message(Role.ASSISTANT, None)), **fields)


def test_ids_differ_by_everything_that_makes_a_row():
    ids = [
        row_id("s", None, one(), 0),
        row_id("t", None, one(), 0),
        row_id("s", None, one(), 1),
        row_id("s", None, one("y"), 0),
        row_id("s", None, one(tools_json='[{"a":1}]'), 0),
        row_id("s", None, one(template_kwargs_json="{}"), 0),
        row_id("s", None, one(sampling={"top_k": 1}), 0),
        row_id("s", None, one(sampling={"top_k": 1.0}), 0),
        *(row_id("s", typed, one(), 0) for typed in (1, 1.0, "1", True, "true", "", "null")),
        unreadable_row_id("s", b"x", 0),
        unreadable_row_id("s", b"x", 1),
        unreadable_row_id("t", b"x", 0),
        unreadable_row_id("s", b"", 0),
    ]
    assert len(set(ids)) == len(ids)
    assert all(len(made) == 32 and int(made, 16) >= 0 for made in ids)


def test_ids_are_those_of_earlier_versions():
    """A change here orphans every run on disk."""
    assert row_id("gsm8k", 7, one("What is 2+2?"), 0) == "c776d2b9078de85a56c27a3928b14db4"
    assert unreadable_row_id("gsm8k", b"{bad", 0) == "34531ba8877b4c3dced5bc55c05558ed"


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()


@given(SCALARS, SCALARS)
def test_ids_are_equal_only_for_equal_values_of_one_type(left, right):
    same = type(left) is type(right) and repr(left) == repr(right)
    assert (row_id("s", left, one(), 0) == row_id("s", right, one(), 0)) is same


# --- anything at all -----------------------------------------------------------------------------

CHAT_KEYS = [
    *("messages", "conversations", "turns", "role", "from", "content", "value", "type", "text", "tool_calls"),
    *("function", "name", "arguments", "tool_call_id", "chosen", "rejected", "body", "url", "input_ids", "loss_mask"),
]
OTHER_KEYS = ["prompt", "question", "instruction", "input", "history", "tools", "system", "id"]
KEYS = st.sampled_from(CHAT_KEYS + OTHER_KEYS)
TEXTS = st.text(max_size=5) | st.sampled_from(["user", "assistant", "human", "gpt", "system", "tool", "text", "\ud83d"])
ANYTHING = st.recursive(
    SCALARS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS | st.text(max_size=3), inner, max_size=4),
    max_leaves=25,
)


def normalized_or_reason(value, shape):
    try:
        return normalize(value, Rules(shape))
    except RowRefused as error:
        return error.reason


@given(st.dictionaries(KEYS, ANYTHING, max_size=5), st.sampled_from(SHAPES))
@settings(max_examples=600)
def test_any_json_value_is_a_conversation_or_refused_with_a_known_reason(value, shape):
    made = normalized_or_reason(value, shape)
    if isinstance(made, str):
        assert made in set(Reason)
        return
    messages = made.conversation.messages
    assert messages[-1] == Message(Role.ASSISTANT, None)
    assert any(message.role is Role.USER for message in messages)
    assert all(message.is_slot is (message.role is Role.ASSISTANT) for message in messages)
    assert all(message.content.encode() or True for message in messages if message.content is not None)
    row_id("s", made.typed_id, made.conversation, 0)


@given(
    st.lists(st.sampled_from(["user", "assistant", "system"]), min_size=1, max_size=8),
    st.sampled_from([("messages", "role", "content"), ("conversations", "from", "value")]),
)
def test_no_answer_of_the_source_is_anywhere_in_the_conversation(roles, keys):
    key, role_key, content_key = keys
    value = {
        key: [
            {role_key: role, content_key: "OLD ANSWER" if role == "assistant" else f"{role} {number}"}
            for number, role in enumerate(roles)
        ]
    }
    if "user" not in roles:
        assert refused(value) == Reason.NO_USER_TURN
        return
    made = normalize(value, Rules()).conversation
    assert "OLD ANSWER" not in repr(made)
    given_users = [f"user {number}" for number, role in enumerate(roles) if role == "user"]
    assert [message.content for message in made.messages if message.role is Role.USER] == given_users
