"""What a scraper sees over a run's life: through kills, retries and the end. On one event loop, on virtual time."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from prometheus_client import Counter

from regen.engines.fake import FakeEngine
from regen.errors import RegenError
from regen.observe.metrics import SERIES, Kind
from regen.records import CoordinatorStatus, Left, Phase, ReplicaState, SlotState, Status
from regen.run.commands.retry import retry
from regen.run.driver import LEAVE_SECONDS, Driver
from regen.run.local import LocalCluster
from regen.run.look import look
from regen.run.session import standing, write_report
from regen.run.setup import WorkerSetup
from regen.run.start import Begun, StartOptions, resume
from regen.store.choosing import Wanted
from tests import virtual_time
from tests.processes import free_port
from tests.runs import begin_run, drive, make_spec
from tests.snapshots import Samples, parsed

COUNTED = {name for series in SERIES if series.kind is not Kind.GAUGE for name in series.wire_names}
ENGINE = {"replicas": 2, "slots": 4, "step_seconds": 0.05}


@dataclass
class Watched:
    """A session with a scraper."""

    begun: Begun
    seen: list[CoordinatorStatus] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    cluster: LocalCluster = field(default_factory=LocalCluster)

    running: asyncio.Future[CoordinatorStatus] = field(init=False)

    def __post_init__(self) -> None:
        self.driver = Driver(self.cluster, self.begun.worker_setup, self.seen.append, self.said.append)

    async def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 300
        while not condition():
            assert time.monotonic() < deadline, "waited too long"
            await asyncio.sleep(0.1)

    async def scraped(self) -> Samples:
        """Waits for the endpoint of whichever coordinator lives now."""
        await self.until(lambda: self.cluster.coordinator)
        assert self.cluster.coordinator is not None
        while (url := (await self.cluster.coordinator.status()).metrics_url) is None:
            assert not self.running.done(), "it has gone"
            await asyncio.sleep(0.1)
        return parsed(await asyncio.to_thread(fetched, url))

    @property
    def metrics_url(self) -> str | None:
        return self.seen[-1].metrics_url if self.seen else None

    def is_ended(self) -> bool:
        return bool(self.seen) and self.seen[-1].phase in (Phase.FINISHED, Phase.DRAINED, Phase.FAILED)


def fetched(url: str) -> str:
    with urlopen(url, timeout=10) as answer:
        return str(answer.read().decode("utf-8"))


def watched(begun: Begun, act: Callable[[Watched], Awaitable[None]]) -> tuple[Watched, CoordinatorStatus]:
    session = Watched(begun)

    async def both() -> CoordinatorStatus:
        session.running = asyncio.ensure_future(session.driver.run())
        try:
            await act(session)
            return await session.running
        finally:
            session.running.cancel()
            await asyncio.gather(session.running, return_exceptions=True)

    return session, virtual_time.run(both())


def has_done(begun: Begun, rows: int) -> bool:
    return standing(begun.storage).totals.done >= rows


async def nothing(session: Watched) -> None: ...


def begun_with(folder: Path, rows: int = 40, metrics: Mapping[str, Any] | None = None, **sections: Any) -> Begun:
    sections = {"engine": ENGINE, "checkpoint": {"interval_seconds": 1.0}, **sections}
    return begin_run(make_spec(folder, rows=rows, metrics={"port": 0, **(metrics or {})}, **sections))


def has_not_fallen(before: Samples, after: Samples) -> None:
    assert before.keys() == after.keys()
    fallen = {key: (value, after[key]) for key, value in before.items() if key[0] in COUNTED and after[key] < value}
    assert fallen == {}


def of(samples: Samples, name: str, **labels: str) -> float:
    """Summed over the labels that are not named."""
    return sum(
        value for (found, has), value in samples.items() if found == name and labels.items() <= dict(has).items()
    )


# --- counters ----------------------------------------------------------------------------------------


def test_no_counter_falls_when_coordinators_die(tmp_path: Path) -> None:
    scrapes: list[Samples] = []

    async def act(session: Watched) -> None:
        scrapes.append(await session.scraped())
        for rows in (10, 25):
            await session.until(partial(has_done, session.begun, rows))
            scrapes.append(await session.scraped())
            assert session.cluster.coordinator is not None
            await session.cluster.coordinator.restart()
            scrapes.append(await session.scraped())
        await session.until(session.is_ended)
        scrapes.append(await session.scraped())

    faults = [{"kind": "fail", "after_requests": 3}, {"kind": "die", "after_requests": 12, "replica": 1, "lives": 1}]
    begun = begun_with(tmp_path, engine={**ENGINE, "faults": faults}, metrics={"hold_seconds": 30})
    _, last = watched(begun, act)
    assert last.phase is Phase.FINISHED
    for before, after in pairwise(scrapes):
        has_not_fallen(before, after)
    assert of(scrapes[0], "regen_rows_done_total") == 0
    assert of(scrapes[-1], "regen_rows_done_total", status="ok") == 40
    assert of(scrapes[-1], "regen_coordinator_restarts_total") == 2
    assert of(scrapes[-1], "regen_retries_total") > 0
    assert of(scrapes[-1], "regen_rows_remaining") == 0


class NoRoom(LocalCluster):
    """Of two replicas the second waits for a node to the end."""

    async def start_worker(self, setup: WorkerSetup) -> Any:
        return Pending() if setup.worker.slot else await super().start_worker(setup)


class Pending:
    async def run(self) -> Left:
        await asyncio.Event().wait()
        raise AssertionError("it never gets a node")

    async def kill(self) -> None: ...


def test_a_replica_that_gets_no_node_costs_nothing(tmp_path: Path) -> None:
    last = virtual_time.run(drive(NoRoom(), begun_with(tmp_path, metrics={"port": None})))
    assert last.phase is Phase.FINISHED
    assert last.tally.slots[0].engine_seconds > 0
    assert last.tally.slots[1].engine_seconds == 0
    assert last.tally.slots[1].slot_seconds[SlotState.STARTING] > 0


def test_rows_that_are_made_again_count_again_and_stand_once(tmp_path: Path) -> None:
    scrapes: list[Samples] = []

    async def to_the_end(session: Watched) -> None:
        scrapes.append(await session.scraped())
        await session.until(session.is_ended)
        scrapes.append(await session.scraped())

    begun = begun_with(tmp_path, metrics={"hold_seconds": 30})
    watched(begun, to_the_end)
    assert retry(begun.storage, Wanted(frozenset({Status.OK})), {"max_tokens": 3}).rows == 40
    again = resume(begun.storage.url, StartOptions(processes=1), say=lambda text: None)
    watched(again, to_the_end)
    for before, after in pairwise(scrapes):
        has_not_fallen(before, after)
    made = scrapes[-1]
    assert of(made, "regen_rows_done_total") == 80
    assert of(made, "regen_rows_standing") == 40
    assert of(made, "regen_rows_standing", status="ok") == 0
    assert of(made, "regen_row_tokens_count") == 80
    assert of(made, "regen_output_tokens_total") == of(made, "regen_row_tokens_sum")


def test_the_report_has_the_numbers_of_the_last_scrape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of replicas too, which leave later than the run ends."""
    final: list[Samples] = []
    real = FakeEngine.close

    async def close(engine: FakeEngine) -> None:
        await asyncio.sleep(5)
        await real(engine)

    monkeypatch.setattr(FakeEngine, "close", close)

    async def act(session: Watched) -> None:
        await session.until(lambda: session.said)
        final.append(await session.scraped())

    begun = begun_with(tmp_path, metrics={"hold_seconds": 30}, price={"per_gpu_hour": 2.5})
    _, last = watched(begun, act)
    write_report(begun.storage, begun.record.spec, last, standing(begun.storage))
    written = json.loads((tmp_path / "run" / "report.json").read_text())["metrics"]
    found = {
        (name, tuple(sorted(one["labels"].items()))): one["value"] for name, many in written.items() for one in many
    }
    assert found.keys() == final[0].keys()
    for name in (
        "regen_rows_done_total",
        "regen_replica_up",
        "regen_phase",
        "regen_cost_so_far",
        "regen_commits_total",
    ):
        assert {key: value for key, value in found.items() if key[0] == name} == {
            key: value for key, value in final[0].items() if key[0] == name
        }
    assert found["regen_replica_up", (("replica", "1"),)] == 0
    assert found["regen_accept_length", ()] is None


# --- the end -----------------------------------------------------------------------------------------


def test_who_scraped_gets_the_final_numbers_when_engines_are_gone_and_the_run_is_free(tmp_path: Path) -> None:
    scrapes: list[Samples] = []

    async def act(session: Watched) -> None:
        while not session.running.done():
            if (url := session.metrics_url) is not None:
                scrapes.append(parsed(await asyncio.to_thread(fetched, url)))
            if session.said:
                assert look(session.begun.storage).has_ended
                assert {worker.stats().state for worker in session.cluster.workers.values()} == {ReplicaState.STOPPED}
                return
            await asyncio.sleep(1)

    session, last = watched(begun_with(tmp_path), act)
    assert last.phase is Phase.FINISHED
    (said,) = session.said
    assert "127.0.0.1" in said
    assert of(scrapes[-1], "regen_phase", phase="finished") == 1
    assert of(scrapes[-1], "regen_replica_up") == 0
    assert of(scrapes[-1], "regen_rows_done_total") == 40


@pytest.mark.parametrize(("hold_seconds", "held"), [(None, 0), (0, 0), (200, 200)], ids=["automatic", "never", "200 s"])
def test_nobody_is_waited_for_longer_than_was_asked(tmp_path: Path, hold_seconds: float | None, held: float) -> None:
    ended_at: list[float] = []

    async def act(session: Watched) -> None:
        await session.until(session.is_ended)
        ended_at.append(time.monotonic())
        await session.until(lambda: session.running.done())
        ended_at.append(time.monotonic())

    watched(begun_with(tmp_path, metrics={"hold_seconds": hold_seconds}), act)
    assert held <= ended_at[1] - ended_at[0] < held + LEAVE_SECONDS


def test_who_asks_for_the_end_does_not_wait_for_a_scrape(tmp_path: Path) -> None:
    async def drain(session: Watched) -> None:
        await session.scraped()
        session.driver.drain(5)

    async def leave(session: Watched) -> None:
        await session.until(lambda: any("the run has ended" in text for text in session.said))
        session.driver.drain(5)

    for act, rows in ((drain, 400), (leave, 40)):
        folder = tmp_path / str(rows)
        folder.mkdir()
        session, last = watched(begun_with(folder, rows, {"hold_seconds": 10**6}), act)
        assert last.phase is (Phase.DRAINED if act is drain else Phase.FINISHED)
        assert last.session_seconds < 100
        assert sum("draining" in text for text in session.said) == (act is drain)


def test_a_run_that_failed_is_scraped_too(tmp_path: Path) -> None:
    scrapes: list[Samples] = []

    async def act(session: Watched) -> None:
        await session.until(lambda: any("the run has ended" in text for text in session.said))
        scrapes.append(await session.scraped())

    faults = [{"kind": "refuse", "times": 10_000}]
    begun = begun_with(tmp_path, 400, {"hold_seconds": 60}, engine={**ENGINE, "faults": faults})
    with pytest.raises(RegenError, match="engine_refused"):
        watched(begun, act)
    assert of(scrapes[0], "regen_phase", phase="failed") == 1
    assert of(scrapes[0], "regen_replica_up") == 0


def test_a_run_that_waits_for_a_scrape_is_in_nobodys_way(tmp_path: Path) -> None:
    """The next session of the run, which wants the same port."""
    port = free_port()
    begun = begun_with(tmp_path, metrics={"port": port, "hold_seconds": 10**6})

    async def act(session: Watched) -> None:
        await session.until(lambda: session.said)
        assert retry(begun.storage, Wanted(frozenset({Status.OK})), {}).rows == 40
        again = resume(begun.storage.url, StartOptions(processes=1), say=lambda text: None)
        cluster = LocalCluster()
        coordinator = await cluster.start_coordinator(again.worker_setup.run)
        while (status := await coordinator.status()).metrics_url is None:
            assert status.error is None
            await asyncio.sleep(0.1)
        assert f":{port}/" in status.metrics_url
        await cluster.close()

    assert watched(begun, act)[1].phase is Phase.FINISHED


def test_a_coordinator_that_comes_back_to_a_taken_port_works_and_gets_it_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regen.observe.endpoint._is_yielded", lambda host, port: False)
    port, scrapes = free_port(), list[Samples]()
    begun = begun_with(tmp_path, 600, {"port": port, "hold_seconds": 0})

    async def act(session: Watched) -> None:
        scrapes.append(await session.scraped())
        await session.until(partial(has_done, begun, 20))
        assert session.cluster.coordinator is not None
        await session.cluster.coordinator.kill()
        with socket.create_server(("127.0.0.1", port)):
            await session.cluster.coordinator.restart()
            await session.until(partial(has_done, begun, 100))
            assert (await session.cluster.coordinator.status()).metrics_url is None
        scrapes.append(await session.scraped())

    assert watched(begun, act)[1].phase is Phase.FINISHED
    has_not_fallen(*scrapes)
    assert of(scrapes[1], "regen_coordinator_restarts_total") == 1


def test_a_coordinator_that_cannot_make_the_page_any_more_has_its_metrics_and_goes_on(tmp_path: Path) -> None:
    scrapes: list[Samples] = []
    begun = begun_with(tmp_path)

    async def act(session: Watched) -> None:
        await session.until(partial(has_done, begun, 10))
        begun.storage.replace("run.json", b"{}")
        assert session.cluster.coordinator is not None
        await session.cluster.coordinator.restart()
        scrapes.append(await session.scraped())

    assert watched(begun, act)[1].phase is Phase.FINISHED
    assert of(scrapes[0], "regen_coordinator_restarts_total") == 1


# --- the engines' own --------------------------------------------------------------------------------

OF_THE_PROCESS = Counter("engine_series", "What an engine in this process has registered.")


def test_an_engines_own_series_are_at_a_port_of_its_slot(tmp_path: Path) -> None:
    port = free_port()
    found: list[Samples] = []

    async def act(session: Watched) -> None:
        await session.until(lambda: session.seen and session.seen[-1].session_rows)
        found.append(parsed(await asyncio.to_thread(fetched, f"http://127.0.0.1:{port}/metrics")))

    OF_THE_PROCESS.inc()
    engine = {**ENGINE, "replicas": 1}
    session, last = watched(begun_with(tmp_path, metrics={"port": None, "engine_port": port}, engine=engine), act)
    assert of(found[0], "engine_series_total") >= 1
    assert last.phase is Phase.FINISHED
    assert session.said == []
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_a_port_that_an_engine_cannot_have_is_said_and_stops_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        begun = begun_with(tmp_path, metrics={"port": None, "engine_port": port}, engine={**ENGINE, "replicas": 1})
        session, last = watched(begun, nothing)
    assert last.phase is Phase.FINISHED
    (said,) = session.said
    assert f"replica 0: the engine's own metrics cannot be had: cannot listen on 127.0.0.1:{port}" in said


def test_a_folder_for_many_processes_that_is_none_is_said_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path / "none"))
    metrics = {"port": None, "engine_port": free_port()}
    session, last = watched(begun_with(tmp_path, 6, metrics, engine={**ENGINE, "replicas": 1}), nothing)
    assert last.phase is Phase.FINISHED
    (said,) = session.said
    assert "the engine's own metrics cannot be had: ValueError" in said
