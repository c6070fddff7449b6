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

from regen.run.fleet import marked
from regen.run.fleet.leash import Mark, marked_processes
from regen.run.held import replayed_run
from regen.run.local import LocalCluster
from regen.run.session import seal_run
from regen.spec import RunSpec, dump_spec, parse_spec
from regen.store.control import Claim
from regen.store.local import LocalStorage
from tests.chaos.ray_cluster import COORDINATOR, ENVIRONMENT, REPLICA, RayHead
from tests.processes import PATIENCE_SECONDS, REGEN, exists, free_port, kill, reached, regen, said, started, wait_until
from tests.runs import begin_run, determined, drive, make_spec
from tests.scrapes import sample, scraped

pytestmark = pytest.mark.ray

ROWS = 60
# The first request of a slot's first engine gives no token, for as long as the engine lives.
HANGS = {"kind": "hang"}


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


Step = Callable[[subprocess.Popen[str]], bool]


class Run:
    """One run folder, what its processes are doing, and its command."""

    def __init__(self, folder: Path, inputs: Path, head: RayHead, **engine: Any) -> None:
        self.folder, self.head = folder, head
        defaults = {"replicas": 2, "slots": 4, "step_seconds": 0.03, "start_seconds": 1.0, "restarts": 20}
        self.plain = make_spec(
            inputs,
            rows=ROWS,
            output=str(folder / "run"),
            engine={**defaults, "device": str(folder / "device"), **engine},
            checkpoint={"interval_seconds": 0.5, "rows_per_shard": 7},
        )
        self.spec = written(self.plain, folder)
        self.output = folder / "run"

    def with_endless_rows(self, metrics_port: int) -> str:
        """The spec for a session that does not end by itself: one row of each engine hangs, and so does a drain."""
        changed = self.plain.model_dump(mode="json")
        changed["engine"]["faults"] = [HANGS]
        changed["metrics"]["port"] = metrics_port
        return written(parse_spec(changed, origin="test"), self.folder, "endless.yaml")

    @contextmanager
    def command(self, *options: str, spec: str | None = None) -> Iterator[subprocess.Popen[str]]:
        arguments = [*REGEN, "run", spec or self.spec, "--address", self.head.address, *options]
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
        wait_until(lambda: not self.head.titled(COORDINATOR) + self.head.titled(REPLICA), seconds=PATIENCE_SECONDS)

    # --- steps: of the session of this process, since what another has left may go on for seconds; once reached, each
    # --- stays true at least until the process ends

    def is_planning(self, process: subprocess.Popen[str]) -> bool:
        return (self.output / "run.json").exists()

    def is_planned(self, process: subprocess.Popen[str]) -> bool:
        return (self.output / "plan.json").exists()

    def is_claimed(self, process: subprocess.Popen[str]) -> bool:
        """And from here on no other session publishes anything."""
        return (claim := self.claim) is not None and claim.driver_pid == process.pid

    def loads_engines(self, process: subprocess.Popen[str]) -> bool:
        return (claim := self.claim) is not None and claim.driver_pid == process.pid and len(self.engines(claim)) >= 2

    def is_driven(self, process: subprocess.Popen[str]) -> bool:
        """To its end: what is left to do is the report, then the shards."""
        return self.holder_state == "finished"

    def is_sealing(self, process: subprocess.Popen[str]) -> bool:
        return any(self.output.glob("shards/*"))

    def until(self, step: Step, process: subprocess.Popen[str]) -> None:
        """The step, or the process's end, which is a failure unless the step was passed meanwhile."""
        reached(partial(step, process), process)

    def until_rows(self, process: subprocess.Popen[str]) -> None:
        """Until this session has published a row."""
        self.until(self.is_claimed, process)
        before = self.done
        reached(lambda: self.done > before, process)

    @property
    def claim(self) -> Claim | None:
        """The newest."""
        replayed = replayed_run(LocalStorage(self.output))
        return replayed.newest_claim if replayed else None

    @property
    def coordinator(self) -> int:
        """The process that holds the run, or held it last."""
        claim = self.claim
        assert claim is not None
        return claim.pid

    def engines(self, claim: Claim) -> list[int]:
        """The processes of that session's engines."""
        found = ((pid, Mark.parse(text)) for pid, text in marked.marked().items())
        return [pid for pid, mark in found if mark is not None and mark.session == claim.session]

    @property
    def done(self) -> int:
        replayed = replayed_run(LocalStorage(self.output))
        return replayed.totals.done if replayed else 0

    @property
    def holder_state(self) -> str | None:
        path = self.output / "holder.json"
        return str(json.loads(path.read_text())["state"]) if path.exists() else None


@contextmanager
def cluster_beside(folder: Path) -> Iterator[RayHead]:
    (folder / "other").mkdir()
    cluster = RayHead(folder / "other")
    try:
        yield cluster
    finally:
        cluster.end()


def written(spec: RunSpec, folder: Path, name: str = "spec.yaml") -> str:
    (folder / name).write_text(dump_spec(spec), encoding="utf-8")
    return name


def test_the_driver_killed_at_each_step(
    tmp_path: Path, inputs: Path, ray_head: RayHead, undisturbed: list[dict[str, Any]]
) -> None:
    run = Run(tmp_path, inputs, ray_head)
    for step in (run.is_planning, run.is_planned, run.is_claimed, run.loads_engines):
        with run.command() as process:
            run.until(step, process)
            process.kill()
    port = free_port()
    with run.command(spec=run.with_endless_rows(port)) as process:
        run.until_rows(process)
        process.terminate()
        reached(lambda: sample(scraped(port), "regen_phase", phase="draining") == 1.0, process)
        process.kill()
    for step in (run.is_driven, run.is_sealing):
        with run.command() as process:
            run.until(step, process)
            process.kill()
    run.finish(undisturbed)


def test_sigterm_at_each_step(
    tmp_path: Path, inputs: Path, ray_head: RayHead, undisturbed: list[dict[str, Any]]
) -> None:
    """Before there is anything to drain it ends the command at once; later the session ends in order, with code 9."""
    run = Run(tmp_path, inputs, ray_head)
    endings = []
    for step in (run.is_planning, run.is_planned, run.is_claimed, run.loads_engines):
        with run.command() as process:
            run.until(step, process)
            process.terminate()
            endings.append(process.wait(timeout=PATIENCE_SECONDS))
    assert endings[0] == -signal.SIGTERM
    assert endings[2:] == [9, 9]
    assert run.holder_state == "drained"
    with run.command() as process:
        run.until(run.is_sealing, process)
        process.terminate()
        process.wait(timeout=PATIENCE_SECONDS)
    run.finish(undisturbed)


def test_coordinator_replicas_and_their_children_killed_at_each_step(
    tmp_path: Path, inputs: Path, ray_head: RayHead, undisturbed: list[dict[str, Any]]
) -> None:
    """All within one session: nobody starts the command again. A slot's first engine hangs: only kills end the run."""
    run = Run(tmp_path, inputs, ray_head, start_seconds=3.0, faults=[HANGS])
    with run.command() as process:
        reached(lambda: bool(ray_head.titled(COORDINATOR)), process)  # claiming, or not even that
        kill(ray_head.titled(COORDINATOR)[0])
        run.until(run.loads_engines, process)
        reached(lambda: exists(run.coordinator), process)  # the restarted one has claimed it
        kill(run.coordinator)
        kill(ray_head.titled(REPLICA)[0])  # its device is held by a process that outlives it, if nobody helps
        run.until_rows(process)
        kill(ray_head.titled(REPLICA)[-1])
        for engine in marked_processes(LocalStorage(run.output).url):  # and the other replica's engine: none is left
            kill(engine)
        assert process.wait(timeout=PATIENCE_SECONDS) == 0
    run.check(undisturbed)


def test_a_frozen_coordinator_wakes_up_after_somebody_else_has_taken_over(
    tmp_path: Path, inputs: Path, ray_head: RayHead, undisturbed: list[dict[str, Any]]
) -> None:
    run = Run(tmp_path, inputs, ray_head, step_seconds=0.2, start_seconds=0.0, device=None)
    with run.command() as first:
        run.until_rows(first)
        zombie = run.coordinator
        kill(zombie, signal.SIGSTOP)
        with run.command("--take-over") as second:
            run.until_rows(second)
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
            run.until_rows(process)
            engines = marked_processes(LocalStorage(run.output).url)
            for pid in lost.part("raylet") + lost.part("gcs_server"):
                kill(pid)
            with cluster_beside(tmp_path) as run.head:
                assert process.wait(timeout=PATIENCE_SECONDS) not in (0, 9)
                run.finish(undisturbed)
                assert not any(exists(pid) for pid in engines)
    finally:
        lost.end()
