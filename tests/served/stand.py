"""Where a stand-in server stands: on loopback, in a thread, or in a process of its own that can be killed by pid.

    with standing(VllmServer(...)) as stand:      a thread: `stand.url`, `stand.down()`, `stand.up()`
    with ServerProcess({"kind": "sglang"}) as it: a process: `it.url`, `it.kill()`, `it.freeze()`, `it.start()`
    with deaf() as url:                           connections are taken, and nobody ever reads them

What comes back has the same address. A server that was down in its thread has kept its counts; a killed one has not.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from aiohttp import web

from tests.processes import environment, wait_until

_PATIENCE_SECONDS = 60.0


class Server(Protocol):
    def app(self) -> web.Application: ...


class Stand:
    """One server in a thread of its own."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._runner: web.AppRunner | None = None
        self._port = 0
        self.up()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def up(self) -> None:
        """Answer, at the same address as before."""
        self._wait(self._up())

    def down(self) -> None:
        """Every connection is cut, and none is taken any more."""
        self._wait(self._down())

    def close(self) -> None:
        self.down()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=_PATIENCE_SECONDS)
        self._loop.close()

    async def _up(self) -> None:
        runner = web.AppRunner(self._server.app(), access_log=None, shutdown_timeout=0.0, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self._port, reuse_address=True).start()
        self._port = runner.addresses[0][1]
        self._runner = runner

    async def _down(self) -> None:
        runner, self._runner = self._runner, None
        if runner is None:
            return
        assert runner.server is not None
        for connection in runner.server.connections:
            if connection.transport is not None:
                connection.transport.abort()  # else answers under way would be waited for
        await runner.cleanup()

    def _wait(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=_PATIENCE_SECONDS)


@contextmanager
def standing(server: Server) -> Iterator[Stand]:
    """While the block runs."""
    stand = Stand(server)
    try:
        yield stand
    finally:
        stand.close()


@contextmanager
def deaf() -> Iterator[str]:
    """An address where the system takes connections and nobody answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


class ServerProcess:
    """A server in a process: `settings` as `python -m tests.served` takes them."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._port = 0
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> ServerProcess:
        self.start()
        return self

    def __exit__(self, *reason: object) -> None:
        self.kill()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """A new process, at the same address as before. Returns when it answers."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.served", json.dumps({**self._settings, "port": self._port})],
            env=environment(),
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith("port "):
            self.kill()
            raise RuntimeError(f"the stand-in server did not start: {self._settings}")
        self._port = int(line.split()[1])

    def kill(self) -> None:
        """kill -9, and its end."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def freeze(self) -> None:
        """It keeps its connections and does nothing."""
        os.kill(self.pid, signal.SIGSTOP)
        wait_until(lambda: _state(self.pid) == "T", seconds=_PATIENCE_SECONDS)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


def _state(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0]
