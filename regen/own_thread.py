"""Arrow's work on tables that Python may own, done by the thread that asks for it and by no other.

Arrow decodes columns, reads ahead and groups in threads of its own. Those let go of what they worked on - bytes, an
open file, a part of a received table - a moment after the caller has the result, and need the interpreter's lock for
that. If the process ends in that moment, CPython before 3.14 ends the thread that asks for the lock, out of a C++
destructor, and C++ aborts the process: "terminate called without an active exception", exit -6, after everything was
done and said. On a busy machine up to one in eight processes ended so whose last act was to read a file.

Guarantees: when a function here, or a read of a file opened here, has returned, no thread of Arrow's holds anything of
Python's. Costs no time with journal files: decoding 49 MB took 0.05 s so, and 0.08 s with Arrow's threads on two cores.
Files that Arrow opens by their path need none of this: nothing of Python's is in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq


def open_parquet(source: BinaryIO, *, check_pages: bool = False) -> pq.ParquetFile:
    """To be read by `read_parquet` and `read_row_group`. Raises what Arrow raises."""
    return pq.ParquetFile(source, page_checksum_verification=check_pages, pre_buffer=False)


def read_parquet(file: pq.ParquetFile, columns: Sequence[str] | None = None) -> pa.Table:
    """All rows, or some columns of them."""
    return file.read(columns=_listed(columns), use_threads=False)


def read_row_group(file: pq.ParquetFile, index: int, columns: Sequence[str] | None = None) -> pa.Table:
    """One row group, or some columns of it; they may be paths into nested ones."""
    return file.read_row_group(index, columns=_listed(columns), use_threads=False)


def group_by(table: pa.Table, *keys: str) -> pa.TableGroupBy:
    """As Arrow's own."""
    return table.group_by(list(keys), use_threads=False)


def _listed(columns: Sequence[str] | None) -> list[str] | None:
    return None if columns is None else list(columns)
