"""The documents are true where a machine can tell: commands, targets, links, columns."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from regen.cli import app
from regen.rows import SCHEMA

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("benchmarks/*.md"), *ROOT.glob("examples/*.md")]
)
CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)

pytestmark = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


def code(path: Path) -> str:
    return "\n".join(CODE.findall(path.read_text(encoding="utf-8")))


def commands() -> set[str]:
    return {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}


def test_every_command_that_is_shown_exists(path: Path) -> None:
    shown = set(re.findall(r"(?:^|[`\s/])regen ([a-z]+)\b", code(path)))
    assert shown <= commands()


def test_every_make_target_that_is_shown_exists(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"(?:^|`|; )make ([a-z-]+)\b", code(path), re.MULTILINE)) <= targets


def test_every_relative_link_leads_somewhere(path: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text(encoding="utf-8"))
    assert [link for link in links if not (path.parent / link).exists()] == []


def test_every_column_that_is_shown_exists(path: Path) -> None:
    shown = re.findall(r'rows\[0\]\["(\w+)"\](?:\[0\])?(?:\["(\w+)"\])?(?:\[0\])?(?:\["(\w+)"\])?', code(path))
    for column, *fields in shown:
        inner = SCHEMA.field(column).type
        for name in filter(None, fields):
            inner = getattr(inner, "value_type", inner)
            inner = inner.field(name).type


def test_every_file_of_the_tree_that_is_named_exists(path: Path) -> None:
    named = re.findall(r"`(regen/[\w/]+\.py|tests/[\w/]+\.py|examples/[\w/-]+\.\w+)`", path.read_text(encoding="utf-8"))
    assert [name for name in named if "NAME" not in name and not (ROOT / name).exists()] == []


def test_every_test_that_is_named_exists(path: Path) -> None:
    named = re.findall(r"`?(tests/[\w/]+\.py)::(\w+)`?", path.read_text(encoding="utf-8"))
    assert [name for name in named if f"def {name[1]}(" not in _text(ROOT / name[0])] == []


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""
