"""Whole runs over stand-in servers: what they write is what a run over the fake engine in process writes."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from regen.engines import openai, served_failures
from regen.errors import SpecError
from regen.records import CoordinatorStatus, Phase
from regen.run.local import LocalCluster
from regen.run.session import seal_run
from regen.run.start import Begun
from regen.spec import FakeEngineSpec, SpeculationSpec
from tests.runs import begin_run, determined, drive, make_spec, shard_table
from tests.served.answers import Answers
from tests.served.faults import Fault, Kind, Script
from tests.served.sglang_server import SglangServer
from tests.served.stand import standing
from tests.served.vllm_server import VllmServer

FAKE = {"slots": 8, "max_model_len": 2048, "answer_tokens": 12}
NGRAM = {"method": "ngram", "num_tokens": 3, "calibrate": "off", "gate": "fail", "guard": "fail"}
SECRET = "s3cret-of-the-server"
SAMPLING = {"temperature": 0.0}


def finish(begun: Begun) -> CoordinatorStatus:
    status = asyncio.run(asyncio.wait_for(drive(LocalCluster(), begun), 60))
    seal_run(begun.storage, begun.worker_setup.run)
    return status


def over_servers(
    folder: Path, *endpoints: dict[str, Any], outage_seconds: float = 120, **sections: Any
) -> tuple[Begun, Path]:
    engine = {
        "kind": "openai",
        "endpoints": list(endpoints),
        "slots": 8,
        "max_model_len": 2048,
        "outage_seconds": outage_seconds,
    }
    made = make_spec(folder, rows=30, sampling=SAMPLING)
    raw = made.model_dump(exclude_unset=True) | {"engine": engine, "output": str(folder / "served"), **sections}
    begun = begin_run(type(made).model_validate(raw))
    return begun, Path(begun.worker_setup.run.run_url)


def in_process(folder: Path) -> list[dict[str, Any]]:
    begun = begin_run(make_spec(folder, rows=30, sampling=SAMPLING))
    finish(begun)
    return determined(Path(begun.worker_setup.run.run_url))


def test_a_run_over_two_kinds_of_server_is_the_run_in_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("REGEN_TEST_KEY", SECRET)
    busy = Fault(Kind.STATUS, every=5, times=4, after=1, status=429, retry_after="0")
    dropped = Fault(Kind.DROP, every=7, times=2, after=1, tokens=4)
    engine = FakeEngineSpec.model_validate(FAKE)
    with ExitStack() as stack:
        one = VllmServer(answers=Answers(engine), script=Script(busy, dropped), api_key=SECRET)
        two = SglangServer(answers=Answers(engine), script=Script())
        urls = [stack.enter_context(standing(server)).url for server in (one, two)]
        begun, folder = over_servers(
            tmp_path,
            {"url": urls[0], "model": "target", "api_key_env": "REGEN_TEST_KEY"},
            {"url": urls[1], "model": "target"},
        )
        status = finish(begun)
    assert status.phase is Phase.FINISHED
    assert one.script.struck
    rows = shard_table(folder).to_pylist()
    assert {row["observed"]["engine"] for row in rows} <= {"vllm 0.32.0 (server)", "sglang 0.5.23 (server)"}
    assert determined(folder) == in_process(tmp_path)
    written = [path for path in folder.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    out, err = capfd.readouterr()
    assert (written, SECRET in out + err) == ([], False)


def test_a_servers_speculation_is_warmed_up_and_watched_as_an_engines_own(tmp_path: Path) -> None:
    engine = FakeEngineSpec.model_validate(FAKE)
    speculation = SpeculationSpec.model_validate(NGRAM)
    server = VllmServer(answers=Answers(engine, speculation), gives_counts=True)
    brief = {"rows": 8, "drafts": 1, "max_tokens": 8, "canary_rows": 0}
    with standing(server) as stand:
        begun, folder = over_servers(
            tmp_path, {"url": stand.url, "model": "target"}, speculation={**NGRAM, "warmup": brief}
        )
        assert finish(begun).phase is Phase.FINISHED
    seen = [row["observed"]["generations"][0] for row in shard_table(folder).to_pylist()]
    assert sum(one["drafts"] for one in seen) > 0


def test_a_server_that_does_not_fit_ends_the_run_with_what_to_change(tmp_path: Path) -> None:
    server = VllmServer(answers=Answers(FakeEngineSpec.model_validate({**FAKE, "max_model_len": 1024})))
    with standing(server) as stand:
        begun, _ = over_servers(tmp_path, {"url": stand.url, "model": "target"})
        with pytest.raises(SpecError, match="its context is 1024 tokens"):
            finish(begun)
    assert server.desk.bodies == []


def test_a_server_that_goes_away_and_comes_back_costs_an_engine_and_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openai, "START_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(served_failures, "LONGEST_WAIT_SECONDS", 0.05)
    refused = Fault(Kind.STATUS, after=20, times=60, status=503, retry_after="0")
    server = VllmServer(answers=Answers(FakeEngineSpec.model_validate(FAKE)), script=Script(refused))
    with standing(server) as stand:
        endpoint = {"url": stand.url, "model": "target"}
        begun, folder = over_servers(tmp_path, endpoint, outage_seconds=0.1)
        status = finish(begun)
    assert status.phase is Phase.FINISHED
    assert status.tally.slots[0].restarts >= 1
    assert determined(folder) == in_process(tmp_path)
