"""Ramp and tail cut off a log of steps."""

import json

import pytest

from benchmarks.peers.cutting import NoWindow, Request, Step, between, cut, hit_share, parse_log, rows_of


def request(scheduled_at, finished_at, prompt=(1,), completion=(), cached_tokens=0, came_at=None):
    return Request(
        scheduled_at if came_at is None else came_at, scheduled_at, finished_at, cached_tokens, prompt, completion
    )


# Two slots, four rows of two steps each, and the last one is longer: it ends alone.
ROWS = {0: [request(1, 2)], 1: [request(2, 4)], 2: [request(3, 5)], 3: [request(5, 9)]}
STEPS = [Step(float(at), tokens, tokens, 0) for at, tokens in ((1, 1), (2, 2), (3, 2), (4, 2), (5, 1), (6, 1), (9, 1))]


def test_the_window_has_a_row_for_every_slot():
    found = cut(STEPS, ROWS, slots=2)
    assert (found.began_at, found.ended_at) == (2, 5)  # from the second row's start until one row is left
    assert found.tokens == 5
    assert found.tokens_per_second == pytest.approx(5 / 3)


def test_an_empty_slot_within_the_window_is_seen():
    assert cut(STEPS, ROWS, slots=2).busy_share == pytest.approx((2 + 2 + 1) / (2 * 3))


def test_a_wait_within_the_window_costs_rate():
    late = [Step(step.ended_at + 5 * (step.ended_at > 3), step.tokens, step.sequences, 0) for step in STEPS]
    rows = {0: [request(1, 2)], 1: [request(2, 9)], 2: [request(3, 10)], 3: [request(10, 14)]}
    assert cut(late, rows, slots=2).tokens_per_second == pytest.approx(5 / 8)


def test_a_conversation_is_unfinished_until_its_last_turn():
    rows = {0: [request(1, 2), request(3, 6)], 1: [request(1, 2), request(3, 9)], 2: [request(2, 4)]}
    found = cut(STEPS, rows, slots=2)
    assert (found.began_at, found.ended_at) == (1, 6)


def test_fewer_rows_than_slots_have_no_window():
    with pytest.raises(NoWindow, match="4 rows, 5 slots"):
        cut(STEPS, ROWS, slots=5)


def test_rows_that_never_ran_together_have_no_window():
    with pytest.raises(NoWindow):
        cut(STEPS, {0: [request(1, 2)], 1: [request(3, 4)]}, slots=2)


def test_requests_are_put_to_rows_by_their_first_prompt():
    first, second, other = request(1, 2, (7, 8)), request(3, 4, (7, 8, 5, 7, 9)), request(1, 2, (7, 9, 1))
    stranger = request(0, 0, (6,))
    assert rows_of([stranger, second, first, other], [(7, 8), (7, 9, 1)]) == {0: [first, second], 1: [other]}


def test_a_log_is_read_in_the_order_of_time():
    def line(came_at):
        times = {"came_at": came_at, "scheduled_at": 5.0, "finished_at": 6.0}
        return json.dumps({**times, "cached_tokens": 16, "prompt": [1, 2], "completion": [3]})

    found = parse_log(["[5.0,32,32,4]", line(4.0), line(1.0), "[4.0,1,2,3]"])
    assert [step.ended_at for step in found.steps] == [4.0, 5.0]
    assert found.requests[1] == Request(4.0, 5.0, 6.0, 16, (1, 2), (3,))
    assert between(found, 3.9, 4.5).steps == (Step(4.0, 1, 2, 3),)
    assert between(found, 0.5, 1.5).requests == (found.requests[0],)


def test_hits_are_counted_in_tokens():
    assert hit_share([request(1, 2, (1,) * 30, cached_tokens=16), request(1, 2, (1,) * 10)]) == 0.4
