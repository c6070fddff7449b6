"""Rows of every kind (native, with tools, with reasoning, of both splits) over the fake engine, in every export."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from regen.records import Status
from regen.run.commands.check import check
from regen.run.commands.export import Exported, ExportOptions, export
from regen.run.local import LocalCluster
from regen.run.look import look
from regen.run.session import seal_run
from regen.spec import RowsSpec
from regen.store.export.formats import FORMATS
from regen.store.local import LocalStorage
from tests import virtual_time
from tests.runs import begin_run, drive, make_spec, shard_table, write_jsonl
from tests.toy_target import END_ID, START_ID, build_toy_target

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="its parsers come with vLLM")

ARGUMENTS = "call.function.arguments if call.function.arguments is string else call.function.arguments|tojson"
TEMPLATE = """\
{%- if tools -%}{{ '<|im_start|>system\n' + tools|tojson + '<|im_end|>\n' }}{%- endif -%}
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\n' }}
{%- if message.reasoning_content -%}{{ '<think>' + message.reasoning_content + '</think>' }}{%- endif -%}
{{ message.content }}
{%- for call in message.tool_calls or [] -%}
{{ '<tool_call>{"name": "' + call.function.name + '", "arguments": ' + (ARGUMENTS) + '}</tool_call>' }}
{%- endfor -%}
{{ '<|im_end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}
"""
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
CALL = '<tool_call>{"name": "look", "arguments": {"x": 1}}</tool_call>'
ANSWERS = {"seen": "It is so.", "think": f"<think>Hm.</think>{CALL}", "ask": CALL, "no": "I know it."}
MASKED = {"input_ids": [START_ID, 97, 98, END_ID, 99, 100, END_ID], "loss_mask": [0, 0, 1, 1, 0, 1, 1]}
TEXT_FORMATS = ["automodel", "messages", "sharegpt", "specforge"]
ID_FORMATS = ["speculators", "specforge-ids"]


def test_all_formats_are_looked_at() -> None:
    assert sorted((*TEXT_FORMATS, *ID_FORMATS)) == sorted(FORMATS)


def with_call(question: str) -> dict[str, Any]:
    """A call of `look`, its recorded result, and an answer."""
    made = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"x": 1}'}}
    return {
        "tools": TOOLS,
        "messages": [
            {"role": "user", "content": question},
            {"role": "assistant", "content": None, "tool_calls": [made]},
            {"role": "tool", "tool_call_id": "c1", "name": "look", "content": "seen"},
            {"role": "assistant", "content": "It was so."},
        ],
    }


def made(folder: Path, template: str) -> Path:
    """A finished run with half of its rows for eval: 4 native ones, 12 with a call, 1 whose target did not call."""
    target = build_toy_target(folder / "toy")
    (target / "chat_template.jinja").write_text(template, encoding="utf-8")
    own: list[dict[str, Any]] = [
        {"messages": [{"role": "user", "content": "one"}, {"role": "assistant", "content": "the target's own"}]},
        MASKED,
        with_call("a call of its own"),
        {"messages": [{"role": "user", "content": "never answered"}]},
    ]
    asked = [with_call(f"{'think' if number % 3 == 0 else 'ask'} {number}") for number in range(12)]
    asked.append(with_call("no"))
    scripts = [{"prompt_ids": list(key.encode()), "ids": list(text.encode())} for key, text in ANSWERS.items()]
    spec = make_spec(
        folder,
        rows=[],
        target={"model": str(target), "tool_parser": "hermes", "reasoning_parser": "qwen3"},
        engine={"answers": scripts},
        sampling={"max_tokens": 400},
        sources=[
            {"name": "own", "path": str(write_jsonl(folder / "own.jsonl", own)), "mode": "native"},
            {"name": "asked", "path": str(write_jsonl(folder / "asked.jsonl", asked))},
        ],
    )
    begun = begin_run(spec.model_copy(update={"rows": RowsSpec(eval_share=0.5)}))
    virtual_time.run(drive(LocalCluster(), begun))
    seal_run(begun.storage, begun.worker_setup.run)
    return folder / "run"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("rows"), TEMPLATE.replace("ARGUMENTS", ARGUMENTS))


def exported(run: Path, out: Path, format_: str, **options: Any) -> Exported:
    given = {"split": "all", "allow_extra_loss": True, **options}
    return export(str(run), ExportOptions(format_, str(out), **given), say=lambda text: None)


def records(out: Path, split: str) -> dict[str, dict[str, Any]]:
    """By id; of messages in Parquet, too."""
    lines = [json.loads(line) for path in out.glob(f"{split}-*.jsonl") for line in path.read_text().splitlines()]
    for path in out.glob(f"{split}-*.parquet"):
        lines += pq.read_table(path).to_pylist()
    return {line["id"]: line for line in lines}


def rows(run: Path, *statuses: str) -> dict[str, dict[str, Any]]:
    return {row["row_id"]: row for row in shard_table(run).to_pylist() if row["status"] in statuses}


def question(row: dict[str, Any]) -> str:
    return str(row["messages"][0]["content"]) if row["messages"] else ""


def masked(row: dict[str, Any]) -> list[tuple[list[int], list[int]]]:
    """What every generation of a row must be as ids and mask."""
    return [
        (
            turn["prompt_token_ids"] + turn["completion_token_ids"],
            [0] * len(turn["prompt_token_ids"]) + (turn["loss_mask"] or [1] * len(turn["completion_token_ids"])),
        )
        for turn in row["generations"]
    ]


def test_the_run_holds_what_is_looked_for(run: Path) -> None:
    assert {row["split"] for row in rows(run, "ok").values()} == {"train", "eval"}
    assert {row["split"] for row in rows(run, "native").values()} == {"train", "eval"}
    assert [len(rows(run, status)) for status in ("ok", "native", "partial", "rejected")] == [12, 3, 1, 1]
    assert {len(row["generations"]) for row in rows(run, "ok").values()} == {2}


def test_the_run_is_right_and_native_rows_are_not_counted_as_made(run: Path) -> None:
    found = check(LocalStorage(run))
    assert found.is_right, found.summary()
    totals = look(LocalStorage(run)).totals
    assert (totals.by_status()[Status.NATIVE], totals.by_status()[Status.PARTIAL]) == (3, 1)
    assert totals.generations == 25, "what passes through was not made here"


@pytest.mark.parametrize("format_", ID_FORMATS)
def test_ids_of_native_rows_and_tool_turns_are_exact(run: Path, tmp_path: Path, format_: str) -> None:
    done = exported(run, tmp_path / "out", format_)
    expected = rows(run, "ok", "native")
    assert done.tally.rows_kept == len(expected)
    for split in ("train", "eval"):
        wanted = {
            f"{name}-{turn['turn']}": content
            for name, row in expected.items()
            if row["split"] == split
            for turn, content in zip(row["generations"], masked(row), strict=True)
        }
        found = records(tmp_path / "out", split)
        assert {name: (line["input_ids"], line["loss_mask"]) for name, line in found.items()} == wanted
    every = {**records(tmp_path / "out", "train"), **records(tmp_path / "out", "eval")}
    assert [line["loss_mask"] for line in every.values() if line["input_ids"] == MASKED["input_ids"]] == [
        MASKED["loss_mask"]
    ]


@pytest.mark.parametrize("format_", TEXT_FORMATS)
def test_as_text_all_is_kept_but_what_the_format_has_no_place_for(run: Path, tmp_path: Path, format_: str) -> None:
    done = exported(run, tmp_path / "out", format_)
    reasons = {
        "partial: no_tool_call": 1,
        "rejected: no_answer": 1,
        "a loss mask of its own, which text cannot carry": 1,
        **({"reasoning has no place in this format": 4} if format_ == "sharegpt" else {}),
    }
    assert dict(done.tally.reasons()) == reasons
    expected = {
        name: row
        for name, row in rows(run, "ok", "native").items()
        if row["messages"] and not (format_ == "sharegpt" and question(row).startswith("think"))
    }
    for split in ("train", "eval"):
        assert records(tmp_path / "out", split).keys() == {
            name for name, row in expected.items() if row["split"] == split
        }


def test_messages_hold_calls_results_and_reasoning(run: Path, tmp_path: Path) -> None:
    exported(run, tmp_path / "out", "messages")
    found = {**records(tmp_path / "out", "train"), **records(tmp_path / "out", "eval")}
    kept = rows(run, "ok", "native")
    by_question = {question(kept[name]): line for name, line in found.items()}
    call = {"id": "call_0", "type": "function", "function": {"name": "look", "arguments": '{"x": 1}'}}
    assert by_question["think 0"]["messages"] == [
        {"role": "user", "content": "think 0"},
        {"role": "assistant", "content": "", "reasoning_content": "Hm.", "tool_calls": [call]},
        {"role": "tool", "content": "seen", "tool_call_id": "call_0", "name": "look"},
        {"role": "assistant", "content": "It is so."},
    ]
    native = by_question["a call of its own"]["messages"]
    assert [message["content"] for message in native] == ["a call of its own", "", "seen", "It was so."]
    assert (native[1]["tool_calls"][0]["id"], native[2]["tool_call_id"]) == ("c1", "c1")
    assert json.loads(by_question["ask 1"]["tools"]) == TOOLS


def test_every_column_of_the_other_formats_has_its_value(run: Path, tmp_path: Path) -> None:
    for format_ in ("automodel", "sharegpt", "specforge"):
        exported(run, tmp_path / format_, format_)
    (name,) = (name for name, row in rows(run, "ok").items() if question(row) == "ask 1")
    split = rows(run, "ok")[name]["split"]
    automodel, sharegpt, specforge = (
        records(tmp_path / format_, split)[name] for format_ in ("automodel", "sharegpt", "specforge")
    )
    call = {"id": "call_0", "type": "function", "function": {"name": "look", "arguments": '{"x": 1}'}}
    _, asks, result, _ = automodel["messages"]
    assert (asks["tool_calls"], result["tool_call_id"], result["name"]) == ([call], "call_0", "look")
    assert sharegpt["conversations"][1:3] == [
        {"from": "function_call", "value": '{"name": "look", "arguments": {"x": 1}}'},
        {"from": "observation", "value": "seen"},
    ]
    _, asks, result, _ = specforge["conversations"]
    assert (json.loads(asks["tool_calls"]), result["tool_call_id"], result["name"]) == ([call], "call_0", "look")
    assert {json.dumps(json.loads(line["tools"])) for line in (automodel, sharegpt, specforge)} == {json.dumps(TOOLS)}


@pytest.mark.parametrize("format_", sorted(FORMATS))
def test_one_split_alone_holds_that_split_and_counts_the_other(run: Path, tmp_path: Path, format_: str) -> None:
    done = exported(run, tmp_path / "out", format_, split="eval")
    assert set(done.tally.records) == {"eval"}
    of_train = sum(row["split"] == "train" for row in shard_table(run).to_pylist())
    assert done.tally.reasons()["of the split train"] == of_train


@pytest.mark.parametrize("format_", sorted(FORMATS))
def test_without_shards_the_files_are_the_same(run: Path, tmp_path: Path, format_: str) -> None:
    """What the plan has settled comes from the plan, the rest from the journal."""
    unsealed = shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(unsealed / "shards")
    for name, folder in (("sealed", run), ("unsealed", unsealed)):
        exported(folder, tmp_path / name, format_)
    made = sorted((tmp_path / "sealed").glob("*-0*"))
    assert len(made) == 2
    for path in made:
        assert path.read_bytes() == (tmp_path / "unsealed" / path.name).read_bytes()


@pytest.mark.parametrize("format_", ["speculators", "messages"])
def test_the_good_turn_of_a_row_whose_target_did_not_call(run: Path, tmp_path: Path, format_: str) -> None:
    exported(run, tmp_path / "out", format_, statuses=frozenset({Status.PARTIAL}))
    ((name, row),) = rows(run, "partial").items()
    found = records(tmp_path / "out", row["split"])
    if format_ == "messages":
        assert [message["content"] for message in found[name]["messages"]] == ["no", "I know it."]
    else:
        (content,) = masked(row)
        assert (found[f"{name}-0"]["input_ids"], found[f"{name}-0"]["loss_mask"]) == content


def test_a_reader_that_hands_over_arguments_as_text_needs_a_template_that_takes_text(tmp_path: Path) -> None:
    """This one writes text as a quoted string: AutoModel's reader would train on another call than was sampled."""
    run = made(tmp_path, TEMPLATE.replace("ARGUMENTS", "call.function.arguments|tojson"))
    as_text = exported(run, tmp_path / "automodel", "automodel")
    assert (as_text.tally.rows_kept, as_text.tally.reasons()["retokenises_differently"]) == (1, 13)
    assert exported(run, tmp_path / "messages", "messages").tally.rows_kept == 14
    assert exported(run, tmp_path / "ids", "speculators").tally.rows_kept == 15


def test_ids_of_calls_that_a_template_writes_have_no_place_in_sharegpt(tmp_path: Path) -> None:
    template = TEMPLATE.replace("ARGUMENTS", ARGUMENTS).replace(
        "{{ message.content }}", "{{ ('@' + message.tool_call_id if message.tool_call_id else '') + message.content }}"
    )
    run = made(tmp_path, template)
    assert exported(run, tmp_path / "messages", "messages").tally.rows_kept == 14
    assert exported(run, tmp_path / "sharegpt", "sharegpt").tally.rows_kept == 1
