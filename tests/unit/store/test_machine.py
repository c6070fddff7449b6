"""Whether a process is there: a dead one that nobody has reaped is not."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from regen.store.machine import process_exists


def test_this_process_is_there_and_an_ended_one_is_not() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert process_exists(os.getpid())
    assert not process_exists(ended.pid)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux tells")
def test_a_zombie_is_not_there() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as killed:
        killed.kill()
        deadline = time.monotonic() + 10
        while process_exists(killed.pid) and time.monotonic() < deadline:
            os.sched_yield()
        assert not process_exists(killed.pid)
