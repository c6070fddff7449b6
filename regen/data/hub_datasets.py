"""Raw rows out of Hugging Face `datasets`, by hub name or from a local folder.

Guarantees: images and sounds are not decoded; a row that cannot be read is rejected alone. The library keeps its own
cache on disk and maps it: memory does not grow with the dataset.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from regen.data.files import ending
from regen.data.raw import LoadError, RawRow
from regen.data.table_row import table_row
from regen.errors import SourceError
from regen.spec import SourceSpec


def read_dataset(spec: SourceSpec) -> Iterator[RawRow]:
    """Every row of one split in order. Raises SourceError: no such dataset, configuration or split."""
    split, dataset = _load(spec)
    rows = iter(dataset)
    for index in range(len(dataset)):
        location = f"{spec.path}/{split}[{index}]"
        try:
            value = next(rows)
        except Exception as error:
            yield _unreadable(location, error)
            yield from _read_one_by_one(dataset, spec, split, index + 1)
            return
        yield table_row(location, value)


def dataset_identity(spec: SourceSpec) -> tuple[str, int, str]:
    """(`path/split`, size in bytes, the library's own fingerprint). Raises as `read_dataset` does."""
    split, dataset = _load(spec)
    return f"{spec.path}/{split}", int(dataset.data.nbytes), str(dataset._fingerprint)


def _read_one_by_one(dataset: Any, spec: SourceSpec, split: str, start: int) -> Iterator[RawRow]:
    """After a row that ended the fast iteration: slower, and each row on its own."""
    for index in range(start, len(dataset)):
        location = f"{spec.path}/{split}[{index}]"
        try:
            value = dataset[index]
        except Exception as error:
            yield _unreadable(location, error)
        else:
            yield table_row(location, value)


def _unreadable(location: str, error: Exception) -> RawRow:
    return RawRow(location, error=(LoadError.UNREADABLE_VALUE, f"{type(error).__name__}: {error}"))


def _load(spec: SourceSpec) -> tuple[str, Any]:
    from datasets import DatasetDict, load_dataset

    try:
        loaded = load_dataset(spec.path, name=spec.config, split=spec.split, revision=spec.revision)
    except Exception as error:
        what = f"source {spec.name!r}: the dataset {spec.path!r} cannot be loaded: {_reasons(error)}{_advice(spec)}"
        raise SourceError(what) from error
    if not isinstance(loaded, DatasetDict):
        return str(spec.split), _undecoded(loaded)
    if len(loaded) != 1:
        splits = ", ".join(loaded)
        raise SourceError(f"source {spec.name!r}: {spec.path!r} has the splits {splits}; set split to one of them")
    split, dataset = next(iter(loaded.items()))
    return str(split), _undecoded(dataset)


def _reasons(error: BaseException) -> str:
    """What the library says, and the first cause of it: the library's own message often says only that it failed."""
    root = error
    while (cause := root.__cause__ or (None if root.__suppress_context__ else root.__context__)) is not None:
        root = cause
    return _said(error) if root is error else f"{_said(error)}; caused by {_said(root)}"


def _said(error: BaseException) -> str:
    first_line = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__


def _advice(spec: SourceSpec) -> str:
    folder = os.path.expanduser(spec.path)
    if not os.path.isdir(folder):
        return ""
    endings = sorted({found for name in os.listdir(folder) if (found := ending(name))}) or [".jsonl"]
    files = " or ".join(f"{spec.path.rstrip('/')}/*{found}" for found in endings)
    return f". One bad row stops the whole dataset; name its files ({files}) and a bad row costs only itself"


def _undecoded(dataset: Any) -> Any:
    from datasets import Audio, Image, Video

    for name, feature in dataset.features.items():
        if isinstance(feature, Audio | Image | Video):
            dataset = dataset.cast_column(name, type(feature)(decode=False))
    return dataset
