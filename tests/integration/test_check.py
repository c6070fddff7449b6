"""`regen check`: what it prints and ends with. On a real cluster: the test at the end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from regen.run import cluster as ray_cluster
from regen.run.fleet.fit import Answers, Folder, Node, Questions
from regen.spec import RunSpec, dump_spec
from tests.chaos.ray_cluster import ENVIRONMENT, RayHead
from tests.processes import regen, regen_here
from tests.runs import make_spec


def written(spec: RunSpec, folder: Path) -> str:
    (folder / "spec.yaml").write_text(dump_spec(spec), encoding="utf-8")
    return "spec.yaml"


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A head and a node with four CPUs, on which everything is; the addresses that were joined."""
    joined: list[str] = []

    def survey(questions: Questions, seconds: float) -> list[Node]:
        answers = Answers(
            "3.12.1", dict.fromkeys(questions.packages, "1"), dict.fromkeys(questions.folders, Folder(1, 1, "a"))
        )
        return [Node("head", 0, 0, is_head=True, answers=answers), Node("node", 4, 0, answers=answers)]

    def connect(address: str | None, verbosity: int) -> str:
        joined.append(str(address))
        return "logs"

    for name, replacement in {
        "connect": connect,
        "survey": survey,
        "free_resources": lambda: (4.0, 0.0),
        "disconnect": lambda: joined.append("left"),
    }.items():
        monkeypatch.setattr(ray_cluster, name, replacement)
    return joined


def check(spec: RunSpec, folder: Path, *arguments: str) -> Any:
    return regen_here("check", written(spec, folder), "--cluster", "head:6379", *arguments, cwd=folder)


def test_what_fits_ends_with_0_and_shows_every_node(tmp_path: Path, cluster: list[str]) -> None:
    done = check(make_spec(tmp_path, engine={"replicas": 4, "cpus_per_replica": 1}), tmp_path)
    assert done.returncode == 0, done.stderr
    assert "node" in done.stdout
    assert "room for 4" in done.stdout
    assert cluster == ["head:6379", "left"]


def test_what_does_not_fit_ends_with_3_and_its_finding(tmp_path: Path, cluster: list[str]) -> None:
    spec = make_spec(tmp_path, engine={"replicas": 5, "cpus_per_replica": 1})
    done = check(spec, tmp_path)
    assert done.returncode == 3
    assert "too-few-places" in done.stdout
    (found,) = json.loads(check(spec, tmp_path, "--json").stdout)
    assert (found["code"], found["severity"]) == ("too-few-places", "refuse")
    assert set(found) == {"code", "severity", "found", "why", "fix"}


def test_a_bad_spec_ends_with_2_before_any_cluster_is_joined(tmp_path: Path, cluster: list[str]) -> None:
    (tmp_path / "spec.yaml").write_text("name: x\nnonsense: 1\n")
    assert regen_here("check", "spec.yaml", cwd=tmp_path).returncode == 2
    assert cluster == []


@pytest.mark.ray
def test_the_nodes_of_a_real_cluster_answer(tmp_path: Path, ray_head: RayHead) -> None:
    spec = make_spec(tmp_path, engine={"replicas": 1, "cpus_per_replica": 1})
    missing = spec.model_copy(update={"target": spec.target.model_copy(update={"model": str(tmp_path / "nowhere")})})
    arguments = ("--cluster", ray_head.address, "--json")
    fits = regen("check", written(spec, tmp_path), *arguments, cwd=tmp_path, more=ENVIRONMENT)
    assert (fits.returncode, json.loads(fits.stdout)) == (0, []), fits.stderr
    without = regen("check", written(missing, tmp_path), *arguments, cwd=tmp_path, more=ENVIRONMENT)
    assert without.returncode == 3
    assert [found["code"] for found in json.loads(without.stdout)] == ["weights-missing"]
