"""The benchmark's own arithmetic and inputs; the engines it compares are not started here."""

import math

import pytest

from benchmarks.throughput import Answer, compare, log_ratio_interval, make_rows, regen_spec
from regen.spec import parse_spec


def test_equal_ratios_have_an_interval_without_width():
    assert log_ratio_interval([0.97, 0.97, 0.97]).low == pytest.approx(0.97)


def test_the_interval_is_students_t_on_logarithms():
    found = log_ratio_interval([0.5, 2.0])
    assert found.ratio == pytest.approx(1.0)
    assert found.high == pytest.approx(math.exp(12.706 * math.log(2)))
    assert found.low == pytest.approx(1 / found.high)


def test_rows_are_distinct_and_the_same_each_time():
    rows = make_rows(160)
    assert len(set(rows)) == 160
    assert rows == make_rows(160)


def test_different_prompts_give_no_result():
    with pytest.raises(SystemExit, match="same prompts"):
        compare([Answer((1,), (2,))], [Answer((3,), (2,))])


def test_different_answers_are_counted():
    assert compare([Answer((1,), (2,)), Answer((1,), (3,))], [Answer((1,), (2,)), Answer((1,), (4,))]) == 1


def test_the_run_under_test_has_an_acceptable_spec(tmp_path):
    spec = parse_spec(regen_spec(tmp_path / "model", tmp_path / "rows.jsonl", tmp_path / "run"), "benchmark")
    assert spec.speculation is None
    assert spec.sampling.temperature == 0
