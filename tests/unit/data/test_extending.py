"""A frozen plan and what its sources have gained since."""

from __future__ import annotations

import json

import pytest

from regen.data.extending import commit_extension, plan_extension
from regen.data.plan import open_plan, read_summary
from regen.data.plan_summary import PlanSummary, extension_key
from regen.data.planning import build_plan
from regen.data.target import resolve_target
from regen.errors import JournalDamaged
from regen.spec import parse_spec
from tests.memory_storage import MemoryStorage
from tests.toy_target import build_toy_target


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return build_toy_target(tmp_path_factory.mktemp("toy"))


def write(path, rows):
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(path)


def prompts(*texts):
    return [{"prompt": text} for text in texts]


class Run:
    """A plan in memory; each call plans or extends it with these sources."""

    def __init__(self, toy):
        self.toy = toy
        self.storage = MemoryStorage()
        self.sessions = 0

    def spec(self, sources, rows=None):
        return parse_spec(
            {
                "name": "test",
                "output": "unused",
                "target": {"model": str(self.toy)},
                "engine": {"kind": "fake", "max_model_len": 4096},
                "sampling": {"max_tokens": 16},
                "sources": list(sources),
                "rows": rows or {},
            },
            "test",
        )

    def plan(self, *sources, **settings):
        spec = self.spec(sources, **settings)
        build_plan(spec, resolve_target(spec.target), self.storage, "first", 1)
        return self.rows()

    def prepare(self, *sources, **settings):
        spec = self.spec(sources, **settings)
        self.sessions += 1
        plan = open_plan(self.storage)
        return plan_extension(spec, resolve_target(spec.target), self.storage, plan, f"more{self.sessions}", 1)

    def extend(self, *sources, **settings):
        """(the extension, the rows that came with it)."""
        before = open_plan(self.storage).count
        made = self.prepare(*sources, **settings)
        if made.summary is not None:
            assert commit_extension(self.storage, made.summary)
        return made, self.rows()[before:]

    def rows(self):
        return list(open_plan(self.storage).scan())


@pytest.fixture
def run(toy):
    return Run(toy)


def asked(rows):
    return [row.conversation.messages[0].content if row.conversation else None for row in rows]


def reasons(rows):
    return [row.refusal.reason if row.refusal else None for row in rows]


def test_rows_at_the_top_and_the_end_come_behind_what_is_planned(tmp_path, run):
    source = {"name": "x", "path": write(tmp_path / "x.jsonl", prompts("a", "b", "c"))}
    before = run.plan(source)
    write(tmp_path / "x.jsonl", prompts("top", "a", "b", "c", "end"))
    made, new = run.extend(source)
    assert run.rows()[:3] == before
    assert asked(new) == ["top", "end"]
    assert [row.ordinal for row in run.rows()] == [0, 1, 2, 3, 4]
    assert (made.added, made.known, made.gone) == ({"x": 2}, 3, 0)


def test_ids_are_those_that_one_plan_over_all_would_have_given(toy, tmp_path, run):
    rows = [*prompts("a", "b", "a"), "{torn", {"prompt": {"no": "text"}}]
    source = {"name": "x", "path": write(tmp_path / "x.jsonl", rows)}
    run.plan(source)
    rows = ["{torn", *prompts("a", "new"), *rows, "{torn"]
    write(tmp_path / "x.jsonl", rows)
    run.extend(source)
    whole = Run(toy).plan(source)
    assert {row.row_id for row in run.rows()} == {row.row_id for row in whole}
    assert len(run.rows()) == len(whole) == len(rows)


def test_extending_again_finds_nothing_and_writes_nothing(tmp_path, run):
    source = {"name": "x", "path": write(tmp_path / "x.jsonl", prompts("a"))}
    run.plan(source)
    write(tmp_path / "x.jsonl", prompts("a", "b"))
    run.extend(source)
    objects = dict(run.storage.objects)
    made, new = run.extend(source)
    assert (made.summary, made.added, made.known, new) == (None, {}, 2, [])
    assert run.storage.objects == objects


def test_new_rows_of_several_sources_are_interleaved_among_themselves(tmp_path, run):
    one = {"name": "one", "path": write(tmp_path / "one.jsonl", prompts("a"))}
    run.plan(one)
    write(tmp_path / "one.jsonl", prompts("a", "p", "q"))
    other = {"name": "two", "path": write(tmp_path / "two.jsonl", prompts("x", "y"))}
    made, new = run.extend(one, other)
    assert asked(new) == ["p", "x", "q", "y"]
    assert made.added == {"one": 2, "two": 2}
    assert open_plan(run.storage).sources == ("one", "two")


def test_a_larger_limit_takes_the_rows_behind_the_first(tmp_path, run):
    source = {"name": "x", "path": write(tmp_path / "x.jsonl", prompts(*"abcdef"))}
    run.plan({**source, "limit": 2})
    assert asked(run.extend({**source, "limit": 5})[1]) == ["c", "d", "e"]
    assert asked(run.extend(source)[1]) == ["f"]
    assert [stage.rows for stage in open_plan(run.storage).stages] == [2, 5, 6]


def test_rows_that_are_gone_stay_planned_and_are_counted(tmp_path, run):
    source = {"name": "x", "path": write(tmp_path / "x.jsonl", prompts("a", "b", "c"))}
    run.plan(source)
    write(tmp_path / "x.jsonl", prompts("c", "d"))
    made, new = run.extend(source)
    assert (made.known, made.gone, asked(new)) == (1, 2, ["d"])
    assert asked(run.rows()) == ["a", "b", "c", "d"]


def test_a_new_row_equal_to_a_planned_one_is_a_duplicate(tmp_path, run):
    settings = {"rows": {"dedupe": True}}
    source = {"name": "x", "path": write(tmp_path / "x.jsonl", prompts("a", "b", "b"))}
    assert reasons(run.plan(source, **settings)) == [None, None, "duplicate"]
    write(tmp_path / "x.jsonl", prompts("a", "a", "b", "b"))
    other = {"name": "y", "path": write(tmp_path / "y.jsonl", prompts("b", "c", "c"))}
    _, new = run.extend(source, other, **settings)
    found = sorted(zip(asked(new), reasons(new), strict=True), key=str)
    assert found == [("a", "duplicate"), ("b", "duplicate"), ("c", "duplicate"), ("c", None)]


def test_native_rows_and_token_rows_are_known_as_duplicates_too(tmp_path, run):
    settings = {"rows": {"dedupe": True}}
    answered = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
    native = {"name": "n", "mode": "native", "path": write(tmp_path / "n.jsonl", [answered])}
    tokens = [{"input_ids": [1, 2, 3, 4], "loss_mask": [0, 1, 0, 1]}, {"input_ids": [1, 2], "loss_mask": [0, 1]}]
    given = {"name": "t", "mode": "native", "format": "tokens", "path": write(tmp_path / "t.jsonl", tokens)}
    assert reasons(run.plan(native, given, **settings)) == [None, None, None]
    again = [
        {"name": "n2", "mode": "native", "path": native["path"]},
        {"name": "t2", "mode": "native", "format": "tokens", "path": given["path"]},
    ]
    _, new = run.extend(native, given, *again, **settings)
    assert reasons(new) == ["duplicate"] * 3


def test_what_is_left_of_a_token_quota_is_for_new_rows(tmp_path, run):
    source = {"name": "x", "path": write(tmp_path / "x.jsonl", prompts(*"abcd"))}
    tokens = run.plan({**source, "limit": 1})[0].prompt_tokens
    made, new = run.extend({**source, "prompt_token_quota": 3 * tokens})
    assert asked(new) == ["b", "c"]
    assert made.summary is not None
    [found] = made.summary.sources
    assert (found.rows, found.prompt_tokens, found.left_out) == (3, 3 * tokens, {"prompt_token_quota": 1})


def test_the_summary_adds_up_and_tells_the_files_as_they_are(tmp_path, run):
    source = {"name": "x", "path": write(tmp_path / "x.jsonl", [*prompts("a"), "{torn"])}
    run.plan(source)
    write(tmp_path / "x.jsonl", [*prompts("a", "b"), "{torn", "{torn too"])
    run.extend(source)
    summary = read_summary(run.storage)
    assert summary is not None
    [found] = summary.sources
    assert (found.rows, found.accepted, found.rejected, summary.refused) == (4, 2, {"bad_json": 2}, 2)
    assert found.files[0].size_bytes == (tmp_path / "x.jsonl").stat().st_size
    assert found.first_rejected["bad_json"].location.endswith(":2")
    assert PlanSummary.from_json(summary.to_json()) == summary
    assert summary.source_specs == (source,)


def test_the_split_is_that_of_the_question(tmp_path, run):
    settings = {"rows": {"eval_share": 0.5}}
    source = {"name": "x", "path": write(tmp_path / "x.jsonl", prompts(*map(str, range(20))))}
    first = run.plan(source, **settings)
    other = {"name": "y", "path": source["path"]}
    _, new = run.extend(source, other, **settings)
    sides = {row.conversation.messages[0].content: row.split for row in first}
    assert {row.conversation.messages[0].content: row.split for row in new} == sides
    assert len(set(sides.values())) == 2


def test_the_digest_depends_on_what_was_there_before(toy, tmp_path):
    digests = []
    for first in ("a", "b"):
        run = Run(toy)
        source = {"name": "x", "path": write(tmp_path / "x.jsonl", prompts(first))}
        run.plan(source)
        write(tmp_path / "x.jsonl", prompts(first, "new"))
        run.extend(source)
        digests.append(open_plan(run.storage).digest)
    assert digests[0] != digests[1]


def test_until_the_summary_is_there_nothing_is_extended(tmp_path, run):
    source = {"name": "x", "path": write(tmp_path / "x.jsonl", prompts("a"))}
    before = run.plan(source)
    write(tmp_path / "x.jsonl", prompts("a", "b"))
    killed = run.prepare(source)
    assert run.rows() == before
    other = run.prepare(source)
    assert commit_extension(run.storage, other.summary)
    assert commit_extension(run.storage, other.summary)  # its own write, whose answer was lost
    assert not commit_extension(run.storage, killed.summary)
    assert asked(run.rows()) == ["a", "b"]


def test_an_extension_whose_parts_are_gone_is_not_committed(tmp_path, run):
    source = {"name": "x", "path": write(tmp_path / "x.jsonl", prompts("a"))}
    run.plan(source)
    write(tmp_path / "x.jsonl", prompts("a", "b"))
    made = run.prepare(source)
    run.storage.delete(made.summary.parts[-1].key)
    with pytest.raises(JournalDamaged, match=r"part-00000\.parquet is missing"):
        commit_extension(run.storage, made.summary)
    assert len(run.rows()) == 1


@pytest.mark.parametrize("number", [1, 2])
def test_an_extension_that_is_missing_or_altered_is_named(tmp_path, run, number):
    source = {"name": "x", "path": write(tmp_path / "x.jsonl", prompts(*"abc"))}
    for limit in (1, 2, 3):
        (run.plan if limit == 1 else run.extend)({**source, "limit": limit})
    whole = run.storage.objects[extension_key(number)]
    run.storage.replace(extension_key(number), whole.replace(b'"rows": 1', b'"rows": 7'))
    with pytest.raises(JournalDamaged, match=r"does not continue plan"):
        read_summary(run.storage)
    if number == 1:
        run.storage.delete(extension_key(number))
        with pytest.raises(JournalDamaged, match=r"plan-0001\.json is missing"):
            read_summary(run.storage)
