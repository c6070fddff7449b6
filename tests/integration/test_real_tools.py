"""Tools on a real engine: whatever a small model says, the rows say honestly what it was."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from regen.data.template import load_template
from regen.run.commands.check import check
from regen.run.local import LocalCluster
from regen.run.session import seal_run
from regen.spec import RunSpec, parse_spec
from tests.runs import begin_run, drive, shard_table, write_jsonl

pytestmark = pytest.mark.engine

# SmolLM2's own template prints no tools. This one does, as Hermes and Qwen write them.
TEMPLATE = """\
{{- '<|im_start|>system\nYou call tools.\n' -}}
{%- if tools -%}
{{- 'Tools: ' + tools|tojson + '\nTo call one: <tool_call>{"name": "...", "arguments": {...}}</tool_call>\n' -}}
{%- endif -%}
{{- '<|im_end|>\n' -}}
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\n' + message.content -}}
{%- for call in message.tool_calls or [] -%}
{{- '<tool_call>{"name": "' + call.function.name + '", "arguments": ' -}}
{{- call.function.arguments|tojson + '}</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}
"""
ENDS = {None, "no_tool_call", "tool_call_unmatched", "unparsable_tool_call"}
LABELS = {
    "cut_in_answer",
    "cut_in_tool_call",
    "loop",
    "wall",
    "few_ids",
    "repetition",
    "empty_answer",
    "unbalanced_tags",
}


def bfcl(number: int) -> dict[str, Any]:
    """One of BFCL's shape: a question and functions, types written as Python's."""
    return {
        "id": f"simple_{number}",
        "question": [[{"role": "user", "content": f"What is the area of a triangle with base {number} and height 5?"}]],
        "function": [
            {
                "name": "triangle_area",
                "description": "Area of a triangle.",
                "parameters": {"type": "dict", "properties": {"base": {"type": "float"}, "height": {"type": "float"}}},
            }
        ],
    }


def recorded(number: int) -> dict[str, Any]:
    """A whole tool conversation, as another model had it."""
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": f'{{"day": {number}}}'}}
    return {
        "tools": [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}],
        "messages": [
            {"role": "user", "content": f"How is the weather on day {number}?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "RECORDED: rain"},
            {"role": "assistant", "content": "OLD ANSWER"},
            {"role": "user", "content": "And what do I wear?"},
            {"role": "assistant", "content": "OLD ANSWER"},
        ],
    }


@pytest.fixture
def target(tmp_path: Path, smollm2: Path) -> Path:
    """SmolLM2 with a template that knows tools; weights linked."""
    folder = tmp_path / "with-tools"
    folder.mkdir()
    for path in smollm2.iterdir():
        (folder / path.name).symlink_to(path)
    for name in ("chat_template.jinja", "tokenizer_config.json"):
        (folder / name).unlink(missing_ok=True)
    config = json.loads((smollm2 / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def spec_of(folder: Path, target: Path) -> RunSpec:
    raw = {
        "name": "tools",
        "output": str(folder / "run"),
        "target": {"model": str(target), "tool_parser": "hermes"},
        "engine": {
            "kind": "vllm",
            "slots": 8,
            "max_model_len": 1024,
            "args": {"enforce_eager": True, "kv_cache_memory_bytes": 2**28},
        },
        "sampling": {
            "max_tokens": 160,
            "temperature": 0.0,
            "repetition_detection": {"max_pattern_tokens": 40, "min_count": 4},
        },
        "sources": [{"name": "rows", "path": str(folder / "rows.jsonl")}],
        "checkpoint": {"interval_seconds": 1},
        "metrics": {"port": None},
    }
    return parse_spec(raw, origin="test")


def test_whatever_a_small_model_says_the_rows_are_honest(tmp_path: Path, target: Path) -> None:
    rows = [*(bfcl(number) for number in range(1, 9)), *(recorded(number) for number in range(1, 9))]
    write_jsonl(tmp_path / "rows.jsonl", rows)
    begun = begin_run(spec_of(tmp_path, target))
    asyncio.run(drive(LocalCluster(), begun))
    seal_run(begun.storage, begun.worker_setup.run)
    assert check(begun.storage).is_right
    finished = shard_table(tmp_path / "run").to_pylist()
    assert len(finished) == 16
    for row in finished:
        check_honest(row, target)


def check_honest(row: dict[str, Any], target: Path) -> None:
    template = load_template(target, False, {})
    assert "OLD ANSWER" not in json.dumps(row)
    assert row["status"] in {"ok", "partial", "truncated", "degenerate"}
    assert (row["status"] == "ok") == (row["reason"] is None)
    assert row["reason"] in ENDS | LABELS
    answers = [message for message in row["messages"] if message["role"] == "assistant"]
    for generation in row["generations"]:
        assert generation["text"] == template.decode(tuple(generation["completion_token_ids"]))
        assert (generation["finish_reason"] == "repetition") == ("repetition" in generation["labels"])
        assert (generation["finish_reason"] == "length") == any(x.startswith("cut_in") for x in generation["labels"])
        assert json.loads(generation["sampling"])["repetition_min_count"] == 4
        if generation["tool_calls"] is not None:
            assert "<tool_call>" in generation["text"]
    results = [message for message in row["messages"] if message["role"] == "tool"]
    called = {call["id"] for answer in answers for call in json.loads(answer["tool_calls"] or "[]")}
    assert {result["tool_call_id"] for result in results} <= called
    assert ("RECORDED" in template.decode(tuple(row["generations"][-1]["prompt_token_ids"]))) == bool(results)
