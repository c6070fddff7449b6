"""Any order of faults over the real schedule, journal, coordinators and workers: nothing lost, nothing twice."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from tests.run_world import ROWS, Session, World

EXAMPLES = int(os.environ.get("REGEN_MODEL_EXAMPLES", "1500"))

ways = st.sampled_from(
    ["answered"] * 6
    + ["request lost", "reply lost", "twice, first reply", "twice, second reply", "late"]
)
numbers = st.integers(0, 7)


class Run(RuleBasedStateMachine):
    """Sessions of one run. A number picks a session or replica among those that there are."""

    done = 0

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.world.__enter__()
        self.world.start(4, 2.0)

    def session(self, which: int) -> Session:
        alive = self.world.alive or self.world.sessions
        return alive[which % len(alive)]

    # --- workers -------------------------------------------------------------------------------------

    @rule(which=numbers, slot=numbers, how=ways)
    def exchange(self, which: int, slot: int, how: str) -> None:
        session = self.session(which)
        if session.workers:
            session.workers[slot % session.replicas].speak(how)
        self.look()

    @rule(which=numbers)
    def everybody_exchanges(self, which: int) -> None:
        for worker in self.session(which).workers.values():
            worker.speak("answered")
        self.look()

    @rule(which=numbers, slot=numbers, count=st.integers(1, 4), failing=st.sampled_from([False, False, True]))
    def rows_end(self, which: int, slot: int, count: int, failing: bool) -> None:
        session = self.session(which)
        session.workers[slot % session.replicas].end_rows(count, failing)
        self.look()

    @rule(which=numbers, slot=numbers, is_zombie=st.booleans())
    def worker_dies(self, which: int, slot: int, is_zombie: bool) -> None:
        session = self.session(which)
        if not session.is_over:
            session.lose_worker(slot % session.replicas, is_zombie)
        self.look()

    @precondition(lambda self: any(session.zombies for session in self.world.sessions))
    @rule(which=numbers, how=ways)
    def zombie_exchanges(self, which: int, how: str) -> None:
        zombies = [zombie for session in self.world.sessions for zombie in session.zombies]
        zombie = zombies[which % len(zombies)]
        zombie.end_rows(1)
        zombie.speak(how)
        self.look()

    @precondition(lambda self: self.world.late)
    @rule(which=numbers)
    def late_exchange_arrives(self, which: int) -> None:
        session, request = self.world.late.pop(which % len(self.world.late))
        if not session.process.is_dead:
            session.process.spawn(session.process.answer(request))
        self.look()

    # --- time and store ------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.5, 1.0, 2.5, 2.5, 7.0, 20.0, 40.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.pass_time(seconds)
        self.look()

    @rule(faults=st.lists(st.sampled_from(["away", "answer lost"]), min_size=1, max_size=3))
    def store_fails(self, faults: list[str]) -> None:
        self.world.faults.extend(faults)

    @rule(count=st.integers(1, 2))
    def store_cannot_be_read(self, count: int) -> None:
        self.world.unreadable += count

    @rule(which=numbers)
    def store_hangs(self, which: int) -> None:
        self.session(which).process.is_held = True

    @rule(which=numbers)
    def store_answers(self, which: int) -> None:
        self.session(which).process.release()
        self.look()

    @precondition(lambda self: self.world.in_flight)
    @rule(which=numbers)
    def write_of_the_dead_lands(self, which: int) -> None:
        call = self.world.in_flight.pop(which % len(self.world.in_flight))
        try:
            call()
        except Exception:
            self.world.require_nothing_broken()

    # --- coordinators and sessions -------------------------------------------------------------------

    @rule(which=numbers)
    def coordinator_dies(self, which: int) -> None:
        session = self.session(which)
        if not session.is_over:
            session.restart_process()
        self.look()

    @rule(which=numbers)
    def coordinator_freezes(self, which: int) -> None:
        self.session(which).process.freeze()

    @rule(which=numbers)
    def coordinator_wakes(self, which: int) -> None:
        self.session(which).process.thaw()
        self.look()

    @precondition(lambda self: self.world.was_fenced)
    @rule(which=numbers)
    def ray_restarts_a_loser(self, which: int) -> None:
        losers = [session for session in self.world.sessions if session.name in self.world.was_fenced]
        if losers:
            loser = losers[which % len(losers)]
            if not loser.process.is_dead:
                loser.restart_process()
        self.look()

    @precondition(lambda self: len(self.world.alive) < 3)
    @rule(replicas=st.sampled_from([2, 4, 7]), interval=st.sampled_from([1.0, 2.0, 5.0]))
    def somebody_takes_over(self, replicas: int, interval: float) -> None:
        self.world.start(replicas, interval, take_over=True)
        self.look()

    @rule(
        replicas=st.sampled_from([2, 4, 7]),
        interval=st.sampled_from([1.0, 5.0]),
        reopened=st.sets(st.integers(0, ROWS - 1), max_size=3),
    )
    def drivers_die_and_a_new_one_starts(self, replicas: int, interval: float, reopened: set[int]) -> None:
        for session in self.world.alive:
            self.world.driver_dies(session)
        self.world.reopen(reopened)
        self.world.start(replicas, interval)
        self.look()

    @rule(which=numbers, seconds=st.sampled_from([0.0, 3.0, 30.0]))
    def a_session_drains(self, which: int, seconds: float) -> None:
        session = self.session(which)
        if not session.is_over:
            session.drain(seconds)
        self.look()

    # --- checks --------------------------------------------------------------------------------------

    def look(self) -> None:
        self.world.settle()
        self.world.look_at_sessions()

    def teardown(self) -> None:
        try:
            self.world.require_nothing_broken()
            self.world.finish()
            Run.done += 1
        finally:
            self.world.__exit__()


TestRun = Run.TestCase
TestRun.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
