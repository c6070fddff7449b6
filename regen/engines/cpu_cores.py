"""On a CPU, vLLM binds its workers' threads to cores and leaves one or more to everything else. Nothing keeps that off
the workers' cores: here the processes that feed them are bound to the rest, where it is not too little.

What it is worth: on two cores, one of them the worker's, a step of 32 sequences takes 1 % less. Linux only; elsewhere
nothing happens.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

# With less of all cores left, as on large machines, everything else needs the workers' idle moments.
_LEAST_SHARE = 0.25


def leave_workers_cores() -> None:
    """Bind this process, and those below it that no core was chosen for, to what the bound ones below it leave.

    For good, with all their threads and all that they start. What cannot be seen or bound is left as it is: this is
    for speed alone.
    """
    with suppress(OSError, AttributeError):
        own = frozenset(os.sched_getaffinity(0))
        below = {pid: _cores_of(pid) for pid in _below(os.getpid())}
        left = cores_left(own, (cores for cores in below.values() if cores))
        if left != own:
            for pid in (os.getpid(), *(pid for pid, cores in below.items() if cores == own)):
                for thread in _threads(pid):
                    os.sched_setaffinity(thread, left)


def cores_left(own: frozenset[int], bound: Iterable[frozenset[int]]) -> frozenset[int]:
    """Of the `own` cores, those that no process which is bound to fewer has; all of them where too few are left."""
    left = own - frozenset[int]().union(*(cores for cores in bound if cores < own))
    return left if len(left) >= _LEAST_SHARE * len(own) else own


def _cores_of(pid: int) -> frozenset[int]:
    """Of all its threads: OpenMP binds each to one of its own. None of a process that has ended."""
    cores = frozenset[int]()
    with suppress(OSError):
        for thread in _threads(pid):
            cores |= os.sched_getaffinity(thread)
    return cores


def _below(pid: int) -> set[int]:
    """What this process has started, and what that has."""
    parents = {int(name): _parent_of(name) for name in os.listdir("/proc") if name.isdecimal()}
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def _parent_of(pid: str) -> int:
    """0 of a process that has ended."""
    with suppress(OSError), open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return int(file.read().rpartition(")")[2].split()[1])
    return 0


def _threads(pid: int) -> list[int]:
    return [int(thread) for thread in os.listdir(f"/proc/{pid}/task")]
