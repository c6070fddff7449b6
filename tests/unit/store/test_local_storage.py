"""What only the local folder can do: errors of the disk, leftovers, durability."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from regen.errors import ExitCode, SpecError, StoreError, StoreRefused, StoreUnavailable
from regen.store.local import LocalStorage
from regen.store.machine import machine_identity
from regen.store.storage import open_storage

UUID = "0" * 32
ABANDONED_LONG_AGO_SECONDS = 48 * 3600


def _dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def _leftover(folder: Path, machine: str, pid: int, age_seconds: float = 0.0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f".tmp-{machine}-{pid}-{UUID}"
    path.write_bytes(b"half written")
    stamp = path.stat().st_mtime - age_seconds
    os.utime(path, (stamp, stamp))
    return path


def _fails(code: int) -> Callable[..., None]:
    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.parametrize(
    ("call", "code", "expected"),
    [
        ("fsync", errno.ENOSPC, StoreUnavailable),
        ("fsync", errno.EDQUOT, StoreUnavailable),
        ("fsync", errno.EIO, StoreUnavailable),
        ("link", errno.ESTALE, StoreUnavailable),
        ("link", errno.ETIMEDOUT, StoreUnavailable),
        ("link", errno.EAGAIN, StoreUnavailable),
        ("link", errno.EACCES, StoreRefused),
        ("link", errno.EROFS, StoreRefused),
        ("link", errno.EPERM, StoreRefused),
        ("link", errno.EOPNOTSUPP, StoreRefused),
    ],
)
def test_errors_of_the_disk_say_who_retries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int, expected: type[StoreError]
) -> None:
    storage = LocalStorage(tmp_path)
    with monkeypatch.context() as disk:
        disk.setattr(os, call, _fails(code))
        with pytest.raises(expected, match=r"run\.json"):
            storage.create("run.json", b"{}")

    assert [path.name for path in tmp_path.iterdir()] == []
    assert storage.create("run.json", b"{}")


def test_a_place_without_hard_links_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", _fails(errno.EPERM))

    with pytest.raises(StoreRefused, match="hard links"):
        LocalStorage(tmp_path).probe()


def test_a_link_whose_answer_was_lost_on_the_way_is_a_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def link_twice(source: Path, target: Path) -> None:  # as NFS does when the first answer is lost
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", link_twice)

    assert LocalStorage(tmp_path).create("run.json", b"{}")


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder that nobody can write to")
def test_a_folder_that_cannot_be_written_is_refused() -> None:
    with pytest.raises(StoreRefused, match="output") as raised:
        LocalStorage(Path("/proc/self/run")).create("run.json", b"{}")

    assert raised.value.exit_code is ExitCode.STORE


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").write_bytes(b"a file")

    with pytest.raises(StoreRefused):
        LocalStorage(tmp_path / "run").create("run.json", b"{}")


def test_a_failed_replace_keeps_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = LocalStorage(tmp_path)
    storage.replace("report.json", b"old")
    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", _fails(errno.ENOSPC))
        with pytest.raises(StoreUnavailable, match="full"):
            storage.replace("report.json", b"new")

    assert storage.read("report.json") == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_content_is_flushed_before_its_name_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = LocalStorage(tmp_path)
    calls: list[str] = []
    fsync, link = os.fsync, os.link

    def note_fsync(descriptor: int) -> None:
        calls.append("folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "content")
        fsync(descriptor)

    def note_link(source: Path, target: Path) -> None:
        calls.append("link")
        link(source, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "link", note_link)
    storage.create("run.json", b"{}")

    assert calls == ["content", "link", "folder"]


def test_temporaries_are_not_listed(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.create("journal/00000000.parquet", b"")
    _leftover(tmp_path / "journal", machine_identity(), os.getpid())

    assert [found.key for found in storage.list("")] == ["journal/00000000.parquet"]
    assert [found.key for found in storage.list("journal/.tmp-")] == []


def test_sweep_removes_what_a_dead_process_of_this_machine_left(tmp_path: Path) -> None:
    _leftover(tmp_path / "journal", machine_identity(), _dead_pid())
    _leftover(tmp_path / "plan" / "s1", machine_identity(), _dead_pid())
    storage = LocalStorage(tmp_path)
    storage.create("journal/00000000.parquet", b"")

    assert storage.sweep() == 2
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["00000000.parquet"]


def test_sweep_removes_what_was_abandoned_long_ago_on_another_machine(tmp_path: Path) -> None:
    _leftover(tmp_path, "deadbeef", 1, ABANDONED_LONG_AGO_SECONDS)

    assert LocalStorage(tmp_path).sweep() == 1


def test_sweep_leaves_everything_else(tmp_path: Path) -> None:
    kept = {
        _leftover(tmp_path, machine_identity(), os.getpid()),
        _leftover(tmp_path, "deadbeef", _dead_pid()),  # a pid of another machine says nothing
    }
    for name in (".tmp-of-somebody-else", ".hidden", "notes.txt"):
        path = tmp_path / name
        path.write_bytes(b"")
        os.utime(path, (0, 0))
        kept.add(path)

    assert LocalStorage(tmp_path).sweep() == 0
    assert set(tmp_path.iterdir()) == kept


def test_sweep_judges_by_no_clock_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours may be days ahead or behind: what a live writer of any machine has begun stays, what is old goes."""
    own = _leftover(tmp_path, machine_identity(), os.getpid(), ABANDONED_LONG_AGO_SECONDS)
    others = _leftover(tmp_path, "deadbeef", 1)
    for jump_seconds in (-1e6, 1e6):
        real = time.time()
        monkeypatch.setattr(time, "time", lambda jumped=real + jump_seconds: jumped)
        assert LocalStorage(tmp_path).sweep() == 0
        assert {own, others} <= set(tmp_path.iterdir())


def test_a_temporary_that_was_swept_away_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = LocalStorage(tmp_path)
    real = os.link

    def swept(temporary: Path, path: Path) -> None:
        temporary.unlink()
        real(temporary, path)

    monkeypatch.setattr(os, "link", swept)
    with pytest.raises(StoreUnavailable, match="was removed while it was written"):
        storage.create("journal/00000000.parquet", b"data")
    monkeypatch.setattr(os, "link", real)
    assert storage.create("journal/00000000.parquet", b"data")


@pytest.mark.parametrize("gone", ["", "journal"])
def test_a_folder_that_was_removed_meanwhile_is_not_made_anew(tmp_path: Path, gone: str) -> None:
    storage = LocalStorage(tmp_path / "run")
    storage.create("journal/00000000.parquet", b"data")
    shutil.rmtree(tmp_path / "run" / gone)

    with pytest.raises(StoreRefused, match=f"{tmp_path / 'run' / gone}: the folder was removed"):
        storage.create("journal/00000001.parquet", b"data")
    with pytest.raises(StoreRefused, match="the folder was removed"):
        storage.replace("journal/x", b"data")
    assert not (tmp_path / "run" / "journal").exists()


def test_a_file_without_permission_to_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = LocalStorage(tmp_path)
    storage.create("journal/00000000.parquet", b"data")
    monkeypatch.setattr(Path, "open", _fails(errno.EACCES))

    with pytest.raises(StoreRefused, match=r"journal/00000000\.parquet: Permission denied: give this user"):
        storage.read("journal/00000000.parquet")


def test_sweep_of_a_folder_that_is_not_there_finds_nothing(tmp_path: Path) -> None:
    assert LocalStorage(tmp_path / "missing").sweep() == 0


def test_a_relative_root_means_the_same_after_a_change_of_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    storage = open_storage("runs/one")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    storage.create("run.json", b"{}")

    assert (tmp_path / "runs" / "one" / "run.json").exists()
    assert storage.url == str(tmp_path / "runs" / "one")


@pytest.mark.parametrize("url", ["gs://bucket/run", "S3://bucket/run", ""])
def test_other_kinds_of_store_are_refused_with_what_to_use(url: str) -> None:
    with pytest.raises(SpecError, match="local folder"):
        open_storage(url)
