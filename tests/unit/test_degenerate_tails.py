"""Loops and walls are told from answers that only repeat themselves in parts."""

from __future__ import annotations

import random
import zlib

import pytest

from regen.degenerate import looks_degenerate

END = 2


def ids_of(text: str) -> list[int]:
    """A token for each word and mark, as a tokenizer would make them: the same text has the same id."""
    return [hash_of(piece) for piece in text.replace("|", " | ").replace("\n", " \n ").split(" ") if piece]


def hash_of(piece: str) -> int:
    return 10 + zlib.crc32(piece.encode()) % 40_000


TABLE = "| year | sales | margin |\n| --- | --- | --- |\n" + "".join(
    f"| {1990 + n} | {n * 37 % 91} | 0 |\n" for n in range(30)
)
CODE = "def f ( x ) :\n return x\n" + "".join(f"assert f ( {n} ) == {n}\n" for n in range(40))
ZEROS = "grid = [\n" + "[ 0 , 0 , 0 , 0 , 0 , 0 , 0 , 0 ] ,\n" * 3 + "]\n"
BITS = " ".join(random.Random(1).choices(["0 ,", "1 ,"], k=100))
NUMBERS = " ".join(str(n) for n in range(200))


@pytest.mark.parametrize("text", [TABLE, CODE, ZEROS, BITS, NUMBERS, "yes", "no no no no no no", "| --- | --- | --- |"])
@pytest.mark.parametrize("closing", [[], [END]])
def test_real_answers_are_not_flagged(text: str, closing: list[int]) -> None:
    assert not looks_degenerate(ids_of(text) + closing)


@pytest.mark.parametrize("cut", [16, 64, 200])
def test_cut_answers_are_not_flagged(cut: int) -> None:
    for text in (TABLE, CODE, NUMBERS):
        assert not looks_degenerate(ids_of(text)[:cut])


@pytest.mark.parametrize("closing", [[], [END]])
@pytest.mark.parametrize("period", [1, 2, 7, 40, 200])
def test_a_loop_to_the_end_is_flagged(period: int, closing: list[int]) -> None:
    draw = random.Random(period)
    start = [draw.randrange(1000) for _ in range(30)]
    phrase = [draw.randrange(1000) for _ in range(period)]
    assert looks_degenerate(start + phrase * max(5, 60 // period) + closing)


@pytest.mark.parametrize(("period", "repeats"), [(6, 6), (30, 3)])
def test_few_repeats_and_few_tokens_are_not_flagged(period: int, repeats: int) -> None:
    """A refrain that is sung three times, a row of six short cells."""
    assert not looks_degenerate([*range(500, 560), *list(range(period)) * repeats])


def test_a_loop_that_was_left_again_is_not_flagged() -> None:
    assert not looks_degenerate([1, 2, 3] * 30 + list(range(100, 120)))


def test_a_wall_of_two_tokens_is_flagged() -> None:
    draw = random.Random(5)
    assert looks_degenerate([7, 8, *(draw.choice((33, 34)) for _ in range(60)), END])


def test_no_token_at_all_is_flagged_and_one_is_not() -> None:
    assert looks_degenerate([])
    assert not looks_degenerate([5])
