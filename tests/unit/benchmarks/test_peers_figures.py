"""What an arm must have done before it has figures, and which pairs are compared."""

import json

import pytest

from benchmarks.peers.comparing import comparisons
from benchmarks.peers.cutting import EngineLog, Request, Step
from benchmarks.peers.figures import Unfair, checked, figures, same_answers
from benchmarks.peers.rows import Row, conversations, short_rows
from benchmarks.process_groups import Span

ROWS = [Row(None, ("a", "b")), Row("s", ("c", "d"))]


def render(messages):
    """A stand-in for the template: one id per character."""
    return tuple(map(ord, "".join(f"<{message['role'][0]}{message['content']}" for message in messages)))


def decode(ids):
    return "".join(map(chr, ids))


def asked(row, history, answer, came_at=1.0):
    return Request(came_at, came_at, came_at + 1, 0, render(row.messages(history)), tuple(map(ord, answer)))


def log_of(*requests):
    return EngineLog((Step(1.0, 1, 1, 0),), requests)


FAIR = [
    request
    for row, answer in zip(ROWS, "XZ", strict=True)
    for request in (asked(row, (), answer), asked(row, (answer,), "Y", 2.0))
]


def test_turns_that_carry_the_arms_own_answers_are_fair():
    found = checked(log_of(*FAIR), ROWS, 4, 99, render, decode)
    assert [len(turns) for turns in found.values()] == [2, 2]


def test_an_answer_that_was_not_fed_back_is_unfair():
    with pytest.raises(Unfair, match="turn 2 of 'c'"):
        checked(log_of(*FAIR[:3], asked(ROWS[1], ("X",), "Y")), ROWS, 4, 99, render, decode)


def test_a_row_that_was_not_asked_is_unfair():
    with pytest.raises(Unfair, match="1 rows of 2"):
        checked(log_of(*FAIR[:2]), ROWS, 4, 99, render, decode)


def test_a_missing_answer_is_unfair():
    with pytest.raises(Unfair, match="3 were delivered"):
        checked(log_of(*FAIR), ROWS, 3, 99, render, decode)


def test_the_whole_is_by_the_arms_own_clock_where_it_has_one():
    rows = {0: FAIR[:2]}
    own = figures(rows, log_of(*FAIR), Span(0, 10), Span(0.5, 4.5), slots=32)
    engines = figures(rows, log_of(*FAIR), Span(0, 10), None, slots=32)
    assert (own.whole_clock, own.whole) == ("own", 2 / 4)
    assert (engines.whole_clock, engines.whole) == ("engine", 2 / 2)
    assert own.cut is None  # fewer rows than slots


def test_equal_answers_are_counted_by_row():
    other = [asked(ROWS[1], (), "Z"), asked(ROWS[1], ("Z",), "!", 2.0)]
    assert same_answers({0: FAIR[:2], 1: other}, {0: FAIR[:2], 1: FAIR[2:]}) == 1


def one(cut, whole=1.0):
    return {"cut": cut, "whole": whole}


def test_pairs_are_of_one_round():
    rounds = [{"regen": one(99.0), "chat": one(100.0)}, {"regen": one(198.0), "chat": one(200.0)}, {"chat": one(7.0)}]
    found = next(pair for pair in comparisons(rounds) if pair["measure"] == "cut")
    assert (found["arm"], found["base"], found["pairs"]) == ("regen", "chat", 2)
    assert found["ratio"] == pytest.approx(0.99)
    assert found["reached"] is True


def test_the_aim_is_for_the_lower_bound():
    rounds = [{"regen": one(90.0), "chat": one(100.0)}, {"regen": one(110.0), "chat": one(100.0)}]
    found = next(pair for pair in comparisons(rounds) if pair["measure"] == "cut")
    assert found["ratio"] > 0.98
    assert found["reached"] is False


def test_without_two_pairs_there_is_no_comparison():
    assert comparisons([{"regen": one(1.0), "chat": one(1.0)}]) == []


def test_a_history_has_the_answers_that_were_given():
    found = Row("s", ("a", "b", "c")).messages(("X",))
    assert [message["content"] for message in found] == ["s", "a", "X", "b"]


def test_groups_of_conversations_share_their_system_prompt():
    found = conversations(64)
    assert len({row.system for row in found}) == 4
    assert len({json.dumps(row.messages()) for row in found}) == 64
    assert {len(row.turns) for row in found} == {3}


def test_short_rows_are_those_of_the_pair_benchmark():
    assert [row.turns for row in short_rows(2)] == [
        (text,)
        for text in (
            "Explain in a few sentences what a lighthouse is.",
            "Name five facts about a lighthouse, one per line.",
        )
    ]


def test_a_conversation_ends_with_an_answer_that_is_cut():
    cut = [asked(row, (), "LONG") for row in ROWS]
    assert [len(turns) for turns in checked(log_of(*cut), ROWS, 2, 4, render, decode).values()] == [1, 1]
    with pytest.raises(Unfair, match="2 turns were wanted, 1 were made"):
        checked(log_of(*cut), ROWS, 2, 5, render, decode)
