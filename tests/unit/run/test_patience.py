"""The command waits for a store that is away, and not for ever."""

from __future__ import annotations

import pytest

from regen.errors import StoreRefused, StoreUnavailable
from regen.run.patience import LONGEST_WAIT_SECONDS, PATIENCE_SECONDS, patiently


class Clock:
    def __init__(self) -> None:
        self.now, self.waits = 0.0, list[float]()

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.waits.append(seconds)


def failing(times: int, error: Exception) -> list[Exception | None]:
    return [*[error] * times, None]


def work_on(script: list[Exception | None]) -> int:
    error = script.pop(0)
    if error is not None:
        raise error
    return 7


def test_it_goes_on_when_the_store_answers_again() -> None:
    clock, said, script = Clock(), list[str](), failing(4, StoreUnavailable("away"))

    assert patiently(lambda: work_on(script), said.append, clock.wait, lambda: clock.now) == 7
    assert len(clock.waits) == 4
    assert clock.waits[3] > clock.waits[0]
    assert said == ["waiting for the store: away"] * 4


def test_it_gives_up_in_the_end() -> None:
    clock, script = Clock(), failing(10_000, StoreUnavailable("away"))

    with pytest.raises(StoreUnavailable, match="away"):
        patiently(lambda: work_on(script), lambda text: None, clock.wait, lambda: clock.now)
    assert PATIENCE_SECONDS <= clock.now < PATIENCE_SECONDS + 2 * LONGEST_WAIT_SECONDS


def test_what_is_refused_is_refused_at_once() -> None:
    clock, script = Clock(), failing(1, StoreRefused("no"))

    with pytest.raises(StoreRefused):
        patiently(lambda: work_on(script), lambda text: None, clock.wait, lambda: clock.now)
    assert clock.waits == []


def test_it_waits_ever_longer_up_to_a_limit() -> None:
    clock = Clock()
    script = failing(12, StoreUnavailable("away"))
    assert patiently(lambda: work_on(script), print, clock.wait, lambda: clock.now) == 7
    assert 0.5 <= clock.waits[0] <= 1.5
    assert all(LONGEST_WAIT_SECONDS / 2 <= seconds <= LONGEST_WAIT_SECONDS * 1.5 for seconds in clock.waits[5:])
