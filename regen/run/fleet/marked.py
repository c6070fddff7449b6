"""Processes that carry a mark in their environment: found, and killed. Run as a script, it outlives a worker.

An engine's processes may leave their parent's tree, group and session, but not their environment: children inherit it,
and Linux shows what a process was started with in /proc/PID/environ. Only our own user's processes are looked at, and
only those with exactly this mark. Elsewhere than on Linux nothing is found.

As a script (`python -I -S marked.py PARENT MARK...`) it waits until the process that holds its standard input's other
end is gone, and then kills what that has left behind. It imports nothing but the standard library, so that it costs
8 MB and starts at once.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

VARIABLE = "REGEN_REPLICA"
# How long the children of a dead worker may take to end by themselves: vLLM's free their shared memory then.
GRACE_SECONDS = 1.0
# A killed process that is still there by then hangs in the kernel. Nobody is left to be told.
KILL_SECONDS = 60.0
_LOOK_EVERY_SECONDS = 0.1


def marked() -> dict[int, str]:
    """Each living process of this user that has a mark, by its id. This process's own start counts too."""
    prefix = f"{VARIABLE}=".encode("ascii")
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # gone meanwhile, or not ours to look at
            if folder.stat().st_uid != os.getuid():
                continue
            for entry in (folder / "environ").read_bytes().split(b"\0"):
                if entry.startswith(prefix):
                    found[int(folder.name)] = entry[len(prefix) :].decode("utf-8", "replace")
    return found  # a zombie's environment is empty: it has ended


def kill(pids: list[int]) -> None:
    """SIGKILL; no error for one that is gone."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def with_mark(mark: str) -> list[int]:
    """The processes that carry exactly this mark, but not the one that asks."""
    return [pid for pid, text in marked().items() if text == mark and pid != os.getpid()]


def outlive(parent: int, mark: str) -> list[int]:
    """Wait for `parent`'s end, then end every process with this mark. What was killed."""
    _await_end(parent)
    deadline = time.monotonic() + GRACE_SECONDS
    while with_mark(mark) and time.monotonic() < deadline:
        time.sleep(_LOOK_EVERY_SECONDS)
    killed: set[int] = set()
    deadline = time.monotonic() + KILL_SECONDS
    while (left := with_mark(mark)) and time.monotonic() < deadline:
        kill(left)
        killed.update(left)
        time.sleep(_LOOK_EVERY_SECONDS)
    return sorted(killed)


def _await_end(parent: int) -> None:
    """Standard input ends with the parent; but a child that it forked may hold the pipe, so its id is asked as well."""
    while os.getppid() == parent:
        readable, _, _ = select.select([0], [], [], 1.0)
        if readable and not os.read(0, 1):
            return


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # it ends by itself, after its parent
        signal.signal(number, signal.SIG_IGN)
    killed = outlive(int(sys.argv[1]), sys.argv[2])
    if killed:
        with suppress(OSError):
            print(f"regen: killed what the engine of a dead worker has left behind: {killed}", file=sys.stderr)


if __name__ == "__main__":
    main()
