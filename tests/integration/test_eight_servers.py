"""Eight servers in one run, each with its own trouble: every row ends once, with what its server has sampled.

Not one of the answers is waited for by the clock: what decides is how fast the servers are beside one another.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from regen.engines import openai, served_failures
from regen.records import Completion, Phase, RetryReason
from regen.run.commands.check import check
from regen.run.driver import Driver
from regen.run.local import LocalCluster
from regen.run.session import seal_run
from regen.spec import FakeEngineSpec
from tests.runs import begin_run, determined, drive, make_spec, shard_table
from tests.served.answers import Answers, Wanted
from tests.served.faults import Fault, Kind, Script
from tests.served.sglang_server import SglangServer
from tests.served.stand import Stand, standing
from tests.served.vllm_server import VllmServer

ROWS = 320
FAKE = {"slots": 8, "max_model_len": 2048, "answer_tokens": 12}
FAST, SLOW = 0, 1
AWAY, RESTARTED = 6, 7


class Noted(Answers):
    """Remembers what was sampled, by prompt."""

    def __init__(self, **changes: Any) -> None:
        super().__init__(FakeEngineSpec.model_validate({**FAKE, **changes}))
        self.sampled: dict[tuple[int, ...], set[tuple[int, ...]]] = defaultdict(set)

    async def make(self, wanted: Wanted) -> Completion:
        made = await super().make(wanted)
        self.sampled[wanted.prompt].add(made.token_ids)
        return made


def now_and_then(kind: Kind, seed: int, share: float = 0.15, **more: Any) -> Fault:
    return Fault(kind, share=share, times=None, seed=seed, **more)


def troubles(seed: int) -> list[Script]:
    """By slot. The first two have none: they are there to be compared."""
    draw = random.Random(seed)
    seeds = iter(draw.sample(range(10**6), 32))
    busy = [now_and_then(Kind.STATUS, next(seeds), status=429, retry_after=wait) for wait in (None, "0")]
    unreadable = (Kind.BROKEN, Kind.NOT_OBJECT, Kind.MISSING, Kind.FEWER_IDS, Kind.ODD_IDS, Kind.TEXT_IDS)
    cut = (Kind.DROP, Kind.TRUNCATE, Kind.SHORT)
    return [
        Script(),
        Script(),
        Script(now_and_then(Kind.STALL, next(seeds), tokens=4), now_and_then(Kind.HANG, next(seeds), share=0.05)),
        Script(*busy, now_and_then(Kind.STATUS, next(seeds), status=503)),
        Script(*(now_and_then(kind, next(seeds), share=0.05) for kind in unreadable)),
        Script(*(now_and_then(kind, next(seeds), share=0.1, tokens=draw.choice((0, 4, 8))) for kind in cut)),
        Script(now_and_then(Kind.STATUS, next(seeds), status=500)),
        Script(),
    ]


def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai, "START_RETRY_SECONDS", 0.05)
    monkeypatch.setattr(served_failures, "FIRST_WAIT_SECONDS", 0.02)
    monkeypatch.setattr(served_failures, "LONGEST_WAIT_SECONDS", 0.1)


def once(condition: Callable[[], bool], then: Callable[[], None], over: threading.Event) -> threading.Thread:
    """Looks until it is so, in a thread, and acts."""

    def watch() -> None:
        while not condition():
            if over.wait(0.02):
                return
        then()

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


def go_away(stand: Stand, over: threading.Event) -> None:
    stand.down()
    over.wait(1.0)
    stand.up()


def restart_with_another_model(stand: Stand, server: VllmServer | SglangServer) -> None:
    stand.down()
    server.served_name, server.answers = "another", Noted(vocabulary=(65, 80))
    stand.up()


@pytest.mark.parametrize("seed", [1])
def test_every_row_ends_once_with_what_its_server_has_sampled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    quickly(monkeypatch)
    kinds = (VllmServer, VllmServer, VllmServer, SglangServer, VllmServer, SglangServer, VllmServer, SglangServer)
    answers = [Noted() for _ in kinds]
    speeds = [600.0, 60.0, 300.0, 300.0, 300.0, 300.0, 300.0, 300.0]
    servers = [
        kind(answers=answer, script=script, tokens_per_second=speed)
        for kind, answer, script, speed in zip(kinds, answers, troubles(seed), speeds, strict=True)
    ]
    over, said = threading.Event(), list[str]()
    with ExitStack() as stack:
        stands = [stack.enter_context(standing(server)) for server in servers]
        endpoints = [{"url": stand.url, "model": "target"} for stand in stands]
        engine = {
            "kind": "openai",
            "endpoints": endpoints,
            "slots": 8,
            "max_model_len": 2048,
            "token_timeout_seconds": 1.0,
            "stall_timeout_seconds": 30,
            "outage_seconds": 0.5,
        }
        made = make_spec(tmp_path, rows=ROWS, sampling={"temperature": 0.0})
        raw = made.model_dump(exclude_unset=True) | {"engine": engine, "output": str(tmp_path / "served")}
        begun = begin_run(type(made).model_validate(raw))
        havoc = [
            once(lambda: len(servers[AWAY].desk.bodies) > 15, lambda: go_away(stands[AWAY], over), over),
            once(
                lambda: len(servers[RESTARTED].desk.bodies) > 15,
                lambda: restart_with_another_model(stands[RESTARTED], servers[RESTARTED]),
                over,
            ),
        ]
        driver = Driver(LocalCluster(), begun.worker_setup, lambda status: None, said.append)
        try:
            status = asyncio.run(asyncio.wait_for(driver.run(), 100))
        finally:
            over.set()
            for thread in havoc:
                thread.join()
    seal_run(begun.storage, begun.worker_setup.run)
    assert status.phase is Phase.FINISHED
    found = check(begun.storage)
    assert found.is_right, found.summary()
    rows = shard_table(tmp_path / "served").to_pylist()
    assert [row["ordinal"] for row in rows] == list(range(ROWS))
    assert sum(status.totals.by_status().values()) == ROWS
    alone = begin_run(made)
    asyncio.run(drive(LocalCluster(), alone))
    seal_run(alone.storage, alone.worker_setup.run)
    assert determined(tmp_path / "served") == determined(tmp_path / "run")
    check_ids(rows, answers)
    by_slot = Counter(row["observed"]["replica"] for row in rows)
    assert by_slot[FAST] > by_slot[SLOW] > 0, by_slot  # by how much, the machine decides
    assert any(
        line.startswith(f"replica {RESTARTED} is gone: SpecError: the model 'target' is not") for line in said
    ), said
    check_attempts(rows, status.tally.retries)


def check_ids(rows: list[dict[str, Any]], answers: list[Noted]) -> None:
    for row in rows:
        sampled = answers[row["observed"]["replica"]].sampled
        for made in row["generations"]:
            assert tuple(made["completion_token_ids"]) in sampled[tuple(made["prompt_token_ids"])]


def check_attempts(rows: list[dict[str, Any]], retries: Mapping[RetryReason, int]) -> None:
    """Only what a server that lives does to one request, five times in a row, costs an attempt: hardly ever here."""
    lost = sum(row["observed"]["attempts"] - 1 for row in rows)
    assert lost == sum(retries.values()) <= 3, retries
