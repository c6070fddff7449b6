"""Loops, walls and handfuls of ids are told from tables, lists, and what a prompt has asked for."""

from __future__ import annotations

import random

import pytest

from regen.degenerate import TailKind, degenerate_tail, is_asked_for, looks_degenerate


def table(rows: int = 30) -> list[int]:
    """`| 17 | name | 3.4 |` in ids: bars, numbers that differ, words, line ends."""
    draw = random.Random(1)
    return [token for row in range(rows) for token in (7, 100 + row, 7, *draw.sample(range(500, 900), 3), 7, 9)]


def test_a_cycle_that_lasts_to_the_end_is_a_loop() -> None:
    cycle = [40, 41, 42, 43, 44, 45]
    tail = degenerate_tail([1, 2, 3, *cycle * 3000])
    assert tail is not None
    assert tail.kind is TailKind.LOOP
    assert sorted(tail.unit) == cycle


def test_a_long_cycle_is_found_within_the_longest_period() -> None:
    cycle = list(range(1000, 1200))
    assert degenerate_tail(cycle * 5) is not None
    assert degenerate_tail(cycle * 2) is None


def test_one_token_over_and_over_is_a_wall() -> None:
    tail = degenerate_tail([5] + [33] * 400)
    assert tail is not None
    assert (tail.kind, tail.unit) == (TailKind.WALL, (33,))


def test_the_closing_id_hides_nothing() -> None:
    assert degenerate_tail([33] * 400 + [2], has_ended=True) is not None
    assert degenerate_tail([*range(40, 46)] * 100 + [2], has_ended=True) is not None


def test_a_few_ids_without_a_period_are_seen() -> None:
    draw = random.Random(3)
    tail = degenerate_tail([draw.choice((10, 11, 12)) for _ in range(600)])
    assert tail is not None
    assert tail.kind is TailKind.FEW_IDS


@pytest.mark.parametrize("has_ended", [True, False])
def test_a_table_a_list_and_prose_are_fine(has_ended: bool) -> None:
    draw = random.Random(2)
    assert degenerate_tail(table(), has_ended) is None
    assert degenerate_tail([token for item in range(80) for token in (45, 900 + item, 9)], has_ended) is None
    assert degenerate_tail([draw.randrange(30000) for _ in range(5000)], has_ended) is None


def test_a_chorus_in_an_answer_that_ended_by_itself_is_fine_and_at_the_cap_it_is_not() -> None:
    chorus = [50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61]
    assert degenerate_tail(chorus * 6, has_ended=True) is None
    assert degenerate_tail(chorus * 6) is not None


def test_short_answers_are_never_flagged_and_none_at_all_is() -> None:
    assert not looks_degenerate([4] * 20)
    assert looks_degenerate([])


@pytest.mark.parametrize(
    ("unit", "request_text"),
    [
        ("0 ", "Please write the digit 0 three hundred times."),
        ("0", "Print fifty zeros."),
        (" 0,", "fill it with zeroes, please"),
        ("000", "a row of zeros"),
        ("world hello ", "Repeat hello world a hundred times"),
        ("-", "Draw a line of dashes."),
        ("I will not talk.\n", 'Write "I will not talk." 100 times.'),
    ],
)
def test_what_was_asked_for_is_known(unit: str, request_text: str) -> None:
    assert is_asked_for(unit, request_text)


@pytest.mark.parametrize(
    ("unit", "request_text"),
    [
        ("!", "Hello! How are you?"),
        ("0 ", "Add 200 and 300."),
        (" I'll use 460.", "How many seats do 23 buses with 20 seats have? Use 460 in your answer."),
        ("  ", "Say nothing."),
    ],
)
def test_what_was_not_asked_for_is_not(unit: str, request_text: str) -> None:
    assert not is_asked_for(unit, request_text)
