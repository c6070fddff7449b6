"""Any order of faults over the real schedule, journal, coordinators and workers: nothing lost, nothing made twice.

`REGEN_MODEL_EXAMPLES=100000` runs more schedules than CI does; the same number gives the same schedules. What a
failure prints for `reproduce_failure` brings it back in no time: `reproduce_failure(...)(Run)` before the run.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture import engine
from hypothesis.internal.conjecture.providers import HypothesisProvider
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from tests.run_world import ROWS, Session, World

EXAMPLES = int(os.environ.get("REGEN_MODEL_EXAMPLES", "2000"))
STEPS = 20
# Of 300 s that Hypothesis takes by default, for each failure: what it comes to soon is short enough to be read.
SHRINKING_SECONDS = 60
EXPECTED = (
    "adopted",
    "asked to send again",
    "attempts used up",
    "committed: failed",
    "committed: ok",
    "committed: ok, again",
    "ended: Fenced",
    "ended: RunHeld",
    "ended: StoreUnavailable",
    "ended: drained",
    "ended: finished",
    "made again",
    "number taken",
    "own write found",
    "released",
    "result of a zombie",
    "retry ended",
    "settled while running",
    "superseded",
    "write of the dead",
)

numbers = st.integers(0, 7)
WAYS = ["answered"] * 7 + ["request lost", "reply lost", "twice, first reply", "twice, second reply", "late"]
ways = st.sampled_from(WAYS)
# What one worker does: so many rows of it end, or fail; then it speaks. Drawn as one: a draw costs more than a move.
moves = st.sampled_from(list(itertools.product(range(8), (0, 1, 2, 4), (False, False, False, True), WAYS)))
turns = st.tuples(st.lists(moves, max_size=5), st.sampled_from([0.0, 0.0, 0.5, 2.5]))


def fault(**given: Any) -> Callable[[Callable[..., None]], Any]:
    """A rule: first the workers go on for a turn, then this happens."""

    def decorate(happens: Callable[..., None]) -> Any:
        @functools.wraps(happens)
        def step(run: Run, turn: tuple[list[tuple[int, int, bool, str]], float], which: int, **drawn: Any) -> None:
            run.work(which, *turn)
            happens(run, which, **drawn)
            run.look()

        del step.__wrapped__
        return rule(turn=turns, which=numbers, **given)(step)

    return decorate


class Run(RuleBasedStateMachine):
    """Sessions of one run. The number `which` picks among those that there are."""

    done = 0
    seen: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.world.__enter__()
        self.world.start(4, 2.0)
        self.everybody_speaks(self.world.newest)

    def session(self, which: int) -> Session:
        alive = self.world.alive or self.world.sessions
        return alive[which % len(alive)]

    # --- workers -------------------------------------------------------------------------------------

    def work(self, which: int, moved: list[tuple[int, int, bool, str]], seconds: float) -> None:
        session = self.session(which)
        for slot, count, is_failing, how in moved:
            if (worker := session.workers.get(slot % session.replicas)) is not None:
                worker.end_rows(count, is_failing)
                self.world.settle()
                worker.speak(how)
                self.world.settle()
        if seconds:
            self.world.pass_time(seconds)
        self.look()

    def everybody_speaks(self, session: Session) -> None:
        for worker in list(session.workers.values()):
            worker.speak("answered")
        self.look()

    @fault(count=st.sampled_from([1, 4]))
    def everybody_works(self, which: int, count: int) -> None:
        session = self.session(which)
        self.everybody_speaks(session)
        for worker in list(session.workers.values()):
            worker.end_rows(count)
        self.look()
        self.everybody_speaks(session)

    @fault(slot=numbers)
    def worker_dies(self, which: int, slot: int) -> None:
        session = self.session(which)
        if not session.is_over:
            session.lose_worker(slot % session.replicas, is_zombie=False)

    @fault(slot=numbers, count=st.integers(0, 4))
    def replica_is_released(self, which: int, slot: int, count: int) -> None:
        """It ends its rows, waits for their commit and leaves, unless something happens to it before."""
        session = self.session(which)
        if session.is_over:
            return
        session.release(slot % session.replicas)
        self.everybody_speaks(session)
        worker = session.workers[slot % session.replicas]
        worker.end_rows(count)
        self.look()
        self.everybody_speaks(session)

    @fault(slot=numbers, count=st.integers(0, 2), successor_speaks=st.booleans())
    def worker_becomes_a_zombie(self, which: int, slot: int, count: int, successor_speaks: bool) -> None:
        session = self.session(which)
        if session.is_over:
            return
        zombie = session.workers[slot % session.replicas]
        session.lose_worker(slot % session.replicas, is_zombie=True)
        self.look()
        if successor_speaks and not session.is_over:
            session.workers[slot % session.replicas].speak("answered")
            self.look()
        zombie.end_rows(count)
        self.world.settle()
        zombie.speak("answered")

    @fault(how=ways, count=st.integers(0, 2))
    def zombie_speaks(self, which: int, how: str, count: int) -> None:
        zombies = [zombie for session in self.world.sessions for zombie in session.zombies]
        if zombies:
            zombie = zombies[which % len(zombies)]
            zombie.end_rows(count)
            self.look()
            zombie.speak(how)

    @fault()
    def late_exchange_arrives(self, which: int) -> None:
        if self.world.late:
            process, request = self.world.late.pop(which % len(self.world.late))
            if not process.is_dead:
                process.spawn(process.answer(request))

    # --- time and store ------------------------------------------------------------------------------

    @fault(seconds=st.sampled_from([3.0, 7.0, 20.0, 40.0]))
    def time_passes(self, which: int, seconds: float) -> None:
        self.world.pass_time(seconds)

    @fault(faults=st.lists(st.sampled_from(["away", "answer lost"]), min_size=1, max_size=3))
    def store_fails(self, which: int, faults: list[str]) -> None:
        self.world.faults.extend(faults)

    @fault(count=st.integers(1, 2))
    def store_cannot_be_read(self, which: int, count: int) -> None:
        self.world.unreadable += count

    @fault(seconds=st.sampled_from([0.0, 2.5]))
    def store_hangs(self, which: int, seconds: float) -> None:
        self.session(which).process.is_held = True
        self.world.pass_time(seconds)

    @fault()
    def store_answers(self, which: int) -> None:
        self.session(which).process.release()

    @fault(count=st.integers(1, 3))
    def store_answers_some(self, which: int, count: int) -> None:
        for _ in range(count):
            self.session(which).process.carry_out_one()

    @fault()
    def write_of_the_dead_lands(self, which: int) -> None:
        self.world.land(which)

    # --- coordinators and sessions -------------------------------------------------------------------

    @fault(hangs_again=st.booleans())
    def coordinator_dies(self, which: int, hangs_again: bool) -> None:
        session = self.session(which)
        if not session.is_over:
            session.restart_process(is_held=hangs_again)

    @fault(calls=st.integers(0, 3), hangs_again=st.booleans())
    def coordinator_dies_while_it_writes(self, which: int, calls: int, hangs_again: bool) -> None:
        """Its write lands when its successor has got so far."""
        session = self.session(which)
        if session.is_over:
            return
        self.everybody_works(turn=([], 0.0), which=which, count=2)
        session.process.is_held = True
        for _ in range(8):
            if not session.process.is_writing():
                session.process.carry_out_one()
                self.world.pass_time(1.0)
        oldest = len(self.world.in_flight)  # of its calls the first is the write: a heartbeat may stand behind it
        session.restart_process(is_held=True)
        for _ in range(calls):
            self.world.settle()
            session.process.carry_out_one()
        self.world.land(oldest)
        if not hangs_again:
            session.process.release()

    @fault()
    def coordinator_freezes(self, which: int) -> None:
        self.session(which).process.freeze()

    @fault()
    def coordinator_wakes(self, which: int) -> None:
        self.session(which).process.thaw()

    @fault()
    def ray_restarts_a_loser(self, which: int) -> None:
        losers = [session for session in self.world.sessions if session.name in self.world.was_fenced]
        losers = [session for session in losers if not session.process.is_dead]
        if losers:
            losers[which % len(losers)].restart_process()

    @fault(replicas=st.sampled_from([2, 4, 7]), interval=st.sampled_from([1.0, 2.0, 5.0]), freezes=st.booleans())
    def somebody_takes_over(self, which: int, replicas: int, interval: float, freezes: bool) -> None:
        if len(self.world.alive) < 3:
            if freezes:
                self.session(which).process.freeze()
            self.world.start(replicas, interval, take_over=True)
            self.everybody_speaks(self.world.newest)

    @fault(
        replicas=st.sampled_from([2, 4, 7]),
        interval=st.sampled_from([1.0, 5.0]),
        reopened=st.sets(st.integers(0, ROWS - 1), max_size=6),
        failures=st.sampled_from([0, 0, 2]),
    )
    def drivers_die_and_another_starts(
        self, which: int, replicas: int, interval: float, reopened: set[int], failures: int
    ) -> None:
        for session in self.world.alive:
            self.world.driver_dies(session)
        self.world.reopen(reopened)
        self.world.start(replicas, interval)
        self.everybody_speaks(self.world.newest)
        for _ in range(failures):
            for worker in list(self.world.newest.workers.values()):
                worker.end_rows(1, failing=True)
            self.look()
            self.everybody_speaks(self.world.newest)

    @fault(seconds=st.sampled_from([0.0, 3.0, 30.0]))
    def a_session_drains(self, which: int, seconds: float) -> None:
        session = self.session(which)
        if not session.is_over:
            session.drain(seconds)

    # --- checks --------------------------------------------------------------------------------------

    def look(self) -> None:
        self.world.settle()
        self.world.look_at_sessions()

    def teardown(self) -> None:
        try:
            self.world.require_nothing_broken()
            self.world.finish()
            Run.done += 1
            Run.seen.update(self.world.seen)
        finally:
            self.world.__exit__()


def test_any_order_of_faults_loses_nothing_and_makes_nothing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "MAX_SHRINKING_SECONDS", SHRINKING_SECONDS)
    # It would draw constants of the project's modules that are loaded: beside other tests, other schedules than alone.
    monkeypatch.setattr(HypothesisProvider, "_maybe_draw_constant", lambda *_, **__: None)
    given = settings(
        max_examples=EXAMPLES,
        stateful_step_count=STEPS,
        deadline=None,
        derandomize=True,
        database=None,
        report_multiple_bugs=False,  # one cause shows in many places, and each would be shrunk
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(Run, settings=given)
    print(f"{Run.done} schedules: {dict(sorted(Run.seen.items()))}")
    assert Run.done >= EXAMPLES
    if EXAMPLES >= 500:
        assert not [name for name in EXPECTED if not Run.seen[name]], "what the model never comes to"
