"""Processes of a benchmark's arms: each in a group of its own that is gone when the arm is."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

QUIET = {
    "HF_HUB_OFFLINE": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
START_SECONDS = 300
END_SECONDS = 60
LOG_END_CHARACTERS = 3000


@dataclass(frozen=True, slots=True)
class Span:
    """When a process began and ended, in seconds since the epoch: all arms report their clocks like that."""

    began_at: float
    ended_at: float


class ArmFailed(Exception):
    """An arm's process did not do what it is for; with the end of its log."""


def run(command: Sequence[str], log: Path, more: Mapping[str, str], timeout_seconds: float) -> Span:
    """A process to its end. Raises ArmFailed."""
    began_at = time.time()
    process = _start(command, log, more)
    try:
        code = process.wait(timeout_seconds)
    except subprocess.TimeoutExpired:
        raise ArmFailed(f"not done after {timeout_seconds:g} s: {_told(command, log)}") from None
    finally:
        _kill(process)
    if code:
        raise ArmFailed(f"exit code {code}: {_told(command, log)}")
    return Span(began_at, time.time())


@contextmanager
def serving(command: Sequence[str], log: Path, more: Mapping[str, str], url: str) -> Iterator[float]:
    """A server that answers; gives the seconds it took to start. Raises ArmFailed."""
    began_at = time.time()
    process = _start(command, log, more)
    try:
        while not _answers(f"{url}/health"):
            if process.poll() is not None or time.time() - began_at > START_SECONDS:
                raise ArmFailed(f"the server did not start: {_told(command, log)}")
            time.sleep(0.5)
        yield time.time() - began_at
    finally:
        process.terminate()
        _wait_for(process)
        _kill(process)


def post(url: str) -> None:
    """An empty request, which must succeed."""
    with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=30):
        return


def _start(command: Sequence[str], log: Path, more: Mapping[str, str]) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **QUIET, **more},
            start_new_session=True,
        )


def _wait_for(process: subprocess.Popen[bytes]) -> None:
    with suppress(subprocess.TimeoutExpired):  # it is killed next
        process.wait(END_SECONDS)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """It, and whatever it has left in its group."""
    with suppress(ProcessLookupError):  # nothing is left of it
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def _told(command: Sequence[str], log: Path) -> str:
    return f"{' '.join(command)}\n{log.read_text(errors='replace')[-LOG_END_CHARACTERS:]}"
