"""holder.json, kept fresh while a coordinator lives: for people and for starters. That it cannot be written stops
nothing: publishing decides. Another's name in it is a reason to look at the fence first, and not to write over it.
"""

from __future__ import annotations

import asyncio
import os
import traceback
from collections.abc import Callable
from contextlib import suppress

from regen.errors import StoreError
from regen.protocols import Storage
from regen.run.setup import RunSetup
from regen.store.holder import Holder, HolderProgress, HolderState, read_holder, write_holder
from regen.store.machine import utc_now

BEAT_SECONDS = 2.0
# Word of the end is a courtesy: a store that hangs gets no more than that for it.
LEAVE_SECONDS = 5.0


class Heartbeat:
    """One coordinator's. Aside of its ticks: a store that hangs must not hold them up."""

    def __init__(self, setup: RunSetup, storage: Storage, progress: Callable[[], HolderProgress | None]) -> None:
        self._setup, self._storage, self._progress = setup, storage, progress
        self._last_at = float("-inf")
        self._beat = 0
        self._is_in_doubt = self._is_broken = False
        self._beating: asyncio.Task[None] | None = None

    def keep(self, now: float, look_at_fence: Callable[[], None]) -> None:
        """With every tick. `look_at_fence` is called when another's name is found."""
        if now - self._last_at < BEAT_SECONDS:
            return
        if self._beating is not None:
            if not self._beating.done():
                return
            self._beating.result()
        self._last_at = now
        self._beating = asyncio.ensure_future(self._beat_once(look_at_fence))

    async def leave(self, state: HolderState) -> None:
        """The last word."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_SECONDS):
                if self._beating is not None:
                    await self._beating  # or an older word could come last
                await self._write(state)

    async def cancel(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)

    async def _beat_once(self, look_at_fence: Callable[[], None]) -> None:
        if self._beat and not self._is_in_doubt and await asyncio.to_thread(self._is_named_another):
            self._is_in_doubt = True
            look_at_fence()
            return
        self._is_in_doubt = False
        self._beat += 1
        await self._write(HolderState.RUNNING)

    async def _write(self, state: HolderState) -> None:
        with suppress(StoreError):
            await asyncio.to_thread(write_holder, self._storage, self._holder(state))

    def _is_named_another(self) -> bool:
        try:
            holder = read_holder(self._storage)
        except StoreError:
            return False
        return holder is not None and holder.session != self._setup.session

    def _holder(self, state: HolderState) -> Holder:
        setup = self._setup
        return Holder(
            session=setup.session,
            host=setup.host,
            boot_id=setup.boot_id,
            coordinator_pid=os.getpid(),
            driver_pid=setup.driver_pid,
            started_at=setup.started_at,
            beat=self._beat,
            beat_at=utc_now(),
            state=state,
            progress=self._progress_told(),
        )

    def _progress_told(self) -> HolderProgress | None:
        """For people, as the file is: a defect in it is printed once, and the heart beats on."""
        if self._is_broken:
            return None
        try:
            return self._progress()
        except Exception:
            traceback.print_exc()
            self._is_broken = True
            return None
