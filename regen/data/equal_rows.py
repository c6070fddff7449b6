"""How often a digest was seen before, at about ten bytes a row: 10 million rows are 100 MB. Pure."""

from __future__ import annotations

_BUCKET_BYTES = 2
_KEPT_BYTES = 8


class EqualRows:
    """Counts equal digests in the order they come. Looks at ten bytes of each digest.

    Digests that differ and agree in those ten bytes (one chance in 10**10 for 10 million rows) are taken for equal.
    """

    def __init__(self) -> None:
        self._buckets: dict[bytes, bytearray] = {}
        self._repeated: dict[bytes, int] = {}

    def count(self, digest: bytes) -> int:
        """How many equal digests came before this one; remembers this one."""
        kept = digest[: _BUCKET_BYTES + _KEPT_BYTES]
        if kept in self._repeated:
            self._repeated[kept] += 1
            return self._repeated[kept]
        bucket = self._buckets.setdefault(kept[:_BUCKET_BYTES], bytearray())
        if _holds(bucket, kept[_BUCKET_BYTES:]):
            self._repeated[kept] = 1
            return 1
        bucket += kept[_BUCKET_BYTES:]
        return 0


def _holds(bucket: bytearray, entry: bytes) -> bool:
    """True if `entry` stands at a multiple of its own length."""
    found = bucket.find(entry)
    while found >= 0 and found % _KEPT_BYTES:
        found = bucket.find(entry, found + 1)
    return found >= 0
