"""Which clusters are kept on loopback. That it does so is seen by tests/integration/test_command_line.py."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from regen.run.own_cluster import prepare_own_cluster

JOINED, ENGINES, NICENESS = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "VLLM_HOST_IP", "RAY_worker_niceness"


@pytest.mark.parametrize(
    ("address", "surroundings", "expected"),
    [
        (None, {}, "0"),
        ("local", {}, "0"),
        (None, {"RAY_ADDRESS": "local"}, "0"),
        ("auto", {}, None),
        ("10.0.0.1:6379", {}, None),
        (None, {"RAY_ADDRESS": "10.0.0.1:6379"}, None),  # as in a Ray job
        (None, {JOINED: "1"}, "1"),
    ],
)
def test_a_cluster_of_our_own_is_kept_on_loopback_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch, address: str | None, surroundings: dict[str, str], expected: str | None
) -> None:
    for name in (JOINED, ENGINES, NICENESS, "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in surroundings.items():
        monkeypatch.setenv(name, value)
    prepare_own_cluster(address)
    assert os.environ.get(JOINED) == expected
    assert os.environ.get(ENGINES) == ("127.0.0.1" if expected == "0" else None), "where its Ray node is"
    assert os.environ.get(NICENESS) == (None if expected is None else "0"), "a cluster that is joined is its owner's"
    for name in (JOINED, ENGINES, NICENESS):
        os.environ.pop(name, None)


def test_a_niceness_that_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (JOINED, ENGINES, NICENESS):
        monkeypatch.setenv(name, "5")
    prepare_own_cluster("local")
    assert os.environ[NICENESS] == "5"


def test_it_comes_before_ray() -> None:
    """Ray reads the setting when it is imported, and never again."""
    code = "import sys, regen.run.own_cluster, regen.run.command, regen.cli; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
