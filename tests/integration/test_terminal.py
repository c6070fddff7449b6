"""What a person sees, and what keys do: real terminals, real signals, real processes; the fake engine, without Ray."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from regen.spec import dump_spec
from tests.processes import REGEN, environment, regen, started
from tests.runs import begin_run, make_spec
from tests.terminals import CTRL_C, Terminal, terminal

RUN = (sys.executable, "-m", "tests.terminal_run")
ENGINE = {"slots": 8, "step_seconds": 0.05, "answer_tokens": 25}
HIDDEN_CURSOR = b"\x1b[?25l"


def written(folder: Path, rows: int, **engine: object) -> Path:
    """A folder with a spec in it, for `RUN`."""
    spec = make_spec(folder, rows=rows, engine={**ENGINE, **engine})
    (folder / "spec.yaml").write_text(dump_spec(spec), encoding="utf-8")
    return folder


def is_whole(screen: Terminal) -> bool:
    return HIDDEN_CURSOR not in screen.raw and screen.echoes()


def test_ctrl_c_drains_and_says_what_a_second_one_does(tmp_path: Path) -> None:
    with terminal([*RUN, str(written(tmp_path, 2000))], cwd=tmp_path) as screen:
        screen.wait_for("8 of 8 slots busy")
        screen.press(CTRL_C)
        screen.wait_for("draining: finished rows are published, running ones get up to 60 s to end")
        screen.wait_for("a second Ctrl-C, or SIGTERM, stops at once")
        assert screen.wait() == 9, screen.seen[-1000:]
        assert is_whole(screen)
    seen = json.loads(regen("status", "run", "--json", cwd=tmp_path).stdout)
    assert 0 < seen["done"] < 2000
    assert seen["holder"]["state"] == "drained"


def test_asked_a_second_time_it_stops_at_once(tmp_path: Path) -> None:
    """Rows of some minutes: a drain would wait for them."""
    folder = written(tmp_path, 50, answer_tokens=90, step_seconds=3.0)
    with terminal([*RUN, str(folder)], cwd=tmp_path) as screen:
        screen.wait_for("8 of 8 slots busy")
        screen.process.send_signal(signal.SIGTERM)
        screen.wait_for("stops at once")
        time.sleep(1.1)  # within a second it would be the same signal: the next test
        asked_at = time.monotonic()
        screen.press(CTRL_C)
        screen.wait_for("stopping now: finished rows are published")
        assert screen.wait() == 9, screen.seen[-1000:]
        assert time.monotonic() - asked_at < 30
        assert is_whole(screen)


def test_two_signals_of_one_wrapper_are_one(tmp_path: Path) -> None:
    """`timeout` signals the process, and then its group, which the process is in."""
    with started([*RUN, str(written(tmp_path, 2000))], cwd=tmp_path) as process:
        assert process.stdout is not None
        while "engines up" not in (line := process.stdout.readline()):
            assert line
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=180)
    assert process.returncode == 9
    assert "draining" in rest
    assert "stopping now" not in rest


def test_the_terminal_is_whole_after_a_kill_9_and_the_block_fits_what_it_is_resized_to(tmp_path: Path) -> None:
    with terminal([*RUN, str(written(tmp_path, 2000))], cwd=tmp_path, columns=100) as screen:
        screen.wait_for("8 of 8 slots busy")
        screen.resize(50)
        narrow = len(screen.seen)
        narrow = screen.wait_for("test  running for", after=screen.wait_for("test  running for", after=narrow))
        screen.wait_for("test  running for", after=narrow)
        screen.process.kill()
        screen.wait()
        assert max(map(len, screen.seen[narrow:].split("\n"))) < 50
        assert is_whole(screen)


def test_machines_get_objects_alone_and_the_exit_code_in_the_last(tmp_path: Path) -> None:
    done = subprocess.run(
        [*RUN, str(written(tmp_path, 60)), "--json"], cwd=tmp_path, env=environment(), capture_output=True, text=True
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0
    assert {line["kind"] for line in lines} == {"status", "event", "end"}
    assert {line["schema"] for line in lines} == {1}
    assert (lines[-1]["kind"], lines[-1]["outcome"], lines[-1]["exit_code"]) == ("end", "finished", 0)
    assert (lines[-2]["phase"], lines[-2]["done"]) == ("finished", 60)
    assert len({line["session"] for line in lines}) == 1
    rows = [line["done"] for line in lines if line["kind"] == "status" and line["done"] is not None]
    assert rows == sorted(rows)
    assert "running: 0 of 60 rows" in done.stderr


@pytest.mark.parametrize(("arguments", "more"), [(["--log-format", "json"], {}), ([], {"REGEN_LOG_FORMAT": "json"})])
def test_an_error_is_an_object_for_machines_and_for_logs(
    tmp_path: Path, arguments: list[str], more: dict[str, str]
) -> None:
    done = regen("run", "nothing.yaml", "--json", *arguments, cwd=tmp_path, more=more)
    end, told = json.loads(done.stdout), json.loads(done.stderr)
    assert (end["kind"], end["outcome"], end["exit_code"]) == ("end", "failed", 2)
    assert (told["level"], told["event"], told["exit_code"]) == ("error", "error", 2)
    assert told["text"] == end["error"]


def test_watching_ends_with_the_run_and_its_code(tmp_path: Path) -> None:
    """Begun before there is a run; beside the process that runs it."""
    folder = written(tmp_path, 80)
    with terminal([*REGEN, "status", "run", "--watch", "--interval", "0.3"], cwd=tmp_path) as screen:
        screen.wait_for("no run here yet")
        with started([*RUN, str(folder)], cwd=tmp_path) as process:
            screen.wait_for(" of 80 rows")
            screen.wait_for("in flight")
            assert screen.wait() == 0
            process.communicate(timeout=180)
        assert "every one has its outcome" in screen.seen
        assert is_whole(screen)


def test_ctrl_c_leaves_a_watch_and_not_the_run(tmp_path: Path) -> None:
    with terminal([*REGEN, "status", "run", "--watch"], cwd=tmp_path) as screen:
        screen.wait_for("no run here yet")
        screen.press(CTRL_C)
        assert screen.wait() == 130
        assert is_whole(screen)


def test_a_reader_that_goes_away_gets_no_trace(tmp_path: Path) -> None:
    begin_run(make_spec(tmp_path, rows=5))
    for arguments in (["status", "run"], ["status", "run", "--json"]):
        read, write = os.pipe()
        os.close(read)
        done = subprocess.run(
            [*REGEN, *arguments], cwd=tmp_path, env=environment(), stdout=write, stderr=subprocess.PIPE, text=True
        )
        os.close(write)
        assert done.stderr == ""
