"""Whether a place can carry a run: what every kind of storage must do, tried out before anything is started."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from regen.errors import StoreRefused
from regen.protocols import Storage
from regen.store.keys import PROBE, own_name


class ProbeFailure(StrEnum):
    """What a place must not do."""

    NEVER_CREATES = "a first create was refused"
    CREATES_TWICE = "a second create of the same name succeeded"
    ALTERS = "what is read back is not what was written"
    HIDES = "a listing does not show what was written"
    KEEPS = "a listing still shows what was deleted"


def _elsewhere(failure: ProbeFailure) -> str:
    return "name another `output`"


def probe_storage(storage: Storage, advice: Callable[[ProbeFailure], str] = _elsewhere) -> None:
    """What every kind of storage must pass before a run: see `Storage.probe`. Leaves nothing behind.

    `advice` says what to do about a failure. Raises StoreRefused, StoreUnavailable.
    """
    key = own_name(PROBE)
    first, second = b"regen probe, first", b"regen probe, second"

    def require(holds: bool, failure: ProbeFailure) -> None:
        if not holds:
            raise StoreRefused(f"{storage.url}: cannot carry a run: {failure.value}; {advice(failure)}")

    try:
        require(storage.create(key, first), ProbeFailure.NEVER_CREATES)
        require(not storage.create(key, second), ProbeFailure.CREATES_TWICE)
        require(_read_back(storage, key) == first, ProbeFailure.ALTERS)
        listed = [(found.key, found.size) for found in storage.list(key)]
        require(listed == [(key, len(first))], ProbeFailure.HIDES)
        storage.delete(key)
        require(not list(storage.list(key)), ProbeFailure.KEEPS)
    finally:
        storage.delete(key)


def _read_back(storage: Storage, key: str) -> bytes | None:
    try:
        return storage.read(key)
    except KeyError:
        return None
