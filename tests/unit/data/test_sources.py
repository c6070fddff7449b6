import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regen.data import shuffle
from regen.data.raw import RawRow
from regen.data.shuffle import shuffled
from regen.data.sources import is_files, list_files, read_source
from regen.errors import SourceError
from regen.spec import SourceSpec


def source(path, **fields):
    return SourceSpec(name="s", path=str(path), **fields)


def write_lines(path, values):
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


def values(spec):
    return [row.value for row in read_source(spec)]


@pytest.fixture
def three(tmp_path):
    for name in "bac":
        write_lines(tmp_path / f"{name}.jsonl", [{"file": name, "n": number} for number in range(3)])
    return tmp_path


def test_a_glob_is_read_in_sorted_order(three):
    rows = list(read_source(source(three / "*.jsonl")))
    assert [row.value["file"] for row in rows if row.value] == list("aaabbbccc")
    assert rows[3].location == f"{three}/b.jsonl:1"


def test_limit_counts_source_rows_before_any_is_rejected(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"a": 1}\nbad\n{"a": 3}\n')
    rows = list(read_source(source(tmp_path / "x.jsonl", limit=2)))
    assert [row.error is None for row in rows] == [True, False]


def test_files_are_listed_with_size_and_digest_of_the_content(three):
    files = list_files(source(three / "*.jsonl"))
    assert [file.path for file in files] == [f"{three}/{name}.jsonl" for name in "abc"]
    assert {file.size_bytes for file in files} == {(three / "a.jsonl").stat().st_size}
    assert len({file.digest for file in files}) == 3
    (three / "b.jsonl").write_bytes((three / "a.jsonl").read_bytes())
    again = list_files(source(three / "*.jsonl"))
    assert again[0] == files[0]
    assert again[1].digest == files[0].digest


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("nothing.jsonl", "there is no file"),
        ("*.parquet", "no file matches"),
        ("*", "unknown ending"),
        ("", "is a folder"),
    ],
)
def test_what_cannot_be_found_names_the_source(tmp_path, path, said):
    (tmp_path / "readme.txt").write_text("x")
    for look in (list_files, lambda spec: list(read_source(spec))):
        with pytest.raises(SourceError, match=f"source 's'.*{said}"):
            look(source(tmp_path / path, kind="files"))


def test_auto_takes_files_for_files_and_the_rest_for_datasets(tmp_path):
    (tmp_path / "odd[1].name").write_text("")
    assert is_files(source("no/such/x.jsonl.gz"))
    assert is_files(source("no/such/*"))
    assert is_files(source(tmp_path / "odd[1].name"))
    assert not is_files(source("HuggingFaceH4/ultrachat_200k"))
    assert not is_files(source(tmp_path))
    assert is_files(source(tmp_path, kind="files"))
    assert not is_files(source("x.jsonl", kind="dataset"))


# --- shuffling -----------------------------------------------------------------------------------


def rows_of(numbers):
    return [RawRow(f"x:{place}", value={"n": number}) for place, number in enumerate(numbers)]


def order(numbers, seed=1, limit=None):
    return [row.value["n"] for row in shuffled(rows_of(numbers), seed, limit) if row.value]


def test_a_shuffle_is_a_permutation_by_seed():
    numbers = list(range(200))
    assert sorted(order(numbers)) == numbers
    assert order(numbers) == order(numbers)
    assert order(numbers) != numbers
    assert order(numbers, seed=2) != order(numbers)


@given(st.lists(st.integers(0, 8), max_size=30), st.integers(100, 110), st.data())
@settings(max_examples=60, deadline=None)
def test_a_row_put_in_anywhere_changes_the_order_of_no_other(numbers, new, data):
    at = data.draw(st.integers(0, len(numbers)))
    with_new = order([*numbers[:at], new, *numbers[at:]])
    assert [number for number in with_new if number != new] == order(numbers)


@given(st.lists(st.integers(0, 20), max_size=40), st.integers(1, 50))
@settings(max_examples=60, deadline=None)
def test_a_limit_takes_the_beginning_of_the_same_order(numbers, limit):
    assert order(numbers, limit=limit) == order(numbers)[:limit]


def test_equal_rows_do_not_stand_together():
    places = [place for place, number in enumerate(order([0] * 50 + list(range(1, 151)))) if number == 0]
    assert places != list(range(places[0], places[0] + 50))


def test_a_large_limit_is_sorted_on_disk_and_gives_the_same(monkeypatch):
    numbers = list(range(300))
    small = order(numbers, limit=100)
    monkeypatch.setattr(shuffle, "_HEAP_ROWS", 10)
    assert order(numbers, limit=100) == small


def test_the_order_does_not_depend_on_where_rows_stand():
    numbers = list(range(100))
    assert order(numbers) == order(numbers[::-1])


def test_unreadable_rows_are_shuffled_too(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"a": 1}\nbad\nworse\nbad\n{"a": 2}\n')
    rows = list(read_source(source(tmp_path / "x.jsonl", shuffle_seed=3)))
    assert len(rows) == 5
    assert sum(row.error is not None for row in rows) == 3


def test_a_row_nested_beyond_pickling_costs_itself(tmp_path):
    deep = '{"a": ' + "[" * 600 + "]" * 600 + "}"
    (tmp_path / "x.jsonl").write_text('{"a": 1}\n' + deep + '\n{"a": 2}\n')
    assert len(list(read_source(source(tmp_path / "x.jsonl", shuffle_seed=3)))) == 3


@pytest.mark.parametrize("bad_line", [3, 3000])
def test_a_dataset_that_a_bad_line_stops_says_why_and_how_to_lose_only_that(tmp_path, monkeypatch, bad_line):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    datasets.disable_progress_bars()
    folder = tmp_path / "data"
    folder.mkdir()
    write_lines(folder / "x.jsonl", [{"prompt": "a" * 10_000}] * bad_line)
    with (folder / "x.jsonl").open("a") as stream:
        stream.write('{"prompt": {"a": 1\n{"prompt": "b"}\n')
    with pytest.raises(SourceError, match=r"caused by ArrowInvalid: JSON parse error") as caught:
        list(read_source(source(folder)))
    assert f"name its files ({folder}/*.jsonl)" in str(caught.value)
    assert sum(row.error is not None for row in read_source(source(folder / "*.jsonl"))) == 1
