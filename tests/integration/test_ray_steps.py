"""kill -9 and SIGTERM at each step of a run, of each of its processes, under real Ray over the fake engine.

Each test takes one run through many troubles: whatever was hit, the same command continues, and at the end every row is
there once, as if nothing had happened. `make chaos` does the same at random, for as long as it is told.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from regen.run.leash import marked_processes
from regen.run.local import LocalCluster
from regen.run.session import seal_run
from regen.spec import RunSpec, dump_spec
from regen.store.local import LocalStorage
from tests.chaos.ray_cluster import COORDINATOR, ENVIRONMENT, REPLICA, RayHead
from tests.processes import REGEN, exists, kill, regen, started, wait_until
from tests.runs import begin_run, determined, drive, make_spec

pytestmark = pytest.mark.ray

ROWS = 60
# Only a failure waits so long; a busy machine needs it.
PATIENCE_SECONDS = 300.0


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayHead]:
    cluster = RayHead(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.end()


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where rows and target lie: the same for all runs here, since rows say where they come from."""
    return tmp_path_factory.mktemp("inputs")


@pytest.fixture(scope="module")
def undisturbed(inputs: Path) -> list[dict[str, Any]]:
    begun = begin_run(make_spec(inputs, rows=ROWS, output=str(inputs / "run")))
    asyncio.run(drive(LocalCluster(), begun))
    seal_run(begun.storage, begun.worker_setup.run)
    return determined(inputs / "run")


class Run:
    """One run folder, what its processes are doing, and its command."""

    def __init__(self, folder: Path, inputs: Path, head: RayHead, **engine: Any) -> None:
        self.folder, self.head = folder, head
        defaults = {"replicas": 2, "slots": 4, "step_seconds": 0.03, "start_seconds": 1.0, "restarts": 20}
        spec = make_spec(
            inputs,
            rows=ROWS,
            output=str(folder / "run"),
            engine={**defaults, "device": str(folder / "device"), **engine},
            checkpoint={"interval_seconds": 0.5, "rows_per_shard": 7},
        )
        self.spec = written(spec, folder)
        self.output = folder / "run"

    @contextmanager
    def command(self, *options: str) -> Iterator[subprocess.Popen[str]]:
        arguments = [*REGEN, "run", self.spec, "--address", self.head.address, *options]
        with started(arguments, self.folder, ENVIRONMENT) as process:
            yield process

    def finish(self, undisturbed: list[dict[str, Any]]) -> None:
        """By the same command; everything is right, and nothing is left of what was started."""
        done = regen(
            "run",
            self.spec,
            "--address",
            self.head.address,
            cwd=self.folder,
            timeout_seconds=PATIENCE_SECONDS,
            more=ENVIRONMENT,
        )
        assert done.returncode == 0, done.stderr
        self.check(undisturbed)

    def check(self, undisturbed: list[dict[str, Any]]) -> None:
        assert regen("verify", "run", cwd=self.folder).returncode == 0
        assert determined(self.output) == undisturbed
        wait_until(lambda: not marked_processes(LocalStorage(self.output).url), seconds=PATIENCE_SECONDS)

    # --- steps: true as soon as it is reached ------------------------------------------------------

    def is_planning(self) -> bool:
        return (self.output / "run.json").exists()

    def is_planned(self) -> bool:
        return (self.output / "plan.json").exists()

    def is_claimed(self) -> bool:
        return any(self.output.glob("journal/*"))

    def loads_engines(self) -> bool:
        return len(marked_processes(LocalStorage(self.output).url)) == 2

    def has_rows(self, beyond: int = 2) -> bool:
        return len(list(self.output.glob("journal/*"))) > beyond

    def is_driven(self) -> bool:
        """To its end: what is left to do is the report, then the shards."""
        return self.holder_state == "finished"

    def is_sealing(self) -> bool:
        return any(self.output.glob("shards/*"))

    @property
    def holder_state(self) -> str | None:
        path = self.output / "holder.json"
        return str(json.loads(path.read_text())["state"]) if path.exists() else None

    @property
    def files(self) -> int:
        return len(list(self.output.glob("journal/*")))


@contextmanager
def cluster_beside(folder: Path) -> Iterator[RayHead]:
    (folder / "other").mkdir()
    cluster = RayHead(folder / "other")
    try:
        yield cluster
    finally:
        cluster.end()


def written(spec: RunSpec, folder: Path) -> str:
    (folder / "spec.yaml").write_text(dump_spec(spec), encoding="utf-8")
    return "spec.yaml"


def said(process: subprocess.Popen[str]) -> str:
    """All that an ended command has printed."""
    assert process.stdout is not None
    return process.stdout.read()


def reached(step: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """The step, or the process's end, which is a failure unless the step was passed meanwhile."""
    wait_until(lambda: step() or process.poll() is not None, seconds=PATIENCE_SECONDS)
    assert step(), f"the command ended before that: {said(process)}"


def test_the_driver_killed_at_each_step(
    tmp_path: Path, inputs: Path, head: RayHead, undisturbed: list[dict[str, Any]]
) -> None:
    run = Run(tmp_path, inputs, head)
    steps: list[Callable[[], bool]] = [run.is_planning, run.is_planned, run.is_claimed, run.loads_engines]
    for step in steps:
        with run.command() as process:
            reached(step, process)
            process.kill()
    with run.command() as process:  # in a drain
        reached(partial(run.has_rows, run.files + 1), process)
        process.terminate()
        wait_until(lambda: head.titled(REPLICA), seconds=PATIENCE_SECONDS)
        process.kill()
    for step in (run.is_driven, run.is_sealing):
        with run.command() as process:
            reached(step, process)
            process.kill()
    run.finish(undisturbed)


def test_sigterm_at_each_step(tmp_path: Path, inputs: Path, head: RayHead, undisturbed: list[dict[str, Any]]) -> None:
    """Before there is anything to drain it ends the command at once; later the session ends in order, with code 9."""
    run = Run(tmp_path, inputs, head)
    endings = []
    for step in (run.is_planning, run.is_planned, run.is_claimed, run.loads_engines):
        with run.command() as process:
            reached(step, process)
            process.terminate()
            endings.append(process.wait(timeout=PATIENCE_SECONDS))
    assert endings[0] == -signal.SIGTERM
    assert endings[2:] == [9, 9]
    assert run.holder_state == "drained"
    with run.command() as process:
        reached(run.is_sealing, process)
        process.terminate()
        process.wait(timeout=PATIENCE_SECONDS)
    run.finish(undisturbed)


def test_coordinator_replicas_and_their_children_killed_at_each_step(
    tmp_path: Path, inputs: Path, head: RayHead, undisturbed: list[dict[str, Any]]
) -> None:
    """All within one session: nobody starts the command again."""
    run = Run(tmp_path, inputs, head, start_seconds=3.0)
    with run.command() as process:
        reached(lambda: bool(head.titled(COORDINATOR)), process)  # claiming, or not even that
        kill(head.titled(COORDINATOR)[0])
        reached(run.loads_engines, process)
        kill(head.titled(COORDINATOR)[0])
        kill(head.titled(REPLICA)[0])  # its device is held by a process that outlives it, if nobody helps
        reached(partial(run.has_rows, 2), process)
        kill(head.titled(REPLICA)[-1])
        for engine in marked_processes(LocalStorage(run.output).url):  # and the other replica's engine: none is left
            kill(engine)
        assert process.wait(timeout=PATIENCE_SECONDS) == 0
    run.check(undisturbed)


def test_a_frozen_coordinator_wakes_up_after_somebody_else_has_taken_over(
    tmp_path: Path, inputs: Path, head: RayHead, undisturbed: list[dict[str, Any]]
) -> None:
    run = Run(tmp_path, inputs, head, step_seconds=0.2, start_seconds=0.0, device=None)
    with run.command() as first:
        reached(partial(run.has_rows, 1), first)
        (zombie,) = head.titled(COORDINATOR)
        kill(zombie, signal.SIGSTOP)
        with run.command("--take-over") as second:
            before = run.files
            reached(partial(run.has_rows, before + 1), second)
            kill(zombie, signal.SIGCONT)
            assert first.wait(timeout=PATIENCE_SECONDS) == 4
            assert second.wait(timeout=PATIENCE_SECONDS) == 0
        holder = json.loads((run.output / "holder.json").read_text())
        assert holder["session"] in said(first)
    run.check(undisturbed)


def test_the_head_gone_and_the_run_taken_up_by_another_cluster(
    tmp_path: Path, inputs: Path, undisturbed: list[dict[str, Any]]
) -> None:
    lost = RayHead(tmp_path)
    run = Run(tmp_path, inputs, lost, step_seconds=0.1)
    try:
        with run.command() as process:
            reached(partial(run.has_rows, 2), process)
            engines = marked_processes(LocalStorage(run.output).url)
            for pid in lost.part("raylet") + lost.part("gcs_server"):
                kill(pid)
            with cluster_beside(tmp_path) as run.head:
                assert process.wait(timeout=PATIENCE_SECONDS) not in (0, 9)
                run.finish(undisturbed)
                assert not any(exists(pid) for pid in engines)
    finally:
        lost.end()
