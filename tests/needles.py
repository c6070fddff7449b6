"""Whether a text stands anywhere in a folder, also within Parquet files, whose pages are compressed."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq


def holding(text: str, folder: Path) -> list[Path]:
    """Files with this text in them: in their bytes, or in what a Parquet file holds."""
    return [path for path in folder.rglob("*") if path.is_file() and text in _content(path)]


def _content(path: Path) -> str:
    if path.suffix != ".parquet":
        return path.read_bytes().decode("utf-8", "replace")
    return f"{pq.read_table(path).to_pylist()}{pq.read_metadata(path).metadata}"
