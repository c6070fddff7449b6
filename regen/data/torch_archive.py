"""PyTorch's `.bin`: a zip archive with a pickle of tensor records. Names, shapes and places, without PyTorch.

Guarantees: nothing in the pickle is executed. Its opcodes are read by Python's unpickler with every name bound to an
inert stand-in; a name that is not of PyTorch's tensor records makes the file unreadable here.
"""

from __future__ import annotations

import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from regen.checkpoints import FileFault, FileProblem, Tensor
from regen.data.safetensors import BITS, Header, Place

_DTYPES = {
    "FloatStorage": "F32",
    "DoubleStorage": "F64",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "LongStorage": "I64",
    "IntStorage": "I32",
    "ShortStorage": "I16",
    "CharStorage": "I8",
    "ByteStorage": "U8",
    "BoolStorage": "BOOL",
}
_LOCAL_HEADER = struct.Struct("<26xHH")


@dataclass(frozen=True, slots=True)
class _Storage:
    dtype: str
    key: str


@dataclass(frozen=True, slots=True)
class _Record:
    storage: _Storage
    offset: int
    shape: tuple[int, ...]


def read_archive(path: Path) -> Header | FileProblem:
    """The tensors of one `.bin` file, or what is wrong with it."""
    try:
        with zipfile.ZipFile(path) as archive, path.open("rb") as raw:
            (pickled,) = (name for name in archive.namelist() if name.endswith("data.pkl"))
            with archive.open(pickled) as stream:
                values = _Records(stream).load()
            folder = pickled.removesuffix("data.pkl")
            return _header(path.name, values, lambda key: _start(archive, raw, f"{folder}data/{key}"))
    except (OSError, ValueError, KeyError, TypeError, IndexError, EOFError) as error:
        return _problem(path, error)
    except (zipfile.BadZipFile, pickle.UnpicklingError) as error:
        return _problem(path, error)


def _problem(path: Path, error: Exception) -> FileProblem:
    size = path.stat().st_size
    if size == 0:
        return FileProblem(path.name, FileFault.EMPTY, "has no bytes")
    with path.open("rb") as file:
        start = file.read(8)
    if start == b"version ":
        return FileProblem(path.name, FileFault.POINTER, f"is a pointer of {size} bytes")
    if start.startswith(b"PK") and isinstance(error, zipfile.BadZipFile):
        return FileProblem(path.name, FileFault.TRUNCATED, f"has {size:,} bytes and no end: half downloaded")
    if not start.startswith((b"PK", b"\x80")):
        return FileProblem(path.name, FileFault.DAMAGED, "is neither a zip archive nor a pickle")
    return FileProblem(path.name, FileFault.UNREADABLE, f"cannot be read without PyTorch: {error}")


def _header(file: str, values: Any, start_of: Callable[[str], int]) -> Header:
    records = {str(name): record for name, record in values.items() if isinstance(record, _Record)}
    tensors, places = {}, {}
    for name, record in records.items():
        size = BITS[record.storage.dtype] // 8
        count = 1
        for extent in record.shape:
            count *= extent
        tensors[name] = Tensor(name, record.storage.dtype, record.shape)
        places[name] = Place(file, start_of(record.storage.key) + record.offset * size, count * size)
    return Header(tensors, places)


def _start(archive: zipfile.ZipFile, raw: BinaryIO, name: str) -> int:
    """Where the bytes of a stored (not compressed) member begin in the file."""
    member = archive.getinfo(name)
    if member.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{name} is compressed")
    raw.seek(member.header_offset)
    name_bytes, extra_bytes = _LOCAL_HEADER.unpack(raw.read(_LOCAL_HEADER.size))
    return member.header_offset + _LOCAL_HEADER.size + int(name_bytes) + int(extra_bytes)


class _Records(pickle.Unpickler):
    """Builds stand-ins only."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch._utils" and name in ("_rebuild_tensor_v2", "_rebuild_tensor"):
            return lambda storage, offset, shape, *rest: _Record(storage, int(offset), tuple(int(n) for n in shape))
        if module == "torch._utils" and name == "_rebuild_parameter":
            return lambda record, *rest: record
        if module == "torch" and name in _DTYPES:
            return _DTYPES[name]
        raise pickle.UnpicklingError(f"it names {module}.{name}, which is no tensor record")

    def persistent_load(self, pid: Any) -> _Storage:
        _, dtype, key, *_ = pid
        return _Storage(dtype, str(key))
