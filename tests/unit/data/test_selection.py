"""Which rows are taken, how often, and on which side of the split; and what asks what a benchmark asks."""

import json
from typing import Any

import pytest

from regen.data.decontamination import Benchmark, contaminated
from regen.data.plan import open_plan
from regen.data.planning import build_plan
from regen.data.selection import LeftOut, copies, drawn, left_out
from regen.data.target import resolve_target
from regen.errors import SourceError
from regen.records import Conversation, Message, Role, Split
from regen.spec import ColumnRange, parse_spec
from tests.memory_storage import MemoryStorage
from tests.toy_target import build_toy_target


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return build_toy_target(tmp_path_factory.mktemp("toy"))


@pytest.fixture
def plan_of(toy, tmp_path):
    """Plan rows as one source, or several as {name: rows}; summary and rows."""

    def plan_of(rows, source=None, processes=1, /, **sections):
        named = rows if isinstance(rows, dict) else {"x": rows}
        sources = []
        for name, given in named.items():
            path = tmp_path / f"{name}.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in given))
            sources.append({"name": name, "path": str(path)} | (source or {}))
        raw: dict[str, Any] = {
            "name": "test",
            "output": "unused",
            "target": {"model": str(toy)},
            "engine": {"kind": "fake", "max_model_len": 4096},
            "sampling": {"max_tokens": 16},
            "sources": sources,
        }
        for name, section in sections.items():
            raw[name] = {**raw.get(name, {}), **section}
        spec = parse_spec(raw, "test")
        storage = MemoryStorage()
        summary = build_plan(spec, resolve_target(spec.target), storage, "s", processes)
        return summary, list(open_plan(storage).scan())

    return plan_of


def prompts(rows):
    return [row.conversation.messages[0].content for row in rows]


# --- filter --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ({"lang": "en"}, None),
        ({"lang": ["de", "en"]}, None),
        ({"lang": "de"}, LeftOut.FILTER),
        ({"meta.score": ColumnRange(min=4)}, None),
        ({"meta.score": ColumnRange(min=4, max=4.5)}, LeftOut.FILTER),
        ({"text": ColumnRange(min=7)}, None),
        ({"lang": ColumnRange(min=0)}, LeftOut.FILTER),
        ({"ok": True}, None),
        ({"ok": 1}, LeftOut.FILTER),
        ({"one": True}, LeftOut.FILTER),
        ({"one": 1.0}, None),
        ({"text": 7}, None),
        ({"gone": 1}, LeftOut.NO_SUCH_COLUMN),
        ({"lang": "en", "gone": 1}, LeftOut.NO_SUCH_COLUMN),
        ({"list": "a"}, LeftOut.FILTER),
    ],
)
def test_a_filter_takes_rows_by_their_columns(wanted, why):
    row = {"lang": "en", "meta": {"score": 5}, "ok": True, "one": 1, "text": "7", "list": ["a"]}
    assert left_out(row, wanted) is why


def test_filtered_rows_are_counted_and_come_before_the_limit(plan_of):
    rows = [{"prompt": f"{number}", "even": number % 2 == 0} for number in range(20)] + [{"prompt": "z"}]
    summary, planned = plan_of(rows, {"filter": {"even": True}, "limit": 5})
    assert prompts(planned) == ["0", "2", "4", "6", "8"]
    whole, _ = plan_of(rows, {"filter": {"even": True}})
    assert whole.sources[0].left_out == {"filter": 10, "filter_column_missing": 1}
    assert summary.sources[0].rows == 5


# --- weight --------------------------------------------------------------------------------------


def test_a_weight_takes_rows_more_than_once_each_with_an_id_of_its_own(plan_of):
    rows = [{"prompt": f"{number}"} for number in range(200)]
    summary, planned = plan_of(rows, {"weight": 2.5}, rows={"dedupe": True, "eval_share": 0.5})
    assert 450 < len(planned) < 550
    assert len({row.row_id for row in planned}) == len(planned)
    assert {prompts(planned).count(prompt) for prompt in prompts(planned)} == {2, 3}
    assert summary.refused == 0, "a copy is no duplicate"
    sides = {(row.conversation.messages[0].content, row.split) for row in planned}
    assert len(sides) == 200, "copies are on one side of the split"
    once, _ = plan_of(rows)
    assert once.sources[0].left_out == {}


def test_half_a_weight_takes_rows_by_their_content_and_counts_the_others(plan_of):
    rows = [{"prompt": f"{number}"} for number in range(200)]
    summary, planned = plan_of(rows, {"weight": 0.5})
    assert 70 < len(planned) < 130
    assert summary.sources[0].left_out == {"weight": 200 - len(planned)}
    again = plan_of([{"prompt": "new"}, *rows], {"weight": 0.5})[1]
    assert [row.row_id for row in again if row.conversation.messages[0].content != "new"] == [
        row.row_id for row in planned
    ]
    assert copies(b"k", 0, 3.0) == 3


# --- quota ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("processes", [1, 2])
def test_a_quota_takes_rows_up_to_so_many_prompt_tokens(plan_of, processes, monkeypatch):
    monkeypatch.setattr("regen.data.rendering._WORK_BEFORE_POOL", 0)
    rows = [{"prompt": "x" * 10}] * 300
    tokens = plan_of(rows[:1])[1][0].prompt_tokens
    summary, planned = plan_of(rows, {"prompt_token_quota": 7 * tokens + 3}, processes)
    assert len(planned) == 7
    (source,) = summary.sources
    assert (source.prompt_tokens, source.left_out) == (7 * tokens, {"prompt_token_quota": 293})


def test_rows_beyond_a_quota_are_no_ones_duplicates(plan_of):
    rows = [{"prompt": f"{number:03d}"} for number in range(100)]
    tokens = plan_of(rows[:1])[1][0].prompt_tokens
    summary, _ = plan_of({"a": rows, "b": rows}, {"prompt_token_quota": 3 * tokens}, rows={"dedupe": True})
    assert [source.accepted for source in summary.sources] == [3, 3]
    assert [source.rejected for source in summary.sources] == [{}, {"duplicate": 3}]


# --- split and mixes -----------------------------------------------------------------------------


def test_the_split_goes_by_what_is_asked_not_by_place_or_source(plan_of):
    rows = [{"prompt": f"row {number}"} for number in range(400)]
    summary, planned = plan_of({"a": rows, "b": rows[::-1]}, rows={"eval_share": 0.1})
    sides: dict[str, set[Split]] = {}
    for row in planned:
        sides.setdefault(row.conversation.messages[0].content, set()).add(row.split)
    assert all(len(side) == 1 for side in sides.values())
    share = sum(side == {Split.EVAL} for side in sides.values()) / 400
    assert 0.05 < share < 0.16
    assert summary.sources[0].eval_rows == summary.sources[1].eval_rows > 0
    assert {row.split for row in plan_of(rows)[1]} == {Split.TRAIN}
    assert {row.split for row in plan_of(rows, rows={"eval_share": 1})[1]} == {Split.EVAL}


def test_a_mix_of_template_kwargs_is_drawn_per_row_and_changes_no_id(plan_of):
    rows = [{"prompt": f"row {number}"} for number in range(200)]
    mix = [{"value": {"thinking": True}, "share": 0.75}, {"value": {"thinking": False}, "share": 0.25}]
    _, mixed = plan_of(rows, target={"template_kwargs_mix": mix})
    _, plain = plan_of(rows)
    assert [row.row_id for row in mixed] == [row.row_id for row in plain]
    values = [row.conversation.template_kwargs_json for row in mixed]
    assert set(values) == {'{"thinking": true}', '{"thinking": false}'}
    assert 130 < values.count('{"thinking": true}') < 170
    assert plain[0].conversation.template_kwargs_json is None


def test_a_point_beyond_the_sum_falls_into_the_last_part_that_has_a_share():
    assert [drawn([0.5, 0.5, 0.0], point) for point in (0.0, 0.4999, 0.5, 1.0)] == [0, 0, 1, 1]


def test_a_sources_own_sampling_is_in_its_rows(plan_of):
    _, planned = plan_of([{"prompt": "x"}], {"sampling": {"temperature": 0.25, "max_tokens": 8}})
    assert planned[0].conversation.sampling == {"temperature": 0.25, "max_tokens": 8}


# --- decontamination -----------------------------------------------------------------------------


def asking(*texts):
    return Conversation(tuple(Message(Role.USER, text) for text in texts))


def test_equal_turns_are_found_whatever_their_case_space_and_punctuation():
    benchmark = Benchmark("gsm8k", None)
    benchmark.add(asking("How many\n ducks, Janet?"), "x:1")
    assert contaminated([benchmark], asking("hi", "HOW MANY ducks -- janet")) == "asks what gsm8k asks at x:1"
    assert contaminated([benchmark], asking("How many ducks has Janet?")) is None
    assert contaminated([benchmark], asking("!?", "")) is None


def test_shared_runs_of_words_are_found_and_short_questions_are_compared_whole():
    benchmark = Benchmark("b", 5)
    benchmark.add(asking("a b c d e f g"), "x:1")
    benchmark.add(asking("one two"), "x:2")
    assert benchmark.like(asking("so: c D e F g, and more")) == "x:1"
    assert benchmark.like(asking("c d e f and g")) is None
    assert benchmark.like(asking("One, two!")) == "x:2"
    assert benchmark.like(asking("one two three")) is None


def test_rows_that_ask_what_a_benchmark_asks_are_rejected_and_counted(plan_of, tmp_path):
    bench = tmp_path / "bench.jsonl"
    bench.write_text('{"question": "What is 2+2?", "answer": "4"}\nbroken\n{"turns": ["Sing!"]}\n')
    rows = [{"prompt": "what is 2 + 2"}, {"prompt": "sing"}, {"prompt": "dance"}]
    summary, planned = plan_of(rows, rows={"decontaminate": [{"path": str(bench)}]})
    assert summary.sources[0].rejected == {"contaminated": 2}
    assert planned[1].refusal is not None
    assert planned[1].refusal.detail == f"asks what {bench} asks at {bench}:3"


def test_a_benchmark_without_a_question_is_an_error_and_not_silence(plan_of, tmp_path):
    bench = tmp_path / "bench.jsonl"
    bench.write_text('{"problem": "What is 2+2?"}\n')
    with pytest.raises(SourceError, match="no question can be read"):
        plan_of([{"prompt": "What is 2+2?"}], rows={"decontaminate": [{"path": str(bench)}]})
