"""What a coordinator has once the journal is replayed and the run claimed.

The schedule knows of rows that are not done what earlier coordinators knew.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from regen.protocols import Plan
from regen.records import PlannedRow, Tally, Totals
from regen.run.credential_watch import CredentialWatch
from regen.run.fleet.garbage_duty import GarbageDuty
from regen.run.fleet.restarts import PROVEN_FILLS
from regen.run.fleet.suspects import Suspects
from regen.run.heartbeat import Heartbeat
from regen.run.order_duty import OrderDuty
from regen.run.progress.duty import ProgressDuty
from regen.run.progress.tally import RunningTally
from regen.run.publisher import Publisher
from regen.run.schedule import Schedule
from regen.run.setup import Purpose, RunSetup
from regen.run.speculation.control import SpeculationControl
from regen.store.control import Record, RowAttempts, SuspectRows
from regen.store.journal import Journal
from regen.store.reopened import Reopened
from regen.store.tally import newest_tally, tally_of

# After a restart, so long is waited for replicas to say what they hold. One that starts an engine answers every second.
ADOPTION_SECONDS = 15.0


@dataclass(slots=True)
class OpenRun:
    """What there is once the journal is replayed and the run claimed. `totals_at_start`: before this session."""

    plan: Plan
    planned_by_source: Mapping[str, int]
    journal: Journal
    schedule: Schedule
    publisher: Publisher
    speculation: SpeculationControl
    totals_at_start: Totals
    is_restart: bool
    garbage: GarbageDuty
    tally: RunningTally
    progress: ProgressDuty
    heartbeat: Heartbeat
    credentials: CredentialWatch
    order: OrderDuty
    warmup: tuple[PlannedRow, ...] | None = None
    _totals: tuple[int, Totals, Totals] | None = None
    _published_tally: tuple[int, Tally] | None = None

    @property
    def reopened(self) -> Reopened:
        return self.publisher.reopened

    @property
    def reopened_left(self) -> int:
        """Rows that have a result and are wanted once more: what is left beyond those that have none."""
        beyond = self.schedule.plan_left - (self.plan.count - self.totals.done)
        return min(max(0, beyond), len(self.reopened.pending))

    @property
    def totals(self) -> Totals:
        """Of everything committed."""
        return self._counted()[1]

    @property
    def published(self) -> Totals:
        """The same, and rows that were made again with each of their results."""
        return self._counted()[2]

    def _counted(self) -> tuple[int, Totals, Totals]:
        """Added up only when something was published since."""
        number = self.journal.next_number
        if self._totals is None or self._totals[0] != number:
            self._totals = (number, self.journal.totals, self.journal.published)
        return self._totals

    @property
    def published_tally(self) -> Tally:
        """What the journal has: a coordinator that takes over shows nothing less."""
        number = self.journal.next_number
        if self._published_tally is None or self._published_tally[0] != number:
            self._published_tally = (number, tally_of(newest_tally(self.journal.records)))
        return self._published_tally[1]


def opened_schedule(setup: RunSetup, journal: Journal, reopened: Reopened, is_restart: bool) -> Schedule:
    """Seeded from the journal. After a restart replicas are heard first: all, or those that the driver names."""
    engine, records = setup.spec.engine, journal.records
    schedule = Schedule(
        journal.done - reopened.pending,
        setup.spec.limits.attempts,
        expected_slots=range(engine.most_replicas) if is_restart else (),
        adopt_until=time.monotonic() + ADOPTION_SECONDS,
        only=setup.pilot_rows if setup.purpose is Purpose.PILOT else None,
        failures=_failures(records, reopened),
        suspects=Suspects(frozenset(range(engine.fewest_replicas)), has_worked=journal.totals.generations > 0),
        proven_rows=PROVEN_FILLS * engine.slots,
    )
    for record in records:
        if isinstance(record, SuspectRows):
            schedule.restore_suspects(record, setup.session)
    return schedule


def _failures(records: Sequence[Record], reopened: Reopened) -> dict[int, int]:
    """How often rows were tried in the round that they are in."""
    return {
        ordinal: attempts
        for record in records
        if isinstance(record, RowAttempts)
        for ordinal, round_, attempts in record.attempts
        if round_ == reopened.round_of(ordinal)
    }
