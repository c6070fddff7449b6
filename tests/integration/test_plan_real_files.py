"""Real public files go through planning with nothing lost or silently dropped, whatever their shape."""

import gzip
import json
from pathlib import Path

import pytest

from regen.data.dry_render import before_first_slot
from regen.data.plan import open_plan
from regen.data.planning import build_plan
from regen.data.target import resolve_target
from regen.data.template import load_template
from regen.data.template_messages import template_messages
from regen.spec import parse_spec
from tests.memory_storage import MemoryStorage
from tests.toy_target import build_toy_target

PROMPTS = Path("../shared/data/prompts")
ACCEPTED = [
    "gsm8k_test.jsonl",
    "HumanEval.jsonl.gz",
    "eagle_mt_bench.jsonl",
    "eagle_alpaca.jsonl",
    "eagle_gsm8k.jsonl",
    "eagle_humaneval.jsonl",
    "eagle_qa.jsonl",
    "eagle_sum.jsonl",
    "vicuna_bench.jsonl",
    "fastchat_dummy_conversation.json",
]
WITH_TOOLS = [
    "BFCL_v4_simple_python.json",
    "BFCL_v4_multiple.json",
    "BFCL_v4_parallel.json",
    "BFCL_v4_live_simple.json",
]

pytestmark = pytest.mark.skipif(not PROMPTS.is_dir(), reason="the shared data is not here")


def raw_rows(name):
    """The file's rows, read in the plainest way."""
    data = (PROMPTS / name).read_bytes()
    text = (gzip.decompress(data) if name.endswith(".gz") else data).decode()
    if text.lstrip().startswith("["):
        return json.loads(text)
    return [json.loads(line) for line in text.split("\n") if line.strip()]


def user_texts(row):
    if "turns" in row:
        return row["turns"]
    if "conversations" in row:
        return [turn["value"] for turn in row["conversations"] if turn["from"] == "human"]
    return [row.get("prompt") or row["question"]]


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return build_toy_target(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="module")
def planned(toy):
    """Every file as a source of its own: the summary, and the rows by file name in source order."""
    names = [*ACCEPTED, *WITH_TOOLS]
    spec = parse_spec(
        {
            "name": "real",
            "output": "unused",
            "target": {"model": str(toy)},
            "engine": {"kind": "fake", "max_model_len": 8192},
            "sampling": {"max_tokens": 128},
            "sources": [{"name": name, "path": str(PROMPTS / name)} for name in names],
        },
        "test",
    )
    storage = MemoryStorage()
    summary = build_plan(spec, resolve_target(spec.target), storage, "s", 2)
    rows = list(open_plan(storage).scan())
    return summary, {name: [row for row in rows if row.source == name] for name in names}


def test_every_row_of_every_file_is_planned_once(planned):
    summary, by_file = planned
    counts = {source.name: source.rows for source in summary.sources}
    assert counts == {name: len(raw_rows(name)) for name in by_file}
    assert summary.rows == sum(counts.values()) == sum(len(rows) for rows in by_file.values())
    ids = [row.row_id for rows in by_file.values() for row in rows]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("name", ACCEPTED)
def test_user_texts_are_kept_in_order_and_answers_are_slots(planned, name):
    _, by_file = planned
    for raw, row in zip(raw_rows(name), by_file[name], strict=True):
        assert row.refusal is None
        messages = row.conversation.messages
        texts = user_texts(raw)
        assert [message.content for message in messages] == [part for text in texts for part in (text, None)]
        assert row.prompt_tokens == len(f"?user\n{texts[0]}?\n?assistant\n".encode())


def json_types(schema):
    """Every name of a type in a schema, by the places where JSON Schema has schemas."""
    names = [schema["type"]] if isinstance(schema.get("type"), str) else []
    inner = [*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")]
    return names + [name for part in inner if isinstance(part, dict) for name in json_types(part)]


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_bfcl_rows_are_conversations_with_tools(planned, name):
    summary, by_file = planned
    raw = raw_rows(name)
    assert [row.location for row in by_file[name]] == [f"{PROMPTS / name}:{line}" for line in range(1, len(raw) + 1)]
    for given, row in zip(raw, by_file[name], strict=True):
        assert row.refusal is None
        assert row.source_id == given["id"]
        expected = [message["content"] for turn in given["question"] for message in [*turn, {"content": None}]]
        assert [message.content for message in row.conversation.messages] == expected
        tools = json.loads(row.conversation.tools_json)
        assert [tool["type"] for tool in tools] == ["function"] * len(given["function"])
        assert [tool["function"]["name"] for tool in tools] == [tool["name"] for tool in given["function"]]
        for tool, function in zip(tools, given["function"], strict=True):
            types = json_types(tool["function"]["parameters"])
            assert set(types) <= {"object", "array", "number", "integer", "boolean", "string"}
            named = [kind for kind in json_types(function["parameters"]) if kind != "any"]
            assert len(types) == len(named)
            assert types.count("number") == named.count("float")
            assert types.count("object") == named.count("dict")
    (source,) = [source for source in summary.sources if source.name == name]
    assert (source.accepted, source.notes["tools_wrapped"], source.turns) == (len(raw), len(raw), len(raw))


def test_no_prompt_holds_a_printed_python_list(planned, toy):
    _, by_file = planned
    template = load_template(toy, False, {})
    for rows in by_file.values():
        for row in rows:
            if row.refusal is None:
                given = before_first_slot(row.conversation)
                printed = template.decode(template.render(template_messages(given), None, None)).count("[{'")
                assert printed == sum((message.content or "").count("[{'") for message in given)
