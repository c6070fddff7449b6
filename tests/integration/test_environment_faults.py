"""What the machine does to a run: the disk full, folders gone or not to be read, clocks that jump, damaged files."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from regen.data.plan import open_plan
from regen.data.plan_writer import RowGroupFile
from regen.errors import ExitCode, JournalDamaged, StoreRefused, StoreUnavailable
from regen.records import CoordinatorStatus, Phase
from regen.run import held
from regen.run.commands.check import check
from regen.run.commands.repair import repair
from regen.run.driver import Driver
from regen.run.local import LocalCluster
from regen.run.look import look
from regen.run.session import seal_complete, seal_run, standing
from regen.run.start import Begun, StartOptions, resume
from regen.store import shards
from regen.store.files import JournalFiles
from regen.store.layout import journal_key
from regen.store.local import LocalStorage
from regen.store.parquet import write_rows
from tests import virtual_time
from tests.runs import begin_run, determined, drive, make_spec

ROWS = 40


class FullDisk:
    """While `is_full`, nothing can be flushed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = False
        self._real = os.fsync
        monkeypatch.setattr(os, "fsync", self._fsync)

    def _fsync(self, descriptor: int) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._real(descriptor)


def _begun(folder: Path, **sections: Any) -> Begun:
    sections = {"engine": {"step_seconds": 0.05}, "checkpoint": {"interval_seconds": 0.2}, **sections}
    return begin_run(make_spec(folder, rows=ROWS, **sections))


def _run(begun: Begun, act: Callable[[list[CoordinatorStatus]], Awaitable[None]]) -> list[CoordinatorStatus]:
    """Drive the run on virtual time, and do something meanwhile. What was seen of it."""
    seen: list[CoordinatorStatus] = []
    driver = Driver(LocalCluster(), begun.worker_setup, seen.append, lambda text: None)

    async def both() -> None:
        running = asyncio.ensure_future(driver.run())
        acting = asyncio.ensure_future(act(seen))
        try:
            await running
            await acting
        finally:
            acting.cancel()
            await asyncio.gather(acting, return_exceptions=True)

    virtual_time.run(both())
    return seen


async def _until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.05)


def _resumed(folder: Path) -> Begun:
    begun = resume(str(folder / "run"), StartOptions(processes=1), say=lambda text: None)
    virtual_time.run(drive(LocalCluster(), begun))
    seal_run(begun.storage, begun.worker_setup.run)
    return begun


# --- the disk --------------------------------------------------------------------------------------


def test_a_full_disk_is_waited_for_and_nothing_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, begun = FullDisk(monkeypatch), _begun(tmp_path)

    async def act(seen: list[CoordinatorStatus]) -> None:
        await _until(lambda: seen and seen[-1].totals.done > 0)
        disk.is_full = True
        await _until(lambda: seen[-1].store_error)
        await asyncio.sleep(1)
        disk.is_full = False

    seen = _run(begun, act)

    assert seen[-1].phase is Phase.FINISHED
    errors = {status.store_error for status in seen if status.store_error}
    assert all("the disk is full: free some room" in error for error in errors)
    assert errors
    seal_run(begun.storage, begun.worker_setup.run)
    assert check(begun.storage).is_right
    assert not list((tmp_path / "run").rglob(".tmp-*"))


def test_no_room_for_temporary_files_stops_sealing_and_keeps_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = _begun(tmp_path)
    virtual_time.run(drive(LocalCluster(), begun))
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*.parquet")}
    real, calls = write_rows, 0

    def full(*arguments: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(*arguments)

    monkeypatch.setattr(shards, "write_rows", full)
    with pytest.raises(StoreUnavailable, match=r"No space left on device.*set TMPDIR") as raised:
        seal_complete(begun.storage)
    assert raised.value.exit_code is ExitCode.STORE
    assert len(list((tmp_path / "run" / "shards").iterdir())) == 2
    assert all(path.read_bytes() == data for path, data in before.items())

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "not-there"))
    with pytest.raises(StoreUnavailable, match=r"not-there.*set TMPDIR"):
        seal_complete(begun.storage)
    monkeypatch.setattr(tempfile, "tempdir", None)
    seal_complete(begun.storage)
    assert check(begun.storage).is_right


def test_no_room_for_temporary_files_stops_planning_and_the_same_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = make_spec(tmp_path, rows=3)
    real = RowGroupFile.add

    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(RowGroupFile, "add", full)
    with pytest.raises(StoreUnavailable, match=r"planning cannot write there: No space left.*set TMPDIR"):
        begin_run(spec)
    monkeypatch.setattr(RowGroupFile, "add", real)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "not-there"))
    with pytest.raises(StoreUnavailable, match=r"not-there: planning cannot write there: No such file"):
        begin_run(spec)
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert begin_run(spec).plan_summary.rows == 3


@pytest.mark.parametrize(("code", "advice"), [(errno.EROFS, "mounted read-only"), (errno.EACCES, "permission to read")])
def test_a_place_that_cannot_be_written_is_refused_before_anything_is_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, advice: str
) -> None:
    spec = make_spec(tmp_path, rows=3)

    def refused(*arguments: object, **options: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("regen.store.local._make_folder", refused)
    with pytest.raises(StoreRefused, match=f"{tmp_path / 'run'}.*{advice}") as raised:
        begin_run(spec)
    assert raised.value.exit_code is ExitCode.STORE
    assert not (tmp_path / "run").exists()


def test_an_output_that_is_a_file_is_refused_and_kept(tmp_path: Path) -> None:
    spec = make_spec(tmp_path, rows=3)
    (tmp_path / "run").write_text("mine", encoding="utf-8")

    with pytest.raises(StoreRefused, match=f"{tmp_path / 'run'}.*name another `output`"):
        begin_run(spec)
    assert (tmp_path / "run").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize(
    "start", [look, standing, seal_complete, lambda storage: resume(storage.url, _options(), _say)]
)
def test_a_journal_file_that_must_not_be_read_is_named_and_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: Callable[[LocalStorage], object]
) -> None:
    begun = _begun(tmp_path)
    virtual_time.run(drive(LocalCluster(), begun))
    storage = LocalStorage(tmp_path / "run")
    newest = JournalFiles(storage).files()[-1].key
    real = Path.open

    def guarded(path: Path, *arguments: Any, **options: Any) -> Any:
        if str(path).endswith(newest):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return real(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", guarded)
    with pytest.raises(StoreRefused, match=f"{newest}: Permission denied: give this user permission") as raised:
        start(storage)
    assert raised.value.exit_code is ExitCode.STORE


@pytest.mark.parametrize("gone", [".", "journal"])
def test_a_run_whose_folder_was_removed_stops_and_begins_no_other(tmp_path: Path, gone: str) -> None:
    begun = _begun(tmp_path)

    async def act(seen: list[CoordinatorStatus]) -> None:
        await _until(lambda: seen and seen[-1].totals.done > 0)
        shutil.rmtree(tmp_path / "run" / gone)

    with pytest.raises(JournalDamaged, match="removed or emptied the folder"):
        _run(begun, act)
    assert not (tmp_path / "run" / "journal").exists()


def test_a_run_whose_journal_was_emptied_stops_with_the_files_name(tmp_path: Path) -> None:
    begun = _begun(tmp_path)

    async def act(seen: list[CoordinatorStatus]) -> None:
        await _until(lambda: seen and seen[-1].totals.done > 0)
        for path in (tmp_path / "run" / "journal").iterdir():
            path.unlink()

    with pytest.raises(JournalDamaged, match=r"journal/\d{8}\.parquet: it is gone, and was there"):
        _run(begun, act)
    assert not list((tmp_path / "run" / "journal").iterdir())


# --- clocks ----------------------------------------------------------------------------------------


def test_a_wall_clock_that_jumps_changes_nothing_but_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    straight = _begun(tmp_path / "straight")
    virtual_time.run(drive(LocalCluster(), straight))
    seal_run(straight.storage, straight.worker_setup.run)
    begun, real = _begun(tmp_path / "jumping"), time.time
    jumps = iter([0, 7200, -86400, 3600, 10**6, -(10**6)] * 10_000)
    monkeypatch.setattr(time, "time", lambda: real() + next(jumps))

    async def act(seen: list[CoordinatorStatus]) -> None: ...

    assert _run(begun, act)[-1].phase is Phase.FINISHED
    seal_run(begun.storage, begun.worker_setup.run)
    assert check(begun.storage).is_right
    assert _answers(tmp_path / "jumping") == _answers(tmp_path / "straight")


# --- damage ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["first rows", "newest"])
def test_a_run_whose_journal_was_damaged_is_repaired_and_ends_as_it_would_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    monkeypatch.setattr(held, "WATCH_SECONDS", 0)
    begun = _begun(tmp_path)
    virtual_time.run(drive(LocalCluster(), begun))
    seal_run(begun.storage, begun.worker_setup.run)
    expected = determined(tmp_path / "run")
    storage = LocalStorage(tmp_path / "run")
    files = JournalFiles(storage).files()
    number = 1 if which == "first rows" else files[-1].number
    path = tmp_path / "run" / journal_key(number)
    path.write_bytes(path.read_bytes()[: files[number].size // 2])
    cut = path.read_bytes()

    with pytest.raises(JournalDamaged, match=f"{journal_key(number)}.*verify {storage.url} --repair") as raised:
        resume(storage.url, _options(), _say)
    assert raised.value.exit_code is ExitCode.DAMAGED
    done = repair(storage)
    assert [fault.first for fault in done.faults] == [number]
    _resumed(tmp_path)

    assert check(storage).is_right
    assert determined(tmp_path / "run") == expected
    assert path.read_bytes() == cut
    assert standing(storage).totals.done == open_plan(storage).count


def _answers(folder: Path) -> list[object]:
    return [(row["ordinal"], row["status"], row["messages"]) for row in determined(folder / "run")]


def _options() -> StartOptions:
    return StartOptions(processes=1)


def _say(text: str) -> None: ...
