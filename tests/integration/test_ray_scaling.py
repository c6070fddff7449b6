"""A real Ray cluster that grows and shrinks under a run: a node joins and goes, and idle replicas leave."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from regen.run.cluster import DRAIN_SECONDS_VARIABLE
from regen.run.local import LocalCluster
from regen.run.session import seal_run
from regen.spec import RunSpec, dump_spec
from tests import virtual_time
from tests.chaos.ray_cluster import ENVIRONMENT, REPLICA, RayHead, RayNode
from tests.processes import (
    PATIENCE_SECONDS,
    REGEN,
    environment,
    free_port,
    reached,
    regen_here,
    started,
    wait_until,
)
from tests.runs import begin_run, drive, make_spec, shard_table
from tests.scrapes import sample, scraped

pytestmark = pytest.mark.ray

# A node that goes without a word is found out in 2 s instead of 15.
SOON = {"RAY_health_check_initial_delay_ms": "0", "RAY_health_check_period_ms": "500"}
ENGINE: dict[str, Any] = {
    "replicas": "auto",
    "cpus_per_replica": 1,
    "slots": 4,
    "max_model_len": 20_000,
    "answer_tokens": 30,
    "answer_spread": 0.0,
    "step_seconds": 0.05,
    "restarts": 0,
}
_FREE = "import ray; ray.init(address=%r, logging_level=40); print('free', ray.available_resources().get('CPU', 0.0))"


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayHead]:
    """Room for two replicas."""
    head = RayHead(tmp_path_factory.mktemp("cluster"), more=SOON, cpus=2)
    yield head
    head.end()


def free_cpus(head: RayHead) -> float:
    """That nobody holds."""
    said = subprocess.run(
        [sys.executable, "-c", _FREE % head.address],
        env={**environment(), **ENVIRONMENT},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout
    found = re.search(r"free ([\d.]+)", said)
    assert found is not None, said
    return float(found[1])


@dataclass
class Run:
    """`regen run` on the cluster, as its metrics show it."""

    folder: Path
    head: RayHead
    rows: int
    spec: RunSpec
    port: int

    def value(self, name: str, **labels: str) -> float:
        return sample(scraped(self.port), name, **labels)

    def is_at_work(self, replica: int) -> bool:
        return self.value("regen_replica_running_rows", replica=str(replica)) > 0

    def started(self) -> AbstractContextManager[subprocess.Popen[str]]:
        command = [*REGEN, "run", "spec.yaml", "--address", self.head.address]
        return started(command, cwd=self.folder, more={**ENVIRONMENT, DRAIN_SECONDS_VARIABLE: "2"})

    def drained(self, process: subprocess.Popen[str]) -> str:
        """Rows take their time here: the rest is made elsewhere. What it has said."""
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=PATIENCE_SECONDS)[0]
        assert process.returncode == 9
        return said

    def finish(self) -> None:
        """By the next session, on virtual time. Nothing was lost, and no attempt was counted."""
        begun = begin_run(self.spec)
        virtual_time.run(drive(LocalCluster(), begun))
        seal_run(begun.storage, begun.worker_setup.run)
        assert regen_here("verify", "run", cwd=self.folder).returncode == 0
        rows = shard_table(self.folder / "run").to_pylist()
        assert [row["ordinal"] for row in rows] == list(range(self.rows))
        assert {row["observed"]["attempts"] for row in rows} == {1}


def run_of(folder: Path, head: RayHead, rows: int, **engine: Any) -> Run:
    prompts: list[dict[str, Any]] = [{"prompt": f"say row {number}."} for number in range(rows)]
    port, sampling = free_port(), {"max_tokens": 15_000, "seed": 7}
    spec = make_spec(folder, rows=prompts, engine={**ENGINE, **engine}, sampling=sampling, metrics={"port": port})
    (folder / "spec.yaml").write_text(dump_spec(spec), encoding="utf-8")
    return Run(folder, head, rows, spec, port)


def test_a_node_that_joins_is_used_and_one_that_goes_costs_no_attempt(tmp_path: Path, head: RayHead) -> None:
    run = run_of(tmp_path, head, rows=1500)
    with run.started() as process:
        reached(lambda: run.is_at_work(0) and run.is_at_work(1), process)
        wait_until(lambda: run.value("regen_replicas_pending") == 1)
        assert run.value("regen_replicas_wanted") == 3, "one more than there is room for"
        node = RayNode(head, cpus=1)
        try:
            reached(lambda: run.is_at_work(2), process)
            wait_until(lambda: run.value("regen_replicas_wanted") == 4)
        finally:
            node.end()
        wait_until(lambda: run.value("regen_replica_up", replica="2") == 0)
        assert run.value("regen_rows_suspected") == 0
        assert run.is_at_work(0)
        said = run.drained(process)
    assert "replica 2 is gone, through no fault of its own: NodeLost" in said
    run.finish()


def test_idle_replicas_leave_at_the_tail_and_what_they_held_is_free(tmp_path: Path, head: RayHead) -> None:
    """Whoever has the first row works on for minutes, while the others have nothing left."""
    long = [{"prompt_ids": list(b"row 0."), "ids": [100] * 12_000}]
    run = run_of(tmp_path, head, rows=40, answers=long)
    with run.started() as process:
        reached(lambda: run.is_at_work(0) and run.is_at_work(1), process)
        reached(lambda: len(head.titled(REPLICA)) == 1, process)
        assert free_cpus(head) == 1
        assert run.value("regen_replicas_wanted") == 1
        assert sum(run.value("regen_replica_state", state="released", replica=one) for one in ("0", "1", "2")) == 2
        assert run.value("regen_phase", phase="running") == 1, "before the run's end"
        said = run.drained(process)
    assert "is gone" not in said
    run.finish()
