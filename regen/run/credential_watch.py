"""How long the store's credentials last yet: asked about once a minute, in a thread, as long as they will end."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime

from regen.errors import StoreError
from regen.protocols import Storage
from regen.store.storage import credential_life

ASK_SECONDS = 60.0


class CredentialWatch:
    """Credentials that renew themselves, or that nobody knows an end of, are asked about once only."""

    def __init__(self, storage: Storage) -> None:
        self._ask = credential_life(storage)
        self._asked_at = float("-inf")
        self._asking: asyncio.Task[None] | None = None
        self._ends_at: datetime | None = None

    def tick(self, now: float) -> None:
        if self._ask is None or now - self._asked_at < ASK_SECONDS:
            return
        if self._asking is None or self._asking.done():
            self._asked_at = now
            self._asking = asyncio.ensure_future(self._look())

    @property
    def seconds_left(self) -> float | None:
        """None where it is not known, or has no end."""
        return None if self._ends_at is None else max(0.0, (self._ends_at - datetime.now(UTC)).total_seconds())

    async def cancel(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    async def _look(self) -> None:
        assert self._ask is not None, "nobody asks otherwise"
        with suppress(StoreError):  # the run itself hears of that, and waits
            life = await asyncio.to_thread(self._ask)
            self._ends_at = None if life.renews else life.ends_at
            if self._ends_at is None:
                self._ask = None
