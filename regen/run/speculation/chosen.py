"""What calibration has chosen for a run, read from its journal: for `regen calibrate` and for reports."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from regen.errors import SpecError
from regen.protocols import Storage
from regen.run.held import control_records
from regen.run.speculation.records import subject_of
from regen.spec import RunSpec
from regen.store.control import Record, SpeculationDecided, Verdict


@dataclass(frozen=True, slots=True)
class StandingChoice:
    """The newest choice: which arm, why, and a row of figures for each arm that was measured."""

    arm: str
    speculation: str | None
    reason: str
    at: str
    arms: tuple[dict[str, Any], ...]
    session: str

    def to_json(self) -> dict[str, Any]:
        """For machines, and for report.json."""
        speculation = None if self.speculation is None else json.loads(self.speculation)
        return {
            "arm": self.arm,
            "speculation": speculation,
            "reason": self.reason,
            "at": self.at,
            "arms": list(self.arms),
        }


def standing_choice(storage: Storage, spec: RunSpec) -> StandingChoice | None:
    """What was measured last for this very speculation, engine, sampling and target; None if nothing was."""
    return choice_among(control_records(storage), spec)


def choice_among(records: Sequence[Record], spec: RunSpec) -> StandingChoice | None:
    """The same, of the journal's records."""
    subject = subject_of(spec)
    for record in reversed(records):
        if isinstance(record, SpeculationDecided) and record.verdict == Verdict.MEASURED and record.subject == subject:
            return StandingChoice(
                record.arm,
                record.speculation,
                record.reason,
                record.at,
                tuple(json.loads(record.evidence)),
                record.session,
            )
    return None


def require_speculation(spec: RunSpec) -> None:
    """Raises SpecError where there is nothing to compare."""
    if spec.speculation is None:
        raise SpecError("calibrate: the spec has no speculation, so there is nothing to compare with off")
    if spec.engine.endpoints:
        raise SpecError(
            "calibrate: the spec has engine.endpoints, and a server keeps its own setting. Without them the engines of"
            " your own can be compared"
        )
