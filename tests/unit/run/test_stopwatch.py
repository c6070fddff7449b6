"""Stages of a start, on a clock that is handed in."""

from regen.records import StartStage
from regen.run.stopwatch import Stopwatch


def test_each_stage_lasts_from_the_end_of_the_one_before():
    clock = iter([100.0, 102.0, 107.0])
    watch = Stopwatch("command", now=lambda: next(clock), time_of_day=lambda: 5000.0)
    watch.lap("target")
    watch.lap("plan")
    assert watch.stages == (
        StartStage("command", "target", 5000.0, 2.0),
        StartStage("command", "plan", 5002.0, 5.0),
    )


def test_a_day_time_that_jumps_moves_no_stage():
    clock, days = iter([0.0, 1.0, 3.0]), iter([5000.0, 9.0, 9.0])
    watch = Stopwatch("command", now=lambda: next(clock), time_of_day=lambda: next(days))
    watch.lap("target")
    watch.lap("plan")
    assert [stage.began_at for stage in watch.stages] == [5000.0, 5001.0]
