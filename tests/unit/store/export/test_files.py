"""An export's folder: there as a whole or not at all, the same bytes each time, nobody else's files touched."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from regen.errors import StoreRefused, UserError
from regen.store.export.conversation import Fields
from regen.store.export.files import CARD, MANIFEST, ExportFolder
from regen.store.export.format import Record
from regen.store.machine import machine_identity


def record(number: int, split: str = "train", **more: Any) -> Record:
    return Record({"id": number, "text": "a\u2028b\U0001f600", **more}, split, 3, 1, 2, 1)


def write(out: Path, records: list[Record], *, overwrite: bool = False, per_file: int = 2) -> ExportFolder:
    with ExportFolder(out, "jsonl", Fields(), per_file, overwrite) as folder:
        for each in records:
            folder.write(each)
        folder.finish_files()
        folder.publish("card", {"version": 1})
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_names_follow_from_split_and_number(tmp_path: Path) -> None:
    records = [record(number, "eval" if number == 2 else "train") for number in range(6)]
    folder = write(tmp_path / "out", records)
    assert names(tmp_path / "out") == sorted(
        ["train-00000.jsonl", "train-00001.jsonl", "train-00002.jsonl", "eval-00000.jsonl", CARD, MANIFEST]
    )
    assert [file.records for file in sorted(folder.files, key=lambda file: file.name)] == [1, 2, 2, 1]
    lines = (tmp_path / "out" / "train-00000.jsonl").read_bytes().split(b"\n")
    assert [json.loads(line)["id"] for line in lines[:-1]] == [0, 1]
    assert json.loads(lines[0])["text"] == "a\u2028b\U0001f600"
    assert len("".join(line.decode("ascii") for line in lines).splitlines()) == 1


def test_the_same_records_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write(tmp_path / name, [record(number) for number in range(3)])
    for name in names(tmp_path / "one"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_nothing_is_there_before_it_is_published_nor_after_an_error(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with ExportFolder(out, "jsonl", Fields(), 2, False) as folder:
        folder.write(record(0))
        assert not out.exists()
    assert list(tmp_path.iterdir()) == []
    broken = record(1, bad=object())
    with pytest.raises(TypeError):
        write(out, [record(0), broken])
    assert list(tmp_path.iterdir()) == []


def test_an_export_is_replaced_only_when_asked_and_only_if_it_is_one(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write(out, [record(number) for number in range(6)])
    with pytest.raises(UserError, match="--overwrite"):
        write(out, [record(0)])
    write(out, [record(0)], overwrite=True)
    assert names(out) == [MANIFEST, CARD, "train-00000.jsonl"]
    assert names(tmp_path) == ["out"]
    (out / MANIFEST).unlink()
    with pytest.raises(UserError, match="no export"):
        write(out, [record(0)], overwrite=True)


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    write(tmp_path / "out", [record(0)])
    assert yaml.safe_load((tmp_path / "out" / MANIFEST).read_text()) == {"version": 1}


def test_what_a_killed_export_left_is_removed_and_that_of_a_living_one_is_not(tmp_path: Path) -> None:
    dead = tmp_path / f".out.new-{machine_identity()}-{2**22 + 1}-{'0' * 32}"
    alive = tmp_path / f".out.new-{machine_identity()}-{os.getppid()}-{'0' * 32}"
    for folder in (dead, alive):
        folder.mkdir()
    write(tmp_path / "out", [record(0)])
    assert names(tmp_path) == sorted([alive.name, "out"])


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreRefused, match="file/out"):
        write(tmp_path / "file" / "out", [record(0)])


def test_parquet_has_the_fields_that_occur_and_no_others(tmp_path: Path) -> None:
    message = {"role": "user", "content": "x"}
    for name, fields, expected in (
        ("plain", Fields(), ["role", "content"]),
        ("reasoning", Fields(reasoning=True), ["role", "content", "reasoning_content"]),
        ("calls", Fields(calls=True, tools=True), ["role", "content", "tool_calls", "tool_call_id", "name"]),
    ):
        with ExportFolder(tmp_path / name, "parquet", fields, 10, False) as folder:
            folder.write(Record({"id": "1", "source": "s", "messages": [message]}, "train", 3, 1, 2, 1))
            folder.finish_files()
            folder.publish("card", {})
        schema = pq.read_schema(tmp_path / name / "train-00000.parquet")
        assert [field.name for field in schema.field("messages").type.value_type] == expected
        assert ("tools" in schema.names) is fields.tools
