"""A checkpoint's files: config, headers, small tensors, samples, and what is wrong with any of them.

Guarantees: reads headers, tables (d2t, t2d) and at most `SAMPLE_BYTES` of weights; downloads none of the weights of a
hub checkpoint, but asks for ranges of them. So it takes seconds for a model of any size. What is wrong with a file is
told and not raised; only a checkpoint that is nowhere to be found raises.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from regen.checkpoints import Checkpoint, FileFault, FileProblem, Tensor
from regen.data.model_files import ModelFiles
from regen.data.numbers import has_not_finite, integers, is_all_zero
from regen.data.safetensors import Header, Place, read_header
from regen.data.torch_archive import read_archive
from regen.data.vocabulary import read_vocabulary

INDEX = "model.safetensors.index.json"
TABLES = ("d2t", "t2d")
TABLE_BYTES = 16 * 2**20
SAMPLE_BYTES = 64 * 2**20
_CHUNK_BYTES = 2**20


def read_checkpoint(
    name: str,
    files: ModelFiles,
    *,
    with_samples: bool = True,
    with_vocabulary: bool = False,
    with_headers: bool = True,
) -> Checkpoint:
    """What the files tell. A target needs no samples, and on the hub no headers: its index has the names."""
    found = _Found()
    config = found.read_json(files, "config.json")
    generation_config = found.read_json(files, "generation_config.json", is_needed=False)
    headers = _headers(files, found, with_headers)
    sampled = _Samples(files, headers) if with_samples else None
    return Checkpoint(
        name=name,
        config=config,
        generation_config=generation_config or {},
        tensors={tensor: shape for header in headers for tensor, shape in header.tensors.items()},
        tensor_names=frozenset(found.names.union(*(header.tensors for header in headers))),
        integers=_tables(files, headers),
        not_finite=tuple(sampled.not_finite) if sampled else (),
        all_zero=tuple(sampled.all_zero) if sampled else (),
        problems=tuple(found.problems),
        has_unread_weights=found.has_unread_weights,
        vocabulary=read_vocabulary(files) if with_vocabulary else None,
    )


@dataclass
class _Found:
    """What came up while looking."""

    problems: list[FileProblem] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    has_unread_weights: bool = False

    def read_json(self, files: ModelFiles, name: str, is_needed: bool = True) -> Mapping[str, Any] | None:
        try:
            value = json.loads(files.read(name, 0, files.size(name)))
        except FileNotFoundError:
            if is_needed:
                self.problems.append(FileProblem(name, FileFault.ABSENT, "is not there"))
            return None
        except (OSError, ValueError) as error:
            self.problems.append(FileProblem(name, FileFault.UNREADABLE, f"cannot be read as JSON: {error}"))
            return None
        if not isinstance(value, dict):
            self.problems.append(FileProblem(name, FileFault.DAMAGED, "is not a JSON object"))
            return None
        return value


def _headers(files: ModelFiles, found: _Found, with_headers: bool) -> list[Header]:
    """Of every weight file that the engine would load: safetensors (by the index, if there is one), else `.bin`."""
    names = files.names()
    indexed = _indexed(files, found) if INDEX in names else None
    if indexed is not None and not with_headers:
        return []
    chosen = sorted(indexed) if indexed is not None else [name for name in names if name.endswith(".safetensors")]
    if chosen:
        present = set(names)
        found.problems += [
            FileProblem(name, FileFault.ABSENT, f"is not there, and {INDEX} names it")
            for name in chosen
            if name not in present
        ]
        headers = _kept((_safetensors(files, name) for name in chosen if name in present), found)
        _missing_in_files(indexed, headers, found)
        return headers
    archives = [name for name in names if name.endswith((".bin", ".pt", ".pth")) and "training_args" not in name]
    others = [name for name in names if name.endswith(".gguf")]
    found.has_unread_weights = bool(others)
    if archives:
        return _kept((_archive(files, name) for name in archives), found)
    if not others:
        found.problems += _absent(names)
    return []


def _indexed(files: ModelFiles, found: _Found) -> dict[str, set[str]] | None:
    """File -> names of the tensors that the index puts there."""
    index = found.read_json(files, INDEX)
    weight_map = index.get("weight_map") if index else None
    if not isinstance(weight_map, dict):
        return None
    by_file: dict[str, set[str]] = {}
    for tensor, file in weight_map.items():
        by_file.setdefault(str(file), set()).add(str(tensor))
    found.names.update(map(str, weight_map))
    return by_file


def _missing_in_files(indexed: dict[str, set[str]] | None, headers: list[Header], found: _Found) -> None:
    """A tensor that the index puts into a file whose header does not have it."""
    for header in headers:
        file = next((place.file for place in header.places.values()), "")
        lost = sorted((indexed or {}).get(file, set()) - set(header.tensors))
        if lost:
            detail = f"does not hold {lost[0]}{f' and {len(lost) - 1} more' if lost[1:] else ''}, and {INDEX} says so"
            found.problems.append(FileProblem(file, FileFault.DAMAGED, detail))


def _kept(results: Iterable[Header | FileProblem], found: _Found) -> list[Header]:
    headers = []
    for result in results:
        if isinstance(result, Header):
            headers.append(result)
            continue
        found.problems.append(result)
        if result.fault is FileFault.UNREADABLE:
            found.has_unread_weights = True
    return headers


def _safetensors(files: ModelFiles, name: str) -> Header | FileProblem:
    try:
        return read_header(name, files.size(name), lambda start, length: files.read(name, start, length))
    except FileNotFoundError:
        return FileProblem(name, FileFault.ABSENT, "is a link that leads nowhere")
    except OSError as error:
        return FileProblem(name, FileFault.UNREADABLE, f"cannot be read: {error}")


def _archive(files: ModelFiles, name: str) -> Header | FileProblem:
    path = files.path(name)
    if path is None:
        return FileProblem(name, FileFault.UNREADABLE, "is on the hub, where only safetensors can be looked into")
    try:
        return read_archive(path)
    except FileNotFoundError:
        return FileProblem(name, FileFault.ABSENT, "is a link that leads nowhere")


def _absent(names: list[str]) -> list[FileProblem]:
    partial = [name for name in names if name.endswith((".incomplete", ".part", ".tmp", ".download"))]
    if partial:
        return [FileProblem(partial[0], FileFault.TRUNCATED, "is an unfinished download, and there are no weights")]
    return [FileProblem("model.safetensors", FileFault.ABSENT, "is not there, nor any other weights")]


def _tables(files: ModelFiles, headers: list[Header]) -> dict[str, tuple[int, ...]]:
    found = {}
    for header in headers:
        for name, tensor in header.tensors.items():
            table, place = name.rpartition(".")[2], header.places[name]
            if table in TABLES and place.length <= TABLE_BYTES:
                values = integers(tensor.dtype, files.read(place.file, place.start, place.length))
                if values is not None:
                    found[table] = values
    return found


class _Samples:
    """Looks into weights: at all of a small checkpoint, else at the start, the middle and the end of each tensor."""

    def __init__(self, files: ModelFiles, headers: list[Header]) -> None:
        self.not_finite: list[str] = []
        self.all_zero: list[str] = []
        pairs = [(tensor, header.places[name]) for header in headers for name, tensor in header.tensors.items()]
        budget = SAMPLE_BYTES
        is_small = sum(place.length for _, place in pairs) <= SAMPLE_BYTES
        for tensor, place in sorted(pairs, key=lambda pair: pair[1].length):
            each = SAMPLE_BYTES if is_small else min(_CHUNK_BYTES, budget // 3)
            pieces = [files.read(place.file, start, length) for start, length in _pieces(place, each)]
            budget -= sum(map(len, pieces))
            self._look(tensor, pieces)

    def _look(self, tensor: Tensor, pieces: list[bytes]) -> None:
        if any(has_not_finite(tensor.dtype, piece) for piece in pieces):
            self.not_finite.append(tensor.name)
        if pieces and all(is_all_zero(piece) for piece in pieces):
            self.all_zero.append(tensor.name)


def _pieces(place: Place, each: int) -> list[tuple[int, int]]:
    """(start, length) of at most three pieces of `each` bytes, on 8-byte borders."""
    each -= each % 8
    if each <= 0 or place.length == 0:
        return []
    if place.length <= 3 * each:
        return [(place.start, place.length)]
    middle, last = ((place.length - each) // 2) & ~7, (place.length - each) & ~7
    return [(place.start + offset, each) for offset in (0, middle, last)]
