"""safetensors without its package: the header, small tensors, samples. The header is 8 bytes of length and JSON.

Guarantees: never reads more than the header and what is asked for; says what is wrong with a file instead of raising.
Costs a few milliseconds a file, whatever its size.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from regen.checkpoints import FileFault, FileProblem, Tensor

# (offset, length) -> bytes, fewer at the end of the file.
Read = Callable[[int, int], bytes]

_HEADER_LIMIT_BYTES = 100_000_000  # safetensors' own
_POINTERS = (b"version https://git-lfs", b"version https://hawser", b"# xet ", b"version https://xet")
BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I8", "U8", "BOOL"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor's bytes are in its file."""

    file: str
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Header:
    """The tensors of one file, and where they are."""

    tensors: Mapping[str, Tensor]
    places: Mapping[str, Place]


def read_header(file: str, size_bytes: int, read: Read) -> Header | FileProblem:
    """The header of one file of `size_bytes`, or what is wrong with the file."""
    start = read(0, 8)
    if size_bytes == 0:
        return FileProblem(file, FileFault.EMPTY, "has no bytes")
    if size_bytes < 8 or any(pointer.startswith(start) for pointer in _POINTERS):
        return _small(file, size_bytes, read)
    length = int.from_bytes(start, "little")
    if length > _HEADER_LIMIT_BYTES:
        return FileProblem(file, FileFault.DAMAGED, f"begins with a header of {length:,} bytes: no safetensors file")
    if 8 + length > size_bytes:
        return _truncated(file, size_bytes, 8 + length)
    try:
        entries = json.loads(read(8, length))
        tensors = {name: entry for name, entry in entries.items() if name != "__metadata__"}
        header = _parsed(file, tensors, 8 + length)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return FileProblem(file, FileFault.DAMAGED, f"has a header that cannot be read: {error}")
    return _checked(file, size_bytes, header, 8 + length)


def _small(file: str, size_bytes: int, read: Read) -> FileProblem:
    text = read(0, 200)
    if text.startswith(_POINTERS):
        size = next((line[5:] for line in text.decode("ascii", "replace").splitlines() if line.startswith("size ")), "")
        return FileProblem(
            file, FileFault.POINTER, f"is a pointer of {size_bytes} bytes{f' to {size}' if size else ''}"
        )
    return FileProblem(file, FileFault.TRUNCATED, f"has {size_bytes} bytes: less than a header")


def _truncated(file: str, size_bytes: int, promised: int) -> FileProblem:
    return FileProblem(
        file, FileFault.TRUNCATED, f"has {size_bytes:,} bytes, its header promises {promised:,}: half downloaded"
    )


def _parsed(file: str, entries: Mapping[str, Any], data_start: int) -> Header:
    tensors, places = {}, {}
    for name, entry in entries.items():
        begin, end = (int(offset) for offset in entry["data_offsets"])
        tensors[name] = Tensor(name, str(entry["dtype"]), tuple(int(size) for size in entry["shape"]))
        places[name] = Place(file, data_start + begin, end - begin)
    return Header(tensors, places)


def _checked(file: str, size_bytes: int, header: Header, data_start: int) -> Header | FileProblem:
    for name, place in header.places.items():
        tensor = header.tensors[name]
        bits = BITS.get(tensor.dtype)
        if bits is not None and math.prod(tensor.shape) * bits != place.length * 8:
            detail = f"gives {name} ({tensor.dtype} {list(tensor.shape)}) {place.length:,} bytes, which do not fit"
            return FileProblem(file, FileFault.DAMAGED, detail)
    end = max((place.start + place.length for place in header.places.values()), default=data_start)
    if end > size_bytes:
        return _truncated(file, size_bytes, end)
    if end < size_bytes:
        return FileProblem(
            file,
            FileFault.DAMAGED,
            f"has {size_bytes:,} bytes, its header accounts for {end:,}: safetensors refuses it",
        )
    return header
