"""The files of an export: written beside the place where they will stand, and there as a whole or not at all.

Guarantees: until `publish` nothing is under the final name, and after it everything is, the manifest written last; a
broken-off export leaves only a hidden folder, which the next one to the same place removes. Names follow from split and
number. Memory: one buffer of records.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from regen.errors import StoreRefused, UserError
from regen.store.export.conversation import Fields
from regen.store.export.format import Record
from regen.store.machine import machine_identity, process_exists

# Not *.json: prepare-data of speculators reads every such file of a folder as rows.
MANIFEST = "MANIFEST.yaml"
CARD = "README.md"
_BUFFER_ROWS = 512
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """One data file; `digest` is a BLAKE2b of 16 bytes in hex over its bytes."""

    name: str
    split: str
    records: int
    bytes: int
    digest: str


class RecordFile(Protocol):
    def write(self, values: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...

    def abandon(self) -> None:
        """Let go of a file that will not be kept."""
        ...


class JsonLines:
    """One JSON object a line, ASCII only: some readers split lines at other characters than the line feed."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("x", encoding="ascii", newline="\n")

    def write(self, values: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(values, ensure_ascii=True, separators=(",", ":"), allow_nan=False) + "\n")

    def close(self) -> None:
        self._file.close()

    def abandon(self) -> None:
        self._file.close()


class MessagesParquet:
    """Parquet in one declared schema, row groups of some hundred records."""

    def __init__(self, path: Path, fields: Fields) -> None:
        self._schema = messages_schema(fields)
        self._writer = pq.ParquetWriter(path, self._schema, compression="zstd")
        self._buffer: list[Mapping[str, Any]] = []

    def write(self, values: Mapping[str, Any]) -> None:
        self._buffer.append(values)
        if len(self._buffer) >= _BUFFER_ROWS:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def abandon(self) -> None:
        self._writer.close()

    def _flush(self) -> None:
        if self._buffer:
            self._writer.write_table(pa.Table.from_pylist(self._buffer, schema=self._schema))
            self._buffer = []


def messages_schema(fields: Fields) -> pa.Schema:
    """The columns of a Parquet export, with only those fields of a message that occur in it."""
    message: list[pa.Field[Any]] = [pa.field("role", pa.string()), pa.field("content", pa.string())]
    if fields.reasoning:
        message.append(pa.field("reasoning_content", pa.string()))
    if fields.calls:
        function = pa.struct([pa.field("name", pa.string()), pa.field("arguments", pa.string())])
        call = pa.struct([pa.field("id", pa.string()), pa.field("type", pa.string()), pa.field("function", function)])
        message += [pa.field("tool_calls", pa.list_(call))]
        message += [pa.field("tool_call_id", pa.string()), pa.field("name", pa.string())]
    columns: list[pa.Field[Any]] = [pa.field("id", pa.string()), pa.field("source", pa.string())]
    columns.append(pa.field("messages", pa.list_(pa.struct(message))))
    if fields.tools:
        columns.append(pa.field("tools", pa.string()))
    return pa.schema(columns)


class ExportFolder:
    """A folder in the making: records go in, `publish` puts it in its place. A context manager.

    Raises UserError where something stands that may not be replaced, StoreRefused where the system refuses.
    """

    def __init__(self, out: Path, suffix: str, fields: Fields, records_per_file: int, overwrite: bool) -> None:
        self._out = Path(os.path.abspath(out))
        self._suffix, self._fields, self._records_per_file = suffix, fields, records_per_file
        _refuse_if_taken(self._out, overwrite)
        self._folder = self._out.parent / _temporary_name(self._out, "new")
        self._open: dict[str, tuple[str, RecordFile, int]] = {}
        self._numbers: dict[str, int] = {}
        self.files: list[WrittenFile] = []

    def __enter__(self) -> ExportFolder:
        try:
            self._out.parent.mkdir(parents=True, exist_ok=True)
            _sweep(self._out)
            self._folder.mkdir()
        except OSError as error:
            raise _refused(self._out, error) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for _, file, _ in self._open.values():
            file.abandon()
        shutil.rmtree(self._folder, ignore_errors=True)
        if isinstance(error, OSError):
            raise _refused(self._out, error) from error

    def write(self, record: Record) -> None:
        """Append to the open file of the record's split, and close that when it is full."""
        name, file, count = self._open.get(record.split) or self._begin(record.split)
        file.write(record.values)
        self._open[record.split] = (name, file, count + 1)
        if count + 1 >= self._records_per_file:
            self._finish(record.split)

    def finish_files(self) -> None:
        """Close what is open; `files` is complete then."""
        for split in sorted(self._open):
            self._finish(split)

    def publish(self, card: str, manifest: Mapping[str, Any]) -> None:
        """Card and manifest, then the folder under its final name."""
        (self._folder / CARD).write_text(card, encoding="utf-8")
        _sync(self._folder / CARD)
        (self._folder / MANIFEST).write_text(yaml.safe_dump(dict(manifest), sort_keys=False), encoding="utf-8")
        _sync(self._folder / MANIFEST)
        _sync(self._folder)
        _put_in_place(self._folder, self._out)
        _sync(self._out.parent)

    def _begin(self, split: str) -> tuple[str, RecordFile, int]:
        number = self._numbers.get(split, 0)
        self._numbers[split] = number + 1
        name = f"{split}-{number:05d}.{self._suffix}"
        path = self._folder / name
        return name, MessagesParquet(path, self._fields) if self._suffix == "parquet" else JsonLines(path), 0

    def _finish(self, split: str) -> None:
        name, file, count = self._open.pop(split)
        file.close()
        path = self._folder / name
        _sync(path)
        self.files.append(WrittenFile(name, split, count, path.stat().st_size, _digest(path)))


def _refuse_if_taken(out: Path, overwrite: bool) -> None:
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not (out / MANIFEST).is_file():
        raise UserError(f"--out {out}: something is there that is no export (no {MANIFEST}); name another folder")
    if not overwrite:
        raise UserError(f"--out {out}: an export is there already; name another folder, or --overwrite")


def _put_in_place(folder: Path, out: Path) -> None:
    """Two renames where an old export stands: a kill between them leaves the old one in a hidden folder beside it."""
    old = out.parent / _temporary_name(out, "old")
    if out.exists():
        out.rename(old)
    folder.rename(out)
    shutil.rmtree(old, ignore_errors=True)


def _temporary_name(out: Path, kind: str) -> str:
    return f".{out.name}.{kind}-{machine_identity()}-{os.getpid()}-{uuid.uuid4().hex}"


def _sweep(out: Path) -> None:
    """Remove unfinished exports to this place whose process is gone. An old one that was moved aside is left."""
    pattern = re.compile(rf"\.{re.escape(out.name)}\.new-{machine_identity()}-(\d+)-[0-9a-f]{{32}}")
    for path in out.parent.iterdir():
        found = pattern.fullmatch(path.name)
        if found and not process_exists(int(found[1])):
            shutil.rmtree(path, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _digest(path: Path) -> str:
    whole = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            whole.update(block)
    return whole.hexdigest()


def _refused(out: Path, error: OSError) -> StoreRefused:
    return StoreRefused(f"--out {out}: cannot be written: {error.strerror or error}; name another folder")
