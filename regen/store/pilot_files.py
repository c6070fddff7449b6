"""What a pilot leaves beside the rows, under `pilot/`: steps of its generations, and how long its sessions took.

No part of the run: nothing that decides reads it, it may be lost, and a reader gets what there is. One file a session
and coordinator, so that no session takes away what another has left.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from regen.protocols import Storage
from regen.records import GenerationSteps, StepTrace
from regen.store.layout import PILOT

_STEPS, _SESSION = f"{PILOT}steps-", f"{PILOT}session-"


@dataclass(frozen=True, slots=True)
class PilotSession:
    """One session of a pilot: `seconds` from its first request to its last finished row."""

    session: str
    seconds: float


def steps_key(session: str, incarnation: str) -> str:
    """Where a coordinator writes the steps that it was told of."""
    return f"{_STEPS}{session}-{incarnation}.jsonl"


def steps_to_bytes(steps: Iterable[GenerationSteps]) -> bytes:
    """One line a generation."""
    return "".join(json.dumps(asdict(one)) + "\n" for one in steps).encode("ascii")


def read_steps(storage: Storage) -> dict[tuple[int, int, int], StepTrace]:
    """By ordinal, round and turn, of all sessions. Raises StoreError."""
    lines = [line for stored in storage.list(_STEPS) for line in storage.read(stored.key).splitlines()]
    return {(one["ordinal"], one["round"], one["turn"]): _trace(one["steps"]) for one in map(json.loads, lines)}


def write_session(storage: Storage, session: PilotSession) -> None:
    """Raises StoreError."""
    storage.replace(f"{_SESSION}{session.session}.json", json.dumps(asdict(session)).encode("utf-8"))


def read_sessions(storage: Storage) -> list[PilotSession]:
    """All sessions that have ended in order. Raises StoreError."""
    return [PilotSession(**json.loads(storage.read(stored.key))) for stored in storage.list(_SESSION)]


def _trace(values: dict[str, list[int]]) -> StepTrace:
    return StepTrace(tuple(values["drafted"]), tuple(values["accepted"]))
