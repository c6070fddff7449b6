"""Whole runs over stand-in servers: what they write is what a run over the fake engine in process writes."""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from regen.engines import openai, served_failures
from regen.engines.openai import OpenaiEngine
from regen.errors import ExitCode, PreflightRefused, SpecError, SpeculationFailed
from regen.records import Completion, CoordinatorStatus, Phase, ReplicaState
from regen.run.commands.doctor_servers import examine_servers
from regen.run.commands.evaluate import evaluate
from regen.run.driver import Driver
from regen.run.local import LocalCluster
from regen.run.replica import build_engine
from regen.run.session import seal_run
from regen.run.start import Begun
from regen.spec import FakeEngineSpec, OpenaiEngineSpec, SpeculationSpec
from regen.speculative.doctor import checks
from regen.store.committed import CommittedRows
from tests.heads import eagle3
from tests.needles import holding
from tests.runs import begin_run, determined, drive, make_spec, shard_table, with_draft
from tests.served.answers import Answers
from tests.served.faults import Fault, Kind, Script
from tests.served.sglang_server import SglangServer
from tests.served.stand import standing
from tests.served.vllm_server import VllmServer, error_body
from tests.toy_target import VOCAB_SIZE

FAKE = {"slots": 8, "max_model_len": 2048, "answer_tokens": 12}
NGRAM = {"method": "ngram", "num_tokens": 3, "calibrate": "off", "gate": "fail", "guard": "fail"}
SECRET = "s3cret-of-the-server"
SAMPLING = {"temperature": 0.0}


def finish(begun: Begun) -> CoordinatorStatus:
    status = asyncio.run(asyncio.wait_for(drive(LocalCluster(), begun), 60))
    seal_run(begun.storage, begun.worker_setup.run)
    return status


def over_servers(
    folder: Path, *endpoints: dict[str, Any], engine: dict[str, Any] | None = None, **sections: Any
) -> tuple[Begun, Path]:
    of_engine = {
        "kind": "openai",
        "endpoints": list(endpoints),
        "slots": 8,
        "max_model_len": 2048,
        **(engine or {}),
    }
    made = make_spec(folder, rows=30, sampling=SAMPLING)
    raw = made.model_dump(exclude_unset=True) | {"engine": of_engine, "output": str(folder / "served"), **sections}
    begun = begin_run(type(made).model_validate(raw))
    return begun, Path(begun.worker_setup.run.run_url)


def committed(begun: Begun) -> int:
    return sum(len(table) for table in CommittedRows(begun.storage, begun.plan_summary.rows).tables(("row_id",)))


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
    places = [url.removeprefix("http://") for url in urls]
    named = {f"vllm 0.32.0 at {places[0]} (server)", f"sglang 0.5.23 at {places[1]} (server)"}
    assert {row["observed"]["engine"] for row in rows} <= named
    assert determined(folder) == in_process(tmp_path)
    out, err = capfd.readouterr()
    assert (holding(SECRET, folder), SECRET in out + err) == ([], False)


def test_the_ids_that_a_replica_takes_from_a_server_are_the_targets(tmp_path: Path) -> None:
    """As many as the larger of tokenizer and config has: the output layer may be padded."""
    begun, _ = over_servers(tmp_path, {"url": "http://127.0.0.1:9", "model": "target"})
    for in_config, largest in ((300, 300), (10, VOCAB_SIZE)):
        config = begun.worker_setup.model_folder / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | {"vocab_size": in_config}))
        engine = build_engine(begun.worker_setup)
        assert isinstance(engine, OpenaiEngine)
        assert engine._vocabulary_of() == largest


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


def test_a_servers_rows_are_not_limited_by_what_its_cache_does(tmp_path: Path) -> None:
    """It sets back others' requests, too."""
    server = VllmServer(answers=Answers(FakeEngineSpec.model_validate(FAKE)), gives_counts=True)
    with standing(server) as stand, mock.patch("regen.run.worker.InFlight") as limit:
        begun, _ = over_servers(tmp_path, {"url": stand.url, "model": "target"})
        assert finish(begun).phase is Phase.FINISHED
    assert not limit.called


def test_a_server_that_does_not_fit_ends_the_run_with_what_to_change(tmp_path: Path) -> None:
    server = VllmServer(answers=Answers(FakeEngineSpec.model_validate({**FAKE, "max_model_len": 1024})))
    with standing(server) as stand:
        begun, _ = over_servers(tmp_path, {"url": stand.url, "model": "target"})
        with pytest.raises(SpecError, match="its context is 1024 tokens"):
            finish(begun)
    assert server.desk.bodies == []


class Parrot(VllmServer):
    """Tells whoever it refuses with what key he came."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.desk.refusal = lambda status, message: error_body(status, f"{message} Your key is {self.api_key}")


def test_a_key_that_a_server_sends_back_is_in_no_file_and_in_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """One row is refused with the server's words; the replica is turned away in its midst, and comes back."""
    monkeypatch.setenv("REGEN_TEST_KEY", SECRET)
    monkeypatch.setattr(openai, "START_RETRY_SECONDS", 0.01)
    struck = ((4, 400), (6, 500), (14, 401))
    faults = [Fault(Kind.STATUS, numbers=frozenset({number}), status=status) for number, status in struck]
    server = Parrot(answers=Answers(FakeEngineSpec.model_validate(FAKE)), script=Script(*faults), api_key=SECRET)
    said: list[str] = []
    with standing(server) as stand:
        begun, folder = over_servers(tmp_path, {"url": stand.url, "model": "target", "api_key_env": "REGEN_TEST_KEY"})
        driver = Driver(LocalCluster(), begun.worker_setup, lambda status: said.append(repr(status)), said.append)
        asyncio.run(asyncio.wait_for(driver.run(), 60))
        seal_run(begun.storage, begun.worker_setup.run)
    details = [row["detail"] for row in shard_table(folder).to_pylist() if row["status"] == "rejected"]
    assert ["Your key is [key]" in detail for detail in details] == [True]
    assert any("ServerUnavailable" in line and "status 401" in line for line in said)
    out, err = capfd.readouterr()
    assert holding("Your key is [key]", folder)
    assert (holding(SECRET, folder), SECRET in "".join([out, err, *said, repr(begun)])) == ([], False)


def founding_fault(folder: Path) -> SglangServer:
    """`EAGLE` for an EAGLE-3 head: it starts, it answers, and every draft token is rejected."""
    draft = eagle3().write(folder / "head")
    eagle = SpeculationSpec(method="eagle3", draft=str(draft), num_tokens=3)
    return SglangServer(
        answers=Answers(FakeEngineSpec.model_validate(FAKE), eagle), algorithm="EAGLE", draft=str(draft)
    )


@pytest.mark.parametrize("has_section", [True, False])
def test_the_founding_fault_at_a_server_ends_the_run_before_a_row_is_made(tmp_path: Path, has_section: bool) -> None:
    server = founding_fault(tmp_path)
    section = with_draft(make_spec(tmp_path), tmp_path, guard="fail").speculation if has_section else None
    assert not has_section or (section is not None and "method-mismatch" not in section.accept)
    said: list[str] = []
    with standing(server) as stand:
        begun, _ = over_servers(
            tmp_path, {"url": stand.url, "model": "target"}, speculation=section.model_dump() if section else None
        )
        driver = Driver(LocalCluster(), begun.worker_setup, watch=lambda status: None, log=said.append)
        with pytest.raises(PreflightRefused) as refused:
            asyncio.run(asyncio.wait_for(driver.run(), 60))
    assert refused.value.exit_code is ExitCode.PREFLIGHT
    assert "method-mismatch: the server runs speculative_algorithm 'EAGLE'" in str(refused.value)
    assert "Restart it with --speculative-algorithm EAGLE3." in str(refused.value)
    assert server.desk.bodies == []
    assert committed(begun) == 0
    assert any("it gets no other engine" in line for line in said)


def test_a_fault_that_is_accepted_is_said_and_goes_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    server = SglangServer(
        answers=Answers(FakeEngineSpec.model_validate(FAKE), SpeculationSpec.model_validate(NGRAM)),
        algorithm="NGRAM",
        arguments={"speculative_accept_threshold_single": 0.5},
    )
    brief = {"rows": 8, "drafts": 1, "max_tokens": 8, "canary_rows": 0}
    with standing(server) as stand:
        endpoint = {"url": stand.url, "model": "target"}
        speculation = {**NGRAM, "warmup": brief, "accept": ["lossy-verification"]}
        assert finish(over_servers(tmp_path, endpoint, speculation=speculation)[0]).phase is Phase.FINISHED
    assert "warning: lossy-verification: speculative_accept_threshold_single is 0.5" in capfd.readouterr().err


class Boaster(SglangServer):
    """Its own average is that of a good head, whatever its counts are."""

    def _spec_counts(self, made: Completion, rank: int) -> dict[str, Any]:
        counts = super()._spec_counts(made, rank)
        return {**counts, "spec_accept_length": 2.5} if counts else {}


class HalfDead(SglangServer):
    """Of two engines behind one address, one accepts nothing."""

    def _spec_counts(self, made: Completion, rank: int) -> dict[str, Any]:
        counts = super()._spec_counts(made, rank)
        if not counts or not rank:
            return counts
        none_at_all = [counts["spec_verify_ct"], 0, 0, 0]
        counts |= {"spec_correct_drafts_histogram": none_at_all, "spec_accept_histogram": none_at_all}
        return {**counts, "spec_num_correct_drafts": 0, "spec_accepted_drafts": 0}


def test_a_dead_rank_behind_a_healthy_mean_ends_the_warm_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "LEAST_DRAFTS", 5)
    server = HalfDead(
        answers=Answers(FakeEngineSpec.model_validate(FAKE), SpeculationSpec.model_validate(NGRAM)),
        algorithm="NGRAM",
        ranks=2,
    )
    with standing(server) as stand:
        brief = {"rows": 30, "drafts": 60, "max_tokens": 64, "canary_rows": 0}
        begun, _ = over_servers(tmp_path, {"url": stand.url, "model": "target"}, speculation={**NGRAM, "warmup": brief})
        with pytest.raises(PreflightRefused, match="rank-dead: 1 of 2 ranks are dead"):
            finish(begun)
    assert committed(begun) == 0


def test_the_gate_believes_raw_counts_and_not_the_servers_average(tmp_path: Path) -> None:
    fake = FakeEngineSpec.model_validate({**FAKE, "faults": [{"kind": "reject_drafts"}]})
    server = Boaster(answers=Answers(fake, SpeculationSpec.model_validate(NGRAM)), algorithm="NGRAM")
    with standing(server) as stand:
        brief = {"rows": 30, "drafts": 40, "max_tokens": 64, "canary_rows": 0}
        begun, _ = over_servers(tmp_path, {"url": stand.url, "model": "target"}, speculation={**NGRAM, "warmup": brief})
        with pytest.raises(SpeculationFailed, match=r"accept length 1\.0"):
            finish(begun)
    assert committed(begun) == 0


def test_a_draft_that_only_the_servers_have_is_no_reason_not_to_begin(tmp_path: Path) -> None:
    section = {"method": "eagle3", "draft": "/only/there", "num_tokens": 3, "calibrate": "off", "guard": "fail"}
    servers = {"kind": "openai", "endpoints": [{"url": "http://127.0.0.1:1"}], "max_model_len": 2048}
    said: list[str] = []
    made = make_spec(tmp_path, rows=3)
    raw = made.model_dump(exclude_unset=True) | {"engine": servers, "speculation": section}
    begin_run(type(made).model_validate(raw), said)
    assert any("draft-unread" in line for line in said)
    with pytest.raises(SpecError, match="was not found"):
        begin_run(
            type(made).model_validate({**raw, "engine": made.engine.model_dump(), "output": str(tmp_path / "own")})
        )


def test_doctor_examines_every_server_of_a_spec_and_evaluate_the_first(tmp_path: Path) -> None:
    speculating = with_draft(make_spec(tmp_path), tmp_path, guard="fail").speculation
    assert speculating is not None
    assert speculating.draft is not None
    brief = {"rows": 8, "drafts": 1, "max_tokens": 8, "canary_rows": 0}
    section = {**speculating.model_dump(), "warmup": brief}
    fake = FakeEngineSpec.model_validate(FAKE)
    good, dead = (
        SglangServer(answers=Answers(fake, speculating), algorithm="EAGLE3", draft=speculating.draft, accepted=accepted)
        for accepted in ((2, 1), (0,))
    )
    with standing(good) as one, standing(dead) as two:
        begun, _ = over_servers(tmp_path, {"url": one.url, "model": "target"}, speculation=section)
        assert finish(begun).phase is Phase.FINISHED
        options = {"method": "eagle3", "num_tokens": 3, "accept": speculating.accept}
        found = evaluate(begun.storage, speculating.draft, options, 3, lambda line: None)
        assert one.url.removeprefix("http://") in found.engine.engine
        assert found.total.now.drafts > 0
        endpoints = [{"url": url, "model": "target"} for url in (one.url, two.url, "http://127.0.0.1:1")]
        spec = begun.record.spec.model_copy(
            update={"engine": OpenaiEngineSpec.model_validate({"endpoints": endpoints, "max_model_len": 2048})}
        )
        report = examine_servers(spec, 20.0, lambda line: None)
    assert [visited.report and visited.report.diagnosis.verdict for visited in report.servers][1:] == ["dead", None]
    assert (report.exit_code, report.own) == (ExitCode.PREFLIGHT, None)
    assert [one["server"]["url"] for one in report.to_json()["servers"]] == [end["url"] for end in endpoints]
    assert "Connect" in str(report.servers[2].error)


def test_servers_that_die_and_come_back_cost_no_row_an_attempt_and_no_restart_that_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openai, "START_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(served_failures, "LONGEST_WAIT_SECONDS", 0.05)
    server = VllmServer(answers=Answers(FakeEngineSpec.model_validate(FAKE)), tokens_per_second=150)
    said: list[str] = []
    suspects: list[int] = []
    with standing(server) as stand:
        engine = {"outage_seconds": 0.15, "request_attempts": 2, "restarts": 1}
        begun, folder = over_servers(tmp_path, {"url": stand.url, "model": "target"}, engine=engine)
        cluster = LocalCluster()
        driver = Driver(cluster, begun.worker_setup, lambda status: suspects.append(status.suspects), said.append)

        async def has_finished_a_row() -> bool:
            replica = (await cluster.coordinator.status()).replicas[0] if cluster.coordinator else None
            return bool(replica and replica.state is ReplicaState.RUNNING and replica.last_completion_at)

        async def with_outages() -> CoordinatorStatus:
            work = asyncio.ensure_future(driver.run())
            for outage in (1, 2, 3):
                while not work.done() and not await has_finished_a_row():
                    await asyncio.sleep(0.005)
                await asyncio.to_thread(stand.down)
                while not work.done() and sum("is gone: ServerUnavailable" in line for line in said) < outage:
                    await asyncio.sleep(0.005)
                await asyncio.to_thread(stand.up)
            return await work

        status = asyncio.run(asyncio.wait_for(with_outages(), 60))
        seal_run(begun.storage, begun.worker_setup.run)
    assert (status.phase, status.tally.slots[0].restarts, max(suspects)) == (Phase.FINISHED, 3, 0)
    assert {row["observed"]["attempts"] for row in shard_table(folder).to_pylist()} == {1}
    assert determined(folder) == in_process(tmp_path)
