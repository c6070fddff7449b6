"""One policy at a time: each value of it, and that what it changed is noted."""

from typing import get_args

import pytest

from regen.data.normalize import Rules, normalize
from regen.data.reasons import Note, Reason
from regen.errors import RowRefused
from regen.spec import PoliciesSpec, Shape

BLANK = Note.EMPTY_TURN_DROPPED
ROLES = {"s": "system", "u": "user", "a": "assistant"}


def chat(*turns):
    return {"messages": [{"role": ROLES[turn[0]], "content": turn[2:]} for turn in turns]}


def shown(*turns, **policies):
    """The planned conversation, its notes, or why it is refused."""
    try:
        made = normalize(chat(*turns), Rules(policies=PoliciesSpec(**policies)))
    except RowRefused as error:
        return error.reason
    texts = [
        f"{message.role[0]}:{'_' if message.content is None else message.content}"
        for message in made.conversation.messages
    ]
    return texts, list(made.notes)


@pytest.mark.parametrize(
    ("turns", "policies", "result"),
    [
        (("a:OLD", "u:1"), {}, (["u:1", "a:_"], [Note.LEADING_ASSISTANT_DROPPED])),
        (("a:OLD", "u:1"), {"assistant_first": "reject"}, Reason.ASSISTANT_FIRST),
        (("s:s", "a:OLD", "u:1"), {}, (["s:s", "u:1", "a:_"], [Note.LEADING_ASSISTANT_DROPPED])),
        (("u:1", "u:2"), {}, (["u:1", "u:2", "a:_"], [Note.USER_TURNS_KEPT])),
        (("u:1", "u:2"), {"consecutive_users": "merge"}, (["u:1\n\n2", "a:_"], [Note.USER_TURNS_MERGED])),
        (("u:1", "u:2"), {"consecutive_users": "reject"}, Reason.CONSECUTIVE_USERS),
        (("u:1", "a:x", "a:y"), {}, (["u:1", "a:_"], [Note.ASSISTANT_TURNS_MERGED])),
        (("u:1", "a:x", "a:y"), {"consecutive_assistants": "reject"}, Reason.CONSECUTIVE_ASSISTANTS),
        (("s:a", "s:b", "u:1"), {}, (["s:a", "s:b", "u:1", "a:_"], [Note.SYSTEMS_KEPT])),
        (("s:a", "u:1", "s:b"), {"several_systems": "merge"}, (["s:a\n\nb", "u:1", "a:_"], [Note.SYSTEMS_MERGED])),
        (("s:a", "u:1", "s:b"), {"several_systems": "reject"}, Reason.SEVERAL_SYSTEMS),
        (("u: ", "u:1"), {}, Reason.EMPTY_USER_TURN),
        (("u: ", "a:OLD", "u:1"), {"empty_turns": "drop"}, (["u:1", "a:_"], [BLANK, Note.LEADING_ASSISTANT_DROPPED])),
        (("u:1", "a:x", "u:", "a:y"), {"empty_turns": "drop"}, (["u:1", "a:_"], [BLANK, Note.ASSISTANT_TURNS_MERGED])),
        (("u: ",), {"empty_turns": "drop"}, Reason.EMPTY_USER_TURN),
        (("u:\ud83d!",), {}, Reason.UNPAIRED_SURROGATE),
        (("u:\ud83d!",), {"unpaired_surrogates": "replace"}, (["u:\ufffd!", "a:_"], [Note.SURROGATE_REPLACED])),
    ],
)  # fmt: skip
def test_each_policy_does_what_it_says(turns, policies, result):
    assert shown(*turns, **policies) == result


def test_dropped_parts_leave_the_text():
    parts = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "x"}}, "and"]
    value = {"messages": [{"role": "user", "content": parts}]}
    made = normalize(value, Rules(policies=PoliciesSpec(non_text_parts="drop")))
    assert made.conversation.messages[0].content == "see\nand"
    assert made.notes == (Note.PART_DROPPED,)


def test_answers_dropped_from_the_front_take_their_tools_results_along():
    call = {"id": "1", "function": {"name": "f", "arguments": "{}"}}
    value = {
        "messages": [
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "x"},
            {"role": "user", "content": "1"},
        ]
    }
    made = normalize(value, Rules())
    assert [message.role for message in made.conversation.messages] == ["user", "assistant"]


def test_surrogates_in_arguments_and_tools_follow_the_policy_too():
    call = {"function": {"name": "f", "arguments": '{"a": "\\ud83d"}'}}
    value = {
        "messages": [{"role": "user", "content": "1"}, {"role": "assistant", "tool_calls": [call]}],
        "tools": [{"type": "function", "function": {"name": "f", "description": "\ud83d"}}],
    }
    with pytest.raises(RowRefused):
        normalize(value, Rules())
    made = normalize(value, Rules(policies=PoliciesSpec(unpaired_surrogates="replace"))).conversation
    assert "\ufffd" in (made.tools_json or "")
    assert "\ufffd" in (made.messages[1].expected_calls_json or "")


def test_the_page_names_every_policy_with_its_values_the_default_first(repository):
    page = (repository / "docs" / "data.md").read_text(encoding="utf-8")
    for name, info in PoliciesSpec.model_fields.items():
        values = get_args(info.annotation)
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{name}` |")]
        assert f"| {', '.join(values)} |" in row
        assert info.default == values[0]


def test_the_page_names_every_format(repository):
    page = (repository / "docs" / "data.md").read_text(encoding="utf-8")
    assert all(f"| `{shape}` |" in page for shape in get_args(Shape) if shape != "auto")
