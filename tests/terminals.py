"""Programs under a terminal of their own (a pty), and what a person would see on it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.processes import end, environment

CTRL_C = b"\x03"
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


class Terminal:
    """The program's side is its standard streams and its controlling terminal; this is the person's."""

    def __init__(self, process: subprocess.Popen[bytes], fd: int) -> None:
        self.process = process
        self._fd = fd
        self.raw = b""

    @property
    def seen(self) -> str:
        """All that was written so far, without control sequences."""
        return _CONTROL.sub("", self.raw.decode("utf-8", "replace"))

    def press(self, keys: bytes) -> None:
        os.write(self._fd, keys)

    def resize(self, columns: int, lines: int = 24) -> None:
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.process.send_signal(signal.SIGWINCH)

    def wait_for(self, text: str, seconds: float = 180, after: int = 0) -> int:
        """Until the text is seen behind that place; the place behind it. Raises TimeoutError."""
        deadline = time.monotonic() + seconds
        while text not in self.seen[after:]:
            if time.monotonic() > deadline or (not self._read() and self.process.poll() is not None):
                raise TimeoutError(f"not seen: {text!r}, but: {self.seen[-2000:]}")
        return self.seen.index(text, after) + len(text)

    def wait(self, seconds: float = 180) -> int:
        """Until the program ends: its exit code."""
        deadline = time.monotonic() + seconds
        while self._read() or self.process.poll() is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"still there: {self.seen[-2000:]}")
        return self.process.wait()

    def echoes(self) -> bool:
        """Whether the terminal is as a shell wants it: lines are edited, and what is typed is shown."""
        flags = termios.tcgetattr(self._fd)[3]
        return bool(flags & termios.ECHO) and bool(flags & termios.ICANON)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._fd], [], [], 0.05)
        if not ready:
            return False
        try:
            data = os.read(self._fd, 65536)
        except OSError:  # its last user has closed it
            return False
        self.raw += data
        return bool(data)


@contextmanager
def terminal(
    arguments: Sequence[str], cwd: Path, more: Mapping[str, str] | None = None, columns: int = 80
) -> Iterator[Terminal]:
    """The program and everything below it end with the block."""
    own, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    inherited = {name: value for name, value in environment().items() if name not in ("COLUMNS", "NO_COLOR")}
    process = subprocess.Popen(
        # A session of its own, whose terminal this is: Ctrl-C reaches it as from a keyboard. What a shell starts in its
        # background, as .ci/run does, ignores it, and so would all below; no terminal hands that on.
        ["setsid", "--ctty", "--wait", "env", "--default-signal=INT", *arguments],
        cwd=cwd,
        env={**inherited, "TERM": "xterm-256color", **(more or {})},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    try:
        yield Terminal(process, own)
    finally:
        end(process)
        os.close(own)
