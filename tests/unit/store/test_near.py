"""What never changes is there while the store is away."""

from __future__ import annotations

import errno
import os
import tempfile
from typing import BinaryIO

import pytest

from regen.errors import StoreUnavailable
from regen.store.near import NearStorage
from tests.memory_storage import MemoryStorage

DATA = bytes(range(256)) * 1000


class Away(MemoryStorage):
    is_away = False

    def open(self, key: str) -> BinaryIO:
        if self.is_away:
            raise StoreUnavailable("away")
        return super().open(key)


@pytest.fixture
def behind() -> Away:
    storage = Away()
    storage.create("plan/one", DATA)
    storage.create("plan/two", DATA)
    return storage


def test_what_was_opened_once_is_there_while_the_store_is_away(behind: Away) -> None:
    near = NearStorage(behind)
    near.open("plan/one").close()
    behind.is_away = True

    with near.open("plan/one") as first, near.open("plan/one") as second:
        first.seek(1000)
        assert second.read() == DATA
        assert first.read(10) == DATA[1000:1010]
    with pytest.raises(StoreUnavailable):
        near.open("plan/two")
    behind.is_away = False
    assert near.open("plan/two").read() == DATA


def test_a_copy_that_failed_is_made_again(behind: Away, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    near = NearStorage(behind)
    with monkeypatch.context() as broken:
        broken.setattr(tempfile, "TemporaryFile", full)
        with pytest.raises(StoreUnavailable, match=r"No space left.*TMPDIR"):
            near.open("plan/one")

    assert near.open("plan/one").read() == DATA


def test_a_plan_of_many_parts_takes_one_descriptor(behind: Away) -> None:
    near = NearStorage(behind)
    for number in range(50):
        behind.create(f"plan/part-{number}", bytes([number]) * 1000)
    near.open("plan/one").close()
    before = len(os.listdir("/proc/self/fd"))

    for number in range(50):
        near.open(f"plan/part-{number}").close()

    assert len(os.listdir("/proc/self/fd")) == before
    behind.is_away = True
    assert [near.open(f"plan/part-{number}").read()[:1] for number in range(50)] == [bytes([n]) for n in range(50)]
    del near
    assert len(os.listdir("/proc/self/fd")) == before - 1


def test_what_is_not_there_is_a_key_error(behind: Away) -> None:
    with pytest.raises(KeyError):
        NearStorage(behind).open("plan/three")


def test_everything_else_is_the_store_itself(behind: Away) -> None:
    near = NearStorage(behind)

    assert near.create("run.json", b"{}")
    near.replace("run.json", b"new")
    assert near.read("run.json") == b"new"
    near.delete("run.json")
    assert [found.key for found in near.list("")] == ["plan/one", "plan/two"]
