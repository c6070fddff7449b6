"""Which speculation the user wants of a run: what it was begun with, or what was asked for since.

Speculation shapes no outputs, so it may change between sessions; the journal says from when on which one was wanted,
and every row says which draft it was made with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from regen.errors import SpecError
from regen.run.record import RunRecord
from regen.spec import SPECULATION_POLICY, RunSpec, SpeculationSpec, parse_spec, with_absolute_paths
from regen.store.control import Record, SpeculationConfigured


@dataclass(frozen=True, slots=True)
class NewDraft:
    """A draft to go on with. What is None stays as it is; without speculation so far, `method` is needed."""

    draft: str
    method: str | None = None
    num_tokens: int | None = None


def wanted_speculation(records: Sequence[Record], begun_with: RunRecord) -> SpeculationSpec | None:
    """What was asked for last: by a later session, as the journal's `records` have it, else by run.json."""
    asked = [found for found in records if isinstance(found, SpeculationConfigured)]
    if not asked:
        return begun_with.spec.speculation
    text = asked[-1].speculation
    return None if text is None else SpeculationSpec.model_validate_json(text)


def configured_record(
    session: str, now: SpeculationSpec | None, before: SpeculationSpec | None
) -> SpeculationConfigured | None:
    """What the journal is to say of it; None if nothing has changed."""
    if now == before:
        return None
    return SpeculationConfigured(session, None if now is None else now.model_dump_json(exclude_unset=True))


def with_new_draft(spec: RunSpec, new: NewDraft) -> RunSpec:
    """The spec with this draft. How speculation is watched stays as it is: gate, guard, calibrate, warmup, calibration.

    What was said of the older draft is dropped: `accept` (a waiver is for one draft's findings), `layer_convention`,
    `args` and `expected`.

    Raises SpecError if method and number of tokens are not known.
    """
    before = spec.speculation
    method = new.method or (before.method if before else None)
    num_tokens = new.num_tokens or (before.num_tokens if before else None)
    if method is None or num_tokens is None:
        raise SpecError("the run has no speculation so far: --draft needs --method and --num-tokens")
    kept = before.model_dump(mode="json", exclude_unset=True, include=set(SPECULATION_POLICY)) if before else {}
    section = {**kept, "method": method, "draft": new.draft, "num_tokens": num_tokens}
    raw = spec.model_dump(mode="json", exclude_unset=True)
    return with_absolute_paths(parse_spec({**raw, "speculation": section}, origin="--draft"))
