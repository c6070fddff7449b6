"""Writes the parts of a plan: local temporary, closed, then handed to the storage under its final key.

Parts are no plan until `plan.json` names them. Memory: one row group (512 rows or 16 MiB of text).
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import TracebackType

import pyarrow.parquet as pq

from regen.data.plan_rows import SCHEMA, PlanDigest, RowValues, text_bytes, to_table
from regen.data.plan_summary import PlanPart
from regen.data.sources import file_digest
from regen.protocols import Storage

PART_ROWS = 10_000
PART_BYTES = 256 << 20
GROUP_ROWS = 512
GROUP_BYTES = 16 << 20


class RowGroupFile:
    """A local Parquet file of planned rows, in row groups bounded by rows and bytes. `close` before reading it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = 0
        self.text_bytes = 0
        self._writer = pq.ParquetWriter(path, SCHEMA, compression="zstd")
        self._group: list[RowValues] = []
        self._group_bytes = 0

    def add(self, values: RowValues) -> None:
        size = text_bytes(values)
        self._group.append(values)
        self._group_bytes += size
        self.text_bytes += size
        self.rows += 1
        if len(self._group) >= GROUP_ROWS or self._group_bytes >= GROUP_BYTES:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if self._group:
            self._writer.write_table(to_table(self._group), row_group_size=GROUP_ROWS)
        self._group, self._group_bytes = [], 0


class PlanWriter:
    """Gives rows their ordinals and writes them in parts. A context manager; `finish` is called once, at the end."""

    def __init__(
        self, storage: Storage, session: str, part_rows: int = PART_ROWS, *, first: int = 0, digest_before: str = ""
    ) -> None:
        """`first` is the first ordinal; `digest_before` the digest of a plan that is extended."""
        self._storage = storage
        self._session = session
        self._part_rows = part_rows
        self._folder = tempfile.TemporaryDirectory(prefix="regen-plan-")
        self._file: RowGroupFile | None = None
        self._digest = PlanDigest(digest_before)
        self._parts: list[PlanPart] = []
        self._first = first
        self.rows = 0

    def add(self, values: RowValues) -> None:
        """The next row; its ordinal is set here."""
        values["ordinal"] = self._first + self.rows
        self.rows += 1
        self._digest.add(values)
        if self._file is None:
            self._file = RowGroupFile(Path(self._folder.name) / f"part-{len(self._parts):05d}.parquet")
        self._file.add(values)
        if self._file.rows >= self._part_rows or self._file.text_bytes >= PART_BYTES:
            self._publish(self._file)

    def finish(self) -> tuple[tuple[PlanPart, ...], str]:
        """The parts, all in the storage, and the plan's digest."""
        if self._file is not None:
            self._publish(self._file)
        return tuple(self._parts), self._digest.hexdigest()

    def __enter__(self) -> PlanWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._folder.cleanup()

    def _publish(self, file: RowGroupFile) -> None:
        file.close()
        key = f"plan/{self._session}/{file.path.name}"
        self._parts.append(PlanPart(key, file.rows, file.path.stat().st_size, file_digest(file.path)))
        self._storage.replace(key, file.path)
        file.path.unlink()
        self._file = None
