"""The arithmetic of the growth benchmark, how it watches a process, and that what it lays down is a sound run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.large_run import lay_down_plan, make_rows, with_source
from benchmarks.processes import Cost, measured
from benchmarks.scale import growth, growths, table
from regen.run.commands.check import check
from regen.run.look import look

HOLDS_MEMORY = """
import pathlib, signal, sys
held = bytearray(b"x") * (200 << 20)
pathlib.Path(sys.argv[1]).touch()
signal.pause()
"""


def _cost(cpu_seconds: float) -> Cost:
    return Cost(2 * cpu_seconds, cpu_seconds, 100.0, 150.0, 0.0, 0)


@pytest.mark.parametrize(("cost", "exponent"), [(10.0, 1.0), (100.0, 2.0), (1.0, 0.0)])
def test_growth_is_the_exponent(cost: float, exponent: float) -> None:
    assert growth((1000, 1.0), (10_000, cost)) == pytest.approx(exponent)


def test_growths_are_between_neighbours_by_size() -> None:
    found = growths({100_000: _cost(20.0), 10_000: _cost(2.0), 1_000_000: _cost(2000.0)})

    assert found == {"100000": pytest.approx(1.0), "1000000": pytest.approx(2.0)}


def test_the_table_has_a_line_for_each_step_and_size() -> None:
    lines = list(table({10_000: {"verify": _cost(1.0), "seal": _cost(2.0)}, 100_000: {"verify": _cost(10.0)}}))

    assert [line.split()[0] for line in lines[1:]] == ["verify", "verify", "seal"]
    assert lines[2].split()[1:5] == ["100,000", "20.0", "10.0", "1.00"]


def test_a_process_is_watched_until_it_has_come_so_far(tmp_path: Path) -> None:
    come = tmp_path / "come"

    cost = measured([sys.executable, "-c", HOLDS_MEMORY, str(come)], tmp_path / "said", come.exists, "come")

    assert cost.exit_code is None
    assert 200 < cost.largest_mib < 400
    assert cost.named_mib == cost.largest_mib


def test_a_process_that_ends_before_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="ended with 3 before"):
        measured([sys.executable, "-c", "raise SystemExit(3)"], tmp_path / "said", lambda: False)


def test_the_exit_code_of_one_that_runs_to_its_end_is_told(tmp_path: Path) -> None:
    cost = measured([sys.executable, "-c", "print('hello'); raise SystemExit(3)"], tmp_path / "said")

    assert cost.exit_code == 3
    assert (tmp_path / "said").read_text() == "hello\n"


def test_a_run_that_is_laid_down_is_sound(tmp_path: Path) -> None:
    run = with_source(tmp_path, 400)
    lay_down_plan(run)
    make_rows(run, 200)
    assert look(run.storage).totals.done == 200

    make_rows(run, 400)

    found = check(run.storage)
    assert found.is_right, found.findings
