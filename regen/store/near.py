"""Objects that never change, kept near: a run must be able to hand out rows while its store is away.

Guarantees: what was opened once is read from this machine's own disk from then on. Copies are in one file without a
name, so nothing of them stays behind, however this process ends, and a plan of a thousand parts takes one descriptor.
Costs the size of what was opened, in the temporary folder.
"""

from __future__ import annotations

import io
import os
import tempfile
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from regen.errors import StoreUnavailable
from regen.protocols import Storage, StoredObject
from regen.store.s3_reader import ObjectReader

_COPY_BYTES = 8 * 2**20


class NearStorage:
    """A `Storage` that hands everything on, except that `open` copies an object once. Only for what never changes.

    Thread-safe, as the storage behind it is.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._places: dict[str, tuple[int, int]] = {}  # by key: where its copy begins, and its size
        self._descriptor: int | None = None
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return self._storage.url

    def create(self, key: str, data: bytes) -> bool:
        return self._storage.create(key, data)

    def replace(self, key: str, data: bytes | Path) -> None:
        self._storage.replace(key, data)

    def read(self, key: str) -> bytes:
        return self._storage.read(key)

    def open(self, key: str) -> BinaryIO:
        with self._lock:
            if key not in self._places:
                self._places[key] = self._copied(key)
            begin, size = self._places[key]

        def fetch(start: int, stop: int) -> bytes:
            return os.pread(self._copies(), stop - start, begin + start)  # readers share no position

        return io.BufferedReader(ObjectReader(size, b"", fetch))

    def list(self, prefix: str) -> Iterator[StoredObject]:
        return self._storage.list(prefix)

    def delete(self, key: str) -> None:
        self._storage.delete(key)

    def sweep(self) -> int:
        return self._storage.sweep()

    def probe(self) -> None:
        self._storage.probe()

    def _copies(self) -> int:
        """The file's descriptor, open as long as this lives."""
        if self._descriptor is None:
            with tempfile.TemporaryFile(prefix="regen-") as file:
                self._descriptor = os.dup(file.fileno())
            weakref.finalize(self, os.close, self._descriptor)
        return self._descriptor

    def _copied(self, key: str) -> tuple[int, int]:
        """Behind all that is there; what a copy that failed has left is written over by the next one."""
        begin = end = max((start + size for start, size in self._places.values()), default=0)
        with self._storage.open(key) as source:
            try:
                while block := source.read(_COPY_BYTES):
                    end += _written(self._copies(), block, end)
                return begin, end - begin
            except OSError as error:
                raise StoreUnavailable(
                    f"{tempfile.gettempdir()}: no room for a copy of {self.url}/{key}: {error.strerror}; TMPDIR names"
                    " another folder"
                ) from error


def _written(descriptor: int, block: bytes, at: int) -> int:
    """How many bytes: all of them. A disk that gets full takes a part, and refuses the next."""
    done = 0
    while done < len(block):
        done += os.pwrite(descriptor, block[done:], at + done)
    return done
