"""What a run is started with: frozen values that the driver hands to coordinator and workers. Picklable, no secrets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from regen.data.profiles import AnswerFormat
from regen.records import WorkerId
from regen.spec import RunSpec, SpeculationSpec
from regen.speculative.arms import CONFIGURED as CONFIGURED
from regen.speculative.arms import OFF as OFF
from regen.store.control import DriftAccepted, SpeculationConfigured


class Purpose(StrEnum):
    """What a session is for."""

    RUN = "run"
    CALIBRATE = "calibrate"  # until it is known whether speculation pays; the rows made count
    CALIBRATE_AGAIN = "calibrate_again"  # whatever was known before
    PILOT = "pilot"  # until the rows of a sample are committed; they count

    @property
    def calibrates(self) -> bool:
        """Whether it ends with the choice."""
        return self in (Purpose.CALIBRATE, Purpose.CALIBRATE_AGAIN)


@dataclass(frozen=True, slots=True)
class RunSetup:
    """One session of one run. `session` is unique to this start; times of day are for people only.

    `temperature` is the highest that rows are sampled at. `claim_seen` is the session whose claim the start has found
    to be over; `drift` what it accepted, if anything; `configured` says that from now on other speculation is wanted.
    `pilot_rows` are the ordinals that a pilot is for: no others are leased.
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
    temperature: float = 0.0
    purpose: Purpose = Purpose.RUN
    pilot_rows: tuple[int, ...] = ()
    drift: DriftAccepted | None = None
    configured: SpeculationConfigured | None = None
    claim_seen: str | None = None


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a slot's next engine is started with. `arm` names it: `off`, `configured`, or a setting of calibration.

    `is_trial`: it is being compared; that it will not start is calibration's affair, and costs no restart.
    """

    arm: str
    speculation: SpeculationSpec | None
    is_trial: bool = False


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """One incarnation of one replica slot. `assignment` may differ from what the spec says: it is what was decided.

    `answers` is how the target's answers are read.
    """

    run: RunSetup
    worker: WorkerId
    assignment: Assignment
    model_folder: Path
    model: str
    model_revision: str | None
    generation_config: Mapping[str, Any]
    eos_token_ids: tuple[int, ...]
    answers: AnswerFormat
