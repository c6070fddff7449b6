"""`regen doctor SPEC`: a spec's own engine, without a run."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from regen.engines.fake import FakeEngine
from regen.errors import EngineStalled, ExitCode
from regen.records import TokenScore
from regen.run.commands.doctor_spec import examine_spec
from regen.spec import RunSpec, dump_spec
from tests.processes import regen_here
from tests.runs import make_spec, with_draft

BRIEF = {"drafts": 100, "max_tokens": 32}


def written(spec: RunSpec, folder: Path) -> str:
    (folder / "spec.yaml").write_text(dump_spec(spec), encoding="utf-8")
    return "spec.yaml"


def speculating(folder: Path, **engine: Any) -> str:
    return written(with_draft(make_spec(folder, rows=3, engine=engine), folder, warmup=BRIEF), folder)


@pytest.mark.parametrize(
    ("engine", "verdict", "code"),
    [
        ({}, "healthy", ExitCode.OK),
        ({"acceptance_by_position": [0.0]}, "dead", ExitCode.PREFLIGHT),
        ({"counters_absent": True}, "absent", ExitCode.PREFLIGHT),
    ],
)
def test_the_verdict_on_a_specs_own_engine(
    tmp_path: Path, engine: dict[str, Any], verdict: str, code: ExitCode
) -> None:
    done = regen_here("doctor", speculating(tmp_path, **engine), "--json", cwd=tmp_path)
    said = json.loads(done.stdout)
    assert (said["verdict"], done.returncode) == (verdict, code)
    assert said["layers"] == [2, 6, 9]
    assert bool(said["causes"]) == (verdict != "healthy")
    assert not (tmp_path / "run").exists()


def test_an_engine_that_never_ends_its_rating_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(engine: FakeEngine, prompt: tuple[int, ...], answer: tuple[int, ...]) -> tuple[TokenScore, ...]:
        await asyncio.Event().wait()
        return ()

    monkeypatch.setattr(FakeEngine, "score", never)
    spec = with_draft(make_spec(tmp_path, rows=3, engine={"stall_timeout_seconds": 0.2}), tmp_path, warmup=BRIEF)
    with pytest.raises(EngineStalled, match="did not end within"):
        examine_spec(spec, 0.5, lambda text: None)


def test_what_files_refuse_starts_no_engine(tmp_path: Path) -> None:
    spec = with_draft(make_spec(tmp_path, rows=3), tmp_path)
    assert spec.speculation is not None
    refused = spec.model_copy(
        update={"speculation": spec.speculation.model_copy(update={"method": "eagle", "accept": []})}
    )
    done = regen_here("doctor", written(refused, tmp_path), "--json", cwd=tmp_path)
    said = json.loads(done.stdout)
    assert (said["verdict"], said["engine"], done.returncode) == ("refused", None, ExitCode.PREFLIGHT)
    assert "method-mismatch" in {finding["code"] for finding in said["findings"]}


def test_without_speculation_there_is_nothing_to_examine(tmp_path: Path) -> None:
    done = regen_here("doctor", written(make_spec(tmp_path, rows=3), tmp_path), cwd=tmp_path)
    assert done.returncode == 0
    assert "off" in done.stdout
