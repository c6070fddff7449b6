"""What a server has counted since somebody looked first, however often it was started anew."""

from __future__ import annotations

import pytest

from regen.engines.served_gauges import Gauges
from regen.engines.served_growth import Growth
from regen.records import Acceptance

FIRST = Acceptance(1000, 3000, 1500, (900, 400, 200))
LATER = Acceptance(1100, 3300, 1650, (990, 440, 220))
GAINED = Acceptance(100, 300, 150, (90, 40, 20))


def growth(**first: Acceptance) -> Growth:
    return Growth(dict(first), Gauges(0.5, 700, 3))


def test_what_was_there_before_is_nobodys() -> None:
    made = growth(zero=FIRST)
    made.reading({"zero": FIRST}, Gauges(0.5, 700, 3))
    assert made.acceptance.drafts == made.prefix_hit_tokens == made.preemptions == 0
    made.reading({"zero": LATER}, Gauges(0.6, 750, 4))
    assert made.acceptance == GAINED
    assert (made.prefix_hit_tokens, made.preemptions, made.gauges.kv_usage) == (50, 1, 0.6)


@pytest.mark.parametrize(
    "anew",
    [
        Acceptance(0, 0, 0, (0, 0, 0)),
        Acceptance(10, 30, 15, (9, 4, 2)),
        Acceptance(1200, 3600, 300, (200, 60, 40)),
        Acceptance(1200, 3600, 1700, (1300, 390, 10)),
        Acceptance(1200, 3600, 1660, (990, 670)),
    ],
    ids=["zero", "lower", "fewer accepted", "fewer accepted late in a draft", "shorter drafts"],
)
def test_a_server_that_was_started_anew_adds_to_what_it_had_gained(anew: Acceptance) -> None:
    made = growth(zero=FIRST)
    made.reading({"zero": LATER}, Gauges(0.6, 750, 4))
    made.reading({"zero": anew}, Gauges(0.1, 20, 1))
    assert made.acceptance == GAINED + anew
    assert (made.prefix_hit_tokens, made.preemptions) == (70, 2)
    made.reading({"zero": anew + GAINED}, Gauges(0.1, 30, 1))
    assert made.acceptance == GAINED + anew + GAINED
    assert (made.prefix_hit_tokens, made.preemptions) == (80, 2)


def test_one_engine_of_several_that_was_started_anew_is_new_alone() -> None:
    made = growth(zero=FIRST, one=FIRST)
    made.reading({"zero": LATER, "one": GAINED}, Gauges())
    assert made.acceptance == GAINED + GAINED


def test_an_engine_that_was_not_there_counts_from_zero_and_one_that_is_away_keeps_its_count() -> None:
    made = growth(zero=FIRST)
    made.reading({"one": GAINED}, Gauges())
    made.reading({}, Gauges())
    made.reading({"zero": LATER, "one": GAINED}, Gauges())
    assert made.acceptance == GAINED + GAINED
