"""An event loop whose time jumps: what sleeps for an hour is done at once, and nothing depends on the machine's speed.

Time stands still while anything runs, in the loop or in a thread that the loop waits for, and then jumps to the next
timer. What reads `time.monotonic` by itself gets the loop's time too while `run` lasts.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar
from unittest import mock

T = TypeVar("T")

# How long a thread is given at a time before the loop looks again.
_THREAD_SECONDS = 0.02


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Jumps instead of sleeping."""

    def __init__(self) -> None:
        self._now = 0.0
        self._in_threads = 0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        return self._now

    def jump(self, seconds: float) -> None:
        self._now += seconds

    @property
    def is_thread_at_work(self) -> bool:
        return self._in_threads > 0

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future = super().run_in_executor(executor, func, *args)
        self._in_threads += 1
        future.add_done_callback(self._thread_done)
        return future

    def _thread_done(self, future: asyncio.Future[Any]) -> None:
        self._in_threads -= 1


class _JumpingSelector(selectors.DefaultSelector):
    """Waits really only for threads and sockets; a timer's wait becomes a jump."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None or self._loop.is_thread_at_work:
            longest = _THREAD_SECONDS if timeout is None else min(timeout, _THREAD_SECONDS)
            return super().select(longest if timeout is None or timeout > 0 else 0)
        ready = super().select(0)
        if not ready and timeout > 0:
            self._loop.jump(timeout)
        return ready


def run(work: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` on virtual time. `time.monotonic` is the loop's meanwhile, in every thread."""
    loop = VirtualTimeLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner, mock.patch.object(time, "monotonic", loop.time):
        return runner.run(work)
