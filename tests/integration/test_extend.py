"""A run whose plan is extended: old rows stay, new ones are made, and everything holds together before and after."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from regen.errors import Fenced, FingerprintDrift, RunHeld, SpecError, StoreUnavailable
from regen.records import Phase, Status
from regen.run import held
from regen.run.commands import extend as extending
from regen.run.commands.check import check
from regen.run.commands.export import ExportOptions, export
from regen.run.commands.extend import Extended, extend
from regen.run.commands.repair import repair
from regen.run.commands.retry import retry
from regen.run.local import LocalCluster
from regen.run.look import look
from regen.run.session import seal_complete, seal_run, standing
from regen.run.start import StartOptions, resume
from regen.spec import RunSpec
from regen.store.choosing import Wanted
from regen.store.control import Claim, PlanExtended
from regen.store.journal import Journal
from regen.store.layout import journal_key
from regen.store.local import LocalStorage
from tests import virtual_time
from tests.runs import begin_run, conversations, determined, drive, make_spec, shard_table, write_jsonl
from tests.unit.store.journals import footer_of


def silent(text: str) -> None:
    return


@pytest.fixture(autouse=True)
def _no_watching(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "WATCH_SECONDS", 0.0)


def made(spec: RunSpec) -> LocalStorage:
    begun = begin_run(spec)
    virtual_time.run(drive(LocalCluster(), begun))
    seal_run(begun.storage, begun.worker_setup.run)
    return LocalStorage(Path(spec.output))


def resumed(storage: LocalStorage) -> None:
    begun = resume(storage.url, StartOptions(processes=1), say=silent)
    assert virtual_time.run(drive(LocalCluster(), begun)).phase is Phase.FINISHED
    seal_run(begun.storage, begun.worker_setup.run)


def extended(spec: RunSpec) -> Extended:
    return extend(spec, StartOptions(processes=1), silent)


def grown(folder: Path, rows: int, **sections: Any) -> RunSpec:
    """The run's only source has so many rows now."""
    write_jsonl(folder / "rows.jsonl", conversations(rows))
    return make_spec(folder, **sections)


def shards(storage: LocalStorage) -> list[str]:
    return [stored.key.removeprefix("shards/") for stored in storage.list("shards/")]


def test_a_finished_run_goes_on_with_further_rows_and_is_sealed_anew(tmp_path: Path) -> None:
    storage = made(make_spec(tmp_path, rows=16))
    before = shard_table(tmp_path / "run").to_pylist()
    assert shards(storage)[-1] == "shard-00000014-00000015.parquet"
    old_bytes = (tmp_path / "run/shards/shard-00000000-00000006.parquet").read_bytes()

    assert extended(grown(tmp_path, 25)).added == {"rows": 9}
    seen = look(storage)
    assert (seen.planned, seen.totals.done, seen.is_finished) == (25, 16, False)
    found = check(storage)
    assert found.findings == ()
    assert found.summary().startswith("9 of 25 rows have no outcome yet")
    resumed(storage)

    after = shard_table(tmp_path / "run").to_pylist()
    assert after[:16] == before
    assert [row["ordinal"] for row in after] == list(range(25))
    assert shards(storage)[-2:] == ["shard-00000014-00000020.parquet", "shard-00000021-00000024.parquet"]
    assert (tmp_path / "run/shards/shard-00000000-00000006.parquet").read_bytes() == old_bytes
    assert check(storage).is_right
    assert standing(storage).is_finished


def test_the_spec_with_the_new_sources_is_the_run_s_from_then_on(tmp_path: Path) -> None:
    made(make_spec(tmp_path, rows=5))
    other = write_jsonl(tmp_path / "other.jsonl", [{"prompt": f"other {number}"} for number in range(3)])
    old = make_spec(tmp_path)
    new = make_spec(
        tmp_path,
        sources=[
            {"name": "rows", "path": str(tmp_path / "rows.jsonl"), "limit": 99},
            {"name": "other", "path": str(other), "sampling": {"max_tokens": 3}},
        ],
    )
    with pytest.raises(FingerprintDrift, match="regen extend SPEC"):
        begin_run(new)
    assert extended(new).added == {"other": 3}
    with pytest.raises(FingerprintDrift, match=r"sources\.other"):
        begin_run(old)
    storage = made(new)
    rows = shard_table(tmp_path / "run").to_pylist()
    caps = {(row["source"], turn["cap"]) for row in rows for turn in row["generations"]}
    assert caps == {("rows", 100), ("other", 3)}
    resumed(storage)
    assert check(storage).is_right


def test_only_sources_may_differ_and_of_known_ones_only_their_rows(tmp_path: Path) -> None:
    storage = made(make_spec(tmp_path, rows=3))
    objects = sorted(stored.key for stored in storage.list(""))
    path = str(grown(tmp_path, 5).sources[0].path)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"sampling": {"max_tokens": 50}}, r"sampling\.max_tokens: was 100, is 50"),
        ({"sources": [{"name": "else", "path": path}]}, r"'rows' is not in the spec"),
        ({"sources": [{"name": "rows", "path": path, "weight": 2}]}, r"sources\.rows\.weight: was 1.0, is 2.0"),
    ]
    for sections, message in refused:
        with pytest.raises(FingerprintDrift, match=message):
            extended(make_spec(tmp_path, **sections))
    assert sorted(stored.key for stored in storage.list("")) == objects
    with pytest.raises(SpecError, match="holds no run"):
        extended(make_spec(tmp_path, output=str(tmp_path / "nowhere")))


def test_extending_again_writes_nothing(tmp_path: Path) -> None:
    storage = made(make_spec(tmp_path, rows=3))
    spec = grown(tmp_path, 5)
    extended(spec)
    objects = sorted(stored.key for stored in storage.list(""))
    again = extended(spec)
    assert again.lines() == ["nothing new: the sources have no row that the plan of 5 does not have"]
    assert sorted(stored.key for stored in storage.list("")) == objects


@pytest.mark.parametrize("kill", ["before the claim", "before the summary", "before the record"])
def test_a_kill_on_the_way_is_harmless_and_the_same_command_completes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kill: str
) -> None:
    storage = made(make_spec(tmp_path, rows=8))
    spec = grown(tmp_path, 10)

    def killed(*args: object) -> None:
        raise StoreUnavailable("killed")

    with monkeypatch.context() as patch:
        if kill == "before the claim":
            patch.setattr(Journal, "claim", killed)
        elif kill == "before the summary":
            patch.setattr(extending, "commit_extension", killed)
        else:
            patch.setattr(Journal, "publish", killed)
        with pytest.raises(StoreUnavailable, match="killed"):
            extended(spec)
    is_extended = kill == "before the record"
    assert look(storage).planned == (10 if is_extended else 8)
    assert check(storage).findings == ()
    again = extended(spec)
    assert (again.planned, again.added) == (10, {} if is_extended else {"rows": 2})
    told = [record for record in held.control_records(storage) if isinstance(record, PlanExtended)]
    assert [(record.rows, record.plan_rows) for record in told] == [(2, 10)]
    resumed(storage)
    assert check(storage).is_right


def test_a_run_that_was_killed_before_the_record_can_simply_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = made(make_spec(tmp_path, rows=8))
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "publish", lambda *args: (_ for _ in ()).throw(StoreUnavailable("killed")))
        with pytest.raises(StoreUnavailable):
            extended(grown(tmp_path, 10))
    resumed(storage)
    assert check(storage).is_right


def test_two_at_once_are_one_extension_and_a_clear_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = made(make_spec(tmp_path, rows=3))
    spec = grown(tmp_path, 5)
    claim, depth = Journal.claim, list[int]()

    def rival_first(journal: Journal, mine: Claim) -> None:
        if not depth:
            depth.append(1)
            extended(spec)
        claim(journal, mine)

    monkeypatch.setattr(Journal, "claim", rival_first)
    with pytest.raises((RunHeld, Fenced)):
        extended(spec)
    assert look(storage).planned == 5
    assert check(storage).findings == ()


def test_while_somebody_runs_it_nothing_is_extended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "WATCH_SECONDS", 7.0)

    async def scenario() -> None:
        begun = begin_run(make_spec(tmp_path, rows=30, engine={"step_seconds": 0.05, "slots": 1}))
        cluster = LocalCluster()
        work = asyncio.ensure_future(drive(cluster, begun))
        while cluster.coordinator is None or not (await cluster.coordinator.status()).commits:
            await asyncio.sleep(0.02)
        with pytest.raises(RunHeld, match="is being run by session"):
            await asyncio.to_thread(extended, grown(tmp_path, 40))
        shards_meanwhile = await asyncio.to_thread(seal_complete, begun.storage)  # beside a coordinator at work
        assert len(shards_meanwhile) < 5
        await cluster.coordinator.drain(0.0)
        await work

    asyncio.run(scenario())
    storage = LocalStorage(tmp_path / "run")
    assert look(storage).planned == 30
    assert check(storage).findings == ()


def test_rows_opened_again_before_an_extension_are_made_after_it(tmp_path: Path) -> None:
    storage = made(make_spec(tmp_path, rows=16, sampling={"max_tokens": 12}))
    opened = retry(storage, Wanted(frozenset({Status.TRUNCATED})), {"max_tokens": 100})
    assert opened.rows > 0
    extended(grown(tmp_path, 25, sampling={"max_tokens": 12}))
    assert look(storage).reopened == opened.rows
    resumed(storage)
    rows = shard_table(tmp_path / "run").to_pylist()
    assert [row["ordinal"] for row in rows] == list(range(25))
    assert sum(row["round"] for row in rows) == opened.rows
    assert check(storage).is_right


def test_a_file_from_before_an_extension_that_is_damaged_is_voided_and_its_rows_made_again(tmp_path: Path) -> None:
    storage = made(make_spec(tmp_path, rows=16))
    before = determined(tmp_path / "run")
    extended(grown(tmp_path, 25))
    resumed(storage)
    for number in range(4):
        key = journal_key(number)
        if footer_of(storage, number).rows:
            storage.replace(key, storage.read(key)[:-9])
            break
    assert repair(storage).exit_code == 0
    assert look(storage).planned == 25
    resumed(storage)
    assert check(storage).is_right
    assert determined(tmp_path / "run")[:16] == before


def test_an_unfinished_run_is_extended_and_ends_as_if_it_had_been_before(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        folder.mkdir()
    begun = begin_run(make_spec(one, rows=10))
    extended(grown(one, 30))
    storage = LocalStorage(one / "run")
    resumed(storage)
    made(make_spec(other, rows=10))
    extended(grown(other, 30))
    resumed(LocalStorage(other / "run"))
    assert begun.is_new

    def made_of(folder: Path) -> list[dict[str, Any]]:
        return [{**row, "location": None, "digest": None} for row in determined(folder / "run")]

    assert made_of(one) == made_of(other)


def test_an_export_of_an_extended_run_has_every_row_once_sealed_or_not(tmp_path: Path) -> None:
    storage = made(make_spec(tmp_path, rows=16))
    extended(grown(tmp_path, 25))
    begun = resume(storage.url, StartOptions(processes=1), say=silent)
    virtual_time.run(drive(LocalCluster(), begun))

    def exported(out: str) -> int:
        return export(storage.url, ExportOptions("messages", str(tmp_path / out)), silent).tally.rows_seen

    assert exported("unsealed") == 25
    kept = (tmp_path / "run/shards/shard-00000014-00000015.parquet").read_bytes()
    seal_complete(storage)
    assert exported("sealed") == 25
    storage.replace("shards/shard-00000014-00000015.parquet", kept)  # killed before the older one went
    assert exported("both") == 25
    found = check(storage)
    assert found.is_right
    assert "1 are from before an extension" in found.summary()
    seal_complete(storage)
    assert "shard-00000014-00000015.parquet" not in shards(storage)
