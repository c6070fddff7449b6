"""Raw rows out of one file, by its ending: JSON Lines, JSON, CSV, TSV, Parquet, each also compressed with gzip or zstd.

Guarantees: everything in a file is either a row or one rejected row that says where and why; rows before a damaged
place are kept; numbers keep their value exactly; nothing but an unreadable disk raises. Memory: one row (JSON Lines,
CSV: up to the rest of the file where a quote is not closed), one element of an array, one batch (Parquet), a whole
file that is one JSON object.
"""

from __future__ import annotations

import csv
import gzip
import json
import os
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedIOBase, BufferedReader, RawIOBase, TextIOWrapper
from itertools import chain
from pathlib import Path
from typing import IO, Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from regen.data.array import UNREAD, read_array
from regen.data.json_values import complaint, parse, value_end
from regen.data.raw import LoadError, RawRow
from regen.data.table_row import table_row
from regen.data.text import canonical_json
from regen.errors import SourceError

_BOM = b"\xef\xbb\xbf"
_PARQUET_BATCH_ROWS = 256
_COPY_BYTES = 1 << 20
_UNPACK_BYTES = 1 << 14
_FIRST_LINE_BYTES = 1 << 24


class _BadZstd(Exception):
    """The bytes are no zstd stream, or end before it does."""


_DAMAGE = (EOFError, gzip.BadGzipFile, zlib.error, _BadZstd)


def ending(path: str) -> str | None:
    """The known ending of a path, without `.gz` or `.zst` (`.jsonl`); None if it is not one that regen reads."""
    name = path.lower().removesuffix(".gz").removesuffix(".zst")
    found = os.path.splitext(name)[1]
    return found if found in _READERS else None


def known_endings() -> tuple[str, ...]:
    return tuple(_READERS)


def read_file(path: Path) -> Iterator[RawRow]:
    """Every row of one file in order. Raises SourceError: unknown ending, or the disk does not give the bytes."""
    found = ending(path.name)
    if found is None:
        raise SourceError(f"{path}: unknown ending; regen reads {', '.join(_READERS)}, each also with .gz or .zst")
    try:
        yield from _READERS[found](path)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror or error}") from error


# --- JSON Lines ----------------------------------------------------------------------------------


def _read_json_lines(path: Path) -> Iterator[RawRow]:
    number = 0
    with _opened(path) as stream:
        try:
            for number, line in enumerate(stream, start=1):
                if row := _json_line(f"{path}:{number}", line.removeprefix(_BOM) if number == 1 else line):
                    yield row
        except _DAMAGE as error:
            yield _damaged(f"{path}:{number + 1}", f"the compressed stream breaks off after line {number}", error)


def _json_line(location: str, line: bytes) -> RawRow | None:
    raw = line.strip()
    if not raw:
        return None
    try:
        value = parse(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        return RawRow(location, error=(LoadError.INVALID_UTF8, f"byte {error.start} of the line"), raw=raw)
    except json.JSONDecodeError as error:
        return RawRow(location, error=(LoadError.BAD_JSON, f"{error.msg} at column {error.colno}"), raw=raw)
    except (ValueError, RecursionError) as error:
        return RawRow(location, error=complaint(error), raw=raw)
    return as_row(location, value, raw)


def as_row(location: str, value: object, raw: bytes) -> RawRow:
    """A parsed JSON value as a row: only objects are rows."""
    if isinstance(value, dict):
        return RawRow(location, value=value, raw=raw)
    return RawRow(location, error=(LoadError.NOT_AN_OBJECT, f"found {type(value).__name__}"), raw=raw)


# --- JSON: an array, one object, or JSON Lines in spite of the name ------------------------------


def _read_json(path: Path) -> Iterator[RawRow]:
    first_line = _first_line(path)
    if first_line.startswith(b"["):
        yield from _read_json_array(path)
    elif first_line.startswith(b"{") and not first_line.endswith(b"}"):
        yield from _read_json_object(path)
    else:
        yield from _read_json_lines(path)


def _first_line(path: Path) -> bytes:
    """The first line that is not blank, stripped; of a very long one the beginning."""
    text = b""
    with _opened(path) as stream:
        try:
            while (block := stream.read1(_COPY_BYTES)) and len(text) < _FIRST_LINE_BYTES:
                text = (text + block).removeprefix(_BOM).lstrip()
                if b"\n" in text:
                    break
        except _DAMAGE:
            pass  # whoever reads the rows meets it again, and says where
    return text.partition(b"\n")[0].rstrip()


def _read_json_array(path: Path) -> Iterator[RawRow]:
    with _opened(path) as stream:
        # read1, not read: before it raises, a torn gzip gives what it still could unpack.
        for element in read_array(lambda: stream.read1(_COPY_BYTES), _DAMAGE):
            location = f"{path}[{element.index}]"
            if element.damage is not None:
                yield RawRow(location, error=(LoadError.DAMAGED_FILE, element.damage), raw=element.raw)
            elif element.has_invalid_utf8:
                yield RawRow(location, error=(LoadError.INVALID_UTF8, "inside this element"), raw=element.raw)
            elif element.error is not None:
                yield RawRow(location, error=element.error, raw=element.raw)
            else:
                yield as_row(location, element.value, element.raw)


def _read_json_object(path: Path) -> Iterator[RawRow]:
    """One object over several lines is one row; else lines, if any line is an object; else the file is damaged."""
    with _opened(path) as stream:
        try:
            content = stream.read().removeprefix(_BOM).strip()
        except _DAMAGE as error:
            content = b""
            broken = _damaged(f"{path}", "the compressed stream breaks off", error)
    if content:
        whole = cast(RawRow, _json_line(f"{path}[0]", content))
        if whole.error is None or _is_no_value(content):
            yield whole
            return
        broken = RawRow(f"{path}[0]", error=(LoadError.DAMAGED_FILE, whole.error[1]), raw=content)
    rows = _read_json_lines(path)
    first_rows = []
    for row in rows:
        first_rows.append(row)
        if row.value is not None:
            yield from chain(first_rows, rows)
            return
    yield broken


def _is_no_value(content: bytes) -> bool:
    """Whether a text that could not be read is one whole object: the row is bad, and there is no other in the file."""
    try:
        text = content.decode("utf-8")
        parse(text)
    except (UnicodeDecodeError, json.JSONDecodeError):
        return False
    except (ValueError, RecursionError):
        with suppress(ValueError):
            return value_end(text, 0) == len(text)
    return False


# --- CSV and TSV ---------------------------------------------------------------------------------


def _read_csv(path: Path) -> Iterator[RawRow]:
    return _read_delimited(path, ",")


def _read_tsv(path: Path) -> Iterator[RawRow]:
    return _read_delimited(path, "\t")


def _read_delimited(path: Path, delimiter: str) -> Iterator[RawRow]:
    csv.field_size_limit(sys.maxsize)
    with _opened(path) as stream:
        text = TextIOWrapper(cast(IO[bytes], stream), encoding="utf-8-sig", errors="surrogateescape", newline="")
        taken: list[str] = []  # the lines of the row that is being read
        reader = csv.reader(_noted(text, taken), delimiter=delimiter, strict=True)
        header: list[str] | None = None
        while True:
            first_line = reader.line_num + 1
            location = f"{path}:{first_line}"
            taken.clear()
            try:
                fields = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                raw = "".join(taken).encode("utf-8", "surrogateescape").rstrip(b"\r\n")
                yield RawRow(
                    location, error=(LoadError.BAD_CSV, _swallowed(error, first_line, reader.line_num)), raw=raw
                )
                if header is None:
                    return  # without its header no line means anything
                continue
            except _DAMAGE as error:
                yield _damaged(location, f"the compressed stream breaks off after line {reader.line_num}", error)
                return
            if not fields:
                continue
            if header is None:
                header = fields
            else:
                yield _csv_row(location, header, fields)


def _noted(lines: Iterable[str], taken: list[str]) -> Iterator[str]:
    for line in lines:
        taken.append(line)
        yield line


def _swallowed(error: csv.Error, first_line: int, last_line: int) -> str:
    if last_line == first_line:
        return str(error)
    return f"{error}; lines {first_line} to {last_line} were read as this one row: is a quote not closed?"


def _csv_row(location: str, header: list[str], fields: list[str]) -> RawRow:
    raw = canonical_json(fields).encode("ascii")
    if len(set(header)) < len(header):
        return RawRow(location, error=(LoadError.DUPLICATE_COLUMNS, "the header names a column twice"), raw=raw)
    if len(fields) != len(header):
        detail = f"found {len(fields)} fields, the header has {len(header)}"
        return RawRow(location, error=(LoadError.WRONG_FIELD_COUNT, detail), raw=raw)
    if not all(field.isascii() or _is_utf8(field) for field in fields):
        return RawRow(location, error=(LoadError.INVALID_UTF8, "inside this row"), raw=raw)
    return RawRow(location, value=dict(zip(header, fields, strict=True)), raw=raw)


def _is_utf8(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


# --- Parquet -------------------------------------------------------------------------------------


def _read_parquet(path: Path) -> Iterator[RawRow]:
    index = 0
    try:
        with _local_copy(path) as local, pq.ParquetFile(local) as file:
            for batch in file.iter_batches(batch_size=_PARQUET_BATCH_ROWS):
                names = batch.schema.names
                read = batch_rows if len(set(names)) == len(names) else _rows_without_names
                yield from read(batch, lambda number: f"{path}[{number}]", index)
                index += batch.num_rows
    except (pa.ArrowException, *_DAMAGE) as error:
        yield _damaged(f"{path}[{index}]", f"the file breaks off after {index} rows", error)
    except OSError as error:
        if error.errno is not None:
            raise
        yield _damaged(f"{path}[{index}]", f"the file breaks off after {index} rows", error)


def batch_rows(batch: pa.RecordBatch, location: Callable[[int], str], start: int) -> Iterator[RawRow]:
    """Python values of one batch; a row whose values Python cannot hold is rejected alone."""
    try:
        values: list[dict[str, Any]] = batch.to_pylist()
    except (ValueError, OverflowError, pa.ArrowException):
        for offset in range(batch.num_rows):
            yield _single_row(batch.slice(offset, 1), location(start + offset))
        return
    for offset, value in enumerate(values):
        yield table_row(location(start + offset), value)


def _rows_without_names(batch: pa.RecordBatch, location: Callable[[int], str], start: int) -> Iterator[RawRow]:
    """Rejected rows: a value by its name could be one of two."""
    error = (LoadError.DUPLICATE_COLUMNS, "the file names a column twice")
    numbered = batch.rename_columns([str(number) for number in range(batch.num_columns)])
    for row in batch_rows(numbered, location, start):
        yield RawRow(row.location, error=error, raw=row.identity())


def _single_row(batch: pa.RecordBatch, location: str) -> RawRow:
    try:
        return table_row(location, batch.to_pylist()[0])
    except (ValueError, OverflowError, pa.ArrowException) as error:
        return RawRow(location, error=(LoadError.UNREADABLE_VALUE, f"{type(error).__name__}: {error}"))


# --- bytes ---------------------------------------------------------------------------------------


@contextmanager
def _opened(path: Path) -> Iterator[BufferedIOBase]:
    name = path.name.lower()
    if name.endswith(".gz"):
        with gzip.open(path, "rb") as unpacked:
            yield cast(BufferedIOBase, unpacked)
    elif name.endswith(".zst"):
        with path.open("rb") as packed, pa.CompressedInputStream(pa.PythonFile(packed, "r"), "zstd") as stream:
            yield BufferedReader(_Unpacked(stream))
    else:
        with path.open("rb") as plain:
            yield plain


class _Unpacked(RawIOBase):
    """Arrow's unpacked stream for Python's buffer. Small reads: a damaged place costs no more than one of them."""

    def __init__(self, stream: pa.NativeFile) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        view = memoryview(into)
        try:
            data = self._stream.read(min(len(view), _UNPACK_BYTES))
        except OSError as error:
            if error.errno is not None:  # said by the system, not by the decoder
                raise
            raise _BadZstd(str(error)) from error
        view[: len(data)] = data
        return len(data)


def _is_packed(path: Path) -> bool:
    return path.name.lower().endswith((".gz", ".zst"))


@contextmanager
def _local_copy(path: Path) -> Iterator[Path]:
    """Parquet is read from its end, which a packed file does not allow: it is unpacked beside the other temporaries."""
    if not _is_packed(path):
        yield path
        return
    with tempfile.NamedTemporaryFile(prefix="regen-", suffix=".parquet") as copy:
        with _opened(path) as stream:
            while block := stream.read(_COPY_BYTES):
                copy.write(block)
        copy.flush()
        yield Path(copy.name)


def _damaged(location: str, what: str, error: BaseException) -> RawRow:
    return RawRow(location, error=(LoadError.DAMAGED_FILE, f"{what} ({type(error).__name__}), {UNREAD}"))


_READERS: dict[str, Callable[[Path], Iterator[RawRow]]] = {
    ".jsonl": _read_json_lines,
    ".ndjson": _read_json_lines,
    ".json": _read_json,
    ".csv": _read_csv,
    ".tsv": _read_tsv,
    ".parquet": _read_parquet,
}
