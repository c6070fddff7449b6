"""The Kimi recipe end to end in small: its ten sources, its profile, a tiny random model of the same architecture.

What a random model says is random words, so calls and thinking are proved beside it, over the same sources and the same
path, by answers that are scripted in Kimi's format and read by vLLM's own parsers.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from regen.errors import ExitCode
from regen.records import Status
from regen.run.commands.export import ExportOptions, export
from regen.run.local import LocalCluster
from regen.run.look import look
from regen.run.session import seal_run
from regen.spec import RunSpec, dump_spec, load_spec, parse_spec
from regen.store.local import LocalStorage
from tests import virtual_time
from tests.kimi_chat import (
    CALLS_BEGIN,
    END_ID,
    EOS_ID,
    IDS,
    THINK,
    TURN_END,
    call_text,
    calls_text,
    ids_of,
    write_kimi_chat,
)
from tests.processes import regen, regen_here
from tests.runs import begin_run, drive, shard_table
from tests.stand_ins import ROWS, TOOL, with_stand_ins
from tests.tiny_kimi import CONFIG, build_tiny_head, build_tiny_kimi

RECIPE = Path(__file__).resolve().parents[2] / "examples" / "kimi-k2.5-eagle3.yaml"
ROWS_EACH = 6
COMMAND_SECONDS = 900


def in_small(folder: Path, target: Path, draft: Path) -> dict[str, Any]:
    """The recipe over stand-ins; of the rest only what a machine without a GPU makes necessary is another."""
    raw = with_stand_ins(load_spec(RECIPE), folder / "data", target, draft, ROWS_EACH).model_dump(exclude_unset=True)
    raw["output"] = str(folder / "run")
    raw["sampling"]["max_tokens"] = 48
    raw["rows"]["max_prompt_tokens"] = 1024
    raw["checkpoint"]["interval_seconds"] = 1
    raw["metrics"] = {"port": None}
    return raw


@pytest.mark.engine
@pytest.mark.ray
def test_the_recipe_runs_on_a_tiny_model_of_the_same_architecture(tmp_path: Path) -> None:
    target, draft = build_tiny_kimi(tmp_path / "target"), build_tiny_head(tmp_path / "head")
    raw = in_small(tmp_path, target, draft)
    raw["engine"] |= {
        "slots": 16,
        "max_model_len": 2048,
        "gpus_per_replica": 0,
        "cpus_per_replica": 1,
        "args": {"enforce_eager": True, "kv_cache_memory_bytes": 2**28},
    }
    raw["speculation"] |= {"warmup": {"rows": 16, "max_tokens": 48, "canary_rows": 4}}
    run = tmp_path / "run"

    write(tmp_path, raw)
    checked = regen_here("preflight", "--json", "spec.yaml", cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    stopped = regen("run", "spec.yaml", cwd=tmp_path, timeout_seconds=COMMAND_SECONDS, more=cache(tmp_path))
    assert stopped.returncode == ExitCode.SPECULATION, stopped.stdout + stopped.stderr
    assert "accept length 1.00" in stopped.stderr
    assert made(run) == {Status.NATIVE: ROWS_EACH}

    # Who goes on with it makes the same rows, and every one of them says what it was worth.
    raw["speculation"] |= {"gate": "warn", "guard": "warn", "calibrate": "off"}
    write(tmp_path, raw)
    done = regen("run", "spec.yaml", cwd=tmp_path, timeout_seconds=COMMAND_SECONDS, more=cache(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert regen_here("verify", "run", cwd=tmp_path).returncode == 0
    rows = shard_table(run).to_pylist()
    assert len(rows) == sum(made(run).values()) == len(ROWS) * ROWS_EACH
    for row in rows:
        check_row(row, target)
    check_native(rows, target)
    check_acceptance(rows)
    check_thinking(rows)
    check_tools(rows)
    check_export(rows, run, tmp_path / "export")


def made(run: Path) -> dict[Status, int]:
    return {status: count for status, count in look(LocalStorage(run)).totals.by_status().items() if count}


def check_row(row: dict[str, Any], target: Path) -> None:
    """Whatever it said: ids are what was sampled, prompts what transformers renders, and no old answer is left."""
    assert row["status"] in {"ok", "native", "truncated", "partial", "degenerate"}
    assert row["source"] == "native" or "Old" not in json.dumps(row["messages"])
    assert row["generations"]
    check_prompts(row, target)
    for generation in row["generations"]:
        ids = generation["completion_token_ids"]
        if row["status"] != "native":
            assert 0 < len(ids) <= generation["cap"] == 48
            assert generation["finish_reason"] == ("stop" if ids[-1] in {END_ID, EOS_ID} else "length")
            assert json.loads(generation["sampling"])["temperature"] == (0.6 if row["source"] == "code" else 0.8)


def check_native(rows: list[dict[str, Any]], target: Path) -> None:
    """As they were given, and as the target's own template writes them."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(target))
    native = [row for row in rows if row["source"] == "native"]
    given = [ROWS["native"](number)["messages"] for number in range(ROWS_EACH)]
    assert [row["status"] for row in native] == ["native"] * ROWS_EACH
    messages = [[as_given(one) for one in row["messages"]] for row in native]
    assert sorted(messages, key=json.dumps) == sorted(given, key=json.dumps)
    for row, said in zip(native, messages, strict=True):
        (generation,) = row["generations"]
        whole = tokenizer.apply_chat_template(said, return_dict=True)["input_ids"]
        assert generation["prompt_token_ids"] + generation["completion_token_ids"] == whole
        assert row["observed"]["generations"] == []


def check_acceptance(rows: list[dict[str, Any]]) -> None:
    seen = [one for row in rows for one in row["observed"]["generations"]]
    drafts, accepted = (sum(one[name] for one in seen) for name in ("drafts", "accepted"))
    assert drafts > 500
    assert 1 + accepted / drafts < 1.05


def check_thinking(rows: list[dict[str, Any]]) -> None:
    """Some rows think, as the recipe has it; each prompt opens or closes it as the row's own kwargs say."""
    mixed = [row for row in rows if row["status"] != "native"]
    thinks = [json.loads(row["template_kwargs"])["thinking"] for row in mixed]
    assert 0.1 < sum(thinks) / len(thinks) < 0.5
    for row, is_on in zip(mixed, thinks, strict=True):
        for generation in row["generations"]:
            opening = ids_of(OPEN if is_on else SHUT)
            assert generation["prompt_token_ids"][-len(opening) :] == opening
            said = generation["completion_token_ids"]
            if is_on and not {IDS["</think>"], IDS[CALLS_BEGIN]} & set(said):
                assert generation["content"] == ""
                assert {"cut_in_thinking", "no_visible_answer", "empty_answer"} & set(generation["labels"])
            if not is_on and not {IDS[THINK], IDS["</think>"]} & set(said):
                assert generation["reasoning"] is None


def check_tools(rows: list[dict[str, Any]]) -> None:
    """Only rows of that source have tools, and their prompts begin with them."""
    declared = ids_of("<|im_system|>tool_declare<|im_middle|>" + json.dumps([TOOL], separators=(",", ":")) + TURN_END)
    for row in rows:
        has_tools = row["source"] == "tools"
        assert (row["tools"] is not None) == has_tools
        prompt = row["generations"][0]["prompt_token_ids"]
        assert (prompt[: len(declared)] == declared) == has_tools


def check_export(rows: list[dict[str, Any]], run: Path, out: Path) -> None:
    """What a trainer of heads reads: every id of every row that is asked for, and which of them the target sampled."""
    done = export(str(run), ExportOptions("speculators", str(out), frozenset({Status.TRUNCATED}), "all"), say=print)
    lines = [json.loads(line) for path in sorted(out.glob("*.jsonl")) for line in path.read_text().splitlines()]
    expected = {
        f"{row['row_id']}-{turn['turn']}": (turn["prompt_token_ids"], turn["completion_token_ids"])
        for row in rows
        for turn in row["generations"]
        if row["status"] in {"ok", "native", "truncated"}
    }
    assert done.tally.rows_seen == len(rows)
    assert {line["id"]: line["input_ids"] for line in lines} == {k: [*p, *c] for k, (p, c) in expected.items()}
    for line in lines:
        prompt, answer = expected[line["id"]]
        assert line["loss_mask"] == [0] * len(prompt) + [1] * len(answer)


def cache(folder: Path) -> dict[str, str]:
    return {"HF_DATASETS_CACHE": str(folder / "cache")}


def write(folder: Path, raw: dict[str, Any]) -> RunSpec:
    spec = parse_spec(raw, origin="test")
    (folder / "spec.yaml").write_text(dump_spec(spec), encoding="utf-8")
    return spec


# --- calls and thinking, by scripted answers -------------------------------------------------------

parsed = pytest.mark.skipif(find_spec("vllm") is None, reason="its parsers come with vLLM")
ASKED = "What is the weather in both towns?"
OPEN, SHUT = f"<|im_assistant|>assistant<|im_middle|>{THINK}", f"<|im_assistant|>assistant<|im_middle|>{THINK}</think>"


def recorded() -> dict[str, Any]:
    """A whole conversation with tools as another model had it: two calls and their results, words, one call more."""
    calls = [
        {
            "id": f"old_{n}",
            "type": "function",
            "function": {"name": "weather", "arguments": json.dumps({"place": place})},
        }
        for n, place in enumerate(("Ulm", "Bonn", "Jena"))
    ]
    return {
        "tools": [TOOL],
        "messages": [
            {"role": "user", "content": ASKED},
            {"role": "assistant", "content": None, "tool_calls": calls[:2]},
            {"role": "tool", "tool_call_id": "old_0", "content": "rain in Ulm"},
            {"role": "tool", "tool_call_id": "old_1", "content": "sun in Bonn"},
            {"role": "assistant", "content": "OLD ANSWER"},
            {"role": "user", "content": "And in Jena?"},
            {"role": "assistant", "content": None, "tool_calls": calls[2:]},
            {"role": "tool", "tool_call_id": "old_2", "content": "snow in Jena"},
            {"role": "assistant", "content": "OLD ANSWER"},
        ],
    }


def weather(number: int, place: str) -> str:
    return call_text("weather", number, {"place": place})


def script(answers: dict[str, str]) -> dict[str, Any]:
    """The fake engine that samples the first of these whose key stands in the prompt, in Kimi's ids."""
    said = [{"prompt_ids": ids_of(key), "ids": ids_of(text)} for key, text in answers.items()]
    return {"kind": "fake", "slots": 16, "max_model_len": 2048, "end_token_id": END_ID, "answers": said}


def scripted(
    folder: Path, answers: dict[str, str], reasoning: str = "on", max_tokens: int = 400
) -> list[dict[str, Any]]:
    """The finished rows of a run with Kimi's profile over one whole conversation with tools."""
    target = write_kimi_chat(folder / "target")
    (target / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    rows = folder / "rows.jsonl"
    rows.write_text(json.dumps(recorded()) + "\n", encoding="utf-8")
    raw = {
        "name": "kimi",
        "output": str(folder / "run"),
        # The fake engine has no format of its own, so what reads answers is named: these are the profile's own.
        "target": {
            "model": str(target),
            "reasoning": reasoning,
            "reasoning_parser": "kimi_k2",
            "tool_parser": "kimi_k2",
        },
        "engine": script(answers),
        "sampling": {"max_tokens": max_tokens},
        "sources": [{"name": "tools", "path": str(rows)}],
        "metrics": {"port": None},
    }
    begun = begin_run(parse_spec(raw, origin="test"))
    virtual_time.run(drive(LocalCluster(), begun))
    seal_run(begun.storage, begun.worker_setup.run)
    return shard_table(folder / "run").to_pylist()


FIRST = calls_text(weather(0, "Bonn"), weather(1, "Ulm"))
WHOLE = {
    "snow in Jena": "Cold.</think>It snows.",
    "And in Jena?": f"Look again.</think>{calls_text(weather(2, 'Jena'))}",
    "rain in Ulm": "So.</think>Rain, and sun.",
    ASKED: f"Two towns.</think>One moment.{FIRST}",
}


@parsed
def test_calls_get_their_results_under_kimis_own_ids_and_thinking_is_kept_apart(tmp_path: Path) -> None:
    (row,) = scripted(tmp_path, WHOLE)
    assert (row["status"], row["reason"]) == ("ok", None)
    assert "old_" not in json.dumps(row)
    assert "OLD" not in json.dumps(row)
    said = [one for one in row["messages"] if one["role"] == "assistant"]
    assert [(one["reasoning"], one["content"]) for one in said] == [
        ("Two towns.", "One moment."),
        ("So.", "Rain, and sun."),
        ("Look again.", ""),
        ("Cold.", "It snows."),
    ]
    calls = [call for one in said for call in json.loads(one["tool_calls"] or "[]")]
    assert [(call["id"], call["function"]["arguments"]) for call in calls] == [
        ("functions.weather:0", '{"place": "Bonn"}'),
        ("functions.weather:1", '{"place": "Ulm"}'),
        ("functions.weather:2", '{"place": "Jena"}'),
    ]
    results = [(one["tool_call_id"], one["content"]) for one in row["messages"] if one["role"] == "tool"]
    assert results == [
        ("functions.weather:0", "sun in Bonn"),
        ("functions.weather:1", "rain in Ulm"),
        ("functions.weather:2", "snow in Jena"),
    ]
    second = row["generations"][1]["prompt_token_ids"]
    history = f"{THINK}Two towns.</think>One moment.{FIRST}{TURN_END}"
    returned = "<|im_system|>weather<|im_middle|>## Return of functions.weather:0\nsun in Bonn" + TURN_END
    assert ids_of(history + returned) == second[second.index(IDS[THINK]) :][: len(ids_of(history + returned))]
    check_prompts(row, tmp_path / "target")


@parsed
def test_calls_right_out_of_a_thought_end_it(tmp_path: Path) -> None:
    """As vLLM reads Kimi's format: the section of calls closes what no tag has closed."""
    (row,) = scripted(tmp_path, {**WHOLE, ASKED: f"Two towns.{FIRST}"})
    assert row["status"] == "ok"
    first = row["messages"][1]
    assert (first["reasoning"], first["content"]) == ("Two towns.", "")
    assert [call["id"] for call in json.loads(first["tool_calls"])] == ["functions.weather:0", "functions.weather:1"]
    check_prompts(row, tmp_path / "target")


@parsed
def test_without_thinking_the_prompt_closes_it_and_answers_are_read_without(tmp_path: Path) -> None:
    answers = {key: text.partition("</think>")[2] for key, text in WHOLE.items()}
    (row,) = scripted(tmp_path, answers, reasoning="off")
    assert row["status"] == "ok"
    assert json.loads(row["template_kwargs"]) == {"thinking": False}
    for generation in row["generations"]:
        assert generation["prompt_token_ids"][-len(ids_of(SHUT)) :] == ids_of(SHUT)
        assert generation["reasoning"] is None
    assert row["messages"][1]["content"] == "One moment."
    check_prompts(row, tmp_path / "target")


@parsed
@pytest.mark.parametrize(
    ("answer", "label", "status"),
    [
        ("Two to", "cut_in_thinking", "truncated"),
        ("Two.</think>One mo", "cut_in_answer", "truncated"),
        ("Two.</think>" + FIRST[: FIRST.index("Bonn")], "cut_in_tool_call", "truncated"),
        ("Two.</think>" + CALLS_BEGIN, "cut_in_tool_call", "truncated"),
        ("Two.</think>" + FIRST[: FIRST.index("Bonn")], "unparsable_tool_call", "partial"),
    ],
)
def test_an_answer_that_ends_too_early_says_where(tmp_path: Path, answer: str, label: str, status: str) -> None:
    """The cap in the middle, or, in the last case, an end that the target itself has put there."""
    length = len(ids_of(answer))
    (row,) = scripted(tmp_path, {ASKED: answer}, max_tokens=length if status == "truncated" else 400)
    assert (row["status"], row["reason"]) == (status, label)
    assert row["generations"][0]["completion_token_ids"][:length] == ids_of(answer)
    assert row["generations"][0]["tool_calls"] is None
    assert "rain" not in json.dumps(row["messages"])


def check_prompts(row: dict[str, Any], target: Path) -> None:
    """Each prompt is what transformers alone renders of the messages before its answer."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(target))
    kwargs = json.loads(row["template_kwargs"] or "{}")
    at = [number for number, one in enumerate(row["messages"]) if one["role"] == "assistant"]
    whole = [as_given(one) for one in row["messages"]]
    for generation, end in zip(row["generations"], at, strict=False):
        rendered = tokenizer.apply_chat_template(
            whole[:end],
            tools=json.loads(row["tools"] or "null"),
            add_generation_prompt=True,
            return_dict=True,
            **kwargs,
        )
        assert rendered["input_ids"] == generation["prompt_token_ids"]


def as_given(message: dict[str, Any]) -> dict[str, Any]:
    """A stored message as users of transformers write it."""
    given = {"role": message["role"], "content": message["content"] or ""}
    if message["reasoning"] is not None:
        given["reasoning_content"] = message["reasoning"]
    if message["tool_calls"] is not None:
        given["tool_calls"] = json.loads(message["tool_calls"])
    return given | {key: message[key] for key in ("tool_call_id", "name") if message[key] is not None}
