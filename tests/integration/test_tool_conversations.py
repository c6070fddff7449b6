"""Conversations with tools and reasoning on one event loop: scripted answers, read by vLLM's own parsers."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from regen.errors import SpecError
from regen.run.local import LocalCluster
from regen.run.session import seal_run
from tests import virtual_time
from tests.runs import begin_run, drive, make_spec, shard_table
from tests.toy_target import build_toy_target

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="its parsers come with vLLM")

TEMPLATE = """\
{%- if tools -%}{{ '<|im_start|>system\n' + tools|tojson + '<|im_end|>\n' }}{%- endif -%}
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\n' + message.content }}
{%- for call in message.tool_calls or [] -%}
{{ '<tool_call>{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments|tojson + '}</tool_call>#'
   + call.id }}
{%- endfor -%}
{{ ('@' + message.tool_call_id if message.role == 'tool' else '') + '<|im_end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' + ('<think>\n' if enable_thinking else '') }}{%- endif -%}
"""
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


def ids(text: str) -> list[int]:
    """The toy tokenizer's ids of plain text: its bytes."""
    return list(text.encode())


def scripted(answers: dict[str, str]) -> dict[str, Any]:
    """The fake engine that answers with the first text whose key stands in the prompt."""
    return {"answers": [{"prompt_ids": ids(key), "ids": ids(text)} for key, text in answers.items()]}


def call(**arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': 'look', 'arguments': arguments})}\n</tool_call>"


def recorded(*calls: dict[str, Any], question: str = "ask") -> dict[str, Any]:
    """A row of two turns: recorded calls with the results `seen 0`, `seen 1`, ..., then an answer in words."""
    made = [
        {"id": f"old_{number}", "type": "function", "function": {"name": "look", "arguments": json.dumps(arguments)}}
        for number, arguments in enumerate(calls)
    ]
    results = [{"role": "tool", "tool_call_id": one["id"], "content": f"seen {n}"} for n, one in enumerate(made)]
    return {
        "tools": TOOLS,
        "messages": [
            {"role": "user", "content": question},
            {"role": "assistant", "content": None, "tool_calls": made},
            *results,
            {"role": "assistant", "content": "OLD ANSWER"},
        ],
    }


def made(folder: Path, rows: list[dict[str, Any]], answers: dict[str, str], **sections: Any) -> list[dict[str, Any]]:
    """The finished rows, in order."""
    target = build_toy_target(folder / "toy")
    (target / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    given = {
        "target": {"model": str(target), "tool_parser": "hermes", "reasoning_parser": "qwen3"},
        "engine": scripted(answers),
        "sampling": {"max_tokens": 400},
    }
    for name, section in given.items():
        sections[name] = {**section, **sections.get(name, {})}
    begun = begin_run(make_spec(folder, rows, **sections))
    virtual_time.run(drive(LocalCluster(), begun))
    seal_run(begun.storage, begun.worker_setup.run)
    return shard_table(Path(begun.worker_setup.run.run_url)).to_pylist()


def test_the_targets_own_calls_get_the_recorded_results_that_answer_them(tmp_path: Path) -> None:
    answers = {
        "seen": "It is so.",
        "ask": "<think>Two looks.</think>Wait." + call(x=2) + call(x=1),
    }
    (row,) = made(tmp_path, [recorded({"x": 1}, {"x": 2})], answers)
    assert (row["status"], row["reason"]) == ("ok", None)
    _, first, two, one, last = row["messages"]
    assert (first["content"], first["reasoning"]) == ("Wait.", "Two looks.")
    assert [made_call["id"] for made_call in json.loads(first["tool_calls"])] == ["call_0", "call_1"]
    assert [(m["role"], m["content"], m["tool_call_id"], m["name"]) for m in (two, one)] == [
        ("tool", "seen 1", "call_0", "look"),
        ("tool", "seen 0", "call_1", "look"),
    ]
    assert (last["role"], last["content"]) == ("assistant", "It is so.")
    prompt = bytes(token for token in row["generations"][1]["prompt_token_ids"] if 2 < token < 256).decode()
    assert '<tool_call>{"name": "look", "arguments": {"x": 2}}</tool_call>#call_0' in prompt
    assert prompt.index("seen 1@call_0") < prompt.index("seen 0@call_1")
    assert "OLD" not in json.dumps(row)
    assert "old_" not in json.dumps(row)
    assert json.loads(row["tools"]) == TOOLS


@pytest.mark.parametrize(
    ("answer", "reason", "kept"),
    [
        ("I know it already.", "no_tool_call", 2),
        (call(x=9), "tool_call_unmatched", 2),
        (call(x=1) + call(x=1), "tool_call_unmatched", 2),
        ('<tool_call>{"name": "look", "argu', "unparsable_tool_call", 1),
    ],
)
def test_where_results_do_not_match_the_conversation_ends_labelled(
    tmp_path: Path, answer: str, reason: str, kept: int
) -> None:
    (row,) = made(tmp_path, [recorded({"x": 1})], {"ask": answer})
    assert (row["status"], row["stage"], row["reason"]) == ("partial", "generate", reason)
    assert len(row["messages"]) == kept
    assert len(row["generations"]) == 1
    assert "seen" not in json.dumps(row["messages"])


def test_the_policy_says_what_matches(tmp_path: Path) -> None:
    answers = {"seen": "It is so.", "ask": call(x=9)}
    (row,) = made(tmp_path, [recorded({"x": 1})], answers, policies={"tool_results": "name"})
    assert row["status"] == "ok"
    assert [message["role"] for message in row["messages"]] == ["user", "assistant", "tool", "assistant"]


@pytest.mark.parametrize("parser", ["none", "hermes"])
def test_control_tokens_that_the_target_spells_out_get_into_no_prompt(tmp_path: Path, parser: str) -> None:
    target = {"tool_parser": parser, "reasoning_parser": "none"}
    spelled = "a<|im_<|im_end|>end|>b"  # once the inner one is dropped, the outer one is there
    answers = {"and now?": "Never asked.", "ask": spelled, "last": spelled}
    asked = {"messages": [{"role": "user", "content": "ask"}, *_then("and now?")]}
    row, single = made(tmp_path, [asked, {"prompt": "last"}], answers, target=target)
    assert (row["status"], row["reason"]) == ("partial", "control_tokens_in_answer")
    assert "<|im_end|>" in row["detail"]
    assert [message["role"] for message in row["messages"]] == ["user", "assistant"]
    assert len(row["generations"]) == 1
    assert single["status"] == "ok"


def test_a_call_that_nobody_answers_ends_the_conversation(tmp_path: Path) -> None:
    rows = [{"tools": TOOLS, "messages": [{"role": "user", "content": "ask"}, *_then("and now?")]}]
    (row,) = made(tmp_path, rows, {"and now?": "Never asked.", "ask": call(x=1)})
    assert (row["status"], row["reason"]) == ("partial", "tool_call_unmatched")
    assert len(row["generations"]) == 1


def test_a_conversation_may_end_in_a_call(tmp_path: Path) -> None:
    (row,) = made(tmp_path, [{"tools": TOOLS, "messages": [{"role": "user", "content": "ask"}]}], {"ask": call(x=1)})
    assert row["status"] == "ok"
    assert json.loads(row["generations"][0]["tool_calls"])[0]["function"] == {"name": "look", "arguments": '{"x": 1}'}


def test_earlier_turns_are_kept_and_bad_ones_stay_as_ids_only(tmp_path: Path) -> None:
    rows = [{"messages": [{"role": "user", "content": "ask"}, *_then("go on")]}]
    (row,) = made(tmp_path, rows, {"go on": "<think>only this</think>", "ask": "Good."})
    assert (row["status"], row["reason"]) == ("partial", "no_visible_answer")
    assert [message["content"] for message in row["messages"]] == ["ask", "Good.", "go on"]
    first, second = row["generations"]
    assert (first["labels"], second["labels"]) == ([], ["no_visible_answer"])
    assert (second["reasoning"], second["content"]) == ("only this", "")
    assert bytes(second["completion_token_ids"][:-1]) == b"<think>only this</think>"


@pytest.mark.parametrize(
    ("answer", "label"),
    [
        ("<think>I muse and muse", "cut_in_thinking"),
        ("Yes, and", "cut_in_answer"),
        (call(x=1)[:25], "cut_in_tool_call"),
    ],
)
def test_an_answer_that_is_cut_says_where(tmp_path: Path, answer: str, label: str) -> None:
    rows = [{"tools": TOOLS, "messages": [{"role": "user", "content": "ask"}]}]
    (row,) = made(tmp_path, rows, {"ask": answer}, sampling={"max_tokens": len(answer)})
    assert (row["status"], row["reason"], row["generations"][0]["labels"]) == ("truncated", label, [label])


def test_loops_are_degenerate_unless_they_were_asked_for(tmp_path: Path) -> None:
    rows = [{"prompt": "ask"}, {"prompt": "Write 0 three hundred times."}]
    answers = {"three hundred": "0 " * 300, "ask": "I'll use 460. " * 300}
    bad, fine = made(tmp_path, rows, answers, sampling={"max_tokens": 1000})
    assert (bad["status"], bad["reason"]) == ("degenerate", "loop")
    assert fine["status"] == "ok"


def test_reasoning_is_mixed_by_row_and_recorded_and_read_by_what_the_prompt_has_opened(tmp_path: Path) -> None:
    rows = [{"prompt": f"ask {number}"} for number in range(60)]
    target = {"profile": "qwen3", "reasoning": {"share": 0.5}}
    found = made(tmp_path, rows, {"<think>": "I think.</think>So.", "ask": "So."}, target=target)
    on = [row for row in found if json.loads(row["template_kwargs"])["enable_thinking"]]
    assert 15 < len(on) < 45
    for row in found:
        (generation,) = row["generations"]
        assert row["status"] == "ok"
        assert generation["content"] == "So."
        assert generation["reasoning"] == ("I think." if row in on else None)


def test_kimis_calls_are_named_as_it_names_them(tmp_path: Path) -> None:
    answers = {"seen": "It is so.", "ask": call(x=1)}
    (row,) = made(tmp_path, [recorded({"x": 1})], answers, target={"profile": "kimi-k2"})
    assert row["status"] == "ok"
    assert row["messages"][2]["tool_call_id"] == "functions.look:0"


def test_a_parser_that_does_not_exist_ends_the_run_at_once(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="vLLM has no parser 'hermez'"):
        made(tmp_path, [{"prompt": "ask"}], {"ask": "So."}, target={"tool_parser": "hermez"})


def _then(question: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": "OLD ANSWER"}, {"role": "user", "content": question}]
