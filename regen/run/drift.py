"""What shapes outputs and differs from what a run was begun with: refused with a diff, or accepted and recorded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from regen.errors import FingerprintDrift
from regen.run.record import SOURCES, RunRecord
from regen.store.control import DriftAccepted, Record

Drift = dict[str, tuple[Any, Any]]

# What no flag can change: the plan is frozen, and shards of another size would overlap.
_FIXED = (SOURCES, "rows.", "rows_per_shard")


def accepted_drift(before: RunRecord, now: RunRecord, records: Sequence[Record], url: str, accept: bool) -> Drift:
    """What differs from the run's beginning, if that is accepted, now or by an earlier session with these settings.

    `records` are the journal's, `url` names the run in messages.
    """
    found = _difference(before.shaping, now.shaping)
    if fixed := {name: change for name, change in found.items() if name.startswith(_FIXED)}:
        _refuse(fixed, url, can_be_accepted=False)
    accepted = _latest_drift(records)
    # Not by fingerprint, which an extension changes on both sides.
    if not accept and (accepted is None or accepted.fields != _as_text(found)):
        _refuse(found, url)
    return found


def refuse_after_drift(records: Sequence[Record], url: str) -> None:
    """The spec of run.json is not what the run was last continued with: only the user has that one."""
    if (accepted := _latest_drift(records)) is not None:
        changed = "".join(f"\n  {name}: was {was}, is {now}" for name, (was, now) in accepted.fields.items())
        raise FingerprintDrift(
            f"{url} went on with accepted changes:{changed}\nContinue it with the spec that has them: regen run SPEC"
        )


def _latest_drift(records: Sequence[Record]) -> DriftAccepted | None:
    return next((record for record in reversed(records) if isinstance(record, DriftAccepted)), None)


def drift_record(session: str, accepted: Drift, before: RunRecord, now: RunRecord) -> DriftAccepted | None:
    """What the journal is to say of it; None if nothing was accepted."""
    if not accepted:
        return None
    return DriftAccepted(session, _as_text(accepted), before.fingerprint, now.fingerprint)


def _as_text(found: Drift) -> dict[str, tuple[str, str]]:
    return {name: (json.dumps(was), json.dumps(now)) for name, (was, now) in found.items()}


def _difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> Drift:
    """(before, now) for every dotted key that differs; None stands for absent."""
    keys = sorted(before.keys() | now.keys())
    return {key: (before.get(key), now.get(key)) for key in keys if before.get(key) != now.get(key)}


def _refuse(found: Drift, where: str, can_be_accepted: bool = True) -> None:
    """Raises FingerprintDrift with a field-by-field diff if there is any."""
    if not found:
        return
    lines = [f"  {name}: was {was!r}, is {now!r}" for name, (was, now) in found.items()]
    if all(name.startswith(SOURCES) for name in found):
        lines.append("To add the rows of further or larger sources: regen extend SPEC")
    raise FingerprintDrift(
        f"{where} was begun with other settings that shape outputs:\n"
        + "\n".join(lines)
        + "\nPut them back, or choose another output folder"
        + (", or go on knowingly with --accept-drift (it is recorded)." if can_be_accepted else ".")
    )
