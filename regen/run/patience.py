"""Patience with the store: a run of days must not end on a bad minute of it.

`Patience` is the coordinator's, for as long as a drain allows; `patiently` is the command's own, for some minutes.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from regen.errors import StoreUnavailable

T = TypeVar("T")

PATIENCE_SECONDS = 600.0
LONGEST_WAIT_SECONDS = 30.0
_LOOK_SECONDS = 0.2


class Patience:
    """Tries the same store call again until it answers, or until a deadline that may be set meanwhile.

    `failures` counts the calls that have failed, `error` is the last one's until another succeeds.
    """

    def __init__(self) -> None:
        self.give_up_at = float("inf")
        self.error: StoreUnavailable | None = None
        self.failures = 0

    async def __call__(self, call: Callable[[], T]) -> T:
        """Runs `call` in a thread. Raises StoreUnavailable after `give_up_at` (monotonic), other errors at once.

        A call that hangs then is left to itself: it may still reach the store, as one whose answer was lost.
        """
        waits = _waits(0.5)
        while True:
            try:
                answer = await self._answer(call)
            except StoreUnavailable as error:
                self.failed(error)
                if time.monotonic() >= self.give_up_at:
                    raise
                await self._sleep(next(waits))
            else:
                self.error = None
                return answer

    def failed(self, error: StoreUnavailable) -> None:
        """A call has failed, this one or one that somebody else will make again."""
        self.error = error
        self.failures += 1

    async def _answer(self, call: Callable[[], T]) -> T:
        calling = asyncio.ensure_future(asyncio.to_thread(call))
        try:
            while not calling.done():
                await asyncio.wait((calling,), timeout=_LOOK_SECONDS)
                if not calling.done() and time.monotonic() >= self.give_up_at:
                    raise StoreUnavailable("the store does not answer, and there is no more time to wait for it")
        finally:
            calling.cancel()
        return calling.result()

    async def _sleep(self, seconds: float) -> None:
        """Until then, or until the deadline, which may come nearer while this sleeps."""
        until = time.monotonic() + seconds
        while (now := time.monotonic()) < min(until, self.give_up_at):
            await asyncio.sleep(min(0.2, until - now))


def patiently(
    work: Callable[[], T],
    say: Callable[[str], None],
    wait: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> T:
    """`work`, which may be done again from its beginning, until the store answers; each failure is said.

    Raises StoreUnavailable after `PATIENCE_SECONDS`, other errors at once.
    """
    give_up_at, waits = now() + PATIENCE_SECONDS, _waits(1.0)
    while True:
        try:
            return work()
        except StoreUnavailable as error:
            if now() >= give_up_at:
                raise
            say(f"waiting for the store: {error}")
        wait(next(waits))


def _waits(first_seconds: float) -> Iterator[float]:
    """Ever longer, with jitter: many who wait for one store must not come back together."""
    seconds = first_seconds
    while True:
        yield seconds * random.uniform(0.5, 1.5)
        seconds = min(LONGEST_WAIT_SECONDS, seconds * 2)
