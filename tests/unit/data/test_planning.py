import io
import json
import random

import pytest

from regen.data import drafting
from regen.data.dry_render import UNEXPECTED, before_first_slot
from regen.data.normalize import normalize
from regen.data.plan import open_plan, read_summary
from regen.data.plan_summary import PlanSummary
from regen.data.planning import build_plan
from regen.data.target import resolve_target
from regen.errors import SourceError
from regen.records import Message, Role, Stage
from regen.spec import parse_spec
from tests.memory_storage import MemoryStorage
from tests.toy_target import build_toy_target


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return build_toy_target(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="module")
def target(toy):
    return resolve_target(spec_of(toy, [{"name": "x", "path": "x.jsonl"}]).target)


def spec_of(toy, sources, rows=None, max_model_len=4096):
    return parse_spec(
        {
            "name": "test",
            "output": "unused",
            "target": {"model": str(toy)},
            "engine": {"kind": "fake", "max_model_len": max_model_len},
            "sampling": {"max_tokens": 16},
            "sources": sources,
            "rows": rows or {},
        },
        "test",
    )


def write(path, rows):
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def plan_of(toy, target):
    """Plan these sources; the summary and the rows."""

    def plan_of(*sources, processes=1, storage=None, session="s", progress=None, **settings):
        storage = storage or MemoryStorage()
        summary = build_plan(spec_of(toy, list(sources), **settings), target, storage, session, processes, progress)
        return summary, list(open_plan(storage).scan())

    return plan_of


def reasons(rows):
    return [row.refusal.reason if row.refusal else None for row in rows]


def test_bad_rows_cost_themselves_and_nothing_else(tmp_path, plan_of):
    rows: list[dict[str, object]] = [{"prompt": f"row {number}"} for number in range(100)]
    rows[17] = {"prompt": "x" * 5000}
    rows[40] = {"messages": [{"role": "user", "content": "x"}, {"role": "system", "content": "late"}]}
    rows[63] = {"prompt": {"a": "dict"}}
    path = write(tmp_path / "x.jsonl", [*rows, "{torn", {"prompt": "\ud83d"}])
    summary, planned = plan_of({"name": "x", "path": path})
    refused = {row.location.rsplit(":", 1)[1]: row.refusal for row in planned if row.refusal}
    assert {line: (found.stage, found.reason) for line, found in refused.items()} == {
        "18": (Stage.LENGTH, "longer_than_context"),
        "41": (Stage.RENDER, "template_refused"),
        "64": (Stage.NORMALIZE, "wrong_type"),
        "101": (Stage.LOAD, "bad_json"),
        "102": (Stage.NORMALIZE, "unpaired_surrogate"),
    }
    [source] = summary.sources
    assert (source.rows, source.accepted, sum(source.rejected.values()), summary.refused) == (102, 97, 5, 5)
    assert planned[40].conversation is not None
    assert planned[17].prompt_tokens > 5000


def test_the_first_rejected_row_of_each_reason_can_be_found(tmp_path, plan_of):
    from rich.console import Console

    from regen.observe.tables import plan_table

    storage = MemoryStorage()
    path = write(tmp_path / "x.jsonl", [{"prompt": "a"}, "{torn", {"odd\x1b\nkey" * 99: 1}, "{torn too"])
    summary, _ = plan_of({"name": "x", "path": path}, storage=storage)
    assert read_summary(storage) == summary
    [source] = json.loads(summary.to_json())["sources"]
    assert sorted(source["first_rejected"]) == ["bad_json", "unknown_shape"]
    assert source["first_rejected"]["bad_json"]["location"] == f"{path}:2"
    assert len(source["first_rejected"]["unknown_shape"]["detail"]) == 300
    console = Console(width=1000, file=io.StringIO())
    console.print(plan_table(summary.sources, summary.digest))
    lines = [
        line.rstrip()
        for line in console.file.getvalue().splitlines()  # type: ignore[attr-defined]
        if "rejected: " in line
    ]
    detail = source["first_rejected"]["bad_json"]["detail"]
    assert lines[0] == f"x: rejected: bad_json 2, first: {path}:2 ({detail})"
    assert lines[1].startswith(f"x: rejected: unknown_shape 1, first: {path}:3 (no messages")
    assert "\x1b" not in lines[1]
    assert lines[1].endswith("...)")


def test_a_plan_without_examples_is_read(tmp_path, plan_of):
    path = write(tmp_path / "x.jsonl", ["{torn"])
    summary, _ = plan_of({"name": "x", "path": path})
    older = json.loads(summary.to_json())
    del older["sources"][0]["first_rejected"]
    assert PlanSummary.from_json(json.dumps(older).encode()).sources[0].rejected == {"bad_json": 1}


def test_prompt_tokens_are_those_of_the_first_prompt_only(tmp_path, plan_of):
    path = write(tmp_path / "x.jsonl", [{"turns": ["one", "much longer"]}, {"turns": ["three"]}])
    summary, rows = plan_of({"name": "x", "path": path})
    lengths = [len(f"?user\n{text}?\n?assistant\n") for text in ("one", "three")]
    assert [row.prompt_tokens for row in rows] == lengths
    [source] = summary.sources
    assert (source.prompt_tokens, source.longest_prompt_tokens, source.turns) == (sum(lengths), lengths[1], 3)
    assert source.most_turns == 2


def test_the_length_limits_are_exact(tmp_path, plan_of):
    path = write(tmp_path / "x.jsonl", [{"prompt": "x" * 50}])
    tokens = plan_of({"name": "x", "path": path})[1][0].prompt_tokens
    source = {"name": "x", "path": path}
    assert reasons(plan_of(source, max_model_len=tokens + 1)[1]) == [None]
    assert reasons(plan_of(source, max_model_len=tokens)[1]) == ["longer_than_context"]
    assert reasons(plan_of(source, rows={"max_prompt_tokens": tokens})[1]) == [None]
    assert reasons(plan_of(source, rows={"max_prompt_tokens": tokens - 1})[1]) == ["prompt_too_long"]


def test_content_as_parts_never_reaches_the_prompt_as_a_python_list(tmp_path, toy, plan_of):
    from regen.data.template import load_template
    from regen.data.template_messages import template_messages

    parts = [{"type": "text", "text": "hi"}, {"type": "text", "text": "there"}]
    image = [{"type": "text", "text": "hi"}, {"type": "image_url", "image_url": {"url": "x"}}]
    contents = [parts, image, ["bare", parts[0]], [], None]
    path = write(tmp_path / "x.jsonl", [{"messages": [{"role": "user", "content": content}]} for content in contents])
    _, rows = plan_of({"name": "x", "path": path})
    assert reasons(rows) == [None, "non_text_part", None, "empty_user_turn", "no_content"]
    template = load_template(toy, False, {})
    for row in rows:
        if row.refusal is None:
            messages = template_messages(before_first_slot(row.conversation))
            assert "[{'type'" not in template.decode(template.render(messages, None, None))


# --- identity and determinism --------------------------------------------------------------------


def test_a_row_at_the_top_changes_no_other_id(tmp_path, plan_of):
    rows = [{"prompt": f"row {number}"} for number in range(10)] + ["bad", {"prompt": "row 1"}, "bad"]
    source = {"name": "x", "path": write(tmp_path / "x.jsonl", rows)}
    before = [row.row_id for row in plan_of(source)[1]]
    write(tmp_path / "x.jsonl", [{"prompt": "new"}, *rows])
    assert [row.row_id for row in plan_of(source)[1]][1:] == before
    assert len(set(before)) == len(rows)


def test_equal_rows_are_distinct_and_one_id_may_be_used_twice(tmp_path, plan_of):
    rows = [
        {"prompt": "a"},
        {"prompt": "a"},
        {"id": 1, "prompt": "a"},
        {"id": 1, "prompt": "b"},
        {"id": "1", "prompt": "a"},
    ]
    _, planned = plan_of({"name": "x", "path": write(tmp_path / "x.jsonl", rows)})
    assert len({row.row_id for row in planned}) == 5
    assert [row.source_id for row in planned] == [None, None, "1", "1", "1"]
    assert reasons(planned) == [None] * 5


def test_formats_and_shapes_of_one_conversation_have_one_id(tmp_path, plan_of):
    import pyarrow as pa
    import pyarrow.parquet as pq

    messages = [{"role": "user", "content": "é"}, {"role": "assistant", "content": "OLD"}]
    pq.write_table(pa.Table.from_pylist([{"messages": messages}]), tmp_path / "x.parquet")
    (tmp_path / "x.json").write_text(json.dumps([{"prompt": "é"}]))
    (tmp_path / "x.csv").write_text("prompt\né\n")
    write(tmp_path / "x.jsonl", [{"turns": ["é"]}])
    ids = {
        plan_of({"name": "x", "path": str(tmp_path / f"x{ending}")})[1][0].row_id
        for ending in (".parquet", ".json", ".csv", ".jsonl")
    }
    assert len(ids) == 1


def test_the_plan_does_not_depend_on_session_or_processes(tmp_path, plan_of, monkeypatch):
    monkeypatch.setattr("regen.data.rendering._WORK_BEFORE_POOL", 0)
    rng = random.Random(1)
    rows = [{"prompt": "x" * rng.randrange(1, 300)} if rng.random() < 0.9 else "bad" for _ in range(300)]
    sources = [{"name": name, "path": write(tmp_path / f"{name}.jsonl", rows)} for name in ("a", "b")]
    alone, rows_alone = plan_of(*sources, session="one")
    many, rows_many = plan_of(*sources, processes=2, session="two")
    assert alone.digest == many.digest
    assert rows_alone == rows_many


def test_sources_are_interleaved_in_proportion(tmp_path, plan_of):
    big = write(tmp_path / "big.jsonl", [{"prompt": f"b{number}"} for number in range(90)])
    small = write(tmp_path / "small.jsonl", [{"prompt": f"s{number}"} for number in range(10)])
    _, rows = plan_of({"name": "big", "path": big}, {"name": "small", "path": small})
    assert [row.ordinal for row in rows] == list(range(100))
    for length in (10, 50, 90):
        assert abs(sum(row.source == "small" for row in rows[:length]) - length / 10) <= 1
    assert [row.location for row in rows if row.source == "small"] == [f"{small}:{line}" for line in range(1, 11)]


def test_duplicates_are_rejected_within_and_across_sources_when_asked(tmp_path, plan_of):
    one = {"name": "one", "path": write(tmp_path / "1.jsonl", [{"prompt": "a"}, {"id": 7, "prompt": "a"}])}
    two = {"name": "two", "path": write(tmp_path / "2.jsonl", [{"turns": ["a"]}, {"prompt": "b"}])}
    summary, _ = plan_of(one, two, rows={"dedupe": True})
    assert [source.rejected for source in summary.sources] == [{"duplicate": 1}, {"duplicate": 1}]
    assert plan_of(one, two)[0].refused == 0


# --- notes, system prompts, progress -------------------------------------------------------------


def test_what_was_changed_is_counted_by_source(tmp_path, plan_of):
    opening = {"conversations": [{"from": "gpt", "value": "hi"}, {"from": "human", "value": "x"}]}
    path = write(tmp_path / "x.jsonl", [opening, opening, {"prompt": "y"}])
    summary, rows = plan_of({"name": "x", "path": path, "system_prompt": "be good"})
    assert summary.sources[0].notes == {"leading_assistant_dropped": 2, "spec_system_prompt_used": 3}
    assert rows[0].conversation is not None
    assert rows[0].conversation.messages[0] == Message(Role.SYSTEM, "be good")


def test_progress_ends_at_the_number_of_rows(tmp_path, plan_of):
    seen: list[tuple[str, int]] = []
    path = write(tmp_path / "x.jsonl", [{"prompt": "a"}] * 150)
    plan_of({"name": "x", "path": path}, progress=lambda source, rows: seen.append((source, rows)))
    assert seen == [("x", 64), ("x", 128), ("x", 150)]


def test_an_empty_source_is_a_source_without_rows(tmp_path, plan_of):
    full = write(tmp_path / "full.jsonl", [{"prompt": "a"}])
    (tmp_path / "empty.jsonl").write_text("")
    summary, rows = plan_of({"name": "e", "path": str(tmp_path / "empty.jsonl")}, {"name": "f", "path": full})
    assert [source.rows for source in summary.sources] == [0, 1]
    assert [row.source for row in rows] == ["f"]


# --- never a crash -------------------------------------------------------------------------------


def test_an_unforeseen_error_in_normalising_costs_the_row(tmp_path, plan_of, monkeypatch):
    def failing(value, rules):
        if value == {"prompt": "bug"}:
            raise ZeroDivisionError("secret")
        return normalize(value, rules)

    monkeypatch.setattr(drafting, "normalize", failing)
    path = write(tmp_path / "x.jsonl", [{"prompt": "a"}, {"prompt": "bug"}])
    summary, rows = plan_of({"name": "x", "path": path})
    assert rows[1].refusal is not None
    assert (rows[1].refusal.reason, rows[1].refusal.detail) == (UNEXPECTED, "ZeroDivisionError")
    assert summary.sources[0].rejected == {UNEXPECTED: 1}


def test_an_unforeseen_error_in_rendering_costs_the_row(tmp_path, plan_of, monkeypatch):
    from regen.data.template import TokenizerTemplate

    real = TokenizerTemplate.render

    def render(self, messages, tools_json, kwargs_json):
        if messages[0]["content"] == "bug":
            raise ZeroDivisionError("secret")
        return real(self, messages, tools_json, kwargs_json)

    monkeypatch.setattr(TokenizerTemplate, "render", render)
    path = write(tmp_path / "x.jsonl", [{"prompt": "a"}, {"prompt": "bug"}])
    assert reasons(plan_of({"name": "x", "path": path})[1]) == [None, UNEXPECTED]


@pytest.mark.parametrize(
    "row",
    [
        '{"\\ud83d": 1}',
        '{"id": "\\ud83d", "prompt": "x"}',
        '{"id": ' + "[" * 900 + "]" * 900 + ', "prompt": "x"}',
        '{"messages": [{"role": "\\ud83d", "content": "x"}]}',
        '{"order": 1180591620717411303424, "prompt": "x", "id": NaN}',
        '{"tools": ' + "[" * 900 + "]" * 900 + ', "prompt": "x"}',
        '{"prompt": "' + "\\u0000" * 10 + '"}',
        "\x00\x01",
    ],
)
def test_hostile_rows_are_planned_one_way_or_the_other(tmp_path, plan_of, row):
    path = write(tmp_path / "x.jsonl", [{"prompt": "before"}, row, {"prompt": "after"}])
    _, rows = plan_of({"name": "x", "path": path})
    assert len(rows) == 3
    assert reasons(rows)[::2] == [None, None]
    assert all(len(found.refusal.detail) <= 500 for found in rows if found.refusal)


def test_a_hostile_file_name_is_a_location_too(tmp_path, plan_of):
    import os

    name = os.fsencode(str(tmp_path)) + b"/\xff.jsonl"
    with open(name, "w") as stream:
        stream.write('{"prompt": "x"}\n')
    _, rows = plan_of({"name": "x", "path": str(tmp_path / "*.jsonl")})
    assert reasons(rows) == [None]


# --- commit --------------------------------------------------------------------------------------


def test_the_first_plan_counts_and_the_second_starter_uses_it(tmp_path, plan_of):
    storage = MemoryStorage()
    path = write(tmp_path / "x.jsonl", [{"prompt": "a"}])
    first, _ = plan_of({"name": "x", "path": path}, storage=storage, session="first")
    write(tmp_path / "x.jsonl", [{"prompt": "b"}])
    assert plan_of({"name": "x", "path": path}, storage=storage, session="second")[0] == first
    assert sorted(storage.objects) == ["plan.json", "plan/first/part-00000.parquet"]


def test_a_starter_that_loses_at_the_last_moment_deletes_nothing(tmp_path, plan_of):
    winner = MemoryStorage()
    path = write(tmp_path / "x.jsonl", [{"prompt": "a"}])
    first, _ = plan_of({"name": "x", "path": path}, storage=winner, session="first")

    class Late(MemoryStorage):
        def create(self, key, data):
            self.objects.update(winner.objects)
            return super().create(key, data)

    late = Late()
    assert plan_of({"name": "x", "path": path}, storage=late, session="second")[0] == first
    assert sorted(late.objects) == ["plan.json", "plan/first/part-00000.parquet", "plan/second/part-00000.parquet"]


def test_nothing_is_committed_when_a_source_is_missing(tmp_path, plan_of):
    storage = MemoryStorage()
    path = write(tmp_path / "x.jsonl", [{"prompt": "a"}])
    missing = {"name": "y", "path": str(tmp_path / "gone.jsonl")}
    with pytest.raises(SourceError, match=r"'y'.*gone\.jsonl"):
        plan_of({"name": "x", "path": path}, missing, storage=storage)
    assert "plan.json" not in storage.objects
