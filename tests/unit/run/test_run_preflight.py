"""Preflight over a spec: real files, the plan's prompts, and what `run` does with what it finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from regen.data.target import resolve_target
from regen.errors import PreflightRefused, SpecError
from regen.run.speculation.preflight import examine, refuse, require_healthy
from regen.run.start import StartOptions, begin
from regen.spec import RunSpec
from regen.speculative.evidence import Finding, Severity
from regen.store.local import LocalStorage
from tests.heads import eagle3
from tests.runs import make_spec
from tests.toy_target import CONFIG

REFUSALS = ("method-mismatch",)
SEVERITIES = (Severity.REFUSE, Severity.WARN, Severity.NOTE, Severity.REFUSE)
WIDTH, VOCABULARY = int(str(CONFIG["hidden_size"])), int(str(CONFIG["vocab_size"]))


def eagle_head(folder: Path, **config: Any) -> Path:
    """A head for the toy target that names no tensor's size twice: whole enough for what is asked here."""
    head = eagle3()
    head.config |= {"hidden_size": WIDTH, "vocab_size": VOCABULARY, **config}
    return head.write(folder)


def found(spec: RunSpec) -> dict[str, Finding]:
    findings = examine(spec, resolve_target(spec.target), LocalStorage(Path(spec.output)))
    return {finding.code: finding for finding in findings}


def spec_with(folder: Path, draft: Path | str | None, **speculation: Any) -> RunSpec:
    return make_spec(folder, speculation={"method": "eagle3", "draft": str(draft), "num_tokens": 3, **speculation})


def test_without_speculation_there_is_nothing_to_find(tmp_path: Path) -> None:
    assert found(make_spec(tmp_path)) == {}


def test_a_draft_that_is_nowhere_is_an_error_of_the_spec(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"speculation\.draft: 'nobody/nothing' is no folder"):
        found(spec_with(tmp_path, "nobody/nothing"))


def test_the_share_of_prompts_beyond_is_known_once_there_is_a_plan(tmp_path: Path) -> None:
    draft = eagle_head(tmp_path / "draft", max_position_embeddings=40)
    speculation = {"method": "eagle", "draft": str(draft), "num_tokens": 3, "accept": list(REFUSALS)}
    said: list[str] = []
    rows = [{"prompt": "short"}, {"prompt": "long " * 20}, {"prompt": "longer " * 20}, {"prompt": "x"}]
    spec = make_spec(tmp_path, rows, speculation=speculation)
    assert "planned prompts" not in found(spec)["draft-positions"].found
    begin(spec, StartOptions(processes=1), said.append)
    assert "2 of 4 planned prompts (50.0 %)" in found(spec)["draft-positions"].found
    assert any("2 of 4 planned prompts" in line for line in said)


def test_what_refuses_ends_the_start_before_anything_is_written(tmp_path: Path) -> None:
    spec = spec_with(tmp_path, eagle_head(tmp_path / "draft"), method="eagle")
    with pytest.raises(PreflightRefused, match="method-mismatch"):
        begin(spec, StartOptions(processes=1), lambda text: None)
    assert not Path(spec.output).exists()


def test_what_refuses_has_started_no_cluster(tmp_path: Path) -> None:
    spec = spec_with(tmp_path, eagle_head(tmp_path / "draft"), method="eagle")
    wanted: list[RunSpec] = []
    with pytest.raises(PreflightRefused):
        begin(spec, StartOptions(processes=1, before_plan=wanted.append), print)
    assert not wanted


def test_accepted_findings_are_said_and_let_the_run_begin(tmp_path: Path) -> None:
    spec = spec_with(tmp_path, eagle_head(tmp_path / "draft"), method="eagle", accept=list(REFUSALS))
    said: list[str] = []
    begin(spec, StartOptions(processes=1), said.append)
    assert any(line.startswith("warning: method-mismatch") for line in said)


def test_refusals_come_together_and_the_rest_is_said() -> None:
    findings = [
        Finding(code, severity, "found", "why", "fix") for code, severity in zip("abcd", SEVERITIES, strict=True)
    ]
    said: list[str] = []
    with pytest.raises(PreflightRefused) as caught:
        require_healthy(findings, said.append)
    assert [line.split(":")[0] for line in said] == ["warning", "note"]
    assert all(f"{code}: found" in str(caught.value) for code in "ad")
    refuse(findings[1:3])
