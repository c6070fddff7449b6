"""kill -9 under real Ray, over the fake engine: whatever dies, the same command continues and nothing is lost."""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
from functools import partial
from pathlib import Path

import pytest

from regen.run.held import replayed_run
from regen.run.local import LocalCluster
from regen.run.session import seal_run, standing
from regen.spec import RunSpec, dump_spec
from regen.store.local import LocalStorage
from tests import virtual_time
from tests.chaos.ray_cluster import ENVIRONMENT, REPLICA, RayHead
from tests.processes import PATIENCE_SECONDS, REGEN, free_port, kill, reached, regen, started, wait_until
from tests.runs import begin_run, determined, drive, make_spec, shard_table
from tests.scrapes import sample, scraped
from tests.terminals import CTRL_C, terminal

pytestmark = pytest.mark.ray

LENGTH = {"answer_tokens": 25}
ENGINE = {"replicas": 2, "slots": 8, "step_seconds": 0.03, "restarts": 20, **LENGTH}


def written(spec: RunSpec, folder: Path, name: str = "spec.yaml") -> str:
    (folder / name).write_text(dump_spec(spec), encoding="utf-8")
    return name


def done(folder: Path) -> int:
    storage = LocalStorage(folder)
    if not (folder / "plan.json").exists():
        return 0
    return standing(storage).totals.done


def coordinator_of(folder: Path) -> int:
    """The process of the newest claim."""
    replayed = replayed_run(LocalStorage(folder))
    assert replayed is not None
    assert replayed.newest_claim is not None
    return replayed.newest_claim.pid


def has_done(folder: Path, rows: int) -> bool:
    return done(folder) >= rows


def finish(folder: Path, spec: str, process: subprocess.Popen[str] | None = None) -> None:
    """To the end, by the command that is running or the same command again; then verified."""
    code = process.wait(timeout=PATIENCE_SECONDS) if process else regen("run", spec, cwd=folder).returncode
    assert code == 0
    assert regen("verify", "run", cwd=folder).returncode == 0


@pytest.mark.parametrize("victim", ["coordinator", "replica"])
def test_an_actor_killed_costs_nothing_but_what_it_was_making(tmp_path: Path, ray_head: RayHead, victim: str) -> None:
    """And whoever scrapes it sees its end: the coordinator stays for that when all else has gone."""
    checkpoint, port = {"interval_seconds": 2.0}, free_port()
    metrics = {"port": port, "hold_seconds": 60}
    spec = written(make_spec(tmp_path, rows=150, engine=ENGINE, checkpoint=checkpoint, metrics=metrics), tmp_path)
    command = [*REGEN, "run", spec, "--address", ray_head.address]
    with started(command, cwd=tmp_path, more=ENVIRONMENT) as process:
        reached(lambda: done(tmp_path / "run") > 0, process)
        kill(coordinator_of(tmp_path / "run") if victim == "coordinator" else ray_head.titled(REPLICA)[0])
        wait_until(lambda: sample(scraped(port), "regen_phase", phase="finished") == 1)
        wait_until(lambda: not scraped(port))
        finish(tmp_path, spec, process)
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    for killed in ("coordinator", "replica"):
        restarts = report["metrics"][f"regen_{killed}_restarts_total"]
        assert sum(one["value"] for one in restarts) == (killed == victim)
    rows = shard_table(tmp_path / "run").to_pylist()
    assert [row["ordinal"] for row in rows] == list(range(150))
    assert {row["observed"]["attempts"] for row in rows} == {1}
    if victim == "coordinator":
        assert report["session"]["sampled_tokens"] == report["output_tokens"], "no row was made twice"


def test_the_driver_killed_at_any_moment_is_continued_by_the_same_command(tmp_path: Path) -> None:
    """With the cluster that it has started, and so with all that runs there."""
    whole = begin_run(make_spec(tmp_path, rows=120, engine={"slots": 8, **LENGTH}, output=str(tmp_path / "whole")))
    virtual_time.run(drive(LocalCluster(), whole))
    seal_run(whole.storage, whole.worker_setup.run)
    spec = written(make_spec(tmp_path, engine=ENGINE), tmp_path)
    draw = random.Random(3)
    for _ in range(2):
        before = done(tmp_path / "run")
        enough = before + 1 + draw.randrange((120 - before) // 4)
        with started([*REGEN, "run", spec], cwd=tmp_path) as process:
            reached(partial(has_done, tmp_path / "run", enough), process)
            process.kill()
    finish(tmp_path, spec)
    assert determined(tmp_path / "run") == determined(tmp_path / "whole")


def test_sigterm_drains_publishes_and_ends_with_the_code_for_it(tmp_path: Path) -> None:
    """And, on the way, the metrics endpoint of a real run: everything there from the start, then rows."""
    port = free_port()
    spec = written(
        make_spec(
            tmp_path,
            rows=400,
            engine={**ENGINE, "step_seconds": 0.05},
            checkpoint={"interval_seconds": 600.0},
            metrics={"port": port},
        ),
        tmp_path,
    )
    with started([*REGEN, "run", spec], cwd=tmp_path) as process:
        # Nothing is committed before the drain: it stays at 0.
        reached(lambda: 'regen_rows_done_total{source="rows",status="ok"} 0.0' in scraped(port), process)
        reached(lambda: sample(scraped(port), "regen_rows_uncommitted") > 0, process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=PATIENCE_SECONDS) == 9
    assert 0 < done(tmp_path / "run") < 400
    assert json.loads((tmp_path / "run" / "holder.json").read_text())["state"] == "drained"
    status = json.loads(regen("status", "run", "--json", cwd=tmp_path).stdout)
    assert status["done"] == done(tmp_path / "run")


def test_two_starts_within_a_second_are_one_run(tmp_path: Path) -> None:
    spec = written(make_spec(tmp_path, rows=100, engine=ENGINE), tmp_path)
    with started([*REGEN, "run", spec], cwd=tmp_path) as one, started([*REGEN, "run", spec], cwd=tmp_path) as other:
        outputs = {process: process.communicate(timeout=PATIENCE_SECONDS)[0] for process in (one, other)}
        codes = {process.returncode for process in outputs}
    assert codes == {0, 4}
    (refused,) = [output for process, output in outputs.items() if process.returncode == 4]
    assert "session" in refused
    assert "host" in refused
    finish(tmp_path, spec)
    assert len(determined(tmp_path / "run")) == 100


def test_on_a_terminal_the_command_shows_its_own_lines_alone_and_ctrl_c_drains_whatever_was_killed(
    tmp_path: Path,
) -> None:
    spec = written(make_spec(tmp_path, rows=2000, engine={**ENGINE, "step_seconds": 0.05}), tmp_path)
    with terminal([*REGEN, "run", spec], cwd=tmp_path) as screen:
        screen.wait_for("16 of 16 slots busy", seconds=PATIENCE_SECONDS)
        kill(coordinator_of(tmp_path / "run"))
        screen.wait_for("the coordinator was restarted", seconds=PATIENCE_SECONDS)
        screen.press(CTRL_C)
        screen.wait_for("draining: finished rows are published")
        assert screen.wait(seconds=PATIENCE_SECONDS) == 9
        assert screen.echoes()
    assert not re.search(r"WARNING|INFO|pid=|Traceback", screen.seen)
    assert json.loads((tmp_path / "run" / "holder.json").read_text())["state"] == "drained"
