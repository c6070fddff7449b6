"""What decisions about speculation are made of when they are written down and read back. Pure."""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields

from regen.spec import SERVER_FIELDS, SPECULATION_POLICY, RunSpec, SpeculationSpec
from regen.speculative.calibration import Measured
from regen.store.control import ArmMeasured


def subject_of(spec: RunSpec) -> str:
    """Digest of what a decision is about: the speculation, and all else in the spec that its speed depends on."""
    speculation = spec.speculation
    free = {*SPECULATION_POLICY, "accept", "expected"}
    engine = {"start_timeout_seconds", "stall_timeout_seconds", "restarts", "replicas", "faults", *SERVER_FIELDS}
    about = {
        "target": spec.target.model_dump(mode="json"),
        "engine": spec.engine.model_dump(mode="json", exclude=engine),
        "sampling": spec.sampling.model_dump(mode="json"),
        "speculation": speculation.model_dump(mode="json", exclude=free) if speculation else None,
    }
    return hashlib.blake2b(json.dumps(about, sort_keys=True).encode("utf-8"), digest_size=16).hexdigest()


def measured_of(record: ArmMeasured) -> Measured:
    """The record holds all that was measured, under the same names."""
    return Measured(**{one.name: getattr(record, one.name) for one in fields(Measured)})


def text_of(speculation: SpeculationSpec | None) -> str | None:
    return None if speculation is None else speculation.model_dump_json()


def speculation_of(text: str | None) -> SpeculationSpec | None:
    return None if text is None else SpeculationSpec.model_validate_json(text)
