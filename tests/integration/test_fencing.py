"""Two that want one run: who goes on, who stops, and what the loser is told. Real coordinators in a world of faults."""

from __future__ import annotations

import json
import re

from regen.errors import ExitCode, Fenced, RunHeld
from regen.records import Command, Phase
from regen.store.layout import HOLDER
from tests.run_world import ROWS, Session, World

FOUR = 4


def speak(world: World, session: Session) -> None:
    for worker in list(session.workers.values()):
        worker.speak("answered")
    world.settle()


def work(world: World, session: Session, seconds: float = 3.0) -> None:
    """Rows are handed out, made, received and committed."""
    make(world, session, ROWS)
    world.pass_time(seconds)


def make(world: World, session: Session, rows: int) -> None:
    """Rows are handed out, and so many of each worker's made and received."""
    speak(world, session)
    for worker in list(session.workers.values()):
        worker.end_rows(rows)
    world.settle()
    speak(world, session)


def replays(session: Session) -> None:
    """Of a coordinator whose store calls are held: plan and journal are read, the claim is on its way."""
    for _ in range(2):
        session.world.settle()
        session.process.carry_out_one()


def held_rows(session: Session) -> set[int]:
    return {ordinal for worker in session.workers.values() for ordinal in worker.holds()}


def named_in_holder(world: World) -> str:
    return str(json.loads(world.objects[HOLDER])["session"])


def require_loser(session: Session, winner: Session, kind: type[Exception], heartbeat: bool = True) -> None:
    """Exit code 4, with the winner's session, host, processes and the age of its heartbeat."""
    error = session.error
    assert type(error) is kind
    assert isinstance(error, Fenced | RunHeld)
    assert error.exit_code is ExitCode.HELD
    for part in (winner.name, winner.setup.host, "coordinator pid", "driver pid"):
        assert part in str(error)
    if heartbeat:
        assert re.search(r"last heartbeat \d+ s ago by its own clock", str(error)), str(error)


def test_nothing_is_handed_out_before_the_run_is_claimed() -> None:
    with World() as world:
        session = world.start(FOUR, 2.0, is_held=True)
        replays(session)
        assert not world.files
        speak(world, session)
        assert not held_rows(session)
        session.process.carry_out_one()  # the claim
        assert [file.claims for file in world.files] == [True]
        session.process.release()
        speak(world, session)
        assert len(held_rows(session)) == FOUR * 4


def test_of_two_starts_that_found_nobody_one_goes_on() -> None:
    with World() as world:
        first, second = world.start(FOUR, 2.0, is_held=True), world.start(FOUR, 2.0, is_held=True)
        for session in (first, second):
            replays(session)
        second.process.release()
        first.process.release()
        world.pass_time(1.0)
        require_loser(first, second, Fenced)
        world.finish()
        assert {file.session for file in world.files} == {second.name}


def test_of_two_take_overs_at_once_the_first_claim_wins() -> None:
    with World() as world:
        frozen = world.start(FOUR, 2.0)
        frozen.process.freeze()
        first = world.start(FOUR, 2.0, take_over=True, is_held=True)
        second = world.start(7, 5.0, take_over=True, is_held=True)
        third = world.start(2, 2.0, take_over=True, is_held=True)
        for session in (first, second):
            replays(session)
        first.process.release()
        second.process.release()  # had replayed before the first one's claim: it meets it
        third.process.release()  # replays after it: it sees it
        world.pass_time(4.0)
        require_loser(second, first, Fenced)
        require_loser(third, first, RunHeld)
        frozen.process.thaw()
        world.pass_time(4.0)
        require_loser(frozen, first, Fenced)
        world.finish()
        assert [file.session for file in world.files if file.claims] == [frozen.name, first.name]


def test_a_frozen_coordinator_that_wakes_writes_nothing_more() -> None:
    with World() as world:
        frozen = world.start(FOUR, 2.0)
        make(world, frozen, 2)  # rows are received, and not committed yet
        frozen.process.freeze()
        other = world.start(2, 2.0, take_over=True)
        work(world, other)
        files, holder = len(world.files), world.objects[HOLDER]
        assert named_in_holder(world) == other.name
        other.process.freeze()  # nothing of the winner's hides what the loser does

        frozen.process.thaw()
        speak(world, frozen)
        world.pass_time(10.0)

        require_loser(frozen, other, Fenced)
        assert len(world.files) == files
        assert world.objects[HOLDER] == holder
        other.process.thaw()
        world.finish()


def test_a_fence_is_noticed_with_the_next_heartbeat() -> None:
    with World() as world:
        idle = world.start(FOUR, 300.0)
        world.pass_time(3.0)
        other = world.start(2, 300.0, take_over=True)
        world.pass_time(7.0)
        require_loser(idle, other, Fenced)
        assert named_in_holder(world) == other.name


def test_an_interval_without_rows_notices_the_fence() -> None:
    with World() as world:
        idle = world.start(FOUR, 1.0)
        world.pass_time(0.5)
        other = world.start(2, 2.0, take_over=True, is_held=True)
        replays(other)
        other.process.carry_out_one()
        other.process.freeze()  # it has claimed, and has no heartbeat yet
        world.pass_time(3.0)
        require_loser(idle, other, Fenced, heartbeat=False)
        assert "has no heartbeat yet" in str(idle.error)


def test_a_loser_that_ray_restarts_claims_nothing_whatever_it_was_started_with() -> None:
    with World() as world:
        world.start(FOUR, 2.0).process.freeze()
        loser = world.start(FOUR, 2.0, take_over=True)
        world.pass_time(3.0)
        winner = world.start(2, 2.0, take_over=True)
        world.pass_time(6.0)
        require_loser(loser, winner, Fenced)
        files = len(world.files)
        for has_let_go in (False, True):
            if has_let_go:
                winner.drain(0.0)
                world.pass_time(4.0)
                assert winner.phase is Phase.DRAINED
                files = len(world.files)
            loser.restart_process()
            world.pass_time(4.0)
            error = loser.process.coordinator._error
            assert isinstance(error, RunHeld)
            assert winner.name in str(error)
            assert len(world.files) == files
        assert world.loop.run_until_complete(loser.process.coordinator.assignment(0)) is None


def test_a_fenced_coordinator_tells_its_workers_to_stop() -> None:
    with World() as world:
        loser = world.start(FOUR, 2.0)
        speak(world, loser)
        world.start(2, 2.0, take_over=True)
        world.pass_time(8.0)
        assert isinstance(loser.error, Fenced)
        request = next(iter(loser.workers.values()))._request()
        reply = world.loop.run_until_complete(loser.process.coordinator.exchange(request))
        assert reply.command is Command.STOP


def test_a_claim_of_a_killed_predecessor_that_lands_late_fences_nobody() -> None:
    with World() as world:
        session = world.start(FOUR, 2.0, is_held=True)
        replays(session)
        session.restart_process(is_held=True)
        replays(session)
        world.land()  # the claim of the one before, after the replay of this one
        assert len(world.files) == 1
        session.process.release()
        world.pass_time(1.0)
        assert session.error is None
        assert [file.claims for file in world.files] == [True, True]
        world.finish()


def test_a_claim_of_a_killed_predecessor_that_lands_after_its_successors_is_none() -> None:
    with World() as world:
        session = world.start(FOUR, 2.0)
        session.restart_process(is_held=True)
        replays(session)
        session.restart_process()
        world.settle()  # this one has claimed, and the claim of the one before is still on its way
        world.land()
        world.pass_time(3.0)
        assert session.error is None
        assert [file.number for file in world.files if file.claims] == [0, 1]
        world.finish()
        assert session.phase is Phase.FINISHED


def test_a_file_of_a_killed_coordinator_that_lands_late_is_counted_and_nothing_of_it_made_again() -> None:
    with World() as world:
        session = world.start(FOUR, 2.0)
        make(world, session, 2)
        session.process.is_held = True
        while not session.process.is_writing():
            world.pass_time(1.0)
            session.process.carry_out_one()
        session.restart_process(is_held=True)
        replays(session)
        world.land()
        session.process.release()
        world.finish()
        assert max(session.begun_rows.values()) == 1


def test_a_run_of_four_is_resumed_by_seven_with_another_interval() -> None:
    with World() as world:
        first = world.start(FOUR, 1.0)
        make(world, first, 1)
        world.pass_time(3.0)
        committed = set(world.winners)
        assert len(committed) == FOUR
        world.driver_dies(first)
        second = world.start(7, 5.0)
        work(world, second, seconds=8.0)
        assert second.phase is Phase.FINISHED
        assert not committed & set(second.begun_rows)
        assert set(second.begun_rows.values()) == {1}
