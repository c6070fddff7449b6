"""The run as lines: what is drawn at which width, and that nothing in a name can move a cursor."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regen.observe import changes, live
from regen.observe.terminal import MOST_LINES, Line, Tone, block, columns, cropped, plain_line, size, to_json
from regen.observe.terminal_facts import EngineFacts
from regen.records import Eta, EtaState, ReplicaState, Status
from tests.terminal_facts import FULL, UNKNOWN, facts


def drawn(lines: tuple[Line, ...]) -> list[str]:
    return ["".join(part.text for part in line) for line in lines]


def tone_of(lines: tuple[Line, ...], text: str) -> Tone:
    return next(part.tone for line in lines for part in line if text in part.text)


def test_the_block_at_120_80_and_60_columns() -> None:
    common = [
        "time     about 3h20m left (2h50m to 4h10m)  12.30 EUR so far",
        "outcomes ok 41,000  truncated 200  rejected 100",
        "engines  4 up  2 starting  1,000 of 1,024 slots busy",
        "trouble  12 failed attempts  1 engine restart",
    ]
    for width in (120, 80, 60):
        lines = drawn(block(FULL, width))
        assert lines[0] == "my-run  running for 1h02m"
        assert [line for line in common if line not in lines] == []
    assert drawn(block(FULL, 80))[1:2] == ["█" * 20 + "░" * 29 + " 41.3 %  41,300 of 100,000 rows"]
    assert drawn(block(FULL, 80))[-2:] == [
        "store    1,234 rows (12.3 MB) not committed yet  last commit 12s ago",
        "         2 store errors",
    ]
    assert drawn(block(FULL, 60))[3:5] == ["speed    12,346 tok/s  accept length 2.31", "         speculation healthy"]


def test_who_waits_for_a_node_or_was_released_is_no_fault_and_no_engine_that_starts() -> None:
    engines = (
        EngineFacts(0, ReplicaState.RUNNING, 5, 8),
        EngineFacts(1, ReplicaState.STARTING, 0, 8),
        EngineFacts(2, ReplicaState.STARTING, 0, 8, is_pending=True),
        EngineFacts(3, ReplicaState.RELEASED, 0, 8),
    )
    lines = block(facts(engines=engines), 100)
    told = "engines  1 up  1 starting  1 released  1 waiting for a node  5 of 8 slots busy"
    assert told in drawn(lines)
    assert {tone_of(lines, "released"), tone_of(lines, "waiting for a node")} == {Tone.QUIET}


@pytest.mark.parametrize("is_ascii", [False, True])
@settings(deadline=None)  # a busy machine is no finding
@given(
    name=st.text(max_size=80),
    error=st.none() | st.text(max_size=300),
    note=st.text(max_size=100),
    width=st.integers(1, 200),
)
def test_no_line_is_too_wide_or_moves_a_cursor_whatever_names_and_errors_hold(
    is_ascii: bool, name: str, error: str | None, note: str, width: int
) -> None:
    lines = drawn(block(facts(name=name, store_error=error, note=note), width, is_ascii))
    assert len(lines) <= MOST_LINES
    for line in lines:
        assert columns(line) <= max(20, min(width, 100))
        assert line.isprintable()
        assert not is_ascii or line.isascii()


def test_what_is_not_known_is_not_drawn() -> None:
    assert drawn(block(UNKNOWN, 80)) == ["my-run  replaying"]
    assert plain_line(UNKNOWN) == "replaying"
    none_yet = facts(outcomes={}, eta=None, tokens_per_second=None, accept_length=None, verdict=None, cost_so_far=None)
    labels = {line.split()[0] for line in drawn(block(none_yet, 80))}
    assert not labels & {"time", "speed", "outcomes"}


def test_a_plain_line_has_it_all_in_one() -> None:
    assert plain_line(FULL) == (
        "running: 41,300 of 100,000 rows | about 3h20m left (2h50m to 4h10m) | 12.30 EUR so far | 12,346 tok/s"
        " | accept length 2.31 | speculation healthy | engines: 4 up, 2 starting, 1,000 of 1,024 slots busy"
        " | 1,020 in flight | 57,000 queued | 3 suspected of killing engines | 12 failed attempts | 1 engine restart"
        " | 1,234 rows (12.3 MB) not committed yet | last commit 12s ago | 2 store errors"
    )
    assert "\n" not in plain_line(facts(store_error="one\ntwo\x1b[2J", note="a\r\nb"))
    assert plain_line(facts(store_error="\x1b[2J")).isprintable()


def test_a_stall_is_called_one_and_a_warm_up_is_no_estimate() -> None:
    stalled = block(facts(eta=Eta(EtaState.STALLED)), 80)
    assert tone_of(stalled, "stalled") is Tone.BAD
    assert any("too early to say" in line for line in drawn(block(facts(eta=Eta(EtaState.WARMING)), 80)))


@pytest.mark.parametrize(
    ("verdict", "tone"), [("healthy", Tone.GOOD), ("collapsed", Tone.BAD), ("off_profile", Tone.BAD)]
)
def test_the_verdict_stands_beside_the_accept_length(verdict: str, tone: Tone) -> None:
    lines = block(facts(verdict=verdict), 80)
    assert tone_of(lines, f"speculation {verdict.replace('_', ' ')}") is tone


def test_all_rows_done_is_100_percent_and_one_missing_is_not() -> None:
    assert " 100.0 %" in drawn(block(facts(left=0), 80))[1]
    assert " 99.9 %" in drawn(block(facts(left=1), 80))[1]
    assert " 100.0 %" in drawn(block(facts(planned=0, left=0), 80))[1]


def test_an_ended_run_has_no_engines_and_no_age_of_its_last_commit() -> None:
    gone = tuple(engine for engine in FULL.engines if engine.state is ReplicaState.RUNNING)
    line = plain_line(facts(phase="finished", left=0, engines=gone, uncommitted_rows=0, eta=None))
    assert "engines: " not in line
    assert "last commit" not in line


def test_json_has_every_field_whatever_is_known() -> None:
    full, unknown = to_json(FULL), to_json(UNKNOWN)
    assert full.keys() == unknown.keys()
    assert json.loads(json.dumps(full)) == full
    assert full["eta"] == {
        "state": "estimating",
        "low_seconds": 10_200.0,
        "mid_seconds": 12_000.0,
        "high_seconds": 15_000.0,
        "naive_seconds": None,
    }
    assert (full["done"], full["restarts"], full["retries"]) == (41_300, 1, {"stalled": 12})
    assert set(full["outcomes"]) == {status.value for status in Status}
    assert (unknown["done"], unknown["eta"], unknown["tokens_per_second"]) == (None, None, None)


def test_what_is_cut_is_marked_and_wide_signs_take_two_columns() -> None:
    assert cropped("abcdef", 4) == "abc…"
    assert cropped("abcdef", 4, is_ascii=True) == "a..."
    assert cropped("日本語", 5) == "日本…"
    assert columns("日本") == 4
    assert [size(count) for count in (999, 1000, 12_345_678, 10**13)] == ["999 B", "1.0 kB", "12.3 MB", "10.0 TB"]


def test_the_page_shows_what_is_drawn_and_names_every_field_and_event(repository: Path) -> None:
    page = (repository / "docs" / "terminal.md").read_text(encoding="utf-8")
    assert "```\n" + "\n".join(drawn(block(FULL, 80))) + "\n```" in page
    status = next(line for line in page.splitlines() if line.startswith("| `status` |"))
    common = {"schema", "kind", "at", "session"}
    assert set(re.findall(r"`(\w+)`", status)) - {"status"} == set(to_json(FULL)) - common
    events = set(re.findall(r'Event\("(\w+)"', inspect.getsource(changes) + inspect.getsource(live))) - {"progress"}
    said = page[page.index("`event` is one of") : page.index("A process that is\nkilled")]
    assert set(re.findall(r"`(\w+)`", said)) - {"event"} == events
