"""How long a folder is watched before its last session counts as gone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from regen.run import held
from regen.store.holder import Holder, HolderState, Liveness, write_holder
from regen.store.machine import machine_identity
from regen.store.replay import Replayed
from tests.memory_storage import MemoryStorage


@pytest.fixture
def living() -> Iterator[int]:
    """A process that is not this one."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process.pid
        process.kill()


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, str], float]:
    def seconds(driver_pid: int, boot_id: str) -> float:
        asked: list[float] = []

        def watch(storage: Any, replayed: Any, wait: Any, seconds: float, here: str) -> Liveness:
            asked.append(seconds)
            return Liveness.DEAD

        monkeypatch.setattr(held, "watch", watch)
        storage = MemoryStorage()
        holder = Holder("s1", "host", boot_id, 1, driver_pid, "2026-01-01", 3, "2026-01-01", HolderState.RUNNING)
        write_holder(storage, holder)
        held.refuse_if_alive(storage, cast(Replayed, None))
        return asked[0]

    return seconds


def test_a_driver_that_lives_here_may_be_waiting_for_ray_to_restart_its_coordinator(
    watched: Callable[[int, str], float], living: int
) -> None:
    assert watched(living, machine_identity()) == held.RESTART_SECONDS


def test_of_a_driver_that_is_gone_or_elsewhere_or_is_this_process_three_heartbeats_are_enough(
    watched: Callable[[int, str], float], living: int
) -> None:
    assert watched(2**22 + 1, machine_identity()) == held.WATCH_SECONDS
    assert watched(living, "another machine") == held.WATCH_SECONDS
    assert watched(os.getpid(), machine_identity()) == held.WATCH_SECONDS
