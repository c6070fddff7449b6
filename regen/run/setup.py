"""What a run is started with: frozen values that the driver hands to coordinator and workers. Picklable, no secrets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regen.records import WorkerId
from regen.spec import RunSpec
from regen.store.control import DriftAccepted


@dataclass(frozen=True, slots=True)
class RunSetup:
    """One session of one run. `session` is unique to this start; times of day are for people only.

    `claim_seen` is the session whose claim the start has found to be over; `drift` what it accepted, if anything.
    """

    spec: RunSpec
    run_url: str
    session: str
    fingerprint: str
    host: str
    boot_id: str
    driver_pid: int
    started_at: str
    take_over: bool
    drift: DriftAccepted | None = None
    claim_seen: str | None = None


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """One incarnation of one replica slot."""

    run: RunSetup
    worker: WorkerId
    model_folder: Path
    model: str
    model_revision: str | None
    generation_config: Mapping[str, Any]
    eos_token_ids: tuple[int, ...]
