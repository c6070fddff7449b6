"""Whole runs on S3: killed and resumed, sealed, verified, exported; with credentials that expire halfway."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from regen.cli import app
from regen.data import plan_writer
from regen.records import CoordinatorStatus, Phase
from regen.run.commands.check import check
from regen.run.commands.export import ExportOptions, export
from regen.run.driver import Driver
from regen.run.local import LocalCluster, LocalCoordinator
from regen.run.session import seal_run, standing
from regen.run.start import Begun, StartOptions, resume
from regen.spec import RunSpec
from regen.store import s3_client
from regen.store.history import read_history
from tests.runs import begin_run, make_spec
from tests.s3_faults import Fault, FaultyProxy, Kind, faulty
from tests.s3_server import KEYS, S3Server

ROWS = 30
# Rows wait for the commit of those before them: no commit takes more than are in the slots, however slow the store is,
# and what a test does after a few rows comes before the last ones.
STEP_BY_STEP = {"interval_seconds": 0.3, "max_bytes": 1, "uncommitted_bytes": 1}


@pytest.fixture
def proxy(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    """Commands that have only a URL find it in the environment."""
    if not s3.is_moto:
        pytest.skip("faults are scripted in front of moto, which takes any key")
    with faulty(s3.endpoint) as running:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", running.endpoint)
        yield running


def spec_on(s3: S3Server, folder: Path, **sections: Any) -> RunSpec:
    engine = {"step_seconds": 0.03, **sections.pop("engine", {})}
    return make_spec(folder, rows=ROWS, output=s3.fresh_url(), engine=engine, **sections)


async def driven(begun: Begun, act: Callable[[LocalCluster], Any] | None = None) -> CoordinatorStatus | None:
    """To the end, or until `act` returns False."""
    cluster = LocalCluster()
    running = asyncio.ensure_future(Driver(cluster, begun.worker_setup, lambda _: None, lambda _: None).run())
    try:
        async with asyncio.timeout(90):
            if act is not None and await act(cluster) is False:
                return None
            return await running
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await cluster.close()


async def committed(cluster: LocalCluster, rows: int, seconds: float = 30) -> LocalCoordinator:
    """The coordinator, when so many rows are."""
    deadline = time.monotonic() + seconds
    while cluster.coordinator is None or (await cluster.coordinator.status()).totals.done < rows:
        assert time.monotonic() < deadline, "waited too long"
        await asyncio.sleep(0.05)
    return cluster.coordinator


def done(begun: Begun) -> int:
    return standing(begun.storage).totals.done


def asked(*words: str) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_run_on_s3_is_killed_resumed_sealed_verified_and_exported(
    s3: S3Server, proxy: FaultyProxy, tmp_path: Path
) -> None:
    begun = begin_run(spec_on(s3, tmp_path, checkpoint=STEP_BY_STEP))
    url = begun.storage.url

    async def kill_twice(cluster: LocalCluster) -> bool:
        await (await committed(cluster, 3)).restart()
        await committed(cluster, 10)
        return False

    asyncio.run(driven(begun, kill_twice))
    assert 10 <= done(begun) < ROWS
    again = resume(url, StartOptions(processes=1, take_over=True), say=lambda text: None)
    last = asyncio.run(driven(again))
    assert last is not None
    assert last.phase is Phase.FINISHED
    seal_run(again.storage, again.worker_setup.run)
    whole, ends = read_history(again.storage), read_history(again.storage, 2)
    assert ends == (whole[0], whole[-1])
    assert (whole[-1].totals.done, whole[-1].tally.coordinator_restarts) == (ROWS, 1)

    assert json.loads(asked("status", url, "--json"))["done"] == ROWS
    verified = json.loads(asked("verify", url, "--json"))
    assert verified["is_right"]
    assert verified["shards"] == verified["shards_planned"]
    assert "shards sealed" in asked("seal", url)
    assert json.loads(asked("report", url, "--json"))
    assert "no row is as asked for" in asked("retry", url, "--status", "failed")
    assert asked("clean", url, "--dry-run")
    made = export(url, ExportOptions("speculators", str(tmp_path / "out")), say=lambda text: None)
    assert made.tally.rows_kept == ROWS


def test_a_store_that_goes_wrong_all_the_time_costs_time_and_no_row(
    s3: S3Server, proxy: FaultyProxy, tmp_path: Path
) -> None:
    begun = begin_run(spec_on(s3, tmp_path))
    for fault in (
        Fault(Kind.ANSWER, "PUT", key="*/journal/*", status=503, code="SlowDown", after=1, times=2),
        Fault(Kind.LOSE_REPLY, "PUT", key="*/journal/*", after=2, times=2),
        Fault(Kind.ANSWER, "PUT", key="*/journal/*", status=409, code="ConditionalRequestConflict", after=4),
        Fault(Kind.ANSWER, "PUT", key="*/journal/*", status=403, code="AccessDenied", after=5),
        Fault(Kind.DROP, "PUT", key="*/holder.json", times=None),
        Fault(Kind.TRUNCATE, "GET", key="*/plan/*", times=2),
    ):
        proxy.add(fault)

    last = asyncio.run(driven(begun))

    assert last is not None
    assert last.phase is Phase.FINISHED
    assert {kind for _, kind in proxy.struck} == {Kind.ANSWER, Kind.LOSE_REPLY, Kind.DROP, Kind.TRUNCATE}
    proxy.clear()
    seal_run(begun.storage, begun.worker_setup.run)
    assert check(begun.storage).is_right


def test_credentials_that_expire_halfway_make_the_run_wait_for_new_ones(
    s3: S3Server, proxy: FaultyProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    credentials = tmp_path / "credentials"

    def put(access_key: str) -> None:
        credentials.write_text(
            f"[default]\naws_access_key_id = {access_key}\naws_secret_access_key = the-secret\n"
            "aws_session_token = the-session-token\n"
        )

    for name in KEYS:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    put("first-key")
    said: list[str] = []
    begun = begin_run(spec_on(s3, tmp_path, checkpoint=STEP_BY_STEP), said)
    waiting: list[CoordinatorStatus] = []

    async def expire(cluster: LocalCluster) -> None:
        coordinator = await committed(cluster, 3)
        proxy.expire("first-key")
        while not waiting or not waiting[-1].store_error or waiting[-1].uncommitted_rows < 3:
            waiting.append(await coordinator.status())
            assert waiting[-1].phase is not Phase.FINISHED
            await asyncio.sleep(0.05)
        put("second-key")

    last = asyncio.run(driven(begun, expire))

    assert last is not None
    assert last.phase is Phase.FINISHED
    assert "ExpiredToken" in (waiting[-1].store_error or "")
    assert any("temporary" in line for line in said)
    seal_run(begun.storage, begun.worker_setup.run)
    assert check(begun.storage).is_right
    everything = [*said, str(waiting), begun.storage.read("run.json").decode(), repr(begun.worker_setup)]
    assert not [text for text in everything if "the-secret" in text or "the-session-token" in text]
    assert not [text for text in everything if "first-key" in text]


def test_rows_go_out_while_the_store_is_away(
    s3: S3Server, proxy: FaultyProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also from row groups of the plan that nobody has wanted before."""
    monkeypatch.setattr(plan_writer, "GROUP_ROWS", 4)
    begun = begin_run(spec_on(s3, tmp_path, engine={"step_seconds": 0.1}))

    async def away(cluster: LocalCluster) -> None:
        coordinator = await committed(cluster, 1)
        proxy.away = True
        while (seen := await coordinator.status()).uncommitted_rows + seen.totals.done < ROWS:
            await asyncio.sleep(0.05)
        assert seen.store_error
        proxy.away = False

    last = asyncio.run(driven(begun, away))

    assert last is not None
    assert last.phase is Phase.FINISHED


def test_a_store_that_hangs_does_not_hold_up_a_drain(s3: S3Server, proxy: FaultyProxy, tmp_path: Path) -> None:
    begun = begin_run(spec_on(s3, tmp_path, checkpoint=STEP_BY_STEP))
    seconds: list[float] = []

    async def hang(cluster: LocalCluster) -> bool:
        coordinator = await committed(cluster, 1)
        proxy.add(Fault(Kind.HANG, "PUT", times=None))
        await coordinator.drain(1.0)
        since = time.monotonic()
        while (phase := (await coordinator.status()).phase) is not Phase.FAILED:
            assert phase not in (Phase.FINISHED, Phase.DRAINED)
            await asyncio.sleep(0.05)
        seconds.append(time.monotonic() - since)
        proxy.closing.set()  # or the threads that hang would hold up the end of this test
        return False

    asyncio.run(driven(begun, hang))

    assert seconds[0] < 12  # the drain, word of the end, and a slow machine; a call of its own hangs for a minute


def test_what_the_start_has_resolved_is_what_the_coordinator_uses(
    s3: S3Server, proxy: FaultyProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process may have another environment: Ray's workers have that of `ray start`."""
    begun = begin_run(spec_on(s3, tmp_path, engine={"step_seconds": 0.0}))
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    monkeypatch.setenv("REGEN_S3_ADDRESSING", "virtual")

    last = asyncio.run(driven(begun))

    assert last is not None
    assert last.phase is Phase.FINISHED
    assert begun.record.spec.store is not None
    assert begun.record.spec.store.endpoint == proxy.endpoint


def test_nothing_is_asked_of_boto3_for_a_local_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: object) -> Any:
        raise AssertionError("a local run has no business with S3")

    monkeypatch.setattr(s3_client, "_session", never)
    monkeypatch.setattr(s3_client, "aws_config", never)

    assert begin_run(make_spec(tmp_path, rows=5)).record.spec.store is None
