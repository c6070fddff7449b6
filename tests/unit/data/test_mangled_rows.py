"""Some hundred rows that no reader was made for: nothing crashes, nothing vanishes, every row has one outcome."""

import copy
import json
import random

import pytest

from regen.data.plan import open_plan
from regen.data.planning import build_plan
from regen.data.reasons import Reason
from regen.data.target import resolve_target
from regen.records import Role
from regen.spec import parse_spec
from tests.memory_storage import MemoryStorage
from tests.toy_target import END, build_toy_target

CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
WHOLE = [
    {
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": "u"},
            {"role": "assistant", "content": "OLD"},
        ]
    },
    {
        "conversations": [
            {"from": "human", "value": "u"},
            {"from": "gpt", "value": "OLD"},
            {"from": "human", "value": "v"},
        ]
    },
    {
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "messages": [
            {"role": "user", "content": "u"},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c", "content": "r"},
            {"role": "assistant", "content": "OLD"},
        ],
    },
    {
        "conversations": [
            {"from": "human", "value": "u"},
            {"from": "function_call", "value": '{"name": "f"}'},
            {"from": "observation", "value": "r"},
        ]
    },
    {"instruction": "i", "input": "j", "output": "OLD"},
    {"prompt": "p", "chosen": "OLD", "rejected": "OLD"},
    {"turns": ["a", "b"]},
    {"question": [[{"role": "user", "content": "q"}]], "function": [{"name": "f", "parameters": {"type": "dict"}}]},
    {"custom_id": "r", "url": "/v1/chat/completions", "body": {"messages": [{"role": "user", "content": "u"}]}},
    {"input_ids": [1, 2, 3], "loss_mask": [0, 1, 1]},
]
JUNK: list[object] = [
    *(None, "", " ", 0, -1, 2**70, 1.5, True, [], {}, [None], [[]], [{}], {"a": 1}, "\ud83d", f"x{END}y", "[", "{"),
    *("null", "OLD", "system", {"type": "image"}, [{"type": "text", "text": "t"}], [{"type": "video"}], "NaN", "\x00"),
]


def places(value, path=()):
    """Every place in a JSON value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


def mangled(value, rng):
    """The row with one place deleted, doubled, renamed, or filled with junk."""
    row = copy.deepcopy(value)
    path = rng.choice([path for path in places(row) if path])
    holder = row
    for key in path[:-1]:
        holder = holder[key]
    how = rng.choice(["junk", "junk", "delete", "double", "wrap"])
    if how == "delete":
        del holder[path[-1]]
    elif how == "double" and isinstance(holder, list):
        holder.insert(path[-1], copy.deepcopy(holder[path[-1]]))
    elif how == "wrap":
        holder[path[-1]] = [holder[path[-1]]]
    else:
        holder[path[-1]] = rng.choice(JUNK)
    return row


def lines(seed, count):
    rng = random.Random(seed)
    for _ in range(count):
        row = rng.choice(WHOLE)
        for _ in range(rng.randrange(1, 4)):
            row = mangled(row, rng) if row else row
        text = json.dumps(row, ensure_ascii=rng.random() < 0.5 or "\\ud" in json.dumps(row))
        kind = rng.random()
        if kind < 0.05:
            text = text[: rng.randrange(1, len(text) + 1)]
        elif kind < 0.08:
            text = text.replace(":", rng.choice([",", ": NaN,", "::"]), 1)
        yield text.encode("utf-8", "surrogatepass")


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return build_toy_target(tmp_path_factory.mktemp("toy"))


@pytest.mark.parametrize("mode", ["regenerate", "native"])
@pytest.mark.parametrize("strictness", ["default", "lenient", "strict"])
def test_every_mangled_row_has_one_outcome_and_a_reason(tmp_path, toy, mode, strictness):
    policies = {
        "default": {},
        "lenient": {
            "empty_turns": "drop",
            "orphan_tool_results": "drop",
            "unparsable_arguments": "keep",
            "non_text_parts": "drop",
            "control_tokens": "text",
            "unpaired_surrogates": "replace",
            "consecutive_users": "merge",
            "several_systems": "merge",
            "request_sampling": "use",
        },
        "strict": {
            "assistant_first": "reject",
            "consecutive_users": "reject",
            "consecutive_assistants": "reject",
            "several_systems": "reject",
            "huge_integers": "reject",
            "unseen_tools": "reject",
        },
    }[strictness]
    given = [line for line in lines(strictness + mode, 400) if line.strip()]
    (tmp_path / "x.jsonl").write_bytes(b"\xef\xbb\xbf" + b"\r\n".join(given))
    spec = parse_spec(
        {
            "name": "test",
            "output": "unused",
            "target": {"model": str(toy)},
            "engine": {"kind": "fake", "max_model_len": 4096},
            "sampling": {"max_tokens": 16},
            "sources": [{"name": "x", "path": str(tmp_path / "x.jsonl"), "mode": mode}],
            "policies": policies,
        },
        "test",
    )
    storage = MemoryStorage()
    summary = build_plan(spec, resolve_target(spec.target), storage, "s", 1)
    rows = list(open_plan(storage).scan())
    assert [row.location.rsplit(":", 1)[1] for row in rows] == [str(number) for number in range(1, len(given) + 1)]
    known = {*Reason, "bad_json", "invalid_utf8", "not_an_object", "duplicate_keys"}
    known |= {"template_refused", "control_tokens", "tools_unseen", "template_rewrites_history", "answer_not_rendered"}
    assert {row.refusal.reason for row in rows if row.refusal} <= known
    (source,) = summary.sources
    assert source.rows == len(given) == source.accepted + sum(source.rejected.values())
    assert 0 < source.accepted < len(given)
    for row in rows:
        settled = row.settled
        assert (settled == "rejected") is (row.refusal is not None)
        assert (settled == "native") is bool(row.native)
        if settled is None:
            assert mode == "regenerate"
            assert row.conversation is not None
            assert row.conversation.messages[-1].is_slot
            assert not [
                message
                for message in row.conversation.messages
                if message.role is Role.ASSISTANT and not message.is_slot
            ]
