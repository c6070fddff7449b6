"""Where a disturbed run lies: what it is begun with, what can go wrong there, and what must not be left behind."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any, Protocol

from regen.protocols import Storage
from regen.store.storage import open_storage

_TEMPORARY = re.compile(r"^\.(?:tmp|probe)-")


class Store(Protocol):
    """One place for one run folder."""

    @property
    def url(self) -> str: ...

    @property
    def spec_sections(self) -> dict[str, Any]:
        """What a spec must say for it, besides `output`."""
        ...

    @property
    def environment(self) -> dict[str, str]: ...

    @property
    def has_troubles(self) -> bool:
        """Whether `trouble` ever begins one."""
        ...

    def storage(self) -> Storage:
        """Past all trouble: what the checks read through."""
        ...

    def trouble(self, draw: random.Random) -> tuple[str, float] | None:
        """Begin some trouble of the store's own; its name, and for how many seconds nothing can be committed."""
        ...

    def settle(self) -> None:
        """End all trouble."""
        ...

    def leftovers(self, before: float) -> list[str]:
        """Unfinished writes that are older than this moment (epoch seconds)."""
        ...

    def close(self) -> None: ...


class LocalStore:
    """A folder on a local disk. Its own troubles (a full disk) are tests of their own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def url(self) -> str:
        return str(self._folder)

    @property
    def spec_sections(self) -> dict[str, Any]:
        return {}

    @property
    def environment(self) -> dict[str, str]:
        return {}

    @property
    def has_troubles(self) -> bool:
        return False

    def storage(self) -> Storage:
        return open_storage(self.url)

    def trouble(self, draw: random.Random) -> tuple[str, float] | None:
        return None

    def settle(self) -> None: ...

    def leftovers(self, before: float) -> list[str]:
        found = (path for path in self._folder.rglob("*") if _TEMPORARY.match(path.name))
        return [str(path) for path in found if path.stat().st_mtime < before]

    def close(self) -> None: ...
