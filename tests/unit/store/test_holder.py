"""Who runs the folder: decided from what can be known, and watched where it cannot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import UTC, datetime

import pytest

from regen.errors import ExitCode, JournalDamaged
from regen.records import Eta, EtaState, Phase
from regen.store.control import Released, ReleaseReason
from regen.store.holder import (
    Holder,
    HolderProgress,
    HolderState,
    Liveness,
    Sighting,
    held,
    judge,
    read_holder,
    watch,
    write_holder,
)
from regen.store.journal import Journal
from regen.store.layout import HOLDER
from regen.store.machine import machine_identity, process_exists
from regen.store.replay import Replayed, replay
from tests.memory_storage import MemoryStorage
from tests.unit.store.journals import claim_of, opened, table_of

PLAN_ROWS = 100
HERE = "0123abcd"
NOW = datetime(2026, 1, 1, 12, 0, 30, tzinfo=UTC)
HOLDER_S1 = Holder(
    session="s1",
    host="node-1",
    boot_id="another",
    coordinator_pid=os.getpid(),
    driver_pid=os.getpid(),
    started_at="2026-01-01T10:00:00+00:00",
    beat=5,
    beat_at="2026-01-01T12:00:00+00:00",
    state=HolderState.RUNNING,
)


class Clock:
    """Counts what was waited for, and lets something happen meanwhile."""

    def __init__(self, after_seconds: float = 0.0, happens: Callable[[], object] = lambda: None) -> None:
        self.waited_seconds = 0.0
        self._after_seconds, self._happens, self._has_happened = after_seconds, happens, False

    def wait(self, seconds: float) -> None:
        self.waited_seconds += seconds
        if self.waited_seconds >= self._after_seconds and not self._has_happened:
            self._has_happened = True
            self._happens()


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage()


@pytest.fixture
def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def _watch(storage: MemoryStorage, clock: Clock, replayed: Replayed | None = None, seconds: float = 10) -> Liveness:
    return watch(storage, replayed or replay(storage, PLAN_ROWS, ()), clock.wait, seconds, HERE)


def test_a_holder_comes_back_as_it_was(storage: MemoryStorage) -> None:
    assert read_holder(storage) is None

    write_holder(storage, HOLDER_S1)
    write_holder(storage, replace(HOLDER_S1, beat=6))

    assert read_holder(storage) == replace(HOLDER_S1, beat=6)


PROGRESS = HolderProgress("2026-01-01", Phase.RUNNING, Eta(EtaState.ESTIMATING, 1.0, 2.0, 3.0), 40.5, 8, 90, None)


def test_progress_comes_back_and_a_holder_without_it_is_read(storage: MemoryStorage) -> None:
    write_holder(storage, replace(HOLDER_S1, progress=PROGRESS))
    assert read_holder(storage) == replace(HOLDER_S1, progress=PROGRESS)

    older = json.loads(storage.objects[HOLDER])
    del older["progress"]
    storage.replace(HOLDER, json.dumps(older).encode())
    assert read_holder(storage) == HOLDER_S1


def test_readers_pass_over_what_later_writers_add(storage: MemoryStorage) -> None:
    """So a reader from before there was progress reads on."""
    newer = {**json.loads(json.dumps(asdict(HOLDER_S1))), "weather": {"sky": "blue"}}
    storage.replace(HOLDER, json.dumps(newer).encode())
    assert read_holder(storage) == HOLDER_S1


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b'{"session": "s1"}', b"\xff"])
def test_a_holder_file_that_makes_no_sense_is_named(storage: MemoryStorage, text: bytes) -> None:
    storage.replace(HOLDER, text)

    with pytest.raises(JournalDamaged, match=r"holder\.json"):
        read_holder(storage)


def test_a_new_folder_is_free_at_once(storage: MemoryStorage) -> None:
    clock = Clock()

    assert _watch(storage, clock) is Liveness.FREE
    assert clock.waited_seconds == 0


@pytest.mark.parametrize("state", [HolderState.FINISHED, HolderState.DRAINED, HolderState.FAILED])
def test_a_run_that_ended_is_free_at_once(storage: MemoryStorage, state: HolderState) -> None:
    opened(storage, "s1")
    write_holder(storage, replace(HOLDER_S1, state=state))
    clock = Clock()

    assert _watch(storage, clock) is Liveness.ENDED
    assert clock.waited_seconds == 0


def test_a_release_in_the_journal_is_enough(storage: MemoryStorage) -> None:
    journal = opened(storage, "s1")
    write_holder(storage, HOLDER_S1)
    journal.publish(table_of(), [Released("s1", ReleaseReason.DRAINED, "2026-01-01T00:00:00+00:00")])

    assert _watch(storage, Clock()) is Liveness.ENDED


def test_on_this_machine_processes_that_are_gone_are_dead_at_once(storage: MemoryStorage, dead_pid: int) -> None:
    opened(storage, "s1")
    gone = replace(HOLDER_S1, boot_id=HERE, coordinator_pid=dead_pid, driver_pid=dead_pid)
    write_holder(storage, gone)
    clock = Clock()

    assert _watch(storage, clock) is Liveness.DEAD
    assert clock.waited_seconds == 0


@pytest.mark.parametrize("living", ["coordinator_pid", "driver_pid", "boot_id"])
def test_processes_that_may_be_there_are_watched(storage: MemoryStorage, dead_pid: int, living: str) -> None:
    opened(storage, "s1")
    gone = replace(HOLDER_S1, boot_id=HERE, coordinator_pid=dead_pid, driver_pid=dead_pid)
    write_holder(storage, replace(gone, **{living: getattr(HOLDER_S1, living)}))
    clock = Clock()

    assert _watch(storage, clock) is Liveness.DEAD
    assert clock.waited_seconds >= 10


def test_a_heartbeat_is_a_sign_of_life(storage: MemoryStorage) -> None:
    opened(storage, "s1")
    write_holder(storage, HOLDER_S1)
    clock = Clock(3, lambda: write_holder(storage, replace(HOLDER_S1, beat=6)))

    assert _watch(storage, clock) is Liveness.ALIVE
    assert clock.waited_seconds == 3


def test_a_journal_that_grows_is_a_sign_of_life(storage: MemoryStorage) -> None:
    journal = opened(storage, "s1")
    write_holder(storage, HOLDER_S1)
    clock = Clock(4, lambda: journal.publish(table_of(1)))

    assert _watch(storage, clock) is Liveness.ALIVE
    assert clock.waited_seconds == 4


def test_a_journal_that_has_grown_since_the_replay_is_a_sign_of_life(storage: MemoryStorage) -> None:
    journal = opened(storage, "s1")
    write_holder(storage, replace(HOLDER_S1, state=HolderState.FINISHED))
    replayed = replay(storage, PLAN_ROWS, ())
    journal.publish(table_of(1))

    assert _watch(storage, Clock(), replayed) is Liveness.ALIVE


def test_a_claim_without_a_holder_file_is_watched(storage: MemoryStorage) -> None:
    opened(storage, "s1")
    clock = Clock()
    assert _watch(storage, clock) is Liveness.DEAD
    assert clock.waited_seconds >= 10

    clock = Clock(2, lambda: write_holder(storage, HOLDER_S1))
    assert _watch(storage, clock) is Liveness.ALIVE


def test_a_claim_that_is_newer_than_the_holder_file_is_watched(storage: MemoryStorage, dead_pid: int) -> None:
    opened(storage, "s2")
    for old in (
        replace(HOLDER_S1, state=HolderState.FINISHED),
        replace(HOLDER_S1, boot_id=HERE, coordinator_pid=dead_pid, driver_pid=dead_pid),
    ):
        write_holder(storage, old)
        clock = Clock(5, lambda: write_holder(storage, replace(HOLDER_S1, session="s2")))

        assert _watch(storage, clock) is Liveness.ALIVE
        assert clock.waited_seconds == 5


def test_a_holder_that_ends_while_watched_has_ended(storage: MemoryStorage) -> None:
    opened(storage, "s1")
    write_holder(storage, HOLDER_S1)
    clock = Clock(3, lambda: write_holder(storage, replace(HOLDER_S1, beat=6, state=HolderState.FAILED)))

    assert _watch(storage, clock) is Liveness.ENDED


def test_the_decision_needs_a_second_look_only_where_nothing_is_certain(storage: MemoryStorage) -> None:
    opened(storage, "s1")
    replayed, sighting = replay(storage, PLAN_ROWS, ()), Sighting(HOLDER_S1, has_grown=False)

    assert judge(replayed, sighting, None, is_gone=False) is None
    assert judge(replayed, sighting, sighting, is_gone=False) is Liveness.DEAD
    assert judge(replayed, sighting, None, is_gone=True) is Liveness.DEAD
    assert judge(replayed, Sighting(HOLDER_S1, has_grown=True), None, is_gone=True) is Liveness.ALIVE


def test_the_refusal_names_the_holder_and_its_age() -> None:
    error = held(HOLDER_S1, claim_of("s1"), "/runs/one", NOW)

    text = str(error)
    for part in ("/runs/one", "session s1", "node-1", str(os.getpid()), "30 s ago", "--take-over"):
        assert part in text
    assert error.exit_code is ExitCode.HELD


def test_the_refusal_names_a_claim_that_has_no_holder_file() -> None:
    text = str(held(None, claim_of("s2", pid=4711), "/runs/one", NOW))

    assert "session s2" in text
    assert "4711" in text


def test_this_machine_is_the_same_twice_and_knows_its_processes(dead_pid: int) -> None:
    assert machine_identity() == machine_identity()
    assert process_exists(os.getpid())
    assert not process_exists(dead_pid)


def test_a_process_of_another_user_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, signal: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)

    assert process_exists(1)


def test_a_journal_can_be_claimed_by_who_found_it_dead(storage: MemoryStorage) -> None:
    opened(storage, "s1").publish(table_of(1))
    assert _watch(storage, Clock()) is Liveness.DEAD

    journal = Journal(storage, "s2", PLAN_ROWS)
    journal.replay(())
    journal.claim(claim_of("s2"))

    assert sorted(journal.done) == [1]
