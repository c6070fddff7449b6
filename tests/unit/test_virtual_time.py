"""The loop whose time jumps: timers in order, threads waited for, `time.monotonic` along with it."""

from __future__ import annotations

import asyncio
import threading
import time

from tests import virtual_time


def test_sleeps_take_no_time_and_end_in_order() -> None:
    async def sleepers() -> list[tuple[int, float]]:
        woken: list[tuple[int, float]] = []

        async def sleep(hours: int) -> None:
            await asyncio.sleep(hours * 3600)
            woken.append((hours, time.monotonic()))

        await asyncio.gather(*(sleep(hours) for hours in (3, 1, 2)))
        return woken

    began = time.perf_counter()
    assert virtual_time.run(sleepers()) == [(1, 3600.0), (2, 7200.0), (3, 10800.0)]
    assert time.perf_counter() - began < 60


def test_time_stands_still_while_a_thread_works() -> None:
    async def race() -> tuple[float, bool]:
        may_end = threading.Event()
        loop = asyncio.get_running_loop()
        work = asyncio.ensure_future(asyncio.to_thread(may_end.wait))
        timer = asyncio.ensure_future(asyncio.sleep(1000))
        for _ in range(20):
            await asyncio.sleep(0)
        before = loop.time()
        loop.call_soon(may_end.set)
        await asyncio.wait((work, timer), return_when=asyncio.FIRST_COMPLETED)
        ended_first = work.done() and not timer.done()
        timer.cancel()
        return before, ended_first

    assert virtual_time.run(race()) == (0.0, True)


def test_a_timeout_ends_what_waits_for_ever() -> None:
    async def wait() -> bool:
        try:
            await asyncio.wait_for(asyncio.Event().wait(), 86_400)
        except TimeoutError:
            return True
        return False

    assert virtual_time.run(wait())


def test_the_clock_is_itself_again_afterwards() -> None:
    before = time.monotonic()
    virtual_time.run(asyncio.sleep(10**6))
    assert 0 <= time.monotonic() - before < 10**5
