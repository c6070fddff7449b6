"""A Storage in memory, for unit tests of what is written and read through the seam."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from regen.protocols import StoredObject


class MemoryStorage:
    """`protocols.Storage` over a dict; `objects` may be looked at and changed by a test."""

    def __init__(self, url: str = "memory://run") -> None:
        self.objects: dict[str, bytes] = {}
        self._url = url

    @property
    def url(self) -> str:
        return self._url

    def create(self, key: str, data: bytes) -> bool:
        if key in self.objects:
            return False
        self.objects[key] = data
        return True

    def replace(self, key: str, data: bytes | Path) -> None:
        self.objects[key] = data.read_bytes() if isinstance(data, Path) else data

    def read(self, key: str) -> bytes:
        return self.objects[key]

    def open(self, key: str) -> BinaryIO:
        return io.BytesIO(self.objects[key])

    def list(self, prefix: str) -> Iterator[StoredObject]:
        found = sorted(key for key in self.objects if key.startswith(prefix))
        return iter([StoredObject(key, len(self.objects[key])) for key in found])

    def delete(self, key: str) -> None:
        self.objects.pop(key, None)

    def sweep(self) -> int:
        return 0

    def probe(self) -> None:
        """Memory can always carry a journal."""
