"""What `regen clean` takes away, what it leaves, and a run without its journal."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from regen.cli import app
from regen.data.plan import read_summary
from regen.errors import JournalDamaged, RunHeld, StoreUnavailable, UserError
from regen.records import Status
from regen.run import held
from regen.run.commands.check import Checked, check
from regen.run.commands.clean import clean
from regen.run.commands.export import ExportOptions, export
from regen.run.commands.extend import extend
from regen.run.commands.pilot import begin_pilot
from regen.run.commands.repair import repair
from regen.run.commands.report import report
from regen.run.commands.retry import retry
from regen.run.commands.sample import sample_rows
from regen.run.local import LocalCluster
from regen.run.look import look
from regen.run.session import seal_complete, seal_run, standing
from regen.run.start import StartOptions, resume
from regen.store.choosing import Wanted
from regen.store.files import JournalFiles
from regen.store.findings import Code
from regen.store.journal import Journal
from regen.store.local import LocalStorage
from tests import virtual_time
from tests.runs import begin_run, conversations, drive, make_spec, shard_table, write_jsonl

ROWS = [*conversations(18), {"prompt": {"no": "text"}}]


def silent(text: str) -> None:
    return


@pytest.fixture(autouse=True)
def _no_watching(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "WATCH_SECONDS", 0.0)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished and sealed run, with one row opened again and made, and one rejected."""
    folder = tmp_path_factory.mktemp("finished")
    begun = begin_run(make_spec(folder, rows=ROWS, sampling={"max_tokens": 12}))
    virtual_time.run(drive(LocalCluster(), begun))
    retry(begun.storage, Wanted(frozenset({Status.TRUNCATED})), {"max_tokens": 100})
    begun = resume(begun.storage.url, StartOptions(processes=1), say=silent)
    virtual_time.run(drive(LocalCluster(), begun))
    seal_run(begun.storage, begun.worker_setup.run)
    return folder


@pytest.fixture
def storage(finished: Path, tmp_path: Path) -> LocalStorage:
    shutil.copytree(finished / "run", tmp_path / "run")
    return LocalStorage(tmp_path / "run")


def keys(storage: LocalStorage, prefix: str = "") -> list[str]:
    return [stored.key for stored in storage.list(prefix)]


def exported(storage: LocalStorage, out: Path) -> list[str]:
    export(storage.url, ExportOptions("speculators", str(out)), silent)
    return sorted(path.name for path in out.iterdir())


def test_only_what_is_nobodys_goes(storage: LocalStorage) -> None:
    before = keys(storage)
    for key in ("plan/dead/part-00000.parquet", "shards/shard-00000100-00000106.parquet"):
        storage.replace(key, b"left over")
    storage.replace("plan/dead/part-00001.parquet", b"x")
    for key in ("pilot.html", "notes.txt"):
        storage.replace(key, b"kept")
    gone = ["plan/dead/part-00000.parquet", "plan/dead/part-00001.parquet", "shards/shard-00000100-00000106.parquet"]
    shown = clean(storage, journal=False, is_dry_run=True, say=silent)
    assert [one.key for one in shown.removed] == gone
    assert set(gone) < set(keys(storage))
    done = clean(storage, journal=False, is_dry_run=False, say=silent)
    assert done.removed == shown.removed
    assert f"removed {gone[1]} (1 bytes): " in done.lines()[1]
    assert [key for key in keys(storage) if not key.startswith("journal/")] == sorted(
        [key for key in before if not key.startswith("journal/")] + ["notes.txt", "pilot.html"]
    )
    assert check(storage).is_right
    again = keys(storage)
    assert clean(storage, journal=False, is_dry_run=False, say=silent).removed == ()
    assert keys(storage) == again


def test_while_there_is_no_plan_its_parts_are_left_alone(storage: LocalStorage) -> None:
    storage.delete("plan.json")
    parts = keys(storage, "plan/")
    said: list[str] = []
    assert clean(storage, journal=False, is_dry_run=False, say=said.append).removed == ()
    assert keys(storage, "plan/") == parts
    assert "somebody may be planning" in said[0]


def test_a_run_at_work_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "WATCH_SECONDS", 7.0)

    async def scenario() -> None:
        begun = begin_run(make_spec(tmp_path, rows=30, engine={"step_seconds": 0.05, "slots": 1}))
        begun.storage.replace("plan/dead/part-00000.parquet", b"x")
        cluster = LocalCluster()
        work = asyncio.ensure_future(drive(cluster, begun))
        while cluster.coordinator is None or not (await cluster.coordinator.status()).commits:
            await asyncio.sleep(0.02)
        with pytest.raises(RunHeld, match="is being run by session"):
            await asyncio.to_thread(clean, begun.storage, journal=False, is_dry_run=False, say=silent)
        assert "plan/dead/part-00000.parquet" in keys(LocalStorage(tmp_path / "run"))
        await cluster.coordinator.drain(0.0)
        await work

    asyncio.run(scenario())


def test_a_run_without_its_journal_can_be_looked_at_verified_and_exported(
    storage: LocalStorage, tmp_path: Path
) -> None:
    before, rows = look(storage), shard_table(tmp_path / "run").to_pylist()
    files = exported(storage, tmp_path / "before")
    done = clean(storage, journal=True, is_dry_run=False, say=silent)
    assert done.is_closed
    assert len(keys(storage, "journal/")) == 1
    after = look(storage)
    assert after.totals == before.totals
    assert after.is_finished
    assert after.closed_at is not None
    assert standing(storage).is_finished
    assert exported(storage, tmp_path / "after") == files
    assert [path.read_bytes() for path in sorted((tmp_path / "after").glob("*.parquet"))] == [
        path.read_bytes() for path in sorted((tmp_path / "before").glob("*.parquet"))
    ]
    found = check(storage)
    assert found.is_right, found
    assert found.verification is not None
    assert sum(found.verification.outcomes.values()) == len(ROWS)
    assert len(seal_complete(storage)) == found.verification.shards_planned
    assert shard_table(tmp_path / "run").to_pylist() == rows
    assert clean(storage, journal=True, is_dry_run=False, say=silent).removed == ()


def test_nothing_can_be_made_for_it_any_more(finished: Path, storage: LocalStorage) -> None:
    clean(storage, journal=True, is_dry_run=False, say=silent)
    files = keys(storage)
    spec = make_spec(finished, sampling={"max_tokens": 12}, output=storage.url)
    options = StartOptions(processes=1)
    refused = [
        lambda: begin_run(spec),
        lambda: resume(storage.url, options, silent),
        lambda: begin_pilot(spec, options, 3, silent),
        lambda: retry(storage, Wanted(frozenset({Status.OK})), {}),
        lambda: extend(spec, options, silent),
        lambda: report(storage),
        lambda: repair(storage),
        lambda: sample_rows(storage, len(ROWS), 4),  # evaluate
    ]
    for attempt in refused:
        with pytest.raises(UserError, match=r"closed at .* by `regen clean --journal`") as error:
            attempt()
        assert error.value.exit_code == 2
    assert keys(storage) == files


@pytest.mark.parametrize("deleted", [0, 1, 3])
def test_a_kill_while_the_journal_goes_leaves_a_run_that_can_be_read(
    storage: LocalStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deleted: int
) -> None:
    left = [deleted]
    delete = LocalStorage.delete

    def killed(self: LocalStorage, key: str) -> None:
        if key.startswith("journal/"):
            if not left[0]:
                raise StoreUnavailable("killed")
            left[0] -= 1
        delete(self, key)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "delete", killed)
        with pytest.raises(StoreUnavailable, match="killed"):
            clean(storage, journal=True, is_dry_run=False, say=silent)
    assert len(keys(storage, "journal/")) > 1
    assert look(storage).is_finished
    assert check(storage).is_right
    assert exported(storage, tmp_path / "out")
    with pytest.raises(UserError, match="closed at"):
        resume(storage.url, StartOptions(processes=1), silent)
    clean(storage, journal=False, is_dry_run=False, say=silent)
    assert len(keys(storage, "journal/")) == 1
    assert check(storage).is_right


def test_what_is_not_whole_keeps_its_journal(storage: LocalStorage, tmp_path: Path) -> None:
    def refused(message: str) -> None:
        for is_dry_run in (True, False):
            with pytest.raises(UserError, match=message):
                clean(storage, journal=True, is_dry_run=is_dry_run, say=silent)
        assert JournalFiles(storage).closed() is None

    shard = keys(storage, "shards/")[0]
    whole = storage.read(shard)
    storage.replace(shard, whole[:-9])
    refused("it is not right, so nothing was deleted")
    storage.replace(shard, whole)
    for key in keys(storage, "shards/"):
        storage.delete(key)
    refused("not all of it is sealed")
    seal_complete(storage)
    retry(storage, Wanted(frozenset({Status.OK})), {})
    refused("are to be made again")


def test_rows_that_come_in_between_keep_the_journal(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    def check_and_then_a_retry(folder: LocalStorage) -> Checked:
        found = check(folder)
        retry(storage, Wanted(frozenset({Status.OK})), {})
        return found

    monkeypatch.setattr("regen.run.commands.clean.check", check_and_then_a_retry)
    with pytest.raises(RunHeld, match="meanwhile"):
        clean(storage, journal=True, is_dry_run=False, say=silent)
    assert JournalFiles(storage).closed() is None


def test_damage_of_a_closed_run_is_found_and_named(storage: LocalStorage, tmp_path: Path) -> None:
    clean(storage, journal=True, is_dry_run=False, say=silent)
    shard = keys(storage, "shards/")[0]
    whole = storage.read(shard)

    def found() -> list[tuple[Code, str]]:
        return [(one.code, one.where) for one in check(storage).findings]

    for data in (whole[:-9], whole[:200] + bytes([whole[200] ^ 1]) + whole[201:]):
        storage.replace(shard, data)
        assert found() == [(Code.SHARD_DAMAGED, shard)]
    storage.delete(shard)
    assert found()[-1] == (Code.SHARD_MISSING, shard)
    assert not check(storage).is_right
    with pytest.raises(JournalDamaged, match="the run is closed"):
        exported(storage, tmp_path / "out")
    storage.replace(shard, whole)
    assert check(storage).is_right
    closing = keys(storage, "journal/")[0]
    data = storage.read(closing)
    storage.replace(closing, data[:-20])
    assert not check(storage).is_right
    with pytest.raises(JournalDamaged, match="the journal's only file, as it is in a closed run"):
        repair(storage)
    assert keys(storage, "journal/") == [closing]
    assert read_summary(storage) is not None
    with pytest.raises(JournalDamaged):
        look(storage)


def test_the_commands_show_what_they_do(finished: Path, storage: LocalStorage, tmp_path: Path) -> None:
    def said(*arguments: str) -> str:
        done = CliRunner().invoke(app, list(arguments))
        assert done.exit_code == 0, done.output
        return done.stdout

    storage.replace("plan/dead/part-00000.parquet", b"x")
    shown = json.loads(said("clean", storage.url, "--dry-run", "--json"))
    assert [one["key"] for one in shown["removed"]] == ["plan/dead/part-00000.parquet"]
    assert "1 files, 1 bytes" in said("clean", storage.url)
    path = write_jsonl(tmp_path / "rows.jsonl", [*ROWS, {"prompt": "more"}])
    sources = [{"name": "rows", "path": str(path)}]
    spec = make_spec(finished, sampling={"max_tokens": 12}, output=storage.url, sources=sources)
    (tmp_path / "run.yaml").write_text(spec.model_dump_json(exclude_unset=True), encoding="utf-8")
    assert "added 1 rows (rows 1): the plan has 20 now" in said("extend", str(tmp_path / "run.yaml"))
    assert "20 rows, 1 of them added since" in said("status", storage.url)
    assert json.loads(said("extend", str(tmp_path / "run.yaml"), "--json"))["added"] == {}


def test_an_extension_whose_parts_were_cleaned_meanwhile_says_so(
    finished: Path, storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_jsonl(finished / "more.jsonl", [*ROWS, {"prompt": "more"}])
    spec = make_spec(
        finished, sampling={"max_tokens": 12}, output=storage.url, sources=[{"name": "rows", "path": str(path)}]
    )
    claim, depth = Journal.claim, list[int]()

    def cleaned_first(journal: Journal, mine: object) -> None:
        if not depth:
            depth.append(1)
            assert len(clean(storage, journal=False, is_dry_run=False, say=silent).removed) == 1
        claim(journal, mine)  # type: ignore[arg-type]

    monkeypatch.setattr(Journal, "claim", cleaned_first)
    with pytest.raises(Exception, match=r"has claimed this run|was the folder cleaned"):
        extend(spec, StartOptions(processes=1), silent)
    assert look(storage).planned == len(ROWS)
    assert extend(spec, StartOptions(processes=1), silent).added == {"rows": 1}
