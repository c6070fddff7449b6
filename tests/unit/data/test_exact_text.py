"""Bytes in == bytes out: every string survives from the file to the plan and to the shard's schema."""

import gzip
import json
import unicodedata

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regen.data.files import read_file
from regen.data.normalize import Rules, normalize
from regen.data.plan_rows import from_values, to_table, to_values
from regen.records import Message, Observed, OutputRow, PlannedRow, Role, Status
from regen.rows import from_table
from regen.rows import to_table as output_table

ODDITIES = [
    "\u00e9 is not e\u0301",
    unicodedata.normalize("NFD", "Ångström"),
    "\U0001f469\u200d\U0001f680 ZWJ",
    "\u200f right \u202e to left \u2066isolate\u2069",
    "\ufeffBOM inside\ufeff",
    "line\u2028paragraph\u2029next\u0085",
    "nul\x00 bell\x07 vt\x0b ff\x0c",
    " leading and trailing \t\r\n",
    "\ufffd \ufffe \uffff \U0010ffff",
    "a\r\nb\rc\n",
    '"quotes" \\back\\slash\\ \\u00e9 {{ jinja }} {% raw %} <|not a token|>',
    "\ufb01 \u2460 \u338f \u0130 \u0131 \xdf",
    "",
    "\u0000",
]


def planned(text):
    call = {"id": "c" + text, "function": {"name": "n" + text, "arguments": {text: text}}}
    row = {
        "id": text,
        "tools": [{"type": "function", "function": {"name": "f", "description": text}}],
        "messages": [
            {"role": "system", "content": text},
            {"role": "user", "content": f"u{text}"},
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c" + text, "content": text},
        ],
    }
    made = normalize(row, Rules())
    return PlannedRow(0, "0" * 32, "s", "x:1", made.source_id, made.conversation, 0)


def check_exact(text):
    row = planned(text)
    sink = pa.BufferOutputStream()
    table = to_table([to_values(row)])
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    with pa.ipc.open_stream(sink.getvalue()) as reader:
        (back,) = [from_values(values) for values in reader.read_all().to_pylist()]
    assert back == row
    assert back.conversation is not None
    system, user, slot, result, _ = back.conversation.messages
    assert [system.content, user.content, result.content] == [text, f"u{text}", text]
    (call,) = json.loads(slot.expected_calls_json or "")
    assert (call["id"], call["function"]["name"]) == ("c" + text, "n" + text)
    assert json.loads(call["function"]["arguments"]) == {text: text}
    assert result.tool_call_id == "c" + text
    assert json.loads(back.conversation.tools_json or "")[0]["function"]["description"] == text
    assert back.source_id == text


@pytest.mark.parametrize("text", ODDITIES)
def test_known_oddities_survive(text):
    check_exact(text)


@given(st.text(st.characters(exclude_categories=["Cs"])))
@settings(max_examples=200)
def test_any_text_survives_from_row_to_plan(text):
    check_exact(text)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=1, max_size=4))
@settings(max_examples=100)
def test_any_text_survives_in_an_output_row(texts):
    messages = tuple(
        Message(Role.TOOL, text, reasoning=text, tool_calls_json=text, tool_call_id=text, name=text) for text in texts
    )
    observed = Observed(0, "s", 1, "e", None, "f")
    row = OutputRow(0, "0" * 32, "s", "x", None, Status.OK, 0, messages, (), observed, tools_json=texts[0])
    assert from_table(output_table([row])) == [row]


@pytest.mark.parametrize(
    "ending",
    [*(f"{kind}{packed}" for kind in (".jsonl", ".json", ".csv", ".parquet") for packed in ("", ".gz", ".zst"))],
)
def test_any_file_type_gives_the_bytes_back(tmp_path, ending):
    import csv
    import io

    import pyarrow.parquet as pq

    texts = [text for text in ODDITIES if text and not (ending.startswith(".csv") and "\x00" in text)]
    if ending.startswith(".jsonl"):
        data = b"\xef\xbb\xbf" + b"\r\n\n".join(
            json.dumps({"prompt": text}, ensure_ascii=number % 2 == 0).encode() for number, text in enumerate(texts)
        )
    elif ending.startswith(".json"):
        data = json.dumps([{"prompt": text} for text in texts], ensure_ascii=False).encode()
    elif ending.startswith(".csv"):
        stream = io.StringIO(newline="")
        csv.writer(stream).writerows([["prompt"], *([text] for text in texts)])
        data = stream.getvalue().encode()
    else:
        sink = io.BytesIO()
        pq.write_table(pa.table({"prompt": texts}), sink)
        data = sink.getvalue()
    if ending.endswith(".gz"):
        data = gzip.compress(data)
    if ending.endswith(".zst"):
        data = pa.compress(data, codec="zstd", asbytes=True)
    path = tmp_path / f"x{ending}"
    path.write_bytes(data)
    assert [row.value and row.value["prompt"] for row in read_file(path)] == texts


def test_a_zstd_file_that_breaks_off_keeps_what_came_before(tmp_path):
    lines = [json.dumps({"prompt": f"{number} " + "x" * 200}) for number in range(5000)]
    packed = pa.compress("\n".join(lines).encode(), codec="zstd", asbytes=True)
    path = tmp_path / "x.jsonl.zst"
    path.write_bytes(packed[: len(packed) * 3 // 4])
    rows = list(read_file(path))
    assert len(rows) > 1000
    assert all(row.error is None for row in rows[:-1])
    assert rows[-1].error is not None
    assert "breaks off" in rows[-1].error[1]
    path.write_bytes(b"not zstd at all")
    assert [row.error is not None for row in read_file(path)] == [True]


def test_zstd_files_of_several_frames_are_one_file(tmp_path):
    frames = [pa.compress(json.dumps({"prompt": text}).encode() + b"\n", codec="zstd", asbytes=True) for text in "abc"]
    (tmp_path / "x.jsonl.zst").write_bytes(b"".join(frames))
    assert [row.value for row in read_file(tmp_path / "x.jsonl.zst")] == [{"prompt": text} for text in "abc"]
