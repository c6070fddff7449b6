"""What is left of a run, and how fast it goes: the one place that knows the estimator.

Told of every row that is leased, listed and finished, and asked for nothing but values. Everything happens on the
coordinator's event loop but the estimate itself, which has a thread of its own: a tenth of a second with ten sources
and a thousand rows in work. What is told meanwhile waits for its end. Memory: the rows in flight.
An estimate is for people, and for decisions that do without one: a defect in it is printed, and the run goes on.
"""

from __future__ import annotations

import asyncio
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial

import pyarrow as pa

from regen import rows
from regen.data.plan import RunPlan
from regen.errors import StoreUnavailable
from regen.observe.eta import Estimator
from regen.observe.lengths import Running
from regen.observe.rate import RecentRate
from regen.observe.speed import Beat
from regen.records import Eta, EtaState, Lease
from regen.run.fleet.fleet import Fleet, rows_held_at_most
from regen.run.progress.remaining import (
    Grouping,
    Remaining,
    earlier_lengths,
    interrupted,
    left_by_source,
    waiting_last,
)
from regen.run.setup import Purpose, RunSetup
from regen.store.journal import Journal
from regen.store.reopened import Reopened

BEAT_SECONDS = 1.0
# An estimate is made anew so often. A long run's moves slowly: after so much of what is left, unless it is young.
LOOK_SECONDS, LONGEST_LOOK_SECONDS, LOOK_SHARE, YOUNG_SHARE = 5.0, 30.0, 0.01, 0.1
# So many times the rows that engines hold now may have been in work when an earlier session ended.
_OTHER_FLEETS = 4


class ProgressDuty:
    """One coordinator's, from claim to end."""

    def __init__(self, setup: RunSetup, plan: RunPlan, journal: Journal, reopened: Reopened, is_restart: bool) -> None:
        """`is_restart`: of this session. Then rows that are undone are in work now, and will be listed."""
        self._plan = plan
        self._grouping = _grouping(setup, journal, reopened, is_restart)
        self._only = setup.pilot_rows if setup.purpose is Purpose.PILOT else None
        groups = self._grouping.groups(plan.summary.sources, setup.spec, _retry_max_tokens(reopened))
        self._estimator = Estimator(groups)
        self._rate = RecentRate()
        self._remaining: Remaining | None = None
        self._ended = Counter[str]()
        self._listed: dict[int, dict[int, int]] = {}
        self._group: dict[int, str] = {}
        self._untold: list[Callable[[], None]] = []
        self._work: asyncio.Task[None] | None = None
        self._is_broken = False
        self._beat_at = self._looked_at = self._known_since = float("-inf")
        self._eta, self._estimated_at = Eta(EtaState.WARMING), 0.0
        self._totals = journal.totals
        caps = {source.name: groups[source.name].cap_tokens for source in plan.summary.sources}
        for source, tokens, count in earlier_lengths(self._totals, caps):
            if count:
                self._estimator.row_finished_before(source, tokens, count)

    # --- told ------------------------------------------------------------------------------------

    def listed(self, slot: int, running: Sequence[int], tokens: Sequence[int]) -> None:
        """All that this slot has in work, with the tokens of each so far (empty: not known)."""
        before = self._listed.get(slot, {})
        self._listed[slot] = now = dict(zip(running, tokens or [0] * len(running), strict=True))
        for ordinal in before.keys() - now.keys():
            self._group.pop(ordinal, None)

    def leased(self, slot: int, leases: Iterable[Lease]) -> None:
        """Handed to this slot: it may list them next."""
        listed = self._listed.setdefault(slot, {})
        for lease in leases:
            listed.setdefault(lease.row.ordinal, 0)
            self._group[lease.row.ordinal] = self._grouping.group_of(lease.row.ordinal, lease.row.source)

    def finished(self, table: pa.Table, accepted: Collection[int]) -> None:
        """Rows in `rows.SCHEMA`, of which the `accepted` are received for the first time."""
        columns = (table.column(name).to_pylist() for name in ("ordinal", "source"))
        for ordinal, source, tokens in zip(*columns, rows.output_tokens(table), strict=True):
            if ordinal not in accepted:
                continue
            group = self._grouping.group_of(ordinal, source)
            self._ended[group] += 1
            if tokens is not None:
                self._untold.append(partial(self._estimator.row_finished, group, tokens))

    def given_up(self, ordinal: int, source: str) -> None:
        """This row ends without an answer."""
        self._ended[self._grouping.group_of(ordinal, source)] += 1

    def gone(self, slot: int) -> None:
        """Nothing is in work there."""
        self.listed(slot, (), ())

    def tick(self, now: float, fleet: Fleet, left: int) -> None:
        """Often. `left`: rows that this session is still to receive."""
        if now - self._beat_at >= BEAT_SECONDS:
            self._beat_at = now
            self._rate.add(now, fleet.paced_tokens)
            self._untold.append(partial(self._estimator.beat, Beat(now, fleet.paced_tokens, fleet.busy, fleet.slots)))
        if self._is_broken:
            self._untold.clear()
        if self._is_broken or (self._work is not None and not self._work.done()):
            return
        try:
            self._go_on(now, fleet, left)
        except Exception:
            traceback.print_exc()
            self._is_broken, self._eta = True, Eta(EtaState.WARMING)

    async def cancel(self) -> None:
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)

    # --- asked -----------------------------------------------------------------------------------

    @property
    def tokens_per_second(self) -> float | None:
        """Of the last minutes."""
        return self._rate.per_second

    def eta(self, now: float) -> Eta:
        """The latest estimate, as old as it is by now."""
        eta = self._eta
        if eta.state is not EtaState.ESTIMATING:
            return eta
        passed = now - self._estimated_at
        low, mid, high, naive = (
            None if seconds is None else max(0.0, seconds - passed)
            for seconds in (eta.low_seconds, eta.mid_seconds, eta.high_seconds, eta.naive_seconds)
        )
        return Eta(eta.state, low, mid, high, naive)

    # --- the estimate ----------------------------------------------------------------------------

    def _go_on(self, now: float, fleet: Fleet, left: int) -> None:
        work, self._work = self._work, None
        if work is not None:
            work.result()
        for event in self._untold:
            event()
        self._untold.clear()
        if self._is_due(now, left):
            self._looked_at = now
            self._look(now, fleet, left)

    def _is_due(self, now: float, left: int) -> bool:
        state, mid = self._eta.state, self._eta.mid_seconds
        if not left:
            return state is not EtaState.FINISHED
        is_stalled = self._estimator.is_stalled(now)
        if mid is None or is_stalled != (state is EtaState.STALLED):
            return now - self._looked_at >= BEAT_SECONDS
        known_for = now - self._known_since
        wait = min(max(LOOK_SECONDS, min(LOOK_SHARE * mid, YOUNG_SHARE * known_for)), LONGEST_LOOK_SECONDS)
        return now - self._looked_at >= wait

    def _look(self, now: float, fleet: Fleet, left: int) -> None:
        if left and self._estimator.has_rate:
            self._work = asyncio.ensure_future(self._estimate(now, fleet, left))
        else:
            self._take(self._estimator.estimate(now, {"": left} if left else {}, []), now)

    async def _estimate(self, now: float, fleet: Fleet, left: int) -> None:
        """With the store away, what is not known of the plan yet is asked for again later."""
        try:
            remaining = await self._prepared()
            await self._look_up_adopted()
        except StoreUnavailable:
            return
        remaining.ended(self._ended)
        self._ended.clear()
        by_group, running = remaining.by_group(left), self._running(fleet)
        eta = await asyncio.to_thread(self._estimator.estimate, now, by_group, running, fleet.slots_to_come)
        self._take(eta, now)

    def _take(self, eta: Eta, now: float) -> None:
        if self._eta.mid_seconds is None:
            self._known_since = now
        self._eta, self._estimated_at = eta, now

    async def _prepared(self) -> Remaining:
        """What was left at the start, by group. The plan is asked for the sources of rows that stand apart."""
        if self._remaining is None:
            self._remaining = await asyncio.to_thread(self._at_start)
        return self._remaining

    def _at_start(self) -> Remaining:
        grouping = self._grouping
        if self._only is not None:
            sources = zip(self._only, self._plan.sources_of(self._only), strict=True)
            return Remaining(Counter(grouping.group_of(*one) for one in sources))
        left = Remaining(left_by_source(self._plan.summary.sources, self._totals))
        apart = sorted(grouping.interrupted)
        sources = zip(apart, self._plan.sources_of(apart), strict=True)
        left.move((source, grouping.group_of(ordinal, source)) for ordinal, source in sources)
        again = list(grouping.retried or ())
        left.add(grouping.group_of(*one) for one in zip(again, self._plan.sources_of(again), strict=True))
        return left

    async def _look_up_adopted(self) -> None:
        """Rows that an earlier coordinator has leased."""
        unknown = [ordinal for listed in self._listed.values() for ordinal in listed if ordinal not in self._group]
        if unknown:
            for ordinal, source in zip(unknown, await asyncio.to_thread(self._plan.sources_of, unknown), strict=True):
                self._group[ordinal] = self._grouping.group_of(ordinal, source)

    def _running(self, fleet: Fleet) -> list[Running]:
        return [
            Running(group, tokens)
            for slot, listed in self._listed.items()
            for group, tokens in waiting_last(
                [(self._group[ordinal], tokens) for ordinal, tokens in listed.items() if ordinal in self._group],
                fleet.stats[slot].counters.running,
            )
        ]


def _grouping(setup: RunSetup, journal: Journal, reopened: Reopened, is_restart: bool) -> Grouping:
    engine, made = setup.spec.engine, journal.made
    retried = reopened.pending.copy() if len(reopened.pending) else None
    if is_restart or not len(made):
        return Grouping(retried=retried)
    slots = map(engine.slots_of, range(engine.most_replicas))
    most = _OTHER_FLEETS * sum(map(rows_held_at_most, slots))
    return Grouping(interrupted(made, journal.done, most), retried)


def _retry_max_tokens(reopened: Reopened) -> int | None:
    """The largest cap that rows were opened again with; looked for in few of them: a retry gives all the same."""
    asked = (
        reopened.sampling_of(ordinal).get("max_tokens")
        for ordinal, _ in zip(reopened.pending, range(100), strict=False)
    )
    return max((int(tokens) for tokens in asked if tokens is not None), default=None)
