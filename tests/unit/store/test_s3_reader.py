"""A remote object as a file: the right bytes, in few calls."""

from __future__ import annotations

import io
import random

import pytest

from regen.store.s3_reader import FIRST_WINDOW_BYTES, LONGEST_WINDOW_BYTES, ObjectReader

DATA = random.Random(0).randbytes(3 * 2**20)
TAIL = 64 * 1024


def opened(data: bytes, tail: int = TAIL) -> tuple[io.BufferedReader, list[tuple[int, int]]]:
    calls: list[tuple[int, int]] = []

    def fetch(start: int, stop: int) -> bytes:
        assert 0 <= start < stop <= len(data)
        calls.append((start, stop))
        return data[start:stop]

    return io.BufferedReader(ObjectReader(len(data), data[max(0, len(data) - tail) :], fetch)), calls


@pytest.mark.parametrize("size", [0, 1, 10, TAIL - 1, TAIL, TAIL + 1, FIRST_WINDOW_BYTES + TAIL, len(DATA)])
def test_the_whole_object_comes_in_one_more_call(size: int) -> None:
    reader, calls = opened(DATA[:size])

    assert reader.read() == DATA[:size]
    assert len(calls) == (1 if size > TAIL else 0)
    assert reader.read() == b""


def test_any_walk_reads_what_a_file_would() -> None:
    reader, _ = opened(DATA)
    plain = io.BytesIO(DATA)
    dice = random.Random(1)
    for _ in range(400):
        whence = dice.choice([io.SEEK_SET, io.SEEK_CUR, io.SEEK_END])
        offset = {
            io.SEEK_SET: dice.randrange(len(DATA) + 10),
            io.SEEK_CUR: dice.randrange(-min(plain.tell(), 999), 1000),
            io.SEEK_END: -dice.randrange(len(DATA)),
        }[whence]
        assert reader.seek(offset, whence) == plain.seek(offset, whence)
        wanted = dice.choice([0, 1, 100, 10_000, 700_000])
        assert reader.read(wanted) == plain.read(wanted)


def test_the_end_costs_no_call() -> None:
    reader, calls = opened(DATA)

    reader.seek(-TAIL, io.SEEK_END)
    assert reader.read() == DATA[-TAIL:]
    assert calls == []


def test_reading_in_order_asks_for_more_each_time() -> None:
    data = bytes(40 * 2**20)
    reader, calls = opened(data)
    while reader.read(8192):
        pass

    sizes = [stop - start for start, stop in calls]
    assert sizes[:3] == [FIRST_WINDOW_BYTES, 2 * FIRST_WINDOW_BYTES, 4 * FIRST_WINDOW_BYTES]
    assert max(sizes) == LONGEST_WINDOW_BYTES
    assert sum(sizes) == len(data) - TAIL


def test_before_the_beginning_is_nothing() -> None:
    reader, _ = opened(DATA)

    with pytest.raises((ValueError, OSError)):
        reader.seek(-1)
