"""What is worth a line, once; and that no run, however long or restless, floods a log."""

from __future__ import annotations

from itertools import pairwise

from regen.observe.changes import Changes, Event, Level, PlainPace, Ration
from regen.observe.terminal_facts import EngineFacts, TerminalFacts
from regen.records import Eta, EtaState, ReplicaState, SlotTally, Tally
from tests.terminal_facts import FULL, UNKNOWN, facts


def kinds(*looks: TerminalFacts, hears_driver: bool = False) -> list[str]:
    """Of all events after the first look."""
    changes = Changes(hears_driver)
    changes.see(looks[0])
    return [event.kind for look in looks[1:] for event in changes.see(look)]


def test_the_first_look_says_the_phase_where_the_metrics_are_and_what_was_decided() -> None:
    first = Changes(False).see(facts(metrics_url="http://x", decisions=("on", "off"), store_error="away", suspects=3))
    assert [event.kind for event in first] == ["phase", "metrics", "decision", "decision"]


def test_nothing_new_says_nothing() -> None:
    assert kinds(FULL, FULL, facts(left=3, session_seconds=9000.0)) == []


def test_a_decision_is_said_once_though_it_is_in_every_look() -> None:
    assert kinds(FULL, facts(decisions=("a",)), facts(decisions=("a", "b")), facts(decisions=("b",))) == [
        "decision",
        "decision",
    ]


def test_the_store_goes_and_comes_back() -> None:
    away = facts(store_error="no route")
    assert kinds(FULL, away, facts(store_error="still none"), FULL, FULL) == ["store_away", "store_back"]


def test_a_stall_begins_and_ends() -> None:
    stalled = facts(eta=Eta(EtaState.STALLED))
    assert kinds(FULL, stalled, stalled, FULL) == ["stalled", "moving"]


def test_suspects_are_said_when_there_are_more_and_when_there_are_none() -> None:
    looks = [facts(suspects=count) for count in (0, 8, 4, 0)]
    assert kinds(*looks) == ["suspects", "suspects"]


def test_a_restart_is_said_by_who_does_not_hear_the_driver() -> None:
    before, after = (facts(tally=Tally({0: SlotTally(restarts=count)})) for count in (1, 3))
    assert kinds(before, after) == ["restart"]
    assert kinds(before, after, hears_driver=True) == []


def test_a_restarted_coordinator_is_said_and_its_counts_from_zero_are_no_news() -> None:
    before = facts(coordinator="a", suspects=2, dismissed=("x",), tally=Tally({0: SlotTally(restarts=5)}))
    replaying = TerminalFacts(name="my-run", phase="replaying", planned=None, left=0, coordinator="b")
    after = facts(coordinator="b", suspects=2, dismissed=(), tally=Tally({0: SlotTally(restarts=5)}))
    assert kinds(before, replaying, after) == ["phase", "coordinator", "phase", "engines"]


def test_engines_are_said_when_the_first_works() -> None:
    starting = facts(engines=(EngineFacts(0, ReplicaState.STARTING, 0, 8),))
    assert kinds(starting, starting, FULL, FULL) == ["engines"]


def test_a_silent_holder_is_said_once_and_when_it_is_heard_again() -> None:
    assert kinds(FULL, facts(heartbeat_age_seconds=20.0), facts(heartbeat_age_seconds=25.0), FULL) == [
        "silent",
        "heard",
    ]


def test_before_there_is_a_run_nothing_is_new() -> None:
    assert kinds(UNKNOWN, UNKNOWN) == []


def test_plain_lines_come_every_ten_seconds_then_every_minute_and_are_bounded() -> None:
    pace = PlainPace()
    printed = [second for second in range(55 * 3600) if pace.is_due(float(second))]
    assert printed[:4] == [0, 10, 20, 30]
    gaps = [later - earlier for earlier, later in pairwise(printed)]
    assert gaps == sorted(gaps)
    assert gaps[-1] == 60
    assert len(printed) < 3_500


def test_what_flaps_is_rationed_by_kind_and_what_was_kept_back_is_counted() -> None:
    ration = Ration(most=2, per_seconds=100)
    flap, other = Event("store_away", "away", Level.WARNING), Event("stalled", "stalled")
    said = [ration.allows(flap, now) for now in (0.0, 1.0, 2.0, 3.0)]
    assert [event is not None for event in said] == [True, True, False, False]
    assert ration.allows(other, 3.0) == other
    again = ration.allows(flap, 101.5)
    assert again is not None
    assert again.text == "away (and 2 times before, not shown)"
    assert again.level is Level.WARNING
