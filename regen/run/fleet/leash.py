"""No process of an engine outlives its worker, and none of an older engine stands in a new one's way.

`tie` is called in a worker's own process before its engine starts. It guarantees: whatever the engine starts from then
on is killed within seconds of the worker's end, however that came (kill -9, the node's raylet gone), and an engine of
the same replica that was left behind on this machine is gone before the new one starts: its device is free.

Linux in full. Elsewhere children cannot be told by their environment (marked.py): there, Ray's own clearing up of a
worker's process group is all there is. A device that a stranger holds is the engine's own error.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from dataclasses import dataclass

from regen.errors import EngineStartFailed
from regen.run.fleet import marked
from regen.run.setup import WorkerSetup
from regen.store.machine import process_exists

# So long killed processes of an older engine may take to be gone. Freeing a GPU's memory takes seconds.
LEFTOVER_SECONDS = 30.0
_LOOK_EVERY_SECONDS = 0.1
# vLLM's processes name themselves with setproctitle, which otherwise writes over what /proc/PID/environ shows.
_KEEP_ENVIRONMENT = "SPT_NOENV"
# A supervising process ends when the pipe to it is closed: kept until this process ends.
_SUPERVISORS: list[subprocess.Popen[bytes]] = []


@dataclass(frozen=True, slots=True)
class Mark:
    """Whose a process is. `run` stands for the run folder; `owner` is the worker's process id."""

    run: str
    slot: int
    session: str
    incarnation: int
    owner: int

    def __str__(self) -> str:
        return f"{self.run}:{self.slot}:{self.session}:{self.incarnation}:{self.owner}"

    @classmethod
    def parse(cls, text: str) -> Mark | None:
        """None: not one of ours."""
        try:
            run, slot, session, incarnation, owner = text.split(":")
            return cls(run, int(slot), session, int(incarnation), int(owner))
        except ValueError:
            return None


def mark_of(setup: WorkerSetup) -> Mark:
    """For the engine of this worker, in whose process we are."""
    return Mark(_run(setup.run.run_url), setup.worker.slot, setup.run.session, setup.worker.incarnation, os.getpid())


def is_leftover(other: Mark, mine: Mark, owner_lives: bool) -> bool:
    """Of an engine that `mine` replaces: an older incarnation, or another session's whose worker is gone.

    A living worker of another session may be the one that holds the run by now: its processes are never touched.
    """
    if (other.run, other.slot) != (mine.run, mine.slot):
        return False
    if other.session == mine.session:
        return other.incarnation < mine.incarnation
    return not owner_lives


def tie(mark: Mark) -> None:
    """Once in a worker's process, before its engine starts. Blocks for up to `LEFTOVER_SECONDS`.

    Raises EngineStartFailed when processes of an older engine of this replica do not end.
    """
    end_leftovers(mark)
    supervise(mark)


def end_leftovers(mine: Mark, limit_seconds: float = LEFTOVER_SECONDS) -> None:
    """Kill what older engines of this replica have left on this machine, and wait until it is gone."""
    deadline = time.monotonic() + limit_seconds
    while leftovers := _leftovers(mine):
        marked.kill(leftovers)
        if time.monotonic() > deadline:
            pids = ", ".join(map(str, leftovers))
            raise EngineStartFailed(
                f"replica {mine.slot}: processes {pids} of an older engine of this replica"
                f" are still there, {limit_seconds:g} s after they were killed: they may hang in the kernel and"
                " hold the device. Look at them (`ps -o stat,wchan:20,cmd -p PID`); is its driver hung?"
            )
        time.sleep(_LOOK_EVERY_SECONDS)


def supervise(mark: Mark) -> None:
    """From now on, children of this process carry the mark, and end after it."""
    environment = {name: value for name, value in os.environ.items() if name != marked.VARIABLE}
    _SUPERVISORS.append(
        subprocess.Popen(
            [sys.executable, "-I", "-S", marked.__file__, str(os.getpid()), str(mark)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,  # Ray ends the worker's process group with it
        )
    )
    os.environ[marked.VARIABLE] = str(mark)
    os.environ[_KEEP_ENVIRONMENT] = "1"


def marked_processes(run_url: str) -> list[int]:
    """The processes of this run's engines on this machine."""
    found = ((pid, Mark.parse(text)) for pid, text in marked.marked().items())
    return [pid for pid, mark in found if mark is not None and mark.run == _run(run_url)]


def _run(url: str) -> str:
    return hashlib.blake2b(url.encode("utf-8"), digest_size=8).hexdigest()


def _leftovers(mine: Mark) -> list[int]:
    found = ((pid, Mark.parse(text)) for pid, text in marked.marked().items() if pid != os.getpid())
    return [pid for pid, other in found if other is not None and is_leftover(other, mine, process_exists(other.owner))]
