"""A command as a process of its own, measured from outside: time, processor time and memory, its children included.

Memory is looked at `LOOKS_A_SECOND` times a second in /proc (so this runs on Linux only): the most that one process has
held by the kernel's own mark, the most that all held at once (pages they share count once in each), and the most of
those whose command line holds a word that was asked for. The mark in `getrusage` is of no use: a child inherits that of
the process that started it. Processor time is that of all processes, dead children included.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LOOKS_A_SECOND = 20
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Cost:
    """`named_mib` is of the processes whose command line holds the word asked for, each by itself; 0 if there is none.

    `exit_code` is None for a command that was stopped once it had come as far as it was measured.
    """

    seconds: float
    cpu_seconds: float
    largest_mib: float
    together_mib: float
    named_mib: float
    exit_code: int | None


class _Tree:
    """The process with this id and all that descend from it, as they were seen so far."""

    def __init__(self, root: int, word: str | None) -> None:
        self._root, self._word = root, word
        self.largest_mib = self.together_mib = self.named_mib = 0.0

    def look(self) -> None:
        pids = list(self._pids())
        peaks = {pid: _mib(pid, "VmHWM") for pid in pids}
        self.largest_mib = max(self.largest_mib, *peaks.values(), 0.0)
        self.together_mib = max(self.together_mib, sum(_mib(pid, "VmRSS") for pid in pids))
        if self._word is not None:
            named = (held for pid, held in peaks.items() if self._word in _command_line(pid))
            self.named_mib = max(self.named_mib, *named, 0.0)

    def cpu_seconds(self) -> float:
        """Of all that live now, and of the dead that those have waited for."""
        return sum(_cpu_seconds(pid) for pid in self._pids())

    def _pids(self) -> Iterator[int]:
        children: dict[int, list[int]] = {}
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            children.setdefault(_parent(pid), []).append(pid)
        ahead = [self._root]
        while ahead:
            pid = ahead.pop()
            yield pid
            ahead += children.get(pid, [])


def measured(
    command: Sequence[str],
    output: Path,
    until: Callable[[], bool] | None = None,
    word: str | None = None,
    environment: Mapping[str, str] | None = None,
    limit_seconds: float = 3600.0,
) -> Cost:
    """Run it, what it says into `output`. `until`: asked all the time; once true the clock stops and SIGTERM is sent.

    Raises RuntimeError when it ends before that, and when it takes longer than `limit_seconds` (it is killed then).
    """
    with output.open("wb") as said:
        began = time.monotonic()
        process = subprocess.Popen(command, stdout=said, stderr=said, env={**os.environ, **(environment or {})})
        tree = _Tree(process.pid, word)
        try:
            if until is None:
                return _to_its_end(process, tree, began, limit_seconds)
            return _so_far(process, tree, began, until, limit_seconds)
        finally:
            if process.returncode is None:
                process.kill()
                process.wait()


def _to_its_end(process: subprocess.Popen[bytes], tree: _Tree, began: float, limit_seconds: float) -> Cost:
    while True:
        pid, status, used = os.wait4(process.pid, os.WNOHANG)
        if pid:
            break
        tree.look()
        _pause(process, began, limit_seconds)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.monotonic() - began
    cpu_seconds = used.ru_utime + used.ru_stime
    return Cost(seconds, cpu_seconds, tree.largest_mib, tree.together_mib, tree.named_mib, process.returncode)


def _so_far(
    process: subprocess.Popen[bytes], tree: _Tree, began: float, until: Callable[[], bool], limit_seconds: float
) -> Cost:
    while not until():
        if process.poll() is not None:
            raise RuntimeError(f"{process.args!r} ended with {process.returncode} before it had come so far")
        tree.look()
        _pause(process, began, limit_seconds)
    seconds, cpu_seconds = time.monotonic() - began, tree.cpu_seconds()
    tree.look()
    process.send_signal(signal.SIGTERM)
    process.wait(limit_seconds)
    return Cost(seconds, cpu_seconds, tree.largest_mib, tree.together_mib, tree.named_mib, None)


def _pause(process: subprocess.Popen[bytes], began: float, limit_seconds: float) -> None:
    if time.monotonic() - began > limit_seconds:
        raise RuntimeError(f"{process.args!r} has taken more than {limit_seconds:.0f} s")
    time.sleep(1 / LOOKS_A_SECOND)


# --- what /proc says; a process may end between two looks -----------------------------------------------------------


def _parent(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[1]) if fields else 0


def _cpu_seconds(pid: int) -> float:
    fields = _stat(pid)
    return sum(map(int, fields[11:15])) / _TICKS if fields else 0.0


def _stat(pid: int) -> list[str]:
    """The fields behind the name, which may hold spaces and brackets: the state comes first."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return []
    return text.rpartition(")")[2].split()


def _mib(pid: int, name: str) -> float:
    """0 for a process that has ended, and has no memory any more."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:")), 0.0)


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
