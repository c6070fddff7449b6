"""Engines of our own and servers that somebody else runs, in one run: each is a replica, and rows do not tell which."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from regen.records import CoordinatorStatus, Phase
from regen.run.driver import Driver
from regen.run.local import LocalCluster
from regen.run.session import seal_run
from regen.run.start import Begun
from regen.spec import FakeEngineSpec, RunSpec, SpeculationSpec
from tests.runs import begin_run, determined, drive, make_spec, shard_table
from tests.served.answers import Answers
from tests.served.sglang_server import SglangServer
from tests.served.stand import Server, standing
from tests.served.vllm_server import VllmServer

# Slow enough for every replica to get rows.
STEP = {"step_seconds": 0.01}
FAKE = {"slots": 8, "max_model_len": 2048, "answer_tokens": 12, **STEP}
NGRAM = {"method": "ngram", "num_tokens": 3, "calibrate": "off", "gate": "fail", "guard": "fail"}
BRIEF = {"rows": 8, "drafts": 1, "max_tokens": 8, "canary_rows": 0}


def finish(begun: Begun) -> CoordinatorStatus:
    status = asyncio.run(asyncio.wait_for(drive(LocalCluster(), begun), 60))
    seal_run(begun.storage, begun.worker_setup.run)
    return status


def spec_of(folder: Path, name: str, endpoints: list[dict[str, Any]], rows: int = 60, **sections: Any) -> RunSpec:
    """One fake engine of our own, and these servers."""
    engine = {"endpoints": endpoints, **sections.pop("engine", {})}
    return make_spec(folder, rows=rows, output=str(folder / name), engine=engine, **sections)


def folder_of(begun: Begun) -> Path:
    return Path(begun.worker_setup.run.run_url)


def test_rows_do_not_depend_on_who_made_them_seeds_and_all(tmp_path: Path) -> None:
    sampling = {"temperature": 0.8, "top_p": 0.9, "top_k": 40, "seed": 11}
    with standing(VllmServer(answers=Answers(FakeEngineSpec.model_validate(FAKE)))) as stand:
        endpoint = {"url": stand.url, "model": "target", "slots": 4}
        mixed = begin_run(spec_of(tmp_path, "mixed", [endpoint], engine=STEP, sampling=sampling))
        status = finish(mixed)
    alone = begin_run(spec_of(tmp_path, "alone", [], sampling=sampling))
    finish(alone)
    assert status.phase is Phase.FINISHED
    assert {slot: stats.slots for slot, stats in status.replicas.items()} == {0: 4, 1: 8}
    made = Counter(row["observed"]["engine"] for row in shard_table(folder_of(mixed)).to_pylist())
    assert set(made) == {f"vllm 0.32.0 at {stand.url.removeprefix('http://')} (server)", "fake"}
    assert min(made.values()) >= 10
    assert determined(folder_of(mixed)) == determined(folder_of(alone))


def test_a_server_is_warmed_up_and_watched_beside_an_engine_of_our_own(tmp_path: Path) -> None:
    engine, speculation = FakeEngineSpec.model_validate(FAKE), SpeculationSpec.model_validate(NGRAM)
    with ExitStack() as stack:
        answers = [Answers(engine, speculation) for _ in range(2)]
        servers: list[Server] = [
            VllmServer(answers=answers[0], gives_counts=True),
            SglangServer(answers=answers[1], algorithm="NGRAM"),
        ]
        endpoints = [{"url": stack.enter_context(standing(one)).url, "model": "target"} for one in servers]
        begun = begin_run(spec_of(tmp_path, "mixed", endpoints, engine=STEP, speculation={**NGRAM, "warmup": BRIEF}))
        status = finish(begun)
    assert status.phase is Phase.FINISHED
    drafts: Counter[int] = Counter()
    for row in shard_table(folder_of(begun)).to_pylist():
        drafts[row["observed"]["replica"]] += sum(one["drafts"] for one in row["observed"]["generations"])
    assert all(drafts[slot] > 0 for slot in range(3)), drafts


def test_a_server_that_does_not_fit_is_left_out_and_the_others_make_the_rows(tmp_path: Path) -> None:
    short = VllmServer(answers=Answers(FakeEngineSpec.model_validate({**FAKE, "max_model_len": 1024})))
    said: list[str] = []
    with standing(short) as stand:
        begun = begin_run(spec_of(tmp_path, "mixed", [{"url": stand.url, "model": "target"}], rows=20))
        status = asyncio.run(Driver(LocalCluster(), begun.worker_setup, lambda status: None, said.append).run())
    assert (status.phase, status.totals.done) == (Phase.FINISHED, 20)
    assert short.desk.bodies == []
    (line,) = said
    assert line.startswith("replica 0 is gone: SpecError: engine.endpoints: ")
    assert "its context is 1024 tokens" in line
    assert line.endswith("it gets no other engine")


def test_a_server_that_gives_garbage_is_dismissed_by_what_the_others_give(tmp_path: Path) -> None:
    long = {"answer_tokens": 150, "answer_spread": 0.1, "step_seconds": 0.001}  # too short a wall is never flagged
    faults = [{"kind": "garbage", "times": 10**6, "lives": 10**6}]
    broken = VllmServer(answers=Answers(FakeEngineSpec.model_validate({**FAKE, **long, "faults": faults})))
    with standing(broken) as stand:
        endpoint = {"url": stand.url, "model": "target"}
        mixed = begin_run(
            spec_of(
                tmp_path, "mixed", [endpoint], rows=100, engine={**long, "restarts": 0}, sampling={"max_tokens": 400}
            )
        )
        status = finish(mixed)
    assert status.phase is Phase.FINISHED
    assert [line.startswith("replica 0: ") for line in status.dismissed] == [True]
    assert {row["observed"]["replica"] for row in shard_table(folder_of(mixed)).to_pylist()} == {1}
