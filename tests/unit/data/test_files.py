import csv
import gzip
import json
from datetime import datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from regen.data.array import read_array
from regen.data.files import read_file
from regen.data.raw import LoadError
from regen.errors import SourceError


def read(path):
    """(location without the folder, value or reason) of every row."""
    rows = list(read_file(path))
    assert all((row.value is None) is (row.error is not None) for row in rows)
    return [(row.location.rsplit("/", 1)[1], row.value if row.error is None else row.error[0]) for row in rows]


def written(tmp_path, name, data):
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


# --- JSON Lines ----------------------------------------------------------------------------------


def test_each_bad_line_is_one_rejected_row_with_its_number(tmp_path):
    lines = [
        b'\xef\xbb\xbf{"a": 1}\r',  # BOM and CRLF
        b"",
        b"   ",
        b'{"a": ',
        b'{"a": "\xff"}',
        b"[1, 2]",
        b"null",
        b'{"a": 1, "a": 2}',
        b"[" * 5000,
        b'{"a": ' + b"9" * 5000 + b"}",
        b'{"last": "without newline"}',
    ]
    assert read(written(tmp_path, "x.jsonl", b"\n".join(lines))) == [
        ("x.jsonl:1", {"a": 1}),
        ("x.jsonl:4", LoadError.BAD_JSON),
        ("x.jsonl:5", LoadError.INVALID_UTF8),
        ("x.jsonl:6", LoadError.NOT_AN_OBJECT),
        ("x.jsonl:7", LoadError.NOT_AN_OBJECT),
        ("x.jsonl:8", LoadError.DUPLICATE_KEYS),
        ("x.jsonl:9", LoadError.BAD_JSON),
        ("x.jsonl:10", LoadError.BAD_JSON),
        ("x.jsonl:11", {"last": "without newline"}),
    ]


def test_numbers_and_odd_text_survive_exactly(tmp_path):
    text = '{"big": 1180591620717411303424, "minus": -0.0, "nan": NaN, "half": "\\ud83d", "line": "a\u2028b"}'
    [(_, value)] = read(written(tmp_path, "x.jsonl", text.encode()))
    assert value["big"] == 2**70
    assert str(value["minus"]) == "-0.0"
    assert value["nan"] != value["nan"]
    assert value["half"] == "\ud83d"
    assert value["line"] == "a\u2028b"


@pytest.mark.parametrize("name", ["x.jsonl.gz", "x.ndjson.gz", "X.JSONL.GZ"])
def test_gzip_is_read(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(gzip.compress(b'{"a": 1}\n{"a": 2}'))
    assert [value for _, value in read(path)] == [{"a": 1}, {"a": 2}]


def test_a_torn_gzip_gives_the_lines_before_and_says_where_it_broke(tmp_path):
    import random

    rng = random.Random(1)
    lines = [json.dumps({"n": number, "noise": rng.random()}) for number in range(5000)]
    whole = gzip.compress("\n".join(lines).encode())
    rows = read(written(tmp_path, "x.jsonl", b"")) or []
    path = tmp_path / "torn.jsonl.gz"
    path.write_bytes(whole[: len(whole) // 2])
    rows = read(path)
    good = rows[:-1]
    assert 1000 < len(good) < 5000
    assert [value["n"] for _, value in good] == list(range(len(good)))
    assert rows[-1] == (f"torn.jsonl.gz:{len(good) + 1}", LoadError.DAMAGED_FILE)


@pytest.mark.parametrize("name", ["x.jsonl.gz", "x.json.gz", "x.csv.gz", "x.parquet.gz"])
def test_what_is_no_gzip_is_one_rejected_row(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b'{"a": 1}\n')
    assert [value for _, value in read(path)] == [LoadError.DAMAGED_FILE]


# --- JSON ----------------------------------------------------------------------------------------


def test_an_array_is_its_elements(tmp_path):
    data = b'\xef\xbb\xbf [ {"a": [1, {"b": "]"}]} ,\n 7, {"c": 2} ]\n'
    assert read(written(tmp_path, "x.json", data)) == [
        ("x.json[0]", {"a": [1, {"b": "]"}]}),
        ("x.json[1]", LoadError.NOT_AN_OBJECT),
        ("x.json[2]", {"c": 2}),
    ]


def test_json_lines_in_spite_of_the_name(tmp_path):
    assert read(written(tmp_path, "x.json", b'\n{"a": 1}\n{bad}\n{"a": 3}')) == [
        ("x.json:2", {"a": 1}),
        ("x.json:3", LoadError.BAD_JSON),
        ("x.json:4", {"a": 3}),
    ]


def test_one_object_over_many_lines_is_one_row(tmp_path):
    assert read(written(tmp_path, "x.json", b'{\n "a": 1,\n "b": {}\n}\n')) == [("x.json[0]", {"a": 1, "b": {}})]


def test_json_lines_with_a_torn_first_line_lose_only_that(tmp_path):
    assert read(written(tmp_path, "x.json", b'{"a": 1, "b\n{"a": 2}\n')) == [
        ("x.json:1", LoadError.BAD_JSON),
        ("x.json:2", {"a": 2}),
    ]


@pytest.mark.parametrize("data", [b'{\n "a": 1,\n', b"{\n"])
def test_a_torn_object_is_one_rejected_row(tmp_path, data):
    assert read(written(tmp_path, "x.json", data)) == [("x.json[0]", LoadError.DAMAGED_FILE)]


@pytest.mark.parametrize("data", [b"[]", b"", b"\n\n", b" [ ] "])
def test_nothing_in_it_is_no_row(tmp_path, data):
    assert read(written(tmp_path, "x.json", data)) == []


@pytest.mark.parametrize(
    "rest",
    [
        b"",
        b",",
        b', {"a"',
        b" {}]",
        b"] x",
        b", {]",
        b'] [{"a": 3}]',
        b', {"x": ' + b"9" * 5000 + b"]",
    ],
)
def test_a_damaged_array_gives_what_is_before_and_the_offset(tmp_path, rest):
    good = b'[{"a": 1}, {"a": 2}'
    path = written(tmp_path, "x.json", good + rest)
    assert read(path) == [
        ("x.json[0]", {"a": 1}),
        ("x.json[1]", {"a": 2}),
        ("x.json[2]", LoadError.DAMAGED_FILE),
    ]
    offset = int(list(read_file(path))[-1].error[1].partition(" at byte ")[2].partition(",")[0])  # type: ignore[index]
    assert len(good) <= offset <= len(good + rest)


def test_damage_says_that_the_rest_is_unread(tmp_path):
    path = written(tmp_path, "x.json", b'[{"a": 1}, {"a" 2}, {"a": 3}]')
    [_, damaged] = read_file(path)
    assert damaged.error is not None
    assert damaged.error[1].endswith("at byte 16, everything after it in this file is unread")
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"a": 1}\n' * 9)[:-9])
    assert list(read_file(path))[-1].error[1].endswith("everything after it in this file is unread")  # type: ignore[index]


NO_VALUES = {
    "digits": (b'{"s": "]}\\"", "x": [' + b"9" * 5000 + b"]}", LoadError.BAD_JSON, "a number of more than 4300 digits"),
    "bare": (b"9" * 5000, LoadError.BAD_JSON, "a number of more than 4300 digits"),
    "nested": (b'{"x": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", LoadError.BAD_JSON, "nested too deeply"),
    "twice": (b'{"x": {"k": "a", "k": "b"}}', LoadError.DUPLICATE_KEYS, "an object has the key 'k' twice"),
}


@pytest.mark.parametrize("name", NO_VALUES)
@pytest.mark.parametrize("block_bytes", [7, 1 << 20])
def test_a_well_formed_element_that_is_no_value_costs_itself(name, block_bytes):
    element, reason, detail = NO_VALUES[name]
    data = b'[{"a": 1}, ' + element + b' , {"a": 2}, {"a": 3}]'
    blocks = iter([data[at : at + block_bytes] for at in range(0, len(data), block_bytes)])
    first, bad, *rest = read_array(lambda: next(blocks, b""), ())
    assert [found.value for found in (first, *rest)] == [{"a": 1}, {"a": 2}, {"a": 3}]
    assert (bad.index, bad.error, bad.raw) == (1, (reason, detail), element)


@pytest.mark.parametrize("name", ["digits", "nested", "twice"])
def test_a_value_that_is_none_is_one_rejected_row_in_every_kind_of_file(tmp_path, name):
    element, reason, _ = NO_VALUES[name]
    array = written(tmp_path, "x.json", b"[" + element + b', {"a": 2}]')
    assert read(array) == [("x.json[0]", reason), ("x.json[1]", {"a": 2})]
    lines = written(tmp_path, "x.jsonl", element + b'\n{"a": 2}')
    assert read(lines) == [("x.jsonl:1", reason), ("x.jsonl:2", {"a": 2})]
    alone = written(tmp_path, "alone.json", element.replace(b"{", b"{\n", 1))
    assert read(alone) == [("alone.json[0]", reason)]


def test_a_number_too_long_in_a_torn_line_hides_no_other_line(tmp_path):
    torn = b'{"x": ' + b"9" * 5000 + b', "b\n{"a": 2}\n'
    assert read(written(tmp_path, "x.json", torn)) == [("x.json:1", LoadError.BAD_JSON), ("x.json:2", {"a": 2})]


def test_invalid_bytes_spoil_one_element(tmp_path):
    assert read(written(tmp_path, "x.json", b'[{"a": "\xff"}, {"a": "\xc3\xa9"}]')) == [
        ("x.json[0]", LoadError.INVALID_UTF8),
        ("x.json[1]", {"a": "é"}),
    ]


def test_a_torn_gzipped_array_says_that_the_file_breaks_off(tmp_path):
    import random

    rng = random.Random(1)
    whole = gzip.compress(json.dumps([{"n": number, "noise": rng.random()} for number in range(2000)]).encode())
    path = tmp_path / "x.json.gz"
    path.write_bytes(whole[: len(whole) // 2])
    rows = list(read_file(path))
    assert [row.value["n"] for row in rows[:-1] if row.value] == list(range(len(rows) - 1))
    assert len(rows) > 500
    assert "breaks off at byte" in rows[-1].error[1]  # type: ignore[index]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(JSON_VALUES, max_size=8), st.integers(1, 40), st.booleans(), st.sampled_from([None, 1]))
@example([1e16, None], 1, False, None)
@settings(max_examples=150)
def test_an_array_is_the_same_however_its_bytes_arrive(values, block_bytes, ascii_only, indent):
    data = json.dumps(values, ensure_ascii=ascii_only, indent=indent).encode("utf-8", "surrogatepass")
    blocks = iter([data[at : at + block_bytes] for at in range(0, len(data), block_bytes)])
    elements = list(read_array(lambda: next(blocks, b""), ()))
    clean = [element for element in elements if not element.has_invalid_utf8]
    assert [element.index for element in elements] == list(range(len(values)))
    assert [element.value for element in clean] == [values[element.index] for element in clean]
    assert all(element.damage is None for element in elements)


@given(st.lists(JSON_VALUES, min_size=1, max_size=5), st.data())
@settings(max_examples=150)
def test_a_cut_array_gives_whole_elements_and_one_damage(values, data):
    text = json.dumps(values).encode()
    cut = data.draw(st.integers(0, len(text) - 1))
    blocks = iter([text[:cut]])
    *good, last = read_array(lambda: next(blocks, b""), ())
    assert last.damage is not None
    whole = good[: len(values)]
    assert [element.value for element in whole[:-1]] == values[: max(0, len(whole) - 1)]


# --- CSV -----------------------------------------------------------------------------------------


def test_csv_rows_are_text_by_column(tmp_path):
    data = b'\xef\xbb\xbfprompt,id\r\n"a, ""b""\r\nc",1\r\n\r\nd,2\r\n'
    assert read(written(tmp_path, "x.csv", data)) == [
        ("x.csv:2", {"prompt": 'a, "b"\r\nc', "id": "1"}),
        ("x.csv:5", {"prompt": "d", "id": "2"}),
    ]


def test_tsv_and_gzip(tmp_path):
    assert read(written(tmp_path, "x.tsv.gz", b"prompt\tid\na,b\t1")) == [("x.tsv.gz:2", {"prompt": "a,b", "id": "1"})]


def test_bad_csv_rows_are_rejected_alone(tmp_path):
    data = b'prompt,id\na\nb,1,2\n"c"d,3\n\xff,4\ne,5\n"unclosed,6\nf,7\n'
    assert read(written(tmp_path, "x.csv", data)) == [
        ("x.csv:2", LoadError.WRONG_FIELD_COUNT),
        ("x.csv:3", LoadError.WRONG_FIELD_COUNT),
        ("x.csv:4", LoadError.BAD_CSV),
        ("x.csv:5", LoadError.INVALID_UTF8),
        ("x.csv:6", {"prompt": "e", "id": "5"}),
        ("x.csv:7", LoadError.BAD_CSV),
    ]


def test_a_quote_that_is_not_closed_names_the_lines_it_took(tmp_path):
    taken = b'"unclosed,2\nc,3\n\xff,4\n'
    [_, bad] = read_file(written(tmp_path, "x.csv", b"prompt,id\na,1\n" + taken))
    assert bad.error is not None
    assert (bad.location.rsplit(":", 1)[1], bad.error[0], bad.raw) == ("3", LoadError.BAD_CSV, taken.rstrip())
    assert "lines 3 to 5" in bad.error[1]


def test_bad_csv_rows_are_told_apart_by_their_bytes(tmp_path):
    rows = list(read_file(written(tmp_path, "x.csv", b'prompt,id\n"c"d,3\r\n"e"f,4\n')))
    assert [row.raw for row in rows] == [b'"c"d,3', b'"e"f,4']
    assert len({row.identity() for row in rows}) == 2


def test_a_header_that_names_a_column_twice_loses_no_value_silently(tmp_path):
    assert read(written(tmp_path, "x.csv", b"a,a\n1,2\n")) == [("x.csv:2", LoadError.DUPLICATE_COLUMNS)]


def test_a_header_that_cannot_be_read_makes_no_row_a_header(tmp_path):
    assert read(written(tmp_path, "x.csv", b'"a"b,c\n1,2\n3,4\n')) == [("x.csv:1", LoadError.BAD_CSV)]


def test_a_very_long_field_is_read(tmp_path):
    before = csv.field_size_limit(131072)
    try:
        [(_, value)] = read(written(tmp_path, "x.csv", b"prompt\n" + b"x" * 300_000))
    finally:
        csv.field_size_limit(before)
    assert len(value["prompt"]) == 300_000


# --- Parquet -------------------------------------------------------------------------------------


def test_parquet_rows_are_python_values(tmp_path):
    rows = [{"id": number, "messages": [{"role": "user", "content": f"é{number}"}]} for number in range(600)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet", row_group_size=250)
    found = read(tmp_path / "x.parquet")
    assert [value for _, value in found] == rows
    assert found[599][0] == "x.parquet[599]"
    (tmp_path / "x.parquet.gz").write_bytes(gzip.compress((tmp_path / "x.parquet").read_bytes()))
    assert [value for _, value in read(tmp_path / "x.parquet.gz")] == rows


def test_a_value_that_python_cannot_hold_rejects_its_row_alone(tmp_path):
    far = pa.array([0, 2**62, 1_000_000], pa.int64()).cast(pa.timestamp("us"))
    pq.write_table(pa.table({"prompt": ["a", "b", "c"], "when": far}), tmp_path / "x.parquet")
    assert read(tmp_path / "x.parquet") == [
        ("x.parquet[0]", {"prompt": "a", "when": datetime(1970, 1, 1)}),
        ("x.parquet[1]", LoadError.UNREADABLE_VALUE),
        ("x.parquet[2]", {"prompt": "c", "when": datetime(1970, 1, 1, 0, 0, 1)}),
    ]


def test_a_parquet_file_that_names_a_column_twice_loses_no_value_silently(tmp_path):
    far = pa.array([0, 1, 2**62], pa.int64()).cast(pa.timestamp("us"))
    columns = [pa.array(["a", "b", "c"]), pa.array(["d", "e", "f"]), far]
    pq.write_table(pa.table(columns, names=["prompt", "prompt", "when"]), tmp_path / "x.parquet")
    rows = list(read_file(tmp_path / "x.parquet"))
    assert [row.error and row.error[0] for row in rows] == [LoadError.DUPLICATE_COLUMNS] * 3
    assert len({row.identity() for row in rows}) == 3


def test_nulls_that_columns_put_into_tools_are_taken_out_and_no_others(tmp_path):
    tools: list[dict[str, object]] = [
        {"name": "f", "parameters": {"x": {"type": "int", "enum": [None, 1]}}},
        {"name": "g", "parameters": {"y": {"type": "str"}}},
    ]
    rows: list[dict[str, object]] = [
        {"prompt": "a", "tools": tools, "meta": {"m": 1}},
        {"prompt": "b", "tools": None, "meta": {"n": 2}},
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    assert [value for _, value in read(tmp_path / "x.parquet")] == [
        {"prompt": "a", "tools": tools, "meta": {"m": 1, "n": None}},
        {"prompt": "b", "tools": None, "meta": {"m": None, "n": 2}},
    ]


def test_a_truncated_parquet_file_is_one_rejected_row(tmp_path):
    pq.write_table(pa.table({"prompt": ["a"] * 100}), tmp_path / "x.parquet")
    whole = (tmp_path / "x.parquet").read_bytes()
    (tmp_path / "x.parquet").write_bytes(whole[: len(whole) // 2])
    assert read(tmp_path / "x.parquet") == [("x.parquet[0]", LoadError.DAMAGED_FILE)]


def test_damage_inside_a_parquet_file_keeps_the_rows_before(tmp_path):
    noise = [f"{number * 7919 % 104729}" * 20 for number in range(2000)]
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"prompt": noise}), path, row_group_size=500, use_dictionary=False)
    group = pq.ParquetFile(path).metadata.row_group(2).column(0)
    data = bytearray(path.read_bytes())
    data[group.data_page_offset : group.data_page_offset + 40] = b"\xff" * 40
    path.write_bytes(data)
    rows = read(path)
    assert [value["prompt"] for _, value in rows[:-1]] == noise[: len(rows) - 1]
    assert rows[-1][1] is LoadError.DAMAGED_FILE
    assert len(rows) > 500


# --- files ---------------------------------------------------------------------------------------


def test_an_unknown_ending_is_named(tmp_path):
    with pytest.raises(SourceError, match=r"x\.txt: unknown ending"):
        list(read_file(tmp_path / "x.txt"))


def test_a_file_that_is_gone_is_a_source_error(tmp_path):
    with pytest.raises(SourceError, match=r"gone\.jsonl: cannot be read"):
        list(read_file(tmp_path / "gone.jsonl"))
