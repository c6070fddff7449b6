"""The run's page while it runs, for whoever serves it: from what the coordinator knows, with the past from the store.

Guarantees: a page costs the event loop one look at the status and no more, and is made at most every `FRESH_SECONDS`,
however many ask. Memory: `MOST_MOMENTS` moments of counts. What earlier coordinators have seen is read from the
journal in the background (`look_back`); until then, and if the store is away, the page begins with this one.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from regen.observe.page.facts import PageFacts, SampleFacts, Seen
from regen.observe.page.history import thinned
from regen.observe.page.page import main_part, whole_page
from regen.protocols import Storage
from regen.records import CoordinatorStatus
from regen.run.page_events import events
from regen.run.page_facts import SAMPLES_CHOSEN, About, Known, by_status, current_rows, page_facts, seen, seen_at
from regen.run.page_samples import sampled_rows
from regen.store.control import Record
from regen.store.history import read_history
from regen.store.reopened import Reopened

FRESH_SECONDS = 2.0
MOST_MOMENTS = 800
_RATE_SECONDS = 60.0
SAMPLES_NOT_HERE = (
    "Not shown by a running page, which is for everybody who reaches its port: `metrics.samples: true` in the spec, or"
    " `regen report`, shows them."
)


@dataclass(frozen=True, slots=True)
class Glance:
    """What the event loop hands out, at one moment (epoch seconds)."""

    at: float
    status: CoordinatorStatus
    records: Sequence[Record]
    deadline_seconds: float | None


class LivePage:
    """Everything here may be called from any thread."""

    def __init__(self, about: About, session: str, glance: Callable[[], Glance]) -> None:
        """`glance` is called in the thread that asks for a page."""
        self._about, self._session, self._glance = about, session, glance
        self._lock = threading.Lock()
        self._made: tuple[float, PageFacts] | None = None
        self._past: tuple[Seen, ...] = ()
        self._present: list[Seen] = []
        self._samples: tuple[SampleFacts, ...] | None = None
        self._counted: dict[int, deque[tuple[float, int]]] = {}

    def whole(self) -> str:
        return whole_page(self._facts())

    def main(self) -> str:
        return main_part(self._facts())

    def note(self, at: float, status: CoordinatorStatus) -> None:
        """What is committed at this moment; called now and then, whoever looks or not."""
        self._present.append(seen_at(at, self._session, status.totals, status.tally))
        if len(self._present) > MOST_MOMENTS:
            self._present = list(thinned(self._present, MOST_MOMENTS // 2))

    def look_back(self, storage: Storage) -> None:
        """Read what was before this coordinator. Raises JournalDamaged, StoreError."""
        self._past = seen(read_history(storage))

    def take_samples(self, storage: Storage, reopened: Reopened) -> None:
        """Read some committed rows anew. Raises JournalDamaged, StoreError."""
        self._samples = sampled_rows(storage, current_rows(reopened))

    def _facts(self) -> PageFacts:
        """One maker at a time; who comes meanwhile gets what it has made."""
        with self._lock:
            now = time.monotonic()
            if self._made is None or now - self._made[0] >= FRESH_SECONDS:
                self._made = (now, self._fresh())
            return self._made[1]

    def _fresh(self) -> PageFacts:
        glance = self._glance()
        status = glance.status
        known = Known(
            totals=status.totals,
            tally=status.tally,
            reopened=status.reopened,
            history=self._history(glance),
            events=events(glance.records),
            samples=self._samples,
            samples_note=SAMPLES_NOT_HERE if self._samples is None else SAMPLES_CHOSEN,
        )
        now = by_status(status, self._session, glance.deadline_seconds, self._rates(status))
        return page_facts(self._about, known, now, glance.at, is_live=True)

    def _history(self, glance: Glance) -> tuple[Seen, ...]:
        """The journal's moments until this coordinator began to look, then its own."""
        own = tuple(self._present)
        since = own[0].at if own else glance.at
        latest = seen_at(glance.at, self._session, glance.status.totals, glance.status.tally)
        return (*(moment for moment in self._past if moment.at < since), *own, latest)

    def _rates(self, status: CoordinatorStatus) -> Mapping[int, float]:
        """Tokens a second of every engine over about a minute, as it counts them; a new engine counts from zero."""
        rates: dict[int, float] = {}
        for slot, stats in status.replicas.items():
            counted = self._counted.setdefault(slot, deque())
            if counted and stats.counters.output_tokens < counted[-1][1]:
                counted.clear()
            counted.append((stats.counted_at, stats.counters.output_tokens))
            while len(counted) > 2 and counted[-1][0] - counted[1][0] > _RATE_SECONDS:
                counted.popleft()
            seconds = counted[-1][0] - counted[0][0]
            if seconds > 0:
                rates[slot] = (counted[-1][1] - counted[0][1]) / seconds
        return rates
