"""The run's page while it runs, for whoever serves it: from what the coordinator knows, with the past from the store.

Guarantees: a page costs the event loop one look at the status and no more, and is made at most every `FRESH_SECONDS`,
however many ask. Memory: `MOST_MOMENTS` moments of counts. What earlier coordinators have seen is read from the
journal aside; until then, and if the store is away, the page begins with this one.
"""

from __future__ import annotations

import asyncio
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from regen.errors import RegenError
from regen.observe.http_server import Page
from regen.observe.page.assets import policy
from regen.observe.page.facts import PageFacts, SampleFacts, Seen
from regen.observe.page.history import thinned
from regen.observe.page.page import main_part, whole_page
from regen.protocols import Storage
from regen.records import WORKING_STATES, CoordinatorStatus
from regen.run.page.events import events
from regen.run.page.facts import SAMPLES_CHOSEN, About, Known, by_status, current_rows, page_facts, seen, seen_at
from regen.run.page.samples import sampled_rows
from regen.store.control import Record
from regen.store.history import read_history
from regen.store.reopened import Reopened

FRESH_SECONDS = 2.0
NOTE_SECONDS = 5.0
_RETRY_SECONDS = 20.0
_SAMPLES_SECONDS = 60.0
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


@dataclass(slots=True)
class _Made:
    """What was made last, `at` the clock's time: facts, and of them the pages that were asked for, by path."""

    at: float
    facts: PageFacts | None = None
    pages: dict[str, Page] = field(default_factory=dict)


class LivePage:
    """Pages may be asked for in any thread."""

    def __init__(
        self, about: About, session: str, glance: Callable[[], Glance], now: Callable[[], float] = time.monotonic
    ) -> None:
        """`glance` is called in the thread that asks for a page; `now` is any clock in seconds."""
        self._about, self._session, self._glance, self._now = about, session, glance, now
        self._lock = threading.Lock()
        self._made = _Made(float("-inf"))
        self._past: tuple[Seen, ...] = ()
        self._present: list[Seen] = []
        self._samples: tuple[SampleFacts, ...] | None = None
        self._counted: dict[int, deque[tuple[float, int]]] = {}

    def routes(self) -> dict[str, Callable[[], Page]]:
        """What is served, by path: the page, and the part of it that it fetches to keep itself up to date."""
        return {
            "/": lambda: self._page("/", whole_page),
            "/main": lambda: self._page("/main", main_part),
        }

    async def keep(
        self, storage: Storage, look: Callable[[], Glance], reopened: Callable[[], Reopened], with_samples: bool
    ) -> None:
        """For ever, on the coordinator's loop: note what is committed, and read from the store aside.

        That it cannot be read is tried again, and no more: a page stops no run.
        """
        reading = asyncio.ensure_future(self._read(storage, reopened, with_samples))
        try:
            while True:
                glance = look()
                self._note(glance.at, glance.status)
                await asyncio.sleep(NOTE_SECONDS)
        finally:
            reading.cancel()

    async def _read(self, storage: Storage, reopened: Callable[[], Reopened], with_samples: bool) -> None:
        """The past once, samples again and again: soon where there is nothing yet."""
        while with_samples or not self._past:
            try:
                if not self._past:
                    await asyncio.to_thread(self._look_back, storage)
                if with_samples:
                    await asyncio.to_thread(self._take_samples, storage, reopened())
            except RegenError:
                await asyncio.sleep(_RETRY_SECONDS)
            except Exception:  # a defect, or a file that is none: it costs the page, and is said once
                traceback.print_exc()
                return
            else:
                await asyncio.sleep(_SAMPLES_SECONDS if self._samples else NOTE_SECONDS)

    def _note(self, at: float, status: CoordinatorStatus) -> None:
        self._present.append(seen_at(at, self._session, status.totals, status.tally))
        if len(self._present) > MOST_MOMENTS:
            self._present = list(thinned(self._present, MOST_MOMENTS // 2))

    def _look_back(self, storage: Storage) -> None:
        self._past = seen(read_history(storage))

    def _take_samples(self, storage: Storage, reopened: Reopened) -> None:
        self._samples = sampled_rows(storage, current_rows(reopened))

    def _page(self, path: str, render: Callable[[PageFacts], str]) -> Page:
        """One maker at a time; who comes meanwhile gets what it has made."""
        with self._lock:
            now = self._now()
            if self._made.facts is None or now - self._made.at >= FRESH_SECONDS:
                self._made = _Made(now, self._fresh())
            made = self._made
            if path not in made.pages and made.facts is not None:
                made.pages[path] = _page(render(made.facts))
            return made.pages[path]

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
        """The journal's moments without those of this coordinator, then its own. Clocks of other hosts say nothing."""
        own = tuple(self._present)
        since = own[0].at if own else glance.at
        latest = seen_at(glance.at, self._session, glance.status.totals, glance.status.tally)
        past = (moment for moment in self._past if moment.session != self._session or moment.at < since)
        return (*past, *own, latest)

    def _rates(self, status: CoordinatorStatus) -> Mapping[int, float]:
        """Tokens a second of every engine over about a minute, as it counts them; a new engine counts from zero."""
        rates: dict[int, float] = {}
        for slot, stats in status.replicas.items():
            if stats.state not in WORKING_STATES:
                self._counted.pop(slot, None)
                continue
            counted = self._counted.setdefault(slot, deque())
            latest = (stats.counted_at, stats.counters.output_tokens)
            if counted and (latest[0] < counted[-1][0] or latest[1] < counted[-1][1]):
                counted.clear()
            counted.append(latest)
            while len(counted) > 2 and counted[-1][0] - counted[1][0] > _RATE_SECONDS:
                counted.popleft()
            seconds = counted[-1][0] - counted[0][0]
            if seconds > 0:
                rates[slot] = (counted[-1][1] - counted[0][1]) / seconds
        return rates


def _page(text: str) -> Page:
    headers = {
        "Content-Security-Policy": f"{policy(is_live=True)}; frame-ancestors 'none'",
        "Cache-Control": "no-store",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }
    return Page("text/html; charset=utf-8", text.encode(), headers)
