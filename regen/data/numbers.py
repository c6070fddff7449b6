"""Raw little-endian bytes of tensors -> what preflight asks of them. By Arrow's kernels: no NumPy, no PyTorch. Pure."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_INTEGERS = {
    "I64": pa.int64(),
    "I32": pa.int32(),
    "I16": pa.int16(),
    "I8": pa.int8(),
    "U8": pa.uint8(),
    "BOOL": pa.uint8(),
}
# The bits of the exponent: all set means infinity or NaN.
_EXPONENTS: dict[str, tuple[pa.DataType, int]] = {
    "BF16": (pa.uint16(), 0x7F80),
    "F16": (pa.uint16(), 0x7C00),
    "F32": (pa.uint32(), 0x7F800000),
    "F64": (pa.uint64(), 0x7FF0000000000000),
}


def integers(dtype: str, data: bytes) -> tuple[int, ...] | None:
    """The values of an integer or boolean tensor; None for another type."""
    kind = _INTEGERS.get(dtype)
    return None if kind is None else tuple(int(value) for value in _array(kind, data).to_pylist())


def has_not_finite(dtype: str, data: bytes) -> bool:
    """Whether a float tensor's bytes hold NaN or infinity; False for other types, 8-bit floats included."""
    if dtype not in _EXPONENTS or not data:
        return False
    kind, bits = _EXPONENTS[dtype]
    mask: Any = pa.scalar(bits, kind)
    return bool(pc.any(pc.equal(pc.bit_wise_and(_array(kind, data), mask), mask)).as_py())


def is_all_zero(data: bytes) -> bool:
    """Whether there is nothing but zero bytes."""
    return not data.strip(b"\0")


def _array(kind: Any, data: bytes) -> Any:
    count = len(data) * 8 // kind.bit_width
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(data)])
