"""Objects that never change, kept near: a run must be able to hand out rows while its store is away.

Guarantees: what was opened once is read from this machine's own disk from then on. Copies have no name, so nothing of
them stays behind, however this process ends. Costs the size of what was opened, in the temporary folder.
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
        self._copies: dict[str, int] = {}  # open files, by descriptor: readers of one share no position
        self._lock = threading.Lock()
        weakref.finalize(self, _close, self._copies)

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
            if key not in self._copies:
                self._copies[key] = self._copied(key)
            size = os.fstat(self._copies[key]).st_size

        def fetch(start: int, stop: int) -> bytes:
            return os.pread(self._copies[key], stop - start, start)

        return io.BufferedReader(ObjectReader(size, b"", fetch))

    def list(self, prefix: str) -> Iterator[StoredObject]:
        return self._storage.list(prefix)

    def delete(self, key: str) -> None:
        self._storage.delete(key)

    def sweep(self) -> int:
        return self._storage.sweep()

    def probe(self) -> None:
        self._storage.probe()

    def _copied(self, key: str) -> int:
        with self._storage.open(key) as source:
            try:
                with tempfile.TemporaryFile(prefix="regen-") as copy:
                    while block := source.read(_COPY_BYTES):
                        copy.write(block)
                    copy.flush()
                    return os.dup(copy.fileno())
            except OSError as error:
                raise StoreUnavailable(
                    f"{tempfile.gettempdir()}: no room for a copy of {self.url}/{key}: {error.strerror}; TMPDIR names"
                    " another folder"
                ) from error


def _close(copies: dict[str, int]) -> None:
    for descriptor in copies.values():
        os.close(descriptor)
