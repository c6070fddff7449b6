import json

import pytest

from regen.data.changes import changed_files, plan_changes
from regen.data.plan import open_plan
from regen.data.planning import build_plan
from regen.data.target import resolve_target
from regen.spec import parse_spec
from tests.memory_storage import MemoryStorage
from tests.toy_target import build_toy_target


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return build_toy_target(tmp_path_factory.mktemp("toy"))


@pytest.fixture
def spec(toy, tmp_path):
    return parse_spec(
        {
            "name": "test",
            "output": "unused",
            "target": {"model": str(toy)},
            "engine": {"kind": "fake"},
            "sampling": {"max_tokens": 16},
            "sources": [{"name": "x", "path": str(tmp_path / "*.jsonl")}],
        },
        "test",
    )


@pytest.fixture
def planned(spec):
    target = resolve_target(spec.target)

    def planned():
        storage = MemoryStorage()
        summary = build_plan(spec, target, storage, "s", 1)
        return summary, open_plan(storage)

    return planned


def write(path, values):
    path.write_text("".join(json.dumps(value) + "\n" for value in values))


def test_nothing_changed(tmp_path, spec, planned):
    write(tmp_path / "a.jsonl", [{"prompt": "a"}])
    summary, plan = planned()
    assert changed_files(summary, spec) == []
    assert not plan_changes(plan, planned()[1])


def test_files_that_grew_were_edited_came_and_went_are_named(tmp_path, spec, planned):
    for name in "abcd":
        write(tmp_path / f"{name}.jsonl", [{"prompt": name}])
    summary, _ = planned()
    write(tmp_path / "a.jsonl", [{"prompt": "a"}, {"prompt": "more"}])
    write(tmp_path / "b.jsonl", [{"prompt": "x"}])
    (tmp_path / "c.jsonl").rename(tmp_path / "e.jsonl")
    found = {
        (change.path[-7:], change.what.split()[0] + " " + change.what.split()[1])
        for change in changed_files(summary, spec)
    }
    size = (tmp_path / "a.jsonl").stat().st_size
    assert found == {
        ("a.jsonl", f"has {size}"),
        ("b.jsonl", "has the"),
        ("c.jsonl", "is gone"),
        ("e.jsonl", "is new"),
    }


def test_a_source_that_is_gone_is_reported_not_raised(tmp_path, spec, planned):
    write(tmp_path / "a.jsonl", [{"prompt": "a"}])
    summary, _ = planned()
    (tmp_path / "a.jsonl").unlink()
    [change] = changed_files(summary, spec)
    assert (change.source, "cannot be found now" in change.what) == ("x", True)


def test_changed_input_is_a_diff_of_row_ids(tmp_path, spec, planned):
    rows: list[dict[str, object]] = [{"prompt": f"row {number}"} for number in range(10)]
    write(tmp_path / "a.jsonl", rows)
    _, plan = planned()
    write(tmp_path / "a.jsonl", [{"prompt": "at the top"}, *rows[:7], *rows[8:], {"prompt": 123}])
    changes = plan_changes(plan, planned()[1])
    assert changes
    assert (changes.added.count, changes.removed.count) == (1, 1)
    assert (changes.newly_invalid.count, changes.newly_valid.count) == (1, 0)
    assert changes.added.examples[0][1] == f"{tmp_path}/a.jsonl:1"
    assert changes.removed.examples[0][1] == f"{tmp_path}/a.jsonl:8"
    assert changes.newly_invalid.examples[0][1] == f"{tmp_path}/a.jsonl:11"


def test_a_row_that_a_stricter_template_refuses_is_newly_invalid(tmp_path, spec, planned, toy, monkeypatch):
    late = {"messages": [{"role": "user", "content": "x"}, {"role": "system", "content": "y"}]}
    write(tmp_path / "a.jsonl", [late, {"prompt": "a"}])
    template = toy / "chat_template.jinja"
    strict = template.read_text()
    _, strict_plan = planned()
    template.write_text(strict.replace("and not loop.first", "and false"))
    try:
        _, lenient_plan = planned()
    finally:
        template.write_text(strict)
    stricter, laxer = plan_changes(lenient_plan, strict_plan), plan_changes(strict_plan, lenient_plan)
    assert (stricter.newly_invalid.count, stricter.added.count, stricter.removed.count) == (1, 0, 0)
    assert (laxer.newly_valid.count, laxer.added.count) == (1, 0)
