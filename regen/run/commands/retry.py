"""`regen retry`: finished rows are opened again, with other sampling where it is given. The next session makes them.

Guarantees: nothing is lost. A row's older result counts until a new one is committed, and for good if the retry ends
without an answer; what was asked for is in the journal.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from pydantic import ValidationError

from regen.data.plan import open_plan, read_summary
from regen.errors import SpecError, UserError
from regen.protocols import Storage
from regen.rows import SCHEMA
from regen.run.held import refuse_if_held, refuse_newcomer
from regen.run.keeper import keepers_claim, keepers_release, new_session, time_of_day
from regen.run.record import require_record
from regen.spec import RunSpec, SourceSamplingSpec
from regen.store.choosing import Wanted, chosen
from regen.store.control import RowsReopened
from regen.store.journal import Journal
from regen.store.reopened import LAST_ROUND, next_round


@dataclass(frozen=True, slots=True)
class Retry:
    """What was opened again. `round` is None where no row was as asked for: nothing was written then."""

    rows: int
    round: int | None


def retry(storage: Storage, wanted: Wanted, sampling: dict[str, float | int]) -> Retry:
    """Open these rows again. `sampling` holds fields of the spec's section, over what each row was sampled with.

    That includes what earlier retries of the row were given.
    Raises SpecError (no run here, no plan, a field or source that cannot be), RunHeld, StoreError.
    """
    spec = require_record(storage).spec
    _check(spec, wanted, sampling)
    claim_seen = refuse_if_held(storage, take_over=False)
    if read_summary(storage) is None:
        raise SpecError(f"{storage.url}: planning has not ended yet, so nothing is done")
    plan = open_plan(storage)
    rows = chosen(storage, plan.count, wanted)
    if not len(rows):
        return Retry(0, None)
    session = new_session()
    journal = Journal(storage, session, plan.count)
    replayed = journal.replay(plan.settled())
    refuse_newcomer(replayed, claim_seen, storage.url)
    round_ = next_round(replayed.records)
    if round_ > LAST_ROUND:
        raise UserError(f"{storage.url}: rows were opened again {LAST_ROUND} times; there is no room for another round")
    journal.claim(keepers_claim(session))
    opened = RowsReopened(session, round_, rows.to_text(), len(rows), sampling, _asked(wanted), time_of_day())
    journal.publish(SCHEMA.empty_table(), (opened, keepers_release(session)))
    return Retry(len(rows), round_)


def _check(spec: RunSpec, wanted: Wanted, sampling: dict[str, float | int]) -> None:
    try:
        given = SourceSamplingSpec.model_validate(sampling)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"])) or "sampling"
        raise SpecError(f"--{field.replace('_', '-')}: {first['msg'].removeprefix('Value error, ')}") from None
    if (given.max_tokens or 0) >= spec.engine.max_model_len:
        raise SpecError(
            f"--max-tokens {given.max_tokens} leaves no room for a prompt within engine.max_model_len"
            f" ({spec.engine.max_model_len}) of this run"
        )
    if unknown := sorted(wanted.sources - {source.name for source in spec.sources}):
        known = ", ".join(source.name for source in spec.sources)
        raise SpecError(f"--source {unknown[0]}: this run has no such source; it has {known}")


def _asked(wanted: Wanted) -> str:
    return json.dumps(
        {
            "statuses": sorted(wanted.statuses),
            "reasons": sorted(wanted.reasons),
            "sources": sorted(wanted.sources),
        }
    )
