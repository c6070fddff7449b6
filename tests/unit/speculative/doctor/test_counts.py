"""What is counted, and out of which of the counters."""

from __future__ import annotations

import pytest

from regen.records import Acceptance
from regen.served import Asked, Counters, Phase
from regen.speculative.doctor.counts import count, difference


def reading(*ranks: Acceptance, tokens: int | None = None) -> Counters:
    return Counters(True, {str(number): rank for number, rank in enumerate(ranks)}, tokens)


def phase(before: Counters, after: Counters, *requests: Asked, temperature: float = 0.0) -> Phase:
    return Phase(temperature, before, after, requests)


def test_the_servers_totals_are_taken_as_differences() -> None:
    before, after = reading(Acceptance(100, 300, 80, (50, 20, 10))), reading(Acceptance(150, 450, 120, (80, 30, 10)))
    counted = count([phase(before, after, Asked(0.0, 90))])
    assert counted.total == Acceptance(50, 150, 40, (30, 10, 0))
    assert counted.total.accept_length == pytest.approx(1.8)
    assert not counted.is_per_request


def test_counts_per_request_come_before_totals_with_everybodys_traffic() -> None:
    after = reading(Acceptance(900, 2700, 0), tokens=2000)
    mine = Asked(0.0, 10, Acceptance(5, 15, 4))
    counted = count([phase(reading(Acceptance(), tokens=0), after, mine)])
    assert counted.total == Acceptance(5, 15, 4)
    assert counted.foreign_tokens == 1990


def test_absent_counters_are_not_zero() -> None:
    nothing, zero = reading(tokens=0), reading(Acceptance())
    assert count([phase(nothing, nothing, Asked(0.0, 90))]).total is None
    assert count([phase(zero, zero, Asked(0.0, 90))]).total == Acceptance()


def test_an_answer_of_one_token_needs_no_counts() -> None:
    counts = Acceptance(5, 15, 4)
    counted = count([phase(reading(), reading(), Asked(0.0, 10, counts), Asked(0.0, 1), Asked(0.0, 2))])
    assert counted.uncounted == 1


def test_ranks_are_counted_apart_and_temperatures_too() -> None:
    first = phase(reading(Acceptance(), Acceptance()), reading(Acceptance(10, 30, 11), Acceptance(9, 27, 0)))
    second = phase(first.after, reading(Acceptance(20, 60, 21), Acceptance(19, 57, 1)), temperature=1.0)
    counted = count([first, second])
    assert counted.by_rank == {"0": Acceptance(20, 60, 21), "1": Acceptance(19, 57, 1)}
    assert counted.by_temperature == {0.0: Acceptance(19, 57, 11), 1.0: Acceptance(20, 60, 11)}


def test_ranks_of_requests_count_only_if_every_answer_names_one() -> None:
    one, two = Asked(0.0, 9, Acceptance(4, 12, 4), "1"), Asked(0.0, 9, Acceptance(8, 24, 0), "0")
    assert count([phase(reading(), reading(), one, two)]).by_rank == {"0": two.acceptance, "1": one.acceptance}
    nameless = Asked(0.0, 9, Acceptance(8, 24, 0))
    assert count([phase(reading(), reading(), one, nameless)]).by_rank == {}


def test_totals_that_fall_are_a_restart_and_nothing_is_made_of_them() -> None:
    fallen = phase(reading(Acceptance(100, 300, 80), tokens=10), reading(Acceptance(3, 9, 1), tokens=20), Asked(0.0, 9))
    counted = count([fallen])
    assert counted.has_restarted
    assert counted.total is None
    assert counted.foreign_tokens is None
    assert count([phase(reading(tokens=10), reading(tokens=9))]).has_restarted


def test_tokens_of_requests_that_were_cut_off_cannot_be_told_from_somebody_elses() -> None:
    counted = count(
        [phase(reading(tokens=0), reading(tokens=300), Asked(0.0, 100), Asked(0.0, error="no whole answer"))]
    )
    assert counted.server_tokens == 300
    assert counted.foreign_tokens is None


def test_positions_that_appear_late_are_counted_from_zero() -> None:
    assert difference(Acceptance(1, 3, 1), Acceptance(3, 9, 4, (2, 1, 0))) == Acceptance(2, 6, 3, (2, 1, 0))
