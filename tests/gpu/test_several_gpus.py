"""Engines over several GPUs, for real: not in the default run (`pytest -m gpu`), and skipped without two GPUs.

One Ray cluster and the real target; vLLM for GPUs is started in each.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from regen.spec import dump_spec
from tests.chaos.ray_cluster import ENVIRONMENT, RayHead
from tests.processes import regen
from tests.runs import make_spec, shard_table

pytestmark = pytest.mark.gpu

NEEDED = 2
START_SECONDS = 1200.0


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayHead]:
    """Ray counts the machine's GPUs by itself."""
    program = shutil.which("nvidia-smi")
    listed = subprocess.run([program, "-L"], capture_output=True, text=True).stdout if program else ""
    if len(listed.splitlines()) < NEEDED:
        pytest.skip(f"{len(listed.splitlines())} GPUs here, and {NEEDED} are needed")
    head = RayHead(tmp_path_factory.mktemp("cluster"), cpus=8)
    yield head
    head.end()


@pytest.mark.parametrize(
    "sizes",
    [
        {"tensor_parallel_size": 2},
        {"data_parallel_size": 2},
        {"pipeline_parallel_size": 2},
        {"pipeline_parallel_size": 2, "distributed_executor_backend": "ray"},
    ],
    ids=["tensor", "data", "pipeline", "pipeline-in-a-group"],
)
def test_a_run_on_two_gpus_is_complete(head: RayHead, smollm2: Path, tmp_path: Path, sizes: dict[str, Any]) -> None:
    """Greedy, so that all placements should give much the same; here it is held that each gives every row."""
    spec = make_spec(
        tmp_path,
        rows=40,
        target={"model": str(smollm2)},
        sampling={"max_tokens": 32, "temperature": 0.0},
    )
    raw = spec.model_dump(mode="json")
    raw["engine"] = {
        "kind": "vllm",
        "slots": 16,
        "max_model_len": 1024,
        "gpus_per_replica": NEEDED,
        "args": {"gpu_memory_utilization": 0.5, "enforce_eager": True, **sizes},
    }
    (tmp_path / "spec.yaml").write_text(dump_spec(type(spec).model_validate(raw)), encoding="utf-8")
    fits = regen("check", "spec.yaml", "--cluster", head.address, "--json", cwd=tmp_path, more=ENVIRONMENT)
    assert fits.returncode == 0, fits.stdout + fits.stderr
    assert [found for found in json.loads(fits.stdout) if found["severity"] == "refuse"] == []
    ran = regen(
        "run", "spec.yaml", "--address", head.address, cwd=tmp_path, timeout_seconds=START_SECONDS, more=ENVIRONMENT
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert shard_table(tmp_path / "run").num_rows == 40
