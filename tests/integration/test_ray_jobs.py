"""`ray job submit`, `regen submit`, `ray job stop` on a cluster that somebody else started: docs/ray-jobs.md."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from regen.run.session import standing
from regen.spec import FakeEngineSpec, RunSpec, dump_spec
from regen.store.local import LocalStorage
from tests.chaos.ray_cluster import ENVIRONMENT, RayHead
from tests.needles import holding
from tests.processes import PATIENCE_SECONDS, REGEN, environment, free_port, regen, started, wait_until
from tests.runs import make_spec
from tests.served.answers import Answers
from tests.served.stand import standing as standing_server
from tests.served.vllm_server import VllmServer

pytestmark = pytest.mark.ray

BIN = Path(sys.executable).parent
# Of a server that somebody else runs. Only the nodes have it.
KEY_NAME, KEY = "REGEN_TEST_NODE_KEY", "s3cret-of-the-nodes"
DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


@pytest.fixture(scope="module")
def job_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a cluster's job server."""
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"  # `python` of an entrypoint is that of `ray start`
    head = RayHead(tmp_path_factory.mktemp("cluster"), {"PATH": path, KEY_NAME: KEY}, dashboard=True)
    try:
        # It lists jobs before it takes any.
        submit = ("job", "submit", "--address", head.job_server, "--", "true")
        wait_until(lambda: ray(*submit).returncode == 0, seconds=PATIENCE_SECONDS)
        yield head.job_server
    finally:
        head.end()


def ray(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(BIN / "ray"), *arguments],
        cwd=cwd,
        env={**environment(), **ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=240,
    )


def written(spec: RunSpec, folder: Path) -> str:
    (folder / "spec.yaml").write_text(dump_spec(spec), encoding="utf-8")
    return "spec.yaml"


def done(folder: Path) -> int:
    return standing(LocalStorage(folder)).totals.done if (folder / "plan.json").exists() else 0


def job_status(address: str, job: str) -> str:
    text = ray("job", "status", job, "--address", address).stdout
    found = re.search(r"(PENDING|RUNNING|SUCCEEDED|FAILED|STOPPED)", text, re.IGNORECASE)
    return found[1].upper() if found else text


def test_a_submitted_job_is_stopped_in_order_and_continued_by_ray_job_submit(tmp_path: Path, job_server: str) -> None:
    engine = {"replicas": 2, "slots": 8, "step_seconds": 0.15, "answer_tokens": 25}  # more than a minute for all rows
    spec = make_spec(tmp_path, rows=300, engine=engine, checkpoint={"interval_seconds": 1.0})
    submitted = regen("submit", written(spec, tmp_path), "--address", job_server, cwd=tmp_path, more=ENVIRONMENT)
    job = re.search(r"raysubmit_\w+", submitted.stdout)
    assert job, submitted.stderr
    follower = [str(BIN / "ray"), "job", "logs", "--address", job_server, "--follow", job[0]]
    watcher = [*REGEN, "status", "run", "--watch"]
    with started(follower, tmp_path, ENVIRONMENT) as log, started(watcher, tmp_path) as status:
        wait_until(lambda: done(tmp_path / "run") > 0, seconds=PATIENCE_SECONDS)
        log.kill()
        status.kill()
    seen = done(tmp_path / "run")
    wait_until(
        lambda: done(tmp_path / "run") > seen, seconds=PATIENCE_SECONDS
    )  # losing whoever watches changes nothing
    assert ray("job", "stop", job[0], "--address", job_server).returncode == 0
    assert job_status(job_server, job[0]) == "STOPPED"
    assert json.loads((tmp_path / "run" / "holder.json").read_text())["state"] == "drained"
    assert 0 < done(tmp_path / "run") < 300
    written(make_spec(tmp_path, engine={**engine, "step_seconds": 0.0}), tmp_path)
    command = ["python", "-m", "regen", "run", str(tmp_path / "spec.yaml")]
    again = ray("job", "submit", "--address", job_server, "--", *command)
    assert again.returncode == 0, again.stdout + again.stderr
    assert done(tmp_path / "run") == 300
    assert regen("verify", "run", cwd=tmp_path).returncode == 0


def test_a_servers_key_is_that_of_the_nodes_and_shows_nowhere(tmp_path: Path, job_server: str) -> None:
    fake = FakeEngineSpec(slots=8, max_model_len=2048, answer_tokens=8)
    with standing_server(VllmServer(answers=Answers(fake), api_key=KEY)) as stand:
        made = make_spec(tmp_path, rows=8)
        endpoint = {"url": stand.url, "model": "target", "api_key_env": KEY_NAME}
        servers = {"kind": "openai", "endpoints": [endpoint], "slots": 8, "max_model_len": 2048}
        spec = RunSpec.model_validate({**made.model_dump(exclude_unset=True), "engine": servers})
        command = ["python", "-m", "regen", "run", str(tmp_path / written(spec, tmp_path))]
        job = ray("job", "submit", "--address", job_server, "--", *command)
    assert job.returncode == 0, job.stdout + job.stderr
    assert done(tmp_path / "run") == 8
    listed = ray("job", "list", "--address", job_server)
    assert KEY not in job.stdout + job.stderr + listed.stdout + listed.stderr
    assert holding(KEY_NAME, tmp_path / "run")
    assert holding(KEY, tmp_path) == []


def test_deploys_entrypoint_stops_its_job_where_no_new_cluster_would_help(tmp_path: Path, job_server: str) -> None:
    """KubeRay retries a job that has FAILED, on a new cluster. `python` is a stand-in: regen with a bad spec."""
    (scripts,) = (
        part["data"]
        for part in yaml.safe_load_all((DEPLOY / "kuberay" / "common.yaml").read_text(encoding="utf-8"))
        if part["kind"] == "ConfigMap"
    )
    (tmp_path / "run.sh").write_text(scripts["run.sh"], encoding="utf-8")
    (tmp_path / "python").write_text("#!/bin/sh\nexit 3\n", encoding="utf-8")
    (tmp_path / "python").chmod(0o755)
    known = {"PATH": f"{tmp_path}:{BIN}:/bin:/usr/bin", "REGEN_PID_FILE": tmp_path / "pid"}
    set_so = [f"{name}={value}" for name, value in {**known, "REGEN_JOB_SERVER": job_server}.items()]
    command = ["env", *set_so, "sh", str(tmp_path / "run.sh"), "refused"]
    ray("job", "submit", "--address", job_server, "--submission-id", "refused", "--", *command)
    assert job_status(job_server, "refused") == "STOPPED"


def test_a_cluster_that_is_not_there_is_said_in_one_line(tmp_path: Path) -> None:
    spec = written(make_spec(tmp_path, rows=3), tmp_path)
    refused = regen("submit", spec, "--address", f"http://127.0.0.1:{free_port()}", cwd=tmp_path)
    assert refused.returncode == 2
    assert refused.stderr.startswith("regen: the Ray job server at http://127.0.0.1:")
