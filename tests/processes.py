"""Real processes for tests: the command line as a user starts it, and what hangs below it, by pid."""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from regen.cli import main

REGEN = (sys.executable, "-m", "regen")
# Only a failure waits so long; a busy machine needs it.
PATIENCE_SECONDS = 300.0


def regen(
    *arguments: str, cwd: Path, timeout_seconds: float = 120, more: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """One command to its end, with `more` in its environment."""
    return subprocess.run(
        [*REGEN, *arguments],
        cwd=cwd,
        env={**environment(), **(more or {})},
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
    )


def regen_here(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """One command to its end, as `regen` has it, but in this process: without the seconds that an interpreter and its
    imports take. For commands that start no cluster and whose own process is not what is tested.
    """
    out, err = io.StringIO(), io.StringIO()
    command = ["regen", *arguments]
    with (
        mock.patch.object(sys, "argv", command),
        mock.patch.dict(os.environ, COLUMNS="120"),
        chdir(cwd),
        redirect_stdout(out),
        redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        main()
    return subprocess.CompletedProcess(command, int(ended.value.code or 0), out.getvalue(), err.getvalue())


@contextmanager
def started(
    arguments: Sequence[str], cwd: Path, more: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """A process, with `more` in its environment, that is ended, with everything below it, when the block ends."""
    process = subprocess.Popen(
        arguments,
        cwd=cwd,
        env={**environment(), **(more or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        end(process)


def environment() -> dict[str, str]:
    """The tests' own environment, with the checkout importable from any folder.

    A process that a fault ends says on stderr what its threads were at.
    """
    checkout = str(Path(__file__).resolve().parent.parent)
    return {**os.environ, "PYTHONPATH": checkout, "COLUMNS": "120", "PYTHONFAULTHANDLER": "1"}


def end(process: subprocess.Popen[Any]) -> None:
    """kill -9 to the process and all its descendants."""
    below = descendants(process.pid)
    if process.poll() is None:
        process.kill()
    process.communicate()
    for pid in below:
        kill(pid)
    wait_until(lambda: not any(exists(pid) for pid in below), seconds=20)


def free_port() -> int:
    """A port on loopback that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """No error if it is gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def exists(pid: int) -> bool:
    """Alive: a zombie that nobody has waited for is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def descendants(pid: int) -> list[int]:
    """All processes below `pid`, deepest last; the tree as it is now."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        children.setdefault(parent, []).append(int(stat.parent.name))
    found, queue = [], [pid]
    while queue:
        for child in children.get(queue.pop(), []):
            found.append(child)
            queue.append(child)
    return found


def titled(pid: int, title: str) -> list[int]:
    """Descendants of `pid` whose process title starts so (Ray titles its workers `ray::Class.method`)."""
    return [child for child in descendants(pid) if _title(child).startswith(title)]


def wait_until(condition: Callable[[], object], seconds: float = 60) -> None:
    """Raises TimeoutError when the condition does not become true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not true within {seconds} s: {condition}")
        time.sleep(0.05)


def reached(step: Callable[[], object], process: subprocess.Popen[str]) -> None:
    """The step, or the process's end, which is a failure unless the step was passed meanwhile.

    For steps that stay true at least until the process ends: others may have passed before anybody looks.
    """
    wait_until(lambda: step() or process.poll() is not None, seconds=PATIENCE_SECONDS)
    assert step(), f"the command ended before that: {said(process)}"


def said(process: subprocess.Popen[str]) -> str:
    """All that an ended command has printed; to be read once."""
    assert process.stdout is not None
    return process.stdout.read()


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
