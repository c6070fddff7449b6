"""Names of objects that every kind of storage agrees on: what a key may be, and how temporary things are called. Pure
but for `own_name`, which asks who we are.
"""

from __future__ import annotations

import os
import re
import uuid

from regen.store.machine import machine_identity

ABANDONED_AFTER_SECONDS = 24 * 3600.0
TEMPORARY = ".tmp-"
PROBE = ".probe-"
LEFTOVER = re.compile(r"^\.(?:tmp|probe)-(?P<machine>[0-9a-f]{8})-(?P<pid>\d+)-[0-9a-f]{32}$")


def own_name(prefix: str) -> str:
    """A name that nobody else takes, and that says which process has made it."""
    return f"{prefix}{machine_identity()}-{os.getpid()}-{uuid.uuid4().hex}"


def check_key(key: str) -> None:
    """Raises ValueError for what is no key: it would lie outside the storage, or among its temporaries."""
    parts = key.split("/")
    if not key or "\0" in key or any(part in ("", ".", "..") or part.startswith(TEMPORARY) for part in parts):
        raise ValueError(f"not a key of a storage: {key!r}")
