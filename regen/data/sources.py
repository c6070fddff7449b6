"""What a source of the spec is made of, and its raw rows: files by path or glob, or a dataset.

Guarantees: files in sorted order; `limit` counts source rows, before any is rejected; the same spec and the same bytes
give the same rows in the same order. Raises SourceError only where a source cannot be found or opened at all.
"""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from regen.data.files import ending, known_endings, read_file
from regen.data.hub_datasets import dataset_identity, read_dataset
from regen.data.raw import RawRow, SourceFile
from regen.data.shuffle import shuffled
from regen.errors import SourceError
from regen.spec import SourceSpec

_GLOB_CHARACTERS = "*?["
_BLOCK_BYTES = 1 << 20


def read_source(spec: SourceSpec, takes: Callable[[RawRow], bool] | None = None) -> Iterator[RawRow]:
    """The raw rows to plan, shuffled and limited as the spec says. Raises SourceError, also half-way.

    `takes`: leave out rows for which it is false, before any is counted.
    """
    rows = filter(takes, _rows_in_order(spec)) if takes else _rows_in_order(spec)
    if spec.shuffle_seed is not None:
        return shuffled(rows, spec.shuffle_seed, spec.limit)
    return islice(rows, spec.limit)


def list_files(spec: SourceSpec) -> list[SourceFile]:
    """What the source is made of, with digests: reads every byte of every file. Raises SourceError."""
    if not is_files(spec):
        return [SourceFile(*dataset_identity(spec))]
    return [SourceFile(str(path), path.stat().st_size, file_digest(path)) for path in source_paths(spec)]


def is_files(spec: SourceSpec) -> bool:
    """Whether the source is files, as its `kind` says; `auto` looks at the path and at what exists."""
    if spec.kind != "auto":
        return spec.kind == "files"
    path = os.path.expanduser(spec.path)
    if os.path.isdir(path):
        return False
    return os.path.isfile(path) or _is_glob(path) or ending(path) is not None


def source_paths(spec: SourceSpec) -> list[Path]:
    """The files of a source of files, sorted. Raises SourceError: none found, unknown ending, or not readable."""
    for name in ("config", "split", "revision"):
        if getattr(spec, name) is not None:
            raise SourceError(
                f"source {spec.name!r}: {name} means nothing for files; take it out, or set kind: dataset"
            )
    path = os.path.expanduser(spec.path)
    if os.path.isfile(path):
        found = [path]
    elif os.path.isdir(path):
        raise SourceError(
            f"source {spec.name!r}: {spec.path} is a folder; name its files: {spec.path.rstrip('/')}/*.jsonl"
        )
    elif _is_glob(path):
        found = sorted(name for name in glob.glob(path, recursive=True) if os.path.isfile(name))
    else:
        found = []
    if not found:
        what = "no file matches" if _is_glob(path) else "there is no file"
        raise SourceError(f"source {spec.name!r}: {what} {spec.path} (looked in {os.getcwd()})")
    for name in found:
        _check_readable(spec, name)
    return [Path(name) for name in found]


def file_digest(path: Path) -> str:
    """32 hex digits of BLAKE2b over the content. Raises SourceError when it cannot be read."""
    made = hashlib.blake2b(digest_size=16)
    try:
        with path.open("rb") as stream:
            while block := stream.read(_BLOCK_BYTES):
                made.update(block)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}") from error
    return made.hexdigest()


def _rows_in_order(spec: SourceSpec) -> Iterator[RawRow]:
    if not is_files(spec):
        yield from read_dataset(spec)
        return
    for path in source_paths(spec):
        yield from read_file(path)


def _check_readable(spec: SourceSpec, name: str) -> None:
    if ending(name) is None:
        endings = ", ".join(known_endings())
        raise SourceError(
            f"source {spec.name!r}: {name}: unknown ending; regen reads {endings}, each also with .gz or .zst"
        )
    if not os.access(name, os.R_OK):
        raise SourceError(f"source {spec.name!r}: {name}: no permission to read it")


def _is_glob(path: str) -> bool:
    return any(char in path for char in _GLOB_CHARACTERS)
