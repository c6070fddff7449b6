"""On a CPU, vLLM binds its workers to cores and leaves one or more to everything else. Nothing keeps everything else
off the workers' cores: here the processes that feed them are bound to the rest.

What it is worth: on two cores, one of them the worker's, a step of 32 sequences takes 1 % less. Linux only; elsewhere,
and where workers have all cores, nothing happens.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress


def leave_workers_cores() -> frozenset[int]:
    """Bind this process, and those below it that no core was chosen for, to what the bound ones below it leave.

    For good, with all their threads and all that they start. Returns the cores that they have now.
    """
    import psutil  # vLLM needs it, too

    if not hasattr(os, "sched_setaffinity"):
        return frozenset()
    own = frozenset(os.sched_getaffinity(0))
    below = {child.pid: _cores_of(child.pid) for child in psutil.Process().children(recursive=True)}
    left = cores_left(own, filter(None, below.values()))
    if left != own:
        for pid in (os.getpid(), *(pid for pid, cores in below.items() if cores == own)):
            _bind(pid, left)
    return left


def _bind(pid: int, cores: frozenset[int]) -> None:
    for thread in os.listdir(f"/proc/{pid}/task"):
        with suppress(ProcessLookupError):  # it has ended meanwhile
            os.sched_setaffinity(int(thread), cores)


def cores_left(own: frozenset[int], bound: Iterable[frozenset[int]]) -> frozenset[int]:
    """Of the `own` cores, those that no process which is bound to fewer has; all of them where none is left."""
    taken = frozenset[int]().union(*(cores for cores in bound if cores < own))
    return own - taken or own


def _cores_of(pid: int) -> frozenset[int]:
    """None of a process that has ended."""
    with suppress(ProcessLookupError):
        return frozenset(os.sched_getaffinity(pid))
    return frozenset()
