"""How finished rows become a Parquet file and come back: one schema, checksums on every page, a footer that says more.

Guarantees: a file that was cut or altered is not read as something else: pages carry checksums, regen's own entry in
the footer carries a digest of itself, and one of the whole file, which `check_bytes` compares. Row groups are bounded
in bytes, so no column outgrows its 32-bit offsets.
Does not know what the entry means: see `footer.py` and `shards.py`.

The digest of the whole file stands in the file itself: it is made with `_PLACE` where it will stand, then put there.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.parquet as pq

from regen.errors import JournalDamaged, StoreUnavailable
from regen.own_thread import open_parquet, read_parquet, read_row_group
from regen.rows import SCHEMA
from regen.store.layout import JOURNAL, SHARDS

ROW_GROUP_BYTES = 64 * 2**20
_ENTRY = b"regen"
_PLACE = "file-digest-goes-into-this-place"
_BLOCK_BYTES = 1 << 20
_ADVICE = ". Nothing was changed;"


def write_rows(path: Path, groups: Iterable[pa.Table], entry: Mapping[str, Any]) -> None:
    """Write a local file of tables of `SCHEMA`, one row group each, with regen's own footer entry. Raises OSError."""
    _write(path, groups, entry)
    with path.open("r+b") as file:
        _fill_in_digest(file)


def encode_rows(table: pa.Table, entry: Mapping[str, Any]) -> bytes:
    """One file in memory. The same arguments give the same bytes."""
    sink = pa.BufferOutputStream()
    _write(sink, row_groups(table), entry)
    file = io.BytesIO(sink.getvalue().to_pybytes())
    _fill_in_digest(file)
    return file.getvalue()


def _write(sink: Path | pa.NativeFile, groups: Iterable[pa.Table], entry: Mapping[str, Any]) -> None:
    with pq.ParquetWriter(
        sink, SCHEMA, compression="zstd", write_page_checksum=True, write_statistics=["ordinal"]
    ) as writer:
        for group in groups:
            writer.write_table(group, row_group_size=max(1, len(group)))
        writer.add_key_value_metadata({_ENTRY.decode(): _entry_text(entry)})


def row_groups(table: pa.Table, limit_bytes: int = ROW_GROUP_BYTES) -> Iterator[pa.Table]:
    """The table in consecutive pieces of about `limit_bytes` at most, judged by the mean row."""
    rows = max(1, len(table) * limit_bytes // max(1, table.nbytes))
    for start in range(0, len(table), rows):
        yield table.slice(start, rows)


class RowsFile:
    """An open Parquet file of finished rows: `entry` is regen's own footer entry, `digest` what it says of itself.

    `where` names it in errors; everything raises JournalDamaged, and StoreUnavailable for errors of the store.
    """

    def __init__(self, source: BinaryIO | bytes, where: str) -> None:
        self.where = where
        self._source = io.BytesIO(source) if isinstance(source, bytes) else source
        with naming_damage(where):
            self._file = open_parquet(self._source, check_pages=True)
            found, paths = self._file.schema_arrow, _column_paths(self._file)
            metadata = self._file.metadata.metadata or {}
        if not found.equals(SCHEMA) or paths != _expected_paths():
            raise damaged(where, "its columns are not those of finished rows")
        if _ENTRY not in metadata:
            raise damaged(where, "its footer lacks regen's entry")
        with naming_damage(where):
            parsed = json.loads(metadata[_ENTRY])
            self.entry: dict[str, Any] = dict(parsed["body"])
            self.digest = str(parsed["file"])
            check = str(parsed["check"])
        if check != _text_digest(_canonical(self.entry)):
            raise damaged(where, "the digest of its footer entry does not match")

    @property
    def rows(self) -> int:
        return int(self._file.metadata.num_rows)

    def check_bytes(self) -> None:
        """Read the file from end to end and compare every byte, by digest, with what was written."""
        with naming_damage(self.where):
            found = _whole_digest(self._source, self.digest)
        if found != self.digest:
            raise damaged(self.where, "its digest does not match: it is not what was written")

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows, or some top-level columns of them, without the footer's metadata."""
        with naming_damage(self.where):
            return read_parquet(self._file, columns).replace_schema_metadata(None)

    def groups(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """One row group after the other: a bounded part in memory. `columns` may be paths into nested ones."""
        for index in range(self._file.num_row_groups):
            with naming_damage(self.where):
                group = read_row_group(self._file, index, columns).replace_schema_metadata(None)
            yield group


def _column_paths(file: pq.ParquetFile) -> tuple[str, ...]:
    """As Parquet has them, by which columns are chosen: Arrow's schema stands in the file a second time."""
    return tuple(file.schema.column(index).path for index in range(len(file.schema)))


@cache
def _expected_paths() -> tuple[str, ...]:
    sink = pa.BufferOutputStream()
    pq.write_table(SCHEMA.empty_table(), sink)
    return _column_paths(pq.ParquetFile(pa.BufferReader(sink.getvalue())))


def integers(table: pa.Table, name: str) -> list[int]:
    """A column of whole numbers without nulls."""
    return cast(list[int], table[name].to_pylist())


def texts(table: pa.Table, name: str) -> list[str]:
    """A column of text without nulls."""
    return cast(list[str], table[name].to_pylist())


def content_digest(ordinals: Sequence[int], digests: Sequence[str]) -> str:
    """32 hex digits over rows in their order: each row's ordinal and its own digest."""
    whole = hashlib.blake2b(digest_size=16)
    for ordinal, digest in zip(ordinals, digests, strict=True):
        whole.update(f"{ordinal} {digest}\n".encode("ascii"))
    return whole.hexdigest()


def damaged(where: str, what: str) -> JournalDamaged:
    """The error of a file that is not what was published. `where` is its full name."""
    run = _run_of(where)
    return JournalDamaged(
        f"{where}: {what}{_ADVICE} `regen verify {run}` shows the extent,"
        f" `regen verify {run} --repair` opens its rows again"
    )


def what_is_wrong(error: JournalDamaged, where: str) -> str:
    """Of an error made by `damaged`, what was found: for reports that have the file's name and the advice already."""
    return str(error).removeprefix(f"{where}: ").partition(_ADVICE)[0]


def _run_of(where: str) -> str:
    for folder in (JOURNAL, SHARDS):
        run, found, _ = where.rpartition(f"/{folder}")
        if found:
            return run
    return "RUN"


@contextmanager
def naming_damage(where: str) -> Iterator[None]:
    """What a reader says of bytes that make no sense -> JournalDamaged; what the system says -> StoreUnavailable."""
    try:
        yield
    except OSError as error:
        if error.errno is not None:
            raise StoreUnavailable(f"{where}: cannot be read: {error.strerror}") from error
        raise damaged(where, f"it cannot be read as Parquet ({_first_line(error)})") from error
    except (pa.ArrowException, ValueError, LookupError, TypeError, MemoryError) as error:
        raise damaged(where, f"it cannot be read as finished rows ({_first_line(error)})") from error


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _entry_text(body: Mapping[str, Any]) -> str:
    return _canonical({"body": body, "check": _text_digest(_canonical(body)), "file": _PLACE})


def _canonical(values: Mapping[str, Any]) -> str:
    return json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def _fill_in_digest(file: BinaryIO) -> None:
    digest = _whole_digest(file, _PLACE)
    file.seek(_place_of(file, _PLACE))
    file.write(digest.encode("ascii"))


def _whole_digest(file: BinaryIO, written: str) -> str:
    """Over all bytes, with `_PLACE` where `written` stands in the footer."""
    place = _place_of(file, written)
    whole = hashlib.blake2b(digest_size=16)
    file.seek(0)
    left = place
    while left:
        block = file.read(min(left, _BLOCK_BYTES))
        if not block:
            raise ValueError("it is shorter than a moment ago")
        whole.update(block)
        left -= len(block)
    whole.update(_PLACE.encode("ascii"))
    file.seek(place + len(_PLACE))
    whole.update(file.read())
    return whole.hexdigest()


def _place_of(file: BinaryIO, written: str) -> int:
    """Where the digest stands: its last occurrence, which is in the footer, behind all rows."""
    size = file.seek(0, io.SEEK_END)
    file.seek(size - 8)
    footer_bytes = int.from_bytes(file.read(4), "little") + 8
    start = file.seek(max(0, size - footer_bytes))
    place = file.read().rfind(written.encode("ascii"))
    if place < 0:
        raise ValueError("its digest is not in its footer")
    return start + place


def _text_digest(text: str) -> str:
    return hashlib.blake2b(text.encode("ascii"), digest_size=16).hexdigest()
