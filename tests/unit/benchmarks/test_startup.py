"""Laying told stages on one axis; nothing is started here."""

import pytest

from benchmarks.startup import Stage, first_token, summary, table, timeline


def told(where: str, name: str, began_at: float, seconds: float) -> dict[str, object]:
    return {"where": where, "name": name, "began_at": began_at, "seconds": seconds}


STARTED_AT = 1000.0
TOLD = [
    told("command", "imports", 1000.5, 1.0),
    told("command", "plan", 1001.5, 2.0),
    told("replica 0", "engine", 1005.0, 10.0),
    told("replica 0", "first token", 1015.0, 0.5),
]


def test_stages_count_from_the_start_of_the_command():
    stages = timeline(TOLD, STARTED_AT)
    assert stages[1] == Stage("command", "imports", 0.5, 1.0)
    assert first_token(stages) == pytest.approx(15.5)


def test_what_comes_before_a_processs_first_stage_is_its_process():
    stages = timeline(TOLD, STARTED_AT)
    assert stages[0] == Stage("command", "process", 0.0, 0.5)
    assert stages[3] == Stage("replica 0", "process", 3.5, 1.5)


def test_a_process_that_came_up_meanwhile_took_nothing():
    early = [told("command", "plan", 1000.0, 9.0), told("replica 0", "engine", 1004.0, 10.0)]
    assert Stage("replica 0", "process", 9.0, 0.0) in timeline(early, STARTED_AT)


def test_a_run_that_tells_no_first_token_gives_no_result():
    with pytest.raises(SystemExit, match="first token"):
        first_token(timeline(TOLD[:3], STARTED_AT))


def test_the_earliest_engine_has_the_first_token():
    later = [*TOLD, told("replica 1", "first token", 1018.0, 0.5)]
    assert first_token(timeline(later, STARTED_AT)) == pytest.approx(15.5)


def test_the_ratio_is_that_of_the_medians():
    def start(seconds: float) -> list[Stage]:
        return [Stage("x", "first token", 0.0, seconds)]

    made = summary({"regen": [start(30), start(24), start(20)], "chat": [start(20), start(16), start(90)]})
    assert made["ratio"] == pytest.approx(24 / 20)
    assert made["stages"]["regen"][0]["seconds"] == 24
    assert any("1.20" in line for line in table(made))
