"""An engine's processes do not outlive their worker: real processes, killed; no Ray, no engine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from regen.engines.fake_child import FakeChild
from regen.errors import EngineStartFailed
from regen.run.fleet import marked
from regen.run.fleet.leash import Mark, end_leftovers
from tests.processes import environment, exists, kill, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="marks are read from /proc")

# A worker as Ray has it: tied, then its engine's process is started; `forked` has also a child that has the pipe.
WORKER = """
import os, sys, time
from pathlib import Path
from regen.engines.fake_child import FakeChild
from regen.run.fleet import leash
run, slot, session, incarnation, device, kind = sys.argv[1:]
leash.tie(leash.Mark(run, int(slot), session, int(incarnation), os.getpid()))
engine = FakeChild(Path(device))
forked = os.fork() if kind == "forked" else 0
if kind != "forked" or forked:
    print(engine._process.pid, leash._SUPERVISORS[0].pid, forked, flush=True)
time.sleep(600)
"""


class TiedWorker:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.process = process
        said = process.stdout.readline().split()
        assert said, "the worker did not start"
        self.engine, self.supervisor, self.forked = (int(pid) for pid in said)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    @property
    def has_left_something(self) -> bool:
        return exists(self.engine) or exists(self.supervisor)


@contextmanager
def tied(device: Path, mark: Mark, kind: str = "plain") -> Iterator[TiedWorker]:
    arguments = [mark.run, str(mark.slot), mark.session, str(mark.incarnation), str(device), kind]
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER, *arguments], env=environment(), stdout=subprocess.PIPE, text=True
    )
    try:
        worker = TiedWorker(process)
        try:
            yield worker
        finally:
            for pid in (worker.engine, worker.supervisor, worker.forked):
                if pid:
                    kill(pid)
    finally:
        process.kill()
        process.communicate()


def mark(tmp_path: Path, session: str = "s1", incarnation: int = 0, slot: int = 0) -> Mark:
    return Mark(tmp_path.name, slot, session, incarnation, owner=0)


@pytest.mark.parametrize("kind", ["plain", "forked"])
def test_what_a_killed_worker_has_started_is_gone_in_seconds(tmp_path: Path, kind: str) -> None:
    with tied(tmp_path / "device", mark(tmp_path), kind) as worker:
        assert exists(worker.engine)
        worker.kill()
        wait_until(lambda: not worker.has_left_something, seconds=10)
        FakeChild(tmp_path / "device").close()


def test_while_the_worker_lives_its_engine_does(tmp_path: Path) -> None:
    with tied(tmp_path / "device", mark(tmp_path)) as worker:
        with pytest.raises(EngineStartFailed, match="held by another process"):
            FakeChild(tmp_path / "device")
        end_leftovers(mark(tmp_path, session="s2"))
        end_leftovers(mark(tmp_path, slot=1, incarnation=1))
        assert exists(worker.engine)


def test_a_replacement_ends_what_nobody_supervised(tmp_path: Path) -> None:
    with tied(tmp_path / "device", mark(tmp_path)) as worker:
        kill(worker.supervisor)
        worker.kill()
        assert exists(worker.engine)
        with tied(tmp_path / "device", mark(tmp_path, incarnation=1)) as replacement:
            assert not exists(worker.engine)
            assert exists(replacement.engine)


def test_another_session_ends_what_a_dead_one_has_left(tmp_path: Path) -> None:
    with tied(tmp_path / "device", mark(tmp_path)) as worker:
        kill(worker.supervisor)
        worker.kill()
        end_leftovers(mark(tmp_path, session="s2"))
        assert not exists(worker.engine)


def test_what_does_not_end_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tied(tmp_path / "device", mark(tmp_path)) as worker:
        monkeypatch.setattr(marked, "kill", lambda pids: None)
        with pytest.raises(EngineStartFailed, match=rf"replica 0: processes {worker.engine} of an older engine"):
            end_leftovers(mark(tmp_path, incarnation=1), limit_seconds=0.0)
