"""What the store alone says of a run: for `regen status`, and for whoever is not the driver."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from regen.data.plan import open_plan, read_summary
from regen.protocols import Storage
from regen.records import Status, Totals
from regen.run.record import require_record
from regen.store.holder import Holder, HolderState, read_holder
from regen.store.replay import replay


@dataclass(frozen=True, slots=True)
class Look:
    """A run as its folder shows it. `planned` is None until it is planned; `reasons` count rejected and failed rows.

    `holder` is what the last session wrote of itself: a killed one still says that it is running, see `beat_at`.
    """

    name: str
    url: str
    fingerprint: str
    planned: int | None
    totals: Totals
    refused_reasons: dict[str, int]
    commits: int
    holder: Holder | None

    @property
    def is_finished(self) -> bool:
        return self.totals.done == self.planned

    @property
    def is_running(self) -> bool:
        return self.holder is not None and self.holder.state is HolderState.RUNNING and not self.is_finished

    def to_json(self) -> dict[str, Any]:
        """Plain data; `outcomes` has every status."""
        acceptance = self.totals.acceptance
        return {
            "name": self.name,
            "url": self.url,
            "fingerprint": self.fingerprint,
            "planned": self.planned,
            "done": self.totals.done,
            "is_finished": self.is_finished,
            "outcomes": {status.value: count for status, count in self.totals.by_status().items()},
            "outcomes_by_source": self._by_source(),
            "refused_reasons": self.refused_reasons,
            "prompt_tokens": self.totals.prompt_tokens,
            "output_tokens": self.totals.output_tokens,
            "generations": self.totals.generations,
            "accept_length": acceptance.accept_length,
            "accepted_by_position": list(acceptance.accepted_by_position),
            "drafts": acceptance.drafts,
            "commits": self.commits,
            "holder": asdict(self.holder) if self.holder else None,
        }

    def _by_source(self) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {}
        for (source, status), count in sorted(self.totals.outcomes.items()):
            found.setdefault(source, dict.fromkeys(Status, 0))[status] = count
        return {source: {str(status): count for status, count in counts.items()} for source, counts in found.items()}


def look(storage: Storage) -> Look:
    """Read it all. Raises SpecError if there is no run, JournalDamaged, StoreError."""
    record = require_record(storage)
    summary = read_summary(storage)
    if summary is None:
        return Look(record.spec.name, storage.url, record.fingerprint, None, Totals(), {}, 0, read_holder(storage))
    plan = open_plan(storage)
    replayed = replay(storage, plan.count, plan.refused())
    return Look(
        name=record.spec.name,
        url=storage.url,
        fingerprint=record.fingerprint,
        planned=plan.count,
        totals=replayed.totals,
        refused_reasons=_reasons(summary.sources),
        commits=replayed.next_number,
        holder=read_holder(storage),
    )


def _reasons(sources: Any) -> dict[str, int]:
    counted: dict[str, int] = {}
    for source in sources:
        for reason, count in source.rejected.items():
            counted[reason] = counted.get(reason, 0) + count
    return dict(sorted(counted.items(), key=lambda item: -item[1]))
