"""An order of rows drawn from a seed and their content, not from their positions.

Guarantees: a row's place depends on the seed, its content and how many equal rows came before it, so that inserting or
removing one row never changes the order of the others. Memory: the rows taken, up to 20,000; beyond that one bucket of
an external sort, whose temporary files are as large as the source.
"""

from __future__ import annotations

import heapq
import pickle
import tempfile
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import IO

from regen.data.equal_rows import EqualRows
from regen.data.raw import LoadError, RawRow
from regen.data.text import digest_of

_HEAP_ROWS = 20_000
_BUCKETS = 256


def shuffled(rows: Iterable[RawRow], seed: int, limit: int | None) -> Iterator[RawRow]:
    """The rows in the seed's order; with a `limit`, the first so many of that order."""
    keyed = _keyed(rows, seed)
    if limit is not None and limit <= _HEAP_ROWS:
        return (row for _, row in heapq.nsmallest(limit, keyed, key=_key))
    return islice(_sorted_externally(keyed), limit)


def _keyed(rows: Iterable[RawRow], seed: int) -> Iterator[tuple[bytes, RawRow]]:
    equal = EqualRows()
    seed_bytes = str(seed).encode("ascii")
    for row in rows:
        content = digest_of(row.identity())
        yield digest_of(seed_bytes, content, equal.count(content).to_bytes(8, "big")), row


def _key(keyed: tuple[bytes, RawRow]) -> bytes:
    return keyed[0]


def _sorted_externally(keyed: Iterable[tuple[bytes, RawRow]]) -> Iterator[RawRow]:
    """Buckets by the first byte of the key, one temporary file each, sorted one after another."""
    buckets: list[IO[bytes] | None] = [None] * _BUCKETS
    try:
        for key, row in keyed:
            bucket = buckets[key[0]]
            if bucket is None:
                bucket = buckets[key[0]] = tempfile.TemporaryFile(prefix="regen-shuffle-")  # noqa: SIM115
            bucket.write(_pickled(key, row))
        for bucket in buckets:
            if bucket is not None:
                yield from (row for _, row in sorted(_unpickled(bucket), key=_key))
    finally:
        for bucket in buckets:
            if bucket is not None:
                bucket.close()


def _pickled(key: bytes, row: RawRow) -> bytes:
    try:
        return pickle.dumps((key, row), protocol=pickle.HIGHEST_PROTOCOL)
    except RecursionError:
        refused = RawRow(row.location, error=(LoadError.UNREADABLE_VALUE, "nested too deeply"), raw=row.identity())
        return pickle.dumps((key, refused), protocol=pickle.HIGHEST_PROTOCOL)


def _unpickled(bucket: IO[bytes]) -> Iterator[tuple[bytes, RawRow]]:
    bucket.seek(0)
    while True:
        try:
            key, row = pickle.load(bucket)
        except EOFError:
            return
        yield key, row
