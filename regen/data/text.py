"""What may be done with text that may be invalid: find it, print it, hash it. Pure.

JSON lets unpaired surrogates through (`"\\ud83d"`); UTF-8, and with it Arrow and every tokenizer, does not take them.
"""

from __future__ import annotations

import hashlib
import json

DIGEST_BYTES = 16
DETAIL_CHARS = 500


def has_surrogate(text: str) -> bool:
    """True if the text holds a code point that UTF-8 cannot carry."""
    if text.isascii():
        return False
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


def printable(text: str, limit_chars: int | None = None) -> str:
    """The text with every unpaired surrogate written as `\\udXXX`, cut (with `...`) to `limit_chars` characters."""
    if limit_chars is not None and len(text) > limit_chars:
        text = text[: max(0, limit_chars - 3)] + "..."
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def canonical_json(value: object) -> str:
    """One ASCII text per JSON value: keys sorted, types kept (`1`, `1.0`, `"1"` and `true` differ).

    Values that JSON does not have (dates, decimals, bytes out of Parquet) are written as type name and repr.
    Raises RecursionError on values nested too deeply.
    """
    return _CANONICAL.encode(value)


def digest_of(*parts: bytes) -> bytes:
    """16 bytes of BLAKE2b over the parts, each preceded by its length so that no two lists of parts collide."""
    framed = b"".join([piece for part in parts for piece in (len(part).to_bytes(8, "big"), part)])
    return hashlib.blake2b(framed, digest_size=DIGEST_BYTES).digest()


def _foreign(value: object) -> str:
    return f"{type(value).__name__}:{value!r}"


_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, default=_foreign)
