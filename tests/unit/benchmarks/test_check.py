"""The guard's own arithmetic; no benchmark is run here."""

import pytest

from benchmarks.check import (
    MEASURES,
    Against,
    Measure,
    MissingFigure,
    Verdict,
    better_of,
    compare,
    table,
    value,
    worse_benchmarks,
)

FOUND = {
    "rows": {"a second": 400.0, "seconds": 0.5},
    "steps": {"seal": {"10000": 2.0, "100000": 14.0}},
    "results": {"small": [{"arm": "static", "ratio": 2.0}, {"arm": "regen", "ratio": 1.1}]},
}


def measure(*path: str, **more: object) -> Measure:
    return Measure("it", "coordinator", path, 1.5, **more)  # type: ignore[arg-type]


def test_a_ratio_is_taken_as_it_is():
    assert value(measure("results", "small", "regen", "ratio"), FOUND, fixed_work=0.1) == 1.1


def test_a_time_is_told_in_units_of_the_fixed_work():
    assert value(measure("rows", "seconds", against=Against.FIXED_WORK), FOUND, fixed_work=0.1) == pytest.approx(5)


def test_a_rate_is_turned_over_so_that_lower_is_better():
    told = value(measure("rows", "a second", against=Against.FIXED_WORK, is_rate=True), FOUND, fixed_work=0.5)
    assert told == pytest.approx(1 / 400 / 0.5)


def test_growth_is_one_figure_over_another_of_the_same_run():
    assert value(measure("steps", "seal", "100000", over=("steps", "seal", "10000")), FOUND, fixed_work=0.1) == 7


@pytest.mark.parametrize(
    "path",
    [("rows", "nothing"), ("results", "small", "other arm", "ratio"), ("rows",), ("rows", "seconds", "deeper")],
)
def test_a_figure_that_is_not_there_is_named(path: tuple[str, ...]):
    with pytest.raises(MissingFigure, match=f"coordinator: .* {path[-1]} "):
        value(measure(*path), FOUND, fixed_work=0.1)


def test_a_zero_is_no_figure():
    with pytest.raises(MissingFigure, match="found 0"):
        value(measure("ratio"), {"ratio": 0}, fixed_work=0.1)


@pytest.mark.parametrize(("now", "is_worse"), [(1.0, False), (1.49, False), (1.51, True), (0.2, False)])
def test_worse_is_what_is_beyond_its_tolerance(now: float, is_worse: bool):
    (verdict,) = compare({"it": now}, {"it": 1.0}, [measure("x")])
    assert verdict.is_worse is is_worse


def test_what_was_never_recorded_cannot_be_worse_and_is_said():
    verdicts = compare({"it": 99.0}, {}, [measure("x")])
    assert not verdicts[0].is_worse
    assert "not recorded" in "\n".join(table(verdicts))


def test_only_what_was_measured_is_judged():
    assert compare({}, {"it": 1.0}, [measure("x")]) == []


def test_a_benchmark_with_one_worse_measure_is_run_again_and_the_better_figure_counts():
    other = Measure("other", "tail", ("x",), 1.5)
    now = {"it": 2.0, "other": 1.0}
    assert worse_benchmarks(now, {"it": 1.0, "other": 1.0}, [measure("x"), other]) == {"coordinator"}
    assert better_of(now, {"it": 1.2}) == {"it": 1.2, "other": 1.0}
    assert better_of(now, {"it": 3.0})["it"] == 2.0


def test_the_table_says_what_got_worse_and_how_many_times():
    lines = list(table([Verdict("a", 3.0, 1.5, 1.5), Verdict("b", 1.0, 1.0, 1.5)]))
    assert "2.000" in lines[1]
    assert lines[1].endswith("WORSE")
    assert "WORSE" not in lines[2]
    assert lines[-1] == "1 of 2 got worse"


def test_every_tolerance_lets_a_twofold_cost_through_nowhere():
    assert all(1 < one.allowed < 2 for one in MEASURES)
    assert len({one.name for one in MEASURES}) == len(MEASURES)
