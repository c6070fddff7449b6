"""What every Storage must do. A new kind joins as one more parameter of `storage`."""

from __future__ import annotations

import io
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from regen.errors import StoreRefused
from regen.protocols import Storage
from regen.store.local import LocalStorage
from regen.store.probe import probe_storage
from regen.store.s3 import S3Storage
from regen.store.storage import open_storage
from tests.s3_server import S3Server

THREADS = 8
LARGE_BYTES = 40 * 2**20


@pytest.fixture(params=["local", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "local":
        return LocalStorage(tmp_path / "run")
    server: S3Server = request.getfixturevalue("s3")
    return server.storage(read_timeout_seconds=60.0)


def _keys(storage: Storage, prefix: str = "") -> list[str]:
    return [found.key for found in storage.list(prefix)]


def test_create_publishes_what_was_given(storage: Storage) -> None:
    assert storage.create("journal/00000000.parquet", b"first")

    assert storage.read("journal/00000000.parquet") == b"first"


def test_a_second_create_changes_nothing(storage: Storage) -> None:
    storage.create("run.json", b"first")

    assert not storage.create("run.json", b"second")
    assert storage.read("run.json") == b"first"


def test_of_many_creates_of_one_key_exactly_one_succeeds(storage: Storage) -> None:
    for attempt in range(20):
        barrier = threading.Barrier(THREADS)

        def create(writer: int, attempt: int = attempt, barrier: threading.Barrier = barrier) -> bool:
            barrier.wait()
            return storage.create(f"journal/{attempt}", str(writer).encode())

        with ThreadPoolExecutor(THREADS) as pool:
            created = list(pool.map(create, range(THREADS)))

        assert created.count(True) == 1
        assert storage.read(f"journal/{attempt}") == str(created.index(True)).encode()


def test_replace_takes_the_place_of_whatever_is_there(storage: Storage, tmp_path: Path) -> None:
    local = tmp_path / "local"
    local.write_bytes(b"from a file")

    storage.replace("report.json", b"one")
    storage.replace("report.json", b"two")
    assert storage.read("report.json") == b"two"
    storage.replace("report.json", local)
    assert storage.read("report.json") == b"from a file"
    assert local.read_bytes() == b"from a file"


def test_readers_never_see_a_half_replaced_object(storage: Storage) -> None:
    versions = [bytes([letter]) * 300_000 for letter in b"abcdef"]
    storage.replace("holder.json", versions[0])
    is_over = threading.Event()

    def read() -> set[bytes]:
        seen = set()
        while not is_over.is_set():
            seen.add(storage.read("holder.json"))
        return seen

    with ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(read) for _ in range(3)]
        for version in versions * 5:
            storage.replace("holder.json", version)
        is_over.set()
        assert set().union(*(reader.result() for reader in readers)) <= set(versions)


def test_list_is_in_key_order_with_sizes(storage: Storage) -> None:
    keys = [
        "plan.json",
        "plan/s1/part-00001",
        "plan/s1/part-00000",
        "plan-b",
        "a",
        "plan/r",
        "journal/00000001",
        "z/y/x",
    ]
    for size, key in enumerate(keys):
        storage.create(key, b"." * size)

    found = [(stored.key, stored.size) for stored in storage.list("")]
    assert found == sorted((key, size) for size, key in enumerate(keys))


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        ("journal/", ["journal/00000000", "journal/00000001"]),
        ("journal/00000001", ["journal/00000001"]),
        ("journal", ["journal-old", "journal/00000000", "journal/00000001"]),
        ("jour", ["journal-old", "journal/00000000", "journal/00000001"]),
        ("shards/", []),
        ("journal/00000000/", []),
        ("nothing/here/", []),
    ],
)
def test_list_takes_any_prefix(storage: Storage, prefix: str, expected: list[str]) -> None:
    for key in ("journal/00000001", "journal/00000000", "journal-old", "run.json"):
        storage.create(key, b"")

    assert _keys(storage, prefix) == expected


def test_list_shows_what_another_wrote_a_moment_ago(storage: Storage) -> None:
    assert _keys(storage) == []
    for number in range(1005):
        storage.create(f"journal/{number:08d}", b"")
        if number % 200 == 0:
            assert len(_keys(storage, "journal/")) == number + 1

    assert _keys(storage, "journal/") == [f"journal/{number:08d}" for number in range(1005)]


def test_a_large_object_comes_back_whole(storage: Storage) -> None:
    data = bytes(range(256)) * (LARGE_BYTES // 256)

    assert storage.create("large", data)

    assert storage.read("large") == data
    assert [found.size for found in storage.list("large")] == [LARGE_BYTES]


def test_open_can_seek(storage: Storage) -> None:
    storage.create("seekable", b"0123456789")

    with storage.open("seekable") as source:
        assert source.seek(-3, io.SEEK_END) == 7
        assert source.read(2) == b"78"
        assert source.seek(1) == 1
        assert source.read(3) == b"123"


def test_delete_removes_and_may_be_repeated(storage: Storage) -> None:
    storage.create("shards/one", b"1")
    storage.create("shards/two", b"2")

    storage.delete("shards/one")
    storage.delete("shards/one")
    storage.delete("never/was/there")

    assert _keys(storage) == ["shards/two"]
    assert storage.create("shards/one", b"again")


@pytest.mark.parametrize("key", ["missing", "missing/in/folder", "present/below", "folder"])
def test_what_is_not_there_is_a_key_error(storage: Storage, key: str) -> None:
    storage.create("present", b"1")
    storage.create("folder/object", b"1")

    with pytest.raises(KeyError):
        storage.read(key)
    with pytest.raises(KeyError):
        storage.open(key)


@pytest.mark.parametrize("key", ["", "/etc/passwd", "../outside", "a/../../b", "a//b", "a/", ".", "a\0b", ".tmp-x/y"])
def test_keys_stay_inside(storage: Storage, key: str) -> None:
    with pytest.raises(ValueError, match="not a key"):
        storage.create(key, b"")
    with pytest.raises(ValueError, match="not a key"):
        storage.read(key)
    with pytest.raises(ValueError, match="not a key"):
        storage.replace(key, b"")


def test_probe_passes_and_leaves_nothing(storage: Storage) -> None:
    storage.create("run.json", b"{}")

    storage.probe()

    assert _keys(storage) == ["run.json"]
    assert storage.sweep() == 0


def test_another_process_opens_the_same_place_by_its_url(
    storage: Storage, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `regen status` does: from the URL, and what the environment says."""
    if isinstance(storage, S3Storage):
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", request.getfixturevalue("s3").endpoint)
    storage.create("run.json", b"{}")

    assert open_storage(storage.url).read("run.json") == b"{}"


class _Unsuitable:
    """A store with one thing wrong."""

    def __init__(self, storage: Storage, wrong: str) -> None:
        self._storage = storage
        self._wrong = wrong

    def __getattr__(self, name: str) -> object:
        return getattr(self._storage, name)

    def create(self, key: str, data: bytes) -> bool:
        if self._wrong == "never creates":
            return False
        if self._wrong == "overwrites":
            self._storage.replace(key, data)
            return True
        if self._wrong == "overwrites but tells":
            created = self._storage.create(key, data)
            self._storage.replace(key, data)
            return created
        return self._storage.create(key, data)

    def read(self, key: str) -> bytes:
        data = self._storage.read(key)
        return b"12\r\n" + data if self._wrong == "alters" else data

    def list(self, prefix: str) -> object:
        return iter(()) if self._wrong == "hides" else self._storage.list(prefix)

    def delete(self, key: str) -> None:
        if self._wrong != "keeps":
            self._storage.delete(key)


@pytest.mark.parametrize("wrong", ["never creates", "overwrites", "overwrites but tells", "alters", "hides", "keeps"])
def test_probe_refuses_an_unsuitable_store(storage: Storage, wrong: str) -> None:
    unsuitable: object = _Unsuitable(storage, wrong)

    with pytest.raises(StoreRefused, match="cannot carry a run"):
        probe_storage(unsuitable)  # type: ignore[arg-type]
