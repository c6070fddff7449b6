"""A `Tally` as the journal keeps it, and back. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from regen.records import RetryReason, SlotState, SlotTally, Tally
from regen.store.control import Record, RunTally, SlotCounts

_TENTHS = {state: f"{state.value}_tenths" for state in SlotState}
# What is counted as it is, in `SlotTally` and `SlotCounts` alike.
_COUNTED = (
    "sampled_tokens",
    "computed_prompt_tokens",
    "prefix_hit_tokens",
    "preemptions",
    "starts",
    "restarts",
    "stalls",
)
# A sum of many floats may be a hair below the tenth that it is.
_HAIR = 1e-6


def newest_tally(records: Iterable[Record]) -> RunTally | None:
    """The last of them that is one."""
    found: RunTally | None = None
    for record in records:
        if isinstance(record, RunTally):
            found = record
    return found


def tally_of(record: RunTally | None) -> Tally:
    """What was published; empty if nothing was."""
    if record is None:
        return Tally()
    return Tally(
        slots={counts.slot: _slot_tally(counts) for counts in record.slots},
        retries={RetryReason(reason): count for reason, count in record.retries.items()},
        store_errors=record.store_errors,
        coordinator_restarts=record.coordinator_restarts,
    )


def counted(slot: SlotTally | SlotCounts) -> dict[str, int]:
    """Its counts by name, without the times."""
    return {name: getattr(slot, name) for name in _COUNTED}


def slot_counts(slot: int, tally: SlotTally) -> SlotCounts:
    return SlotCounts(
        slot=slot,
        engine_tenths=_tenths(tally.engine_seconds),
        gpu_tenths=_tenths(tally.gpu_seconds),
        **counted(tally),
        **{name: _tenths(tally.slot_seconds.get(state, 0.0)) for state, name in _TENTHS.items()},
    )


def _slot_tally(counts: SlotCounts) -> SlotTally:
    return SlotTally(
        engine_seconds=counts.engine_tenths / 10,
        gpu_seconds=counts.gpu_tenths / 10,
        **counted(counts),
        slot_seconds={state: getattr(counts, name) / 10 for state, name in _TENTHS.items()},
    )


def _tenths(seconds: float) -> int:
    return int(seconds * 10 + _HAIR)
