"""Rows opened again: made anew with other sampling, sealed anew, and never worse off than before."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from regen.data.plan import open_plan
from regen.errors import RunHeld, SpecError, StoreUnavailable
from regen.records import (
    CoordinatorStatus,
    EngineCounters,
    ExchangeReply,
    ExchangeRequest,
    Phase,
    ReplicaState,
    ReplicaStats,
    Status,
    WorkerId,
)
from regen.rows import to_bytes
from regen.run import held
from regen.run.commands.check import check
from regen.run.commands.export import ExportOptions, export
from regen.run.commands.repair import repair
from regen.run.commands.retry import Retry, retry
from regen.run.coordinator import Coordinator
from regen.run.driver import COORDINATOR_RESTARTS
from regen.run.local import LocalCluster
from regen.run.look import look
from regen.run.session import seal_run, standing
from regen.run.start import Begun, StartOptions, resume
from regen.store.choosing import Wanted
from regen.store.files import JournalFiles
from regen.store.local import LocalStorage
from regen.store.replay import replay
from tests import virtual_time
from tests.runs import begin_run, drive, make_spec, shard_table

TRUNCATED = Wanted(frozenset({Status.TRUNCATED}))


def first_run(folder: Path, **sections: Any) -> LocalStorage:
    """Thirty rows at a cap that cuts some of them."""
    sections = {"sampling": {"max_tokens": 12}, **sections}
    begun = begin_run(make_spec(folder, rows=30, **sections))
    virtual_time.run(drive(LocalCluster(), begun))
    seal_run(begun.storage, begun.worker_setup.run)
    return LocalStorage(folder / "run")


def resumed(storage: LocalStorage) -> CoordinatorStatus:
    begun = resume(storage.url, StartOptions(processes=1), say=lambda text: None)
    status = virtual_time.run(drive(LocalCluster(), begun))
    seal_run(begun.storage, begun.worker_setup.run)
    return status


def by_ordinal(storage: LocalStorage) -> dict[int, dict[str, Any]]:
    return {row["ordinal"]: row for row in shard_table(Path(storage.url)).to_pylist()}


def test_cut_rows_are_made_again_with_a_larger_cap_and_no_others(tmp_path: Path) -> None:
    storage = first_run(tmp_path)
    before = by_ordinal(storage)
    cut = [ordinal for ordinal, row in before.items() if row["status"] == "truncated"]
    assert 0 < len(cut) < 30
    assert retry(storage, TRUNCATED, {"max_tokens": 100}) == Retry(len(cut), 1)
    opened = standing(storage)
    assert not opened.is_finished
    assert opened.totals.done == 30
    assert resumed(storage).phase is Phase.FINISHED
    after = by_ordinal(storage)
    for ordinal, row in after.items():
        if ordinal in cut:
            assert (row["round"], row["status"]) == (1, "ok")
            assert {json.loads(turn["sampling"])["max_tokens"] for turn in row["generations"]} == {100}
        else:
            assert row == before[ordinal]
    found = check(storage)
    assert found.is_right, found.summary()
    assert standing(storage).is_finished
    assert look(storage).totals.by_status()[Status.TRUNCATED] == 0


def test_an_export_holds_the_rows_that_count_before_and_after_sealed_or_not(tmp_path: Path) -> None:
    storage = first_run(tmp_path)
    before = by_ordinal(storage)
    uncut = {row["row_id"] for row in before.values() if row["status"] == "ok"}
    retry(storage, TRUNCATED, {"max_tokens": 100})
    assert exported(storage, tmp_path / "pending").keys() == uncut
    begun = resume(storage.url, StartOptions(processes=1), say=lambda text: None)
    virtual_time.run(drive(LocalCluster(), begun))
    outdated = exported(storage, tmp_path / "outdated")
    seal_run(begun.storage, begun.worker_setup.run)
    after = by_ordinal(storage)
    assert outdated == {row["row_id"]: said(row) for row in after.values()}
    assert len(outdated) == 30 > len(uncut)
    assert exported(storage, tmp_path / "sealed") == outdated


def test_an_export_says_that_rows_are_to_be_made_again(tmp_path: Path) -> None:
    storage = first_run(tmp_path)
    cut = look(storage).totals.by_status()[Status.TRUNCATED]

    def said_of(out: Path) -> tuple[list[str], str]:
        said: list[str] = []
        export(storage.url, ExportOptions("speculators", str(out)), said.append)
        return [text for text in said if "opened again" in text], (out / "README.md").read_text(encoding="utf-8")

    warned, card = said_of(tmp_path / "before")
    assert (warned, "made again" in card) == ([], False)
    retry(storage, TRUNCATED, {})
    warned, card = said_of(tmp_path / "pending")
    assert warned[0].startswith(f"{cut} rows were opened again and are not made again yet")
    assert f"{cut} rows were to be made again and still had their older result." in card
    resumed(storage)
    assert said_of(tmp_path / "after")[0] == []


def test_until_they_are_made_the_old_rows_count_and_everything_is_right(tmp_path: Path) -> None:
    storage = first_run(tmp_path)
    cut = look(storage).totals.by_status()[Status.TRUNCATED]
    retry(storage, TRUNCATED, {})
    found = check(storage)
    assert found.is_right
    assert f"{cut} rows opened again and not made yet" in found.summary()
    seen = look(storage)
    assert (seen.reopened, seen.is_finished, seen.totals.by_status()[Status.TRUNCATED]) == (cut, False, cut)


def test_a_retry_that_fails_keeps_what_there_was_and_leaves_a_note(tmp_path: Path) -> None:
    refusing = {"faults": [{"kind": "refuse", "after_requests": 0, "times": 10**6}]}
    storage = first_run(tmp_path)
    before = by_ordinal(storage)
    cut = sum(row["status"] == "truncated" for row in before.values())
    retry(storage, TRUNCATED, {})
    change_engine(storage, refusing)
    assert resumed(storage).phase is Phase.FINISHED
    assert by_ordinal(storage) == before
    seen = look(storage)
    assert (seen.reopened, seen.retries_ended, seen.is_finished) == (0, cut, True)
    assert check(storage).is_right


def test_attempts_that_are_used_up_in_a_retry_end_it_too(tmp_path: Path) -> None:
    storage = first_run(tmp_path)
    before = by_ordinal(storage)
    retry(storage, TRUNCATED, {})
    change_engine(storage, {"faults": [{"kind": "fail", "after_requests": 0, "times": 10**6}]})
    assert resumed(storage).phase is Phase.FINISHED
    assert by_ordinal(storage) == before
    assert look(storage).retries_ended > 0


@pytest.mark.parametrize(("fault", "status"), [("fail", "failed"), ("refuse", "rejected")])
def test_a_retry_that_fails_where_no_result_is_left_is_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, status: str
) -> None:
    """The older result was in a file that was damaged, and is void: there is nothing to keep."""
    monkeypatch.setattr(held, "WATCH_SECONDS", 0)
    storage = first_run(tmp_path)
    opened = retry(storage, TRUNCATED, {}).rows
    for path in (tmp_path / "run" / "journal").iterdir():
        if pq.read_metadata(path).num_rows:
            path.write_bytes(b"")
    assert repair(storage).faults
    change_engine(storage, {"faults": [{"kind": fault, "after_requests": 0, "times": 10**6}]})
    assert resumed(storage).phase is Phase.FINISHED
    rows = by_ordinal(storage).values()
    assert {row["status"] for row in rows} == {status}
    assert sum(row["round"] == 1 for row in rows) == opened
    assert check(storage).is_right


def test_a_second_retry_is_another_round_with_other_answers(tmp_path: Path) -> None:
    storage = first_run(tmp_path)
    chosen = Wanted(frozenset({Status.OK}))
    rounds = [by_ordinal(storage)]
    for number in (1, 2):
        opened = retry(storage, chosen, {"max_tokens": 100})
        assert opened.round == number
        assert resumed(storage).phase is Phase.FINISHED
        rounds.append(by_ordinal(storage))
    again = [ordinal for ordinal, row in rounds[2].items() if row["round"] == 2]
    assert again
    for ordinal in again:
        texts = {made[ordinal]["generations"][0]["text"] for made in rounds}
        assert len(texts) == 3
    assert check(storage).is_right


def test_shards_older_than_a_retry_are_outdated_and_not_wrong(tmp_path: Path) -> None:
    storage = first_run(tmp_path)
    retry(storage, TRUNCATED, {"max_tokens": 100})
    begun = resume(storage.url, StartOptions(processes=1), say=lambda text: None)
    virtual_time.run(drive(LocalCluster(), begun))
    found = check(storage)
    assert found.is_right
    assert found.verification is not None
    assert found.verification.shards_outdated > 0
    seal_run(begun.storage, begun.worker_setup.run)
    sealed = check(storage)
    assert sealed.verification is not None
    assert (sealed.is_right, sealed.verification.shards_outdated) == (True, 0)


def test_a_coordinator_that_is_killed_in_a_retry_goes_on_in_the_same_round(tmp_path: Path) -> None:
    storage = first_run(tmp_path)
    cut = look(storage).totals.by_status()[Status.TRUNCATED]
    retry(storage, TRUNCATED, {"max_tokens": 100})
    change_engine(storage, {"step_seconds": 0.02, "slots": 2})

    async def killed_once() -> CoordinatorStatus:
        begun = resume(storage.url, StartOptions(processes=1), say=lambda text: None)
        cluster = LocalCluster()
        work = asyncio.ensure_future(drive(cluster, begun))
        while cluster.coordinator is None or not (await cluster.coordinator.status()).session_rows:
            await asyncio.sleep(0.02)
        await cluster.coordinator.restart()
        return await work

    assert virtual_time.run(killed_once()).phase is Phase.FINISHED
    plan = open_plan(storage)
    assert not replay(storage, plan.count, plan.settled()).reopened.pending
    begun = resume(storage.url, StartOptions(processes=1), say=lambda text: None)
    seal_run(begun.storage, begun.worker_setup.run)
    assert sum(row["round"] == 1 for row in by_ordinal(storage).values()) == cut
    assert check(storage).is_right


def test_what_is_asked_for_is_checked_before_anything_is_written(tmp_path: Path) -> None:
    storage = first_run(tmp_path)
    files = sorted(stored.key for stored in storage.list("journal/"))
    with pytest.raises(SpecError, match=r"--max-tokens 4000 leaves no room"):
        retry(storage, TRUNCATED, {"max_tokens": 4000})
    with pytest.raises(SpecError, match=r"temperature"):
        retry(storage, TRUNCATED, {"temperature": 9.0})
    with pytest.raises(SpecError, match="no such source; it has rows"):
        retry(storage, Wanted(frozenset({Status.OK}), sources=frozenset({"other"})), {})
    assert retry(storage, Wanted(frozenset({Status.NATIVE})), {}) == Retry(0, None)
    assert retry(storage, Wanted(frozenset({Status.TRUNCATED}), frozenset({"no such"})), {}) == Retry(0, None)
    assert sorted(stored.key for stored in storage.list("journal/")) == files


def test_a_run_that_somebody_runs_is_left_alone(tmp_path: Path) -> None:
    async def held() -> None:
        begun = begin_run(make_spec(tmp_path, rows=30, engine={"step_seconds": 0.05, "slots": 1}))
        cluster = LocalCluster()
        work = asyncio.ensure_future(drive(cluster, begun))
        while cluster.coordinator is None or not (await cluster.coordinator.status()).commits:
            await asyncio.sleep(0.02)
        with pytest.raises(RunHeld):
            await asyncio.to_thread(retry, LocalStorage(tmp_path / "run"), TRUNCATED, {})
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await cluster.close()

    asyncio.run(held())


def exported(storage: LocalStorage, out: Path) -> dict[str, list[list[int]]]:
    """The ids of every generation in an export, by row."""
    export(storage.url, ExportOptions("speculators", str(out)), say=lambda text: None)
    found: dict[str, list[list[int]]] = {}
    for path in sorted(out.glob("*.jsonl")):
        for line in map(json.loads, path.read_text().splitlines()):
            found.setdefault(line["id"].split("-")[0], []).append(line["input_ids"])
    return found


def said(row: dict[str, Any]) -> list[list[int]]:
    return [turn["prompt_token_ids"] + turn["completion_token_ids"] for turn in row["generations"]]


def change_engine(storage: LocalStorage, changes: dict[str, Any]) -> None:
    """Settings that may change between sessions, changed in run.json: what another spec with them would do."""
    path = Path(storage.url) / "run.json"
    record = json.loads(path.read_text())
    record["spec"]["engine"].update(changes)
    path.write_text(json.dumps(record))


def test_a_late_result_of_the_round_before_is_told_to_go_and_the_row_is_made(tmp_path: Path) -> None:
    storage = first_run(tmp_path)
    older = replay_tables(storage)
    rows = older.select(["ordinal", "status"]).to_pylist()
    cut = [place for place, row in enumerate(rows) if row["status"] == "truncated"]
    ordinal = rows[cut[0]]["ordinal"]
    assert retry(storage, TRUNCATED, {"max_tokens": 100}).rows == len(cut)
    begun = resume(storage.url, StartOptions(processes=1), say=lambda text: None)

    async def told() -> tuple[ExchangeReply, ExchangeReply]:
        coordinator = Coordinator(begun.worker_setup.run)
        while (await coordinator.status()).phase is not Phase.RUNNING:
            await asyncio.sleep(0.02)
        late = older.take(cut[:1])
        first = await coordinator.exchange(exchange_of(begun, 1, to_bytes(late), free_slots=0))
        second = await coordinator.exchange(exchange_of(begun, 2, b"", free_slots=30))
        await coordinator.close()
        return first, second

    first, second = asyncio.run(told())
    assert first.settled == (ordinal,)
    assert (ordinal, 1) in [(lease.row.ordinal, lease.round) for lease in second.leases]


def replay_tables(storage: LocalStorage) -> pa.Table:
    """All rows of the journal."""
    files = JournalFiles(storage)
    return pa.concat_tables([files.read_table(file.number) for file in files.files()])


def exchange_of(begun: Begun, seq: int, finished: bytes, free_slots: int) -> ExchangeRequest:
    stats = ReplicaStats(ReplicaState.RUNNING, 8, 0, 0.0, EngineCounters(), arm="off")
    session = begun.worker_setup.run.session
    return ExchangeRequest(WorkerId(0, 0), session, seq, (), (), finished, (), free_slots, stats)


def test_a_row_that_is_made_again_counts_as_published_whatever_becomes_of_the_coordinator(tmp_path: Path) -> None:
    """Restarts are bounded between two publications; the number of rows that are done stands still in a retry."""
    storage = first_run(tmp_path, engine={"step_seconds": 0.5, "slots": 2})
    retry(storage, Wanted(frozenset(Status)), {})
    begun = resume(storage.url, StartOptions(processes=1), say=lambda text: None)
    restarts = 0

    async def with_restarts() -> CoordinatorStatus:
        nonlocal restarts
        cluster = LocalCluster()
        running = asyncio.ensure_future(drive(cluster, begun))
        await asyncio.sleep(5.0)
        while not running.done():
            assert cluster.coordinator is not None
            await cluster.coordinator.restart()
            restarts += 1
            await asyncio.sleep(12.0)
        return await running

    assert virtual_time.run(with_restarts()).phase is Phase.FINISHED
    assert restarts > COORDINATOR_RESTARTS
    assert check(storage).is_right


def test_a_store_that_cannot_be_read_for_a_while_is_waited_for_when_rows_are_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older results are read for the totals: a bad minute there is like one of writing."""
    storage = first_run(tmp_path, engine={"step_seconds": 0.2})
    retry(storage, TRUNCATED, {"max_tokens": 100})
    begun = resume(storage.url, StartOptions(processes=1), say=lambda text: None)
    until, refused = time.monotonic(), 0

    def opened_late(self: LocalStorage, key: str) -> BinaryIO:
        nonlocal refused
        if key.startswith("journal/") and key != newest and time.monotonic() < until:
            refused += 1
            raise StoreUnavailable(f"{key}: 503")
        return real(self, key)

    real = LocalStorage.open
    newest = max(stored.key for stored in storage.list("journal/"))

    async def away_for_a_minute() -> CoordinatorStatus:
        nonlocal until
        running = asyncio.ensure_future(drive(LocalCluster(), begun))
        await asyncio.sleep(1.0)
        until = time.monotonic() + 60.0
        monkeypatch.setattr(LocalStorage, "open", opened_late)
        return await running

    assert virtual_time.run(away_for_a_minute()).phase is Phase.FINISHED
    assert refused
    assert check(storage).is_right
