"""Sources through the Hugging Face `datasets` library, without a hub: folders of data files."""

import json

import pytest

from regen.data.changes import changed_files
from regen.data.plan import open_plan
from regen.data.planning import build_plan
from regen.data.sources import list_files, read_source
from regen.data.target import resolve_target
from regen.errors import SourceError
from regen.spec import SourceSpec, parse_spec
from tests.memory_storage import MemoryStorage
from tests.toy_target import build_toy_target


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    datasets.disable_progress_bars()


def write(path, values):
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(value) + "\n" for value in values))


def chats(count, start=0):
    return [
        {
            "id": number,
            "messages": [{"role": "user", "content": f"q {number}"}, {"role": "assistant", "content": "OLD"}],
        }
        for number in range(start, start + count)
    ]


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "data" / "train.jsonl", chats(30))
    write(tmp_path / "data" / "test.jsonl", chats(5, 100))
    return tmp_path / "data"


def source(folder, **fields):
    return SourceSpec(name="d", path=str(folder), **fields)


def test_a_folder_is_read_as_a_dataset(folder):
    rows = list(read_source(source(folder, split="train")))
    assert [row.value for row in rows] == chats(30)
    assert rows[7].location == f"{folder}/train[7]"


def ids(spec):
    return [row.value["id"] for row in read_source(spec) if row.value]


def test_limit_and_shuffle_work_on_datasets_too(folder):
    whole = ids(source(folder, split="train", shuffle_seed=1))
    assert whole != sorted(whole)
    assert ids(source(folder, split="train", shuffle_seed=1, limit=10)) == whole[:10]
    assert ids(source(folder, split="train", limit=10)) == list(range(10))


def test_a_missing_split_names_those_there_are(folder):
    with pytest.raises(SourceError, match=r"'d'.*splits.*train.*set split"):
        list(read_source(source(folder)))
    with pytest.raises(SourceError, match=r"'d'.*nope"):
        list(read_source(source(folder, split="nope")))


def test_the_only_split_needs_no_name(folder):
    (folder / "test.jsonl").unlink()
    assert len(list(read_source(source(folder)))) == 30


def test_a_folder_without_data_is_a_source_error(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="cannot be loaded"):
        list(read_source(source(tmp_path / "empty")))


def test_a_dataset_is_one_entry_with_its_fingerprint(folder):
    [entry] = list_files(source(folder, split="train"))
    assert entry.path == f"{folder}/train"
    assert entry.size_bytes > 0
    assert [entry] == list_files(source(folder, split="train"))
    assert entry.digest != list_files(source(folder, split="test"))[0].digest


def test_a_dataset_is_planned_and_its_changes_are_seen(folder, tmp_path):
    spec = parse_spec(
        {
            "name": "test",
            "output": "unused",
            "target": {"model": str(build_toy_target(tmp_path / "toy"))},
            "engine": {"kind": "fake"},
            "sampling": {"max_tokens": 16},
            "sources": [{"name": "d", "path": str(folder), "split": "train"}],
        },
        "test",
    )
    storage = MemoryStorage()
    summary = build_plan(spec, resolve_target(spec.target), storage, "s", 1)
    rows = list(open_plan(storage).scan())
    assert [(row.source_id, row.refusal) for row in rows] == [(str(number), None) for number in range(30)]
    assert "OLD" not in repr(rows)
    assert changed_files(summary, spec) == []
    write(folder / "train.jsonl", chats(31))
    [change] = changed_files(summary, spec)
    assert change.what == "has another fingerprint"
