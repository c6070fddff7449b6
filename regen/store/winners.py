"""Which journal file holds the row that counts, for every ordinal, and that row's digest. Pure: 21 bytes a plan row."""

from __future__ import annotations

from array import array

_NONE = -1
_DIGEST_BYTES = 16


class Winners:
    """Per row the highest round counts, within a round the first that is noted."""

    def __init__(self, plan_rows: int) -> None:
        self._numbers = array("i", [_NONE]) * plan_rows
        self._rounds = array("b", [_NONE]) * plan_rows
        self._digests = bytearray(_DIGEST_BYTES * plan_rows)

    def note(self, ordinal: int, round_: int, number: int, digest: str) -> bool:
        """True if this row counts now; False if another of its round, or of a higher one, was noted before.

        Raises IndexError outside the plan, ValueError for a digest that is not 32 hex digits or a round above 127.
        """
        if not 0 <= ordinal < len(self._numbers):
            raise IndexError(f"row {ordinal} is outside a plan of {len(self._numbers)} rows")
        if not 0 <= round_ <= 127:
            raise ValueError(f"row {ordinal} has round {round_}")
        raw = bytes.fromhex(digest)
        if len(raw) != _DIGEST_BYTES:
            raise ValueError(f"row {ordinal} has digest {digest!r}, which is not 32 hex digits")
        if round_ <= self._rounds[ordinal]:
            return False
        self._numbers[ordinal], self._rounds[ordinal] = number, round_
        self._digests[ordinal * _DIGEST_BYTES : (ordinal + 1) * _DIGEST_BYTES] = raw
        return True

    def number_of(self, ordinal: int) -> int | None:
        """The file with the row that counts; None if there is none."""
        number = self._numbers[ordinal]
        return None if number == _NONE else number

    def round_of(self, ordinal: int) -> int:
        """The round of the row that counts; -1 if there is none."""
        return self._rounds[ordinal]

    def digest_of(self, ordinal: int) -> str:
        """The digest of the row that counts. Meaningless where `number_of` is None."""
        return self._digests[ordinal * _DIGEST_BYTES : (ordinal + 1) * _DIGEST_BYTES].hex()
