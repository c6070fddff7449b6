"""What `make chaos` holds a run to: generations made twice, and how many may be."""

from __future__ import annotations

import json

from tests.chaos.made import COMMIT_SECONDS, Loss, Made, Outage, made_twice, most_made_twice, parse_log

TURNS = {"a": 1, "b": 2}
PLAIN = 1.0 + COMMIT_SECONDS


def test_the_fake_engines_log_is_read_by_row_and_turn() -> None:
    line = json.dumps({"at": 5.0, "pid": 7, "slot": 0, "request": "a1b2-1-0-1-123456"})
    assert parse_log([line]) == [Made(5.0, 7, "a1b2", 1)]


def test_what_is_made_again_counts_once_for_each_time() -> None:
    once, again = Made(1.0, 7, "a", 0), Made(9.0, 8, "a", 0)
    assert made_twice([once, Made(2.0, 7, "b", 0), Made(3.0, 7, "b", 1)]) == 0
    assert made_twice([once, again, again]) == 2


def test_a_killed_worker_may_cost_its_unfinished_rows_and_those_finished_within_an_interval() -> None:
    long_ago, just_now = [Made(1.0, 7, "a", 0)], [Made(100.0 - PLAIN, 7, "a", 0)]
    unfinished = [Made(1.0, 7, "b", 0)]
    loss = [Loss(7, 100.0, 1.0)]
    assert most_made_twice(long_ago, TURNS, loss, []) == 0
    assert most_made_twice(just_now, TURNS, loss, []) == 1
    assert most_made_twice(unfinished, TURNS, loss, []) == 1
    assert most_made_twice(unfinished + just_now, TURNS, [Loss(8, 100.0, 1.0)], []) == 0


def test_what_could_not_be_committed_is_added() -> None:
    made = [Made(80.0, 7, "a", 0)]
    assert most_made_twice(made, TURNS, [Loss(7, 100.0, 1.0)], [Outage(81.0, 99.0)]) == 1
    assert most_made_twice(made, TURNS, [Loss(7, 100.0, 1.0)], [Outage(50.0, 70.0)]) == 0
    assert most_made_twice(made, TURNS, [Loss(7, 100.0, 1.0)], [Outage(101.0, 120.0)]) == 0
