"""One object of S3 as a seekable file: ranges are fetched as they are wanted, and somewhat ahead.

Guarantees: all bytes are of one version of the object, or StoreUnavailable is raised. Holds the end of the object,
which came with opening it (a Parquet reader wants it first), and one window, whose size doubles while it is read in
order.
"""

from __future__ import annotations

import io
from collections.abc import Callable

FIRST_WINDOW_BYTES = 256 * 1024
LONGEST_WINDOW_BYTES = 8 * 2**20

# (start, stop) -> these bytes. Raises StoreUnavailable, also when the object is not the one that was opened.
Fetch = Callable[[int, int], bytes]


class ObjectReader(io.RawIOBase):
    """Give it to io.BufferedReader, which makes it safe for threads."""

    def __init__(self, size: int, tail: bytes, fetch: Fetch) -> None:
        super().__init__()
        self._size = size
        self._tail, self._tail_start = tail, size - len(tail)
        self._window, self._window_start = b"", 0
        self._window_bytes = FIRST_WINDOW_BYTES
        self._fetch = fetch
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError(f"negative seek position {base + offset}")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        found = self._some(min(len(buffer), self._size - self._position))
        buffer[: len(found)] = found
        self._position += len(found)
        return len(found)

    def readall(self) -> bytes:
        start = min(self._position, self._size)
        self._position = self._size
        if start >= self._tail_start:
            return self._tail[start - self._tail_start :]
        return self._fetch(start, self._tail_start) + self._tail

    def _some(self, wanted: int) -> bytes:
        """At least one byte from here on, as long as there are any; at most `wanted`."""
        if wanted <= 0:
            return b""
        if self._position >= self._tail_start:
            return _cut(self._tail, self._position - self._tail_start, wanted)
        within = self._position - self._window_start
        if not 0 <= within < len(self._window):
            self._move_window(wanted)
            within = 0
        return _cut(self._window, within, wanted)

    def _move_window(self, wanted: int) -> None:
        is_next = self._window and self._position == self._window_start + len(self._window)
        self._window_bytes = min(self._window_bytes * 2, LONGEST_WINDOW_BYTES) if is_next else FIRST_WINDOW_BYTES
        stop = min(self._position + max(wanted, self._window_bytes), self._tail_start)
        self._window = self._fetch(self._position, stop)
        self._window_start = self._position


def _cut(held: bytes, start: int, wanted: int) -> bytes:
    return held[start : start + wanted]
