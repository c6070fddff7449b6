"""A real Ray cluster that grows and shrinks under one run: a node joins and goes, and idle replicas leave."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from regen.spec import dump_spec
from tests.chaos.ray_cluster import ENVIRONMENT, REPLICA, RayHead, RayNode
from tests.processes import PATIENCE_SECONDS, REGEN, environment, free_port, reached, regen, started, wait_until
from tests.runs import make_spec, shard_table
from tests.scrapes import sample, scraped

pytestmark = pytest.mark.ray

ROWS = 90
# A node that goes without a word is found out in 2 s instead of 15.
SOON = {"RAY_health_check_initial_delay_ms": "0", "RAY_health_check_period_ms": "500"}
# The first row is long: whoever has it works on while the others have nothing left.
LONG = [{"prompt_ids": list(b"row 0."), "ids": [100] * 1500}]
ENGINE: dict[str, Any] = {
    "replicas": "auto",
    "cpus_per_replica": 1,
    "slots": 4,
    "answer_tokens": 30,
    "answer_spread": 0.0,
    "step_seconds": 0.05,
    "answers": LONG,
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


def test_a_node_joins_and_goes_in_the_middle_of_a_run_and_idle_replicas_leave_at_its_tail(
    tmp_path: Path, head: RayHead
) -> None:
    port = free_port()
    prompts: list[dict[str, Any]] = [{"prompt": f"say row {number}."} for number in range(ROWS)]
    sampling = {"max_tokens": 1800, "seed": 7}
    spec = make_spec(tmp_path, rows=prompts, engine=ENGINE, sampling=sampling, metrics={"port": port})
    (tmp_path / "spec.yaml").write_text(dump_spec(spec), encoding="utf-8")

    def value(name: str, **labels: str) -> float:
        return sample(scraped(port), name, **labels)

    def is_at_work(replica: int) -> bool:
        return value("regen_replica_running_rows", replica=str(replica)) > 0

    with started([*REGEN, "run", "spec.yaml", "--address", head.address], cwd=tmp_path, more=ENVIRONMENT) as process:
        reached(lambda: is_at_work(0) and is_at_work(1), process)
        wait_until(lambda: value("regen_replicas_pending") == 1)
        assert value("regen_replicas_wanted") == 3, "one more than there is room for"
        node = RayNode(head, cpus=1)
        try:
            reached(lambda: is_at_work(2), process)
            wait_until(lambda: value("regen_replicas_wanted") == 4)
        finally:
            node.end()
        wait_until(lambda: value("regen_replica_up", replica="2") == 0)
        wait_until(lambda: value("regen_replica_state", state="released", replica="1") == 1, seconds=PATIENCE_SECONDS)
        assert value("regen_phase", phase="running") == 1, "before the run's end"
        wait_until(lambda: len(head.titled(REPLICA)) == 1)
        assert free_cpus(head) == 1
        assert value("regen_replicas_wanted") == 1
        assert value("regen_rows_suspected") == 0
        assert process.wait(timeout=PATIENCE_SECONDS) == 0
        said = process.communicate()[0]
    assert "through no fault of its own: NodeLost" in said
    assert regen("verify", "run", cwd=tmp_path).returncode == 0
    rows = shard_table(tmp_path / "run").to_pylist()
    assert [row["ordinal"] for row in rows] == list(range(ROWS))
    assert {row["observed"]["attempts"] for row in rows} == {1}
    made = Counter(row["observed"]["replica"] for row in rows)
    assert made.keys() >= {0, 1}
