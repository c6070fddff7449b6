"""A Storage around another one that fails, or loses answers, when it is told to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from regen.errors import StoreUnavailable
from regen.protocols import Storage, StoredObject


class FaultyStorage:
    """`fail_creates` creates raise before anything happens; `lose_answers` creates happen and then raise.

    `before_create` is called before each create: the place where a rival comes in between.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.fail_creates = 0
        self.lose_answers = 0
        self.before_create: Callable[[str], None] = lambda key: None
        self.created: list[bytes] = []

    @property
    def url(self) -> str:
        return self._storage.url

    def create(self, key: str, data: bytes) -> bool:
        self.before_create(key)
        self.created.append(data)
        if self.fail_creates:
            self.fail_creates -= 1
            raise StoreUnavailable(f"{key}: no room")
        created = self._storage.create(key, data)
        if self.lose_answers:
            self.lose_answers -= 1
            raise StoreUnavailable(f"{key}: no answer")
        return created

    def replace(self, key: str, data: bytes | Path) -> None:
        self._storage.replace(key, data)

    def read(self, key: str) -> bytes:
        return self._storage.read(key)

    def open(self, key: str) -> BinaryIO:
        return self._storage.open(key)

    def list(self, prefix: str) -> Iterator[StoredObject]:
        return self._storage.list(prefix)

    def delete(self, key: str) -> None:
        self._storage.delete(key)

    def sweep(self) -> int:
        return self._storage.sweep()

    def probe(self) -> None:
        self._storage.probe()
