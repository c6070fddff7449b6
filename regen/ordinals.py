"""A set of ordinals as a bitmap: 10 million rows are 1.25 MB. Pure."""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Iterable, Iterator

_OCCUPIED = re.compile(rb"[^\x00]")
_VACANT = re.compile(rb"[^\xff]")


class OrdinalSet:
    """A subset of `range(size)`. Membership, add and discard are O(1); `len` is kept, not counted."""

    def __init__(self, size: int, members: Iterable[int] = ()) -> None:
        self.size = size
        self._bits = bytearray((size + 7) // 8)
        self._count = 0
        for ordinal in members:
            self.add(ordinal)

    def __len__(self) -> int:
        return self._count

    def __contains__(self, ordinal: int) -> bool:
        return bool(self._bits[ordinal >> 3] & (1 << (ordinal & 7)))

    def __or__(self, other: OrdinalSet) -> OrdinalSet:
        """A new set with the members of both, which must be of one size."""
        if self.size != other.size:
            raise ValueError(f"sets of {self.size} and of {other.size} ordinals have no union")
        bits = int.from_bytes(self._bits, "little") | int.from_bytes(other._bits, "little")
        made = OrdinalSet(self.size)
        made._bits[:] = bits.to_bytes(len(self._bits), "little")
        made._count = bits.bit_count()
        return made

    def __sub__(self, other: OrdinalSet) -> OrdinalSet:
        """A new set without the members of `other`, which must be of one size."""
        if self.size != other.size:
            raise ValueError(f"sets of {self.size} and of {other.size} ordinals have no difference")
        bits = int.from_bytes(self._bits, "little") & ~int.from_bytes(other._bits, "little")
        made = OrdinalSet(self.size)
        made._bits[:] = bits.to_bytes(len(self._bits), "little")
        made._count = bits.bit_count()
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OrdinalSet) and self.size == other.size and self._bits == other._bits

    def copy(self) -> OrdinalSet:
        made = OrdinalSet(self.size)
        made._bits[:] = self._bits
        made._count = self._count
        return made

    def grown(self, size: int) -> OrdinalSet:
        """The same members in a larger range. Raises ValueError for a smaller one."""
        if size < self.size:
            raise ValueError(f"a set of {self.size} ordinals cannot shrink to {size}")
        made = OrdinalSet(size)
        made._bits[: len(self._bits)] = self._bits
        made._count = self._count
        return made

    def __iter__(self) -> Iterator[int]:
        """Ascending. Costs a pass of the bytes that are not zero, so next to nothing for a few members of many."""
        for occupied in _OCCUPIED.finditer(self._bits):
            first, byte = occupied.start() << 3, occupied[0][0]
            yield from (first + bit for bit in range(8) if byte >> bit & 1)

    def absent(self, start: int = 0) -> Iterator[int]:
        """Those that are not members, from `start` on, ascending. Costs a pass of the bytes that are not full."""
        for vacant in _VACANT.finditer(self._bits, start >> 3):
            first, byte = vacant.start() << 3, vacant[0][0]
            for ordinal in range(max(start, first), min(self.size, first + 8)):
                if not byte >> (ordinal - first) & 1:
                    yield ordinal

    def add(self, ordinal: int) -> bool:
        """True if it was not there before. Raises IndexError outside `range(size)`."""
        self._check(ordinal)
        if ordinal in self:
            return False
        self._bits[ordinal >> 3] |= 1 << (ordinal & 7)
        self._count += 1
        return True

    def discard(self, ordinal: int) -> bool:
        """True if it was there. Raises IndexError outside `range(size)`."""
        self._check(ordinal)
        if ordinal not in self:
            return False
        self._bits[ordinal >> 3] &= ~(1 << (ordinal & 7))
        self._count -= 1
        return True

    def first_absent(self, start: int) -> int:
        """The smallest ordinal >= `start` that is not in the set; `size` if there is none. Skips full bytes."""
        ordinal = start
        while ordinal < self.size:
            if not ordinal & 7 and self._bits[ordinal >> 3] == 0xFF:
                ordinal += 8
            elif ordinal in self:
                ordinal += 1
            else:
                return ordinal
        return self.size

    def to_text(self) -> str:
        """Compressed, for a file's footer. The inverse is `from_text`."""
        return base64.b64encode(zlib.compress(bytes(self._bits))).decode("ascii")

    @classmethod
    def from_text(cls, size: int, text: str, *, may_be_shorter: bool = False) -> OrdinalSet:
        """Raises ValueError when the text is not a bitmap of exactly this size (`may_be_shorter`: of one up to it)."""
        made = cls(size)
        try:
            bits = bytearray(zlib.decompress(base64.b64decode(text)))
        except zlib.error as error:
            raise ValueError(f"not a compressed bitmap: {error}") from error
        if len(bits) > len(made._bits) or (len(bits) < len(made._bits) and not may_be_shorter):
            raise ValueError(f"a bitmap of {len(bits)} bytes cannot hold {size} ordinals")
        made._bits[: len(bits)] = bits
        made._count = int.from_bytes(bits, "little").bit_count()
        return made

    def _check(self, ordinal: int) -> None:
        if not 0 <= ordinal < self.size:
            raise IndexError(f"ordinal {ordinal} is outside a plan of {self.size} rows")
