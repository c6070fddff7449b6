"""Bytes in a local folder: create-if-absent, atomic replace, ordered listing.

Guarantees: when `create` or `replace` return, content and name survive a power cut; an object is never seen half
written; of many `create` calls for one key, in any number of processes and hosts, exactly one returns True. A folder
that this process wrote to and that is gone is not made anew: a run whose folder was removed stops.
Knows nothing of journals or Parquet. Costs two fsyncs a write, and a hard link for `create`: a file system without hard
links cannot carry a run, which `probe` finds out before anything is started.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from regen.errors import StoreRefused, StoreUnavailable
from regen.protocols import StoredObject
from regen.store.keys import ABANDONED_AFTER_SECONDS, LEFTOVER, TEMPORARY, check_key, own_name
from regen.store.machine import machine_identity, process_exists
from regen.store.probe import probe_storage

_COPY_BYTES = 1 << 20

_ADVICE_WHEN_UNAVAILABLE = {
    errno.ENOSPC: "the disk is full: free some room, nothing that was committed is lost",
    errno.EDQUOT: "the disk quota is used up: raise it or free some room, nothing that was committed is lost",
    errno.EIO: "the disk or its connection reports an error: check it",
    errno.ETIMEDOUT: "the file server does not answer",
    errno.ESTALE: "the file server has lost the handle: check the mount",
    errno.EAGAIN: "the file system is busy",
    errno.EBUSY: "the file system is busy",
    errno.EINTR: "the call was interrupted",
    errno.ENOMEM: "the machine is out of memory",
    errno.EMFILE: "this process has too many open files: raise `ulimit -n`",
    errno.ENFILE: "this machine has too many open files",
    errno.EHOSTDOWN: "the file server is down",
    errno.EHOSTUNREACH: "the file server cannot be reached",
    errno.ENETUNREACH: "the file server cannot be reached",
    errno.ENOTCONN: "the mount has lost its connection",
}
_ADVICE_WHEN_REFUSED = {
    errno.EACCES: "give this user permission to read and write there, or name another `output`",
    errno.EPERM: "give this user permission to read and write there, or name another `output`",
    errno.EROFS: "it is mounted read-only: name another `output`",
    errno.ENOTDIR: "a part of the path is a file: name another `output`",
    errno.EEXIST: "a file stands where a folder belongs: name another `output`",
    errno.EISDIR: "a folder stands where a file belongs: move it away",
    errno.ENOENT: "the folder was removed meanwhile or cannot be made there: name another `output`",
    errno.ENAMETOOLONG: "the path is too long for this file system: name another `output`",
}
_NO_HARD_LINKS = frozenset(
    {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV, errno.EINVAL}
)


class LocalStorage:
    """A `Storage` in one local folder, which is made by the first write. Thread-safe.

    No state beyond the path and which of its folders were written to.
    """

    def __init__(self, root: Path) -> None:
        self._root = Path(os.path.abspath(root))
        self._written: set[Path] = set()

    @property
    def url(self) -> str:
        """The absolute path, so that it means the same in every process."""
        return str(self._root)

    def create(self, key: str, data: bytes) -> bool:
        path = self._path(key)
        with _translated(path):
            with self._temporary(path.parent) as temporary:
                _write(temporary, data)
                created = _link(temporary, path)
            # Also when the name was taken: it may be our own earlier link whose folder was not flushed any more.
            _flush_folder(path.parent)
        return created

    def replace(self, key: str, data: bytes | Path) -> None:
        path = self._path(key)
        with _translated(path):
            with self._temporary(path.parent) as temporary:
                _write(temporary, data)
                os.replace(temporary, path)
            _flush_folder(path.parent)

    def read(self, key: str) -> bytes:
        with self.open(key) as source, _translated(self._path(key)):
            return source.read()

    def open(self, key: str) -> BinaryIO:
        path = self._path(key)
        with _translated(path):
            try:
                return path.open("rb")
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
                raise KeyError(key) from None

    def list(self, prefix: str) -> Iterator[StoredObject]:
        folder, _, _ = prefix.rpartition("/")
        if folder:
            check_key(folder)
        start = self._root / folder
        with _translated(start):
            yield from _walk(start, f"{folder}/" if folder else "", prefix)

    def delete(self, key: str) -> None:
        path = self._path(key)
        with _translated(path):
            try:
                path.unlink()
            except (FileNotFoundError, NotADirectoryError):
                return
            _flush_folder(path.parent)

    def sweep(self) -> int:
        removed = 0
        with _translated(self._root):
            for folder, _, names in os.walk(self._root, onerror=_raise) if self._root.is_dir() else ():
                for name in filter(LEFTOVER.match, names):
                    if self._is_abandoned(Path(folder, name)):
                        Path(folder, name).unlink(missing_ok=True)
                        removed += 1
        return removed

    def _is_abandoned(self, path: Path) -> bool:
        """Here its process tells; of another machine its age does, by the one clock that stamps every file there."""
        name = LEFTOVER.match(path.name)
        if name is None:
            return False
        if name["machine"] == machine_identity():
            return not process_exists(int(name["pid"]))
        with self._temporary(path.parent) as fresh:
            fresh.touch()
            return _age_seconds(path, fresh) > ABANDONED_AFTER_SECONDS

    def probe(self) -> None:
        probe_storage(self)

    def _path(self, key: str) -> Path:
        check_key(key)
        return self._root / key

    @contextmanager
    def _temporary(self, folder: Path) -> Iterator[Path]:
        self._require_kept(folder)
        _make_folder(folder)
        self._written.update((self._root, folder))
        temporary = folder / own_name(TEMPORARY)
        try:
            yield temporary
        except FileNotFoundError as error:
            self._require_kept(folder)
            if not temporary.exists():  # a sweep whose clock had jumped: the same bytes are written again
                raise StoreUnavailable(f"{temporary}: was removed while it was written: try again") from error
            raise
        finally:
            temporary.unlink(missing_ok=True)

    def _require_kept(self, folder: Path) -> None:
        for written in (self._root, folder):
            if written in self._written and not written.is_dir():
                raise StoreRefused(
                    f"{written}: the folder was removed while this process wrote to it, and is not made anew;"
                    " put it back, or end this and begin another run"
                )


def _raise(error: OSError) -> None:
    raise error


def _age_seconds(path: Path, fresh: Path) -> float:
    try:
        return fresh.stat().st_mtime - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _write(path: Path, data: bytes | Path) -> None:
    with path.open("xb") as sink:
        if isinstance(data, Path):
            with data.open("rb") as source:
                while block := source.read(_COPY_BYTES):
                    sink.write(block)
        else:
            sink.write(data)
        sink.flush()
        os.fsync(sink.fileno())


def _link(temporary: Path, path: Path) -> bool:
    try:
        os.link(temporary, path)
    except FileExistsError:
        # NFS repeats a request whose answer was lost: then the name is taken by our own file.
        return _is_same_file(temporary, path)
    except OSError as error:
        if error.errno in _NO_HARD_LINKS:
            raise StoreRefused(
                f"{path}: hard links are not possible here ({error.strerror}), so a file cannot be published"
                " exactly once; name an `output` on another file system"
            ) from error
        raise
    return True


def _is_same_file(temporary: Path, path: Path) -> bool:
    try:
        return os.path.samefile(temporary, path)
    except FileNotFoundError:
        return False


def _make_folder(folder: Path) -> None:
    """Make the folder and its parents; each new name is flushed in the folder that holds it."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    _flush_folder(folder.parent)


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _walk(folder: Path, base: str, prefix: str) -> Iterator[StoredObject]:
    """In key order: a folder sorts as its name with a slash, as its keys do."""
    try:
        with os.scandir(folder) as entries:
            names = sorted(f"{entry.name}/" if entry.is_dir() else entry.name for entry in entries)
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        key = base + name
        if name.startswith(TEMPORARY) or not (key.startswith(prefix) or prefix.startswith(key)):
            continue
        if name.endswith("/"):
            yield from _walk(folder / name, key, prefix)
        elif key.startswith(prefix):
            yield from _stored(folder / name, key)


def _stored(path: Path, key: str) -> Iterator[StoredObject]:
    try:
        yield StoredObject(key, path.stat().st_size)
    except FileNotFoundError:  # deleted since the folder was read
        return


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    """Turn what the operating system says into who retries."""
    try:
        yield
    except OSError as error:
        raise _translation(error, path) from error


def _translation(error: OSError, path: Path) -> StoreUnavailable | StoreRefused:
    code = error.errno or 0
    kind: Callable[[str], StoreUnavailable | StoreRefused]
    if code in _ADVICE_WHEN_UNAVAILABLE:
        kind, advice = StoreUnavailable, _ADVICE_WHEN_UNAVAILABLE[code]
    else:
        kind, advice = StoreRefused, _ADVICE_WHEN_REFUSED.get(code, "name another `output`")
    return kind(f"{path}: {error.strerror or error}: {advice}")
