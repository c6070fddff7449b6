"""Patience of the command itself: a run of days must not end on a bad minute of its store."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from regen.errors import StoreUnavailable

T = TypeVar("T")

PATIENCE_SECONDS = 600.0
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 1.0, 30.0


def patiently(
    work: Callable[[], T],
    say: Callable[[str], None],
    wait: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> T:
    """`work`, which may be done again from its beginning, until the store answers; each failure is said.

    Raises StoreUnavailable after `PATIENCE_SECONDS`, other errors at once.
    """
    give_up_at, wait_seconds = now() + PATIENCE_SECONDS, FIRST_WAIT_SECONDS
    while True:
        try:
            return work()
        except StoreUnavailable as error:
            if now() >= give_up_at:
                raise
            say(f"waiting for the store: {error}")
        wait(wait_seconds * random.uniform(0.5, 1.5))
        wait_seconds = min(LONGEST_WAIT_SECONDS, wait_seconds * 2)
