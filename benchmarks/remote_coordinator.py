"""A real Coordinator in a process of its own, so that what it holds and costs is told apart from who asks it.

Calls go over a socket as pickled values, as Ray sends them: taking them in and out is a part of what it costs.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pickle
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.stages import Stages, watched
from regen.records import ExchangeReply, ExchangeRequest
from regen.run.coordinator import Coordinator
from regen.run.setup import RunSetup

_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True)
class Spent:
    """By the coordinator's process so far, and what it holds now. `stages` in processor seconds."""

    cpu_seconds: float
    resident_mib: float
    peak_mib: float
    stages: Mapping[str, float]


class RemoteCoordinator:
    """Exchanges with the other process, one at a time."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    async def connect(self) -> None:
        """Waits until the other process listens."""
        while True:
            try:
                self._reader, self._writer = await asyncio.open_unix_connection(str(self._socket))
                return
            except (FileNotFoundError, ConnectionRefusedError):
                await asyncio.sleep(0.05)

    async def exchange(self, request: ExchangeRequest) -> ExchangeReply:
        reply: ExchangeReply = await self._asked(request)
        return reply

    async def spent(self) -> Spent:
        spent: Spent = await self._asked(None)
        return spent

    async def _asked(self, question: ExchangeRequest | None) -> Any:
        await _send(self._writer, _pickled(question))
        return pickle.loads(await _received(self._reader))


@contextmanager
def remote_coordinator(setup: RunSetup, socket: Path) -> Iterator[RemoteCoordinator]:
    """The process ends, publishing nothing more, when the block does."""
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(setup, str(socket)), daemon=True)
    process.start()
    try:
        yield RemoteCoordinator(socket)
    finally:
        process.kill()
        process.join()


def _serve(setup: RunSetup, socket: str) -> None:
    asyncio.run(_served(setup, socket))


async def _served(setup: RunSetup, socket: str) -> None:
    coordinator, stages = Coordinator(setup), Stages()
    watched(stages)
    pickled, unpickled = stages.timed("exchange: pickle", _pickled), stages.timed("exchange: pickle", pickle.loads)
    await coordinator.status()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            question: ExchangeRequest | None = unpickled(await _received(reader))
            reply = _spent(stages) if question is None else await coordinator.exchange(question)
            await _send(writer, pickled(reply))

    server = await asyncio.start_unix_server(answer, socket)
    await server.serve_forever()


def _pickled(value: object) -> bytes:
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


def _spent(stages: Stages) -> Spent:
    lines = Path(f"/proc/{os.getpid()}/status").read_text(encoding="ascii", errors="replace").splitlines()
    mib = {
        name: int(value.split()[0]) / 1024
        for name, _, value in (line.partition(":") for line in lines)
        if "kB" in value
    }
    return Spent(time.process_time(), mib["VmRSS"], mib["VmHWM"], dict(stages.seconds))


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(len(data).to_bytes(_LENGTH_BYTES, "little") + data)
    await writer.drain()


async def _received(reader: asyncio.StreamReader) -> bytes:
    size = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "little")
    return await reader.readexactly(size)
