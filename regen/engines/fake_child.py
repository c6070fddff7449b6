"""The fake engine's own process, as a GPU engine has one: it holds a device, and nothing but SIGKILL ends it.

The device is a file that is locked exclusively. The process is in a session of its own, out of reach for whoever ends
the worker's process group: it outlives a worker that was killed, unless somebody looks after it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from regen.errors import EngineStartFailed

_PROGRAM = """
import fcntl, signal, sys, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
device = open(sys.argv[1], "a")
try:
    fcntl.flock(device, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    sys.exit("held")
print("ready", flush=True)
while True:
    time.sleep(3600)
"""


class FakeChild:
    """One process that holds one device until `close`."""

    def __init__(self, device: Path) -> None:
        """Blocks until the device is held. Raises EngineStartFailed when another process holds it."""
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _PROGRAM, str(device)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"ready\n":
            self.close()
            raise EngineStartFailed(f"the fake engine's device {device} is held by another process")

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        """Ends the process; the device is free afterwards."""
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
