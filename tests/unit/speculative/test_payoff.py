"""Whether switching off pays in the time that is left."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regen.speculative.payoff import Payoff, disabling_pays

HOUR = 3600.0


def pays(**changed: Any) -> Payoff:
    asked: dict[str, Any] = {
        "seconds_left": 20 * HOUR,
        "replicas": 8,
        "start_seconds": 600.0,
        "drain_seconds": 600.0,
        "rate_on": 120.0,
        "rate_off": 90.0,
        "accept_length_now": 1.0,
        "accept_length_then": 2.1,
    }
    return disabling_pays(**{**asked, **changed})


def test_a_collapse_with_hours_to_go_pays() -> None:
    """120 tok/s at 2.1 are 57 at 1.0; off makes 90."""
    payoff = pays()
    assert payoff.pays
    assert "measured 90.0 tok/s without" in payoff.reason
    assert "57.1 at 1.00 now" in payoff.reason


def test_near_the_end_it_does_not() -> None:
    assert not pays(seconds_left=0.5 * HOUR).pays
    assert not pays(seconds_left=600.0).pays


def test_what_is_still_faster_than_none_stays_on() -> None:
    payoff = pays(accept_length_now=1.7)
    assert not payoff.pays
    assert "would not be faster" in payoff.reason


def test_the_gain_must_be_twice_the_cost() -> None:
    """90 against 60: half as much again. 900 s are lost, so 3,600 s are needed after drain and start."""
    asked = {"rate_on": 120.0, "accept_length_then": 2.0}
    assert not pays(seconds_left=1200 + 3599, **asked).pays
    assert pays(seconds_left=1200 + 3601, **asked).pays


def test_a_drain_costs_half_of_its_time() -> None:
    assert "costs 900 s" in pays().reason


def test_without_a_measured_rate_only_a_useless_draft_is_worth_a_restart() -> None:
    assert pays(rate_off=None).pays
    assert "not measured" in pays(rate_off=None).reason
    assert not pays(rate_off=None, accept_length_now=1.2).pays
    assert not pays(rate_off=None, seconds_left=2 * HOUR).pays


@pytest.mark.parametrize("missing", ["rate_on", "accept_length_then"])
def test_half_a_measurement_is_none(missing: str) -> None:
    assert "not measured" in pays(**{missing: None}).reason


def test_absent_counters_are_taken_for_useless_drafts() -> None:
    assert pays(accept_length_now=None) == pays(accept_length_now=1.0)


def test_nothing_is_switched_off_while_nobody_knows_how_long_the_run_takes() -> None:
    assert not pays(seconds_left=None).pays


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(1.0, 4.0))
def test_more_time_never_turns_a_yes_into_a_no(seconds: float, more: float, length: float) -> None:
    if pays(seconds_left=seconds, accept_length_now=length).pays:
        assert pays(seconds_left=seconds + more, accept_length_now=length).pays
