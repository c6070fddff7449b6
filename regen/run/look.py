"""What the store alone says of a run: for `regen status`, and for whoever is not the driver."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from regen.data.plan import open_plan, read_summary
from regen.data.plan_summary import PlanSummary, SourceSummary
from regen.observe.eta_text import eta_text
from regen.observe.price import Price
from regen.protocols import Storage
from regen.records import Status, Tally, Totals
from regen.run.progress.run_facts import price_of
from regen.run.record import require_record
from regen.store.control import Record, RetriesEnded, RunClosed, SpeculationDecided, SuspectRows
from regen.store.holder import Holder, HolderState, read_holder
from regen.store.replay import replay
from regen.store.tally import newest_tally, tally_of

_SHOWN_DECISIONS = 10


@dataclass(frozen=True, slots=True)
class Look:
    """A run as its folder shows it. `planned` is None until it is planned.

    `reasons` are of rows without a good answer, by status and reason, the plan's refusals among them. `holder` is what
    the last session wrote of itself: a killed one still says that it is running, and its beat stands still. `reopened`
    rows are wanted once more; `retries_ended` were made again without an answer, and kept what they had. `decisions`
    are the latest about speculation, as sentences with their time. `rows_added`: by extensions of the plan;
    `closed_at`: when `regen clean --journal` closed the run, if it did; `suspects`: rows that engines died with, and of
    which it is not known yet whether they kill engines. `tally` is what has gone wrong on the way, as far as it is
    published.
    """

    name: str
    url: str
    fingerprint: str
    planned: int | None
    totals: Totals
    reasons: dict[str, dict[str, int]]
    commits: int
    holder: Holder | None
    decisions: tuple[str, ...] = ()
    reopened: int = 0
    retries_ended: int = 0
    rows_added: int = 0
    closed_at: str | None = None
    suspects: int = 0
    tally: Tally = field(default_factory=Tally)
    price: Price | None = None

    @property
    def is_finished(self) -> bool:
        return self.totals.done == self.planned and not self.reopened

    @property
    def has_ended(self) -> bool:
        """Finished, or its last session has said that it ended."""
        return self.is_finished or (self.holder is not None and self.holder.state is not HolderState.RUNNING)

    def facts(self) -> list[tuple[str, str]]:
        """Names and values, for a table."""
        return [
            ("run", f"{self.name} in {self.url}"),
            ("fingerprint", self.fingerprint),
            ("planned", self._planned()),
            *self._session(),
            ("journal files", f"{self.commits:,}" if self.closed_at is None else "deleted: only shards are left"),
            *self._trouble(),
            *(
                (status, ", ".join(f"{reason} {count:,}" for reason, count in reasons.items()))
                for status, reasons in self.reasons.items()
            ),
        ]

    def _planned(self) -> str:
        if self.planned is None:
            return "not yet"
        return f"{self.planned:,} rows" + (f", {self.rows_added:,} of them added since" if self.rows_added else "")

    def _session(self) -> Iterator[tuple[str, str]]:
        if (holder := self.holder) is not None:
            yield "last session", f"{holder.state.value}: {holder.session} on {holder.host}"
            yield "its last heartbeat", f"{holder.beat_at} by its own clock"
            if holder.progress is not None and not self.has_ended:
                yield "as it said then", eta_text(holder.progress.eta)

    def _trouble(self) -> Iterator[tuple[str, str]]:
        told = {name: count for name, count in self._trouble_json().items() if isinstance(count, int) and count}
        if failed := self.tally.failed_attempts:
            told = {"failed attempts": failed, **told}
        if told:
            yield "trouble", ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in told.items())
        if self.closed_at is not None:
            yield "closed", f"at {self.closed_at}: nothing can be made for it any more"
        if self.reopened or self.retries_ended:
            ended = f"; {self.retries_ended:,} retries ended without an answer" if self.retries_ended else ""
            yield "opened again", f"{self.reopened:,} rows still to be made again{ended}"
        if self.suspects:
            yield "suspects", f"{self.suspects:,} rows that engines died with; they run apart"

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
            "reopened": self.reopened,
            "retries_ended": self.retries_ended,
            "suspects": self.suspects,
            **self._trouble_json(),
            "cost_so_far": None if self.price is None else self.price.so_far(self.tally),
            "currency": None if self.price is None else self.price.currency,
            "outcomes_by_source": self._by_source(),
            "outcomes_by_replica": outcomes_by_replica(self.totals),
            "labels_by_source": labels_by_source(self.totals),
            "reasons": self.reasons,
            "prompt_tokens": self.totals.prompt_tokens,
            "output_tokens": self.totals.output_tokens,
            "generations": self.totals.generations,
            "accept_length": acceptance.accept_length,
            "accepted_by_position": list(acceptance.accepted_by_position),
            "drafts": acceptance.drafts,
            "speculation_decisions": list(self.decisions),
            "commits": self.commits,
            "rows_added": self.rows_added,
            "closed_at": self.closed_at,
            "holder": asdict(self.holder) if self.holder else None,
        }

    def _trouble_json(self) -> dict[str, Any]:
        return {
            "retries": {str(reason): count for reason, count in self.tally.retries.items()},
            "restarts": self.tally.restarts,
            "stalls": self.tally.stalls,
            "coordinator_restarts": self.tally.coordinator_restarts,
            "store_errors": self.tally.store_errors,
        }

    def _by_source(self) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {}
        for (source, status), count in sorted(self.totals.outcomes.items()):
            found.setdefault(source, dict.fromkeys(Status, 0))[status] = count
        return {source: {str(status): count for status, count in counts.items()} for source, counts in found.items()}


def outcomes_by_replica(totals: Totals) -> dict[str, dict[str, int]]:
    """Rows by the slot that made them, every status present."""
    found: dict[str, dict[str, int]] = {}
    for (replica, status), count in sorted(totals.replicas.items()):
        found.setdefault(str(replica), {str(every): 0 for every in Status})[status.value] = count
    return found


def labels_by_source(totals: Totals) -> dict[str, dict[str, int]]:
    """Generations by what is said of them, as far as there are any."""
    found: dict[str, dict[str, int]] = {}
    for (source, label), count in sorted(totals.labels.items()):
        found.setdefault(source, {})[label.value] = count
    return found


class KnownPlan:
    """What a plan settles, read once for as long as the plan is the same: for whoever looks again and again.

    Memory: ten bytes a row that is settled.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._digest = ""
        self._kinds: dict[tuple[str, Status], int] = {}
        self._ordinals, self._kind_of = array("q"), array("H")

    def settled(self, summary: PlanSummary) -> Iterator[tuple[int, str, Status]]:
        """As `Plan.settled`. Raises as reading the plan does."""
        if summary.digest != self._digest:
            self._read()
            self._digest = summary.digest
        kinds = list(self._kinds)
        return ((ordinal, *kinds[kind]) for ordinal, kind in zip(self._ordinals, self._kind_of, strict=True))

    def _read(self) -> None:
        self._kinds, self._ordinals, self._kind_of = {}, array("q"), array("H")
        for ordinal, source, status in open_plan(self._storage).settled():
            self._ordinals.append(ordinal)
            self._kind_of.append(self._kinds.setdefault((source, status), len(self._kinds)))


def look(storage: Storage, known: KnownPlan | None = None) -> Look:
    """Read it all. Raises SpecError if there is no run, JournalDamaged, StoreError."""
    record = require_record(storage)
    summary = read_summary(storage)
    if summary is None:
        return Look(record.spec.name, storage.url, record.fingerprint, None, Totals(), {}, 0, read_holder(storage))
    holder = read_holder(storage)  # before the journal: what says that the run has ended came after the last row
    replayed = replay(storage, summary.rows, (known or KnownPlan(storage)).settled(summary))
    return Look(
        name=record.spec.name,
        url=storage.url,
        fingerprint=record.fingerprint,
        planned=summary.rows,
        totals=replayed.totals,
        reasons=_reasons(summary.sources, replayed.totals),
        commits=replayed.next_number,
        holder=holder,
        reopened=len(replayed.reopened.pending),
        retries_ended=sum(len(record.rows) for record in replayed.records if isinstance(record, RetriesEnded)),
        decisions=_decisions(replayed.records),
        rows_added=summary.rows - summary.stages[0].rows,
        closed_at=next((record.at for record in replayed.records if isinstance(record, RunClosed)), None),
        suspects=_suspects(replayed.records),
        tally=tally_of(newest_tally(replayed.records)),
        price=price_of(record.spec),
    )


def _suspects(records: Iterable[Record]) -> int:
    groups = [group for record in records if isinstance(record, SuspectRows) for group in record.groups]
    return sum(len(group.rows) for group in groups)


def _decisions(records: Iterable[Record]) -> tuple[str, ...]:
    decided = [record for record in records if isinstance(record, SpeculationDecided)]
    return tuple(f"{record.at}: {record.by.value}: {record.reason}" for record in decided[-_SHOWN_DECISIONS:])


def _reasons(sources: Iterable[SourceSummary], totals: Totals) -> dict[str, dict[str, int]]:
    """Counts by status and reason, the commonest first."""
    counted: dict[str, Counter[str]] = {}
    for source in sources:
        counted.setdefault(Status.REJECTED.value, Counter()).update(source.rejected)
    for (status, reason), count in totals.reasons.items():
        counted.setdefault(status.value, Counter()).update({reason: count})
    return {status: dict(reasons.most_common()) for status, reasons in counted.items() if reasons}
