"""Trainers as they are on PyPI, each in an environment of its own below `.cache/trainers`, made when it is missing.

Installed without dependencies: the environment sees the packages of the one that the tests run in (a `.pth` file), so
no second PyTorch is fetched. Its own packages come first, and nothing is installed into the tests' environment. Costs
seconds, once for each trainer and version.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
SCRIPTS = Path(__file__).resolve().parent / "trainer_side"
INSTALL_SECONDS = 300
READ_SECONDS = 180

REQUIREMENTS = {
    "speculators": ("speculators==0.9.0", "hs-connectors==0.9.0", "loguru>=0.7.2,<=0.7.3"),
    "specforge": ("specforge==0.2.0",),
    "automodel": ("nemo-automodel==0.7.0",),
}


class NotInstallable(Exception):
    """The trainer cannot be fetched here: there is no network, or no package index."""


def trainer_environment(name: str) -> Path:
    """The folder of the trainer's environment. Raises NotInstallable."""
    requirements = REQUIREMENTS[name]
    folder = REPOSITORY / ".cache" / "trainers" / f"{requirements[0].replace('==', '-')}-py{sys.version_info[1]}"
    stamp = folder / "is-complete"
    wanted = "\n".join([*requirements, sys.executable])
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        _make(folder, requirements)
        stamp.write_text(wanted, encoding="utf-8")
    return folder


def run_in(environment: Path, words: Sequence[str | Path], cwd: Path) -> str:
    """The output of a program of the environment, which must end with 0. Caches of datasets lie below `cwd`."""
    program = environment / "bin" / str(words[0])
    done = subprocess.run(
        [program, *words[1:]],
        cwd=cwd,
        env=os.environ | {"HF_HOME": str(cwd / "hf"), "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=READ_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def read_by(environment: Path, script: str, arguments: Sequence[str | Path], cwd: Path) -> Any:
    """What a script of `tests/trainer_side` finds out with the trainer's code: JSON in its last argument's file."""
    found = cwd / f"{script}.found.json"
    run_in(environment, ["python", SCRIPTS / script, *arguments, found], cwd)
    return json.loads(found.read_text(encoding="utf-8"))


def _make(folder: Path, requirements: Sequence[str]) -> None:
    python = folder / "bin" / "python"
    subprocess.run(
        [sys.executable, "-m", "venv", "--clear", "--without-pip", folder], check=True, timeout=INSTALL_SECONDS
    )
    paths = {"base": str(folder), "platbase": str(folder)}
    site = Path(sysconfig.get_path("purelib", "venv", vars=paths))
    (site / "tests-environment.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(
        [*pip, "--no-deps", "--ignore-installed", *requirements],
        capture_output=True,
        text=True,
        timeout=INSTALL_SECONDS,
    )
    if done.returncode != 0:
        raise NotInstallable(f"{' '.join(requirements)}: {done.stderr.strip()[-500:]}")
