"""vLLM's own OpenAI server on the CPU, for tests: on loopback, killed and started again at the same address, by pid."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from tests.processes import descendants, exists, free_port, kill, wait_until

START_SECONDS = 240


class RealServer:
    """One model, served as `target`. In a session of its own, so that nothing below it is left."""

    def __init__(self, model: Path, log: Path, more: Sequence[str] = (), **variables: str) -> None:
        self._port = free_port()
        self._command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
        self._command += ["--served-model-name", "target", "--host", "127.0.0.1", "--port", str(self._port)]
        self._command += ["--enforce-eager", "--max-model-len", "1024", "--max-num-seqs", "8", *more]
        self._environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", **variables}
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> RealServer:
        self.start()
        try:
            self.wait()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *reason: object) -> None:
        self.end()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def pids(self) -> list[int]:
        """It and its engine."""
        assert self._process is not None, "it was not started"
        return [self._process.pid, *descendants(self._process.pid)]

    def start(self) -> None:
        """At the same address as before; it answers after `wait`."""
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self) -> None:
        process = self._process
        assert process is not None, "it was not started"
        wait_until(lambda: process.poll() is not None or self._answers(), seconds=START_SECONDS)
        assert process.poll() is None, self._log.read_text(errors="replace")[-3000:]

    def kill(self) -> None:
        """kill -9 to it and its engine."""
        self._end(signal.SIGKILL)

    def end(self) -> None:
        """In order first, so that it takes its engine along; then by force, whatever is left of it."""
        self._end(signal.SIGTERM)

    def _end(self, number: int) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        below = descendants(process.pid)
        process.send_signal(number)
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=30)
        for pid in below:
            kill(pid)
        wait_until(lambda: not any(exists(pid) for pid in below))

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as reply:
                return bool(reply.status == 200)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.5)
            return False
