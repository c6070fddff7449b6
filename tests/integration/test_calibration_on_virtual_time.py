"""Calibration in the real coordinator, worker and driver, over the fake engine's cost model, hours in seconds.

Time is virtual (tests/virtual_time.py): what is asserted of rates holds on any machine.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from regen.records import Phase
from regen.run.held import replayed_run
from regen.run.local import LocalCluster
from regen.run.session import seal_run
from regen.run.start import Begun
from regen.store.control import ArmMeasured, DecidedBy, SpeculationDecided, Verdict
from tests import virtual_time
from tests.runs import begin_run, drive, make_spec, shard_table, with_draft

# Every commit is a real file, synced.
CHECKPOINT = {"interval_seconds": 20.0, "rows_per_shard": 100}
STEP, ANSWER_TOKENS = 0.1, 300


def calibrated(folder: Path, slots: int, rows: int, replicas: int = 1, **calibration: Any) -> tuple[Begun, int]:
    """A finished run that was calibrated, and how many engines it took."""
    engine = {
        "slots": slots,
        "replicas": replicas,
        "step_seconds": STEP,
        "answer_tokens": ANSWER_TOKENS,
        "answer_spread": 0.3,
        "start_seconds": 20,
        "acceptance_by_position": [0.7, 0.3, 0.1],
        "cost": {},
    }
    prompts: list[dict[str, Any]] = [{"prompt": f"say {number}"} for number in range(rows)]
    spec = with_draft(
        make_spec(folder, rows=prompts, engine=engine, sampling={"max_tokens": 1000}, checkpoint=CHECKPOINT),
        folder,
        calibrate="auto",
        calibration={"window_seconds": 8.0, **calibration},
        warmup={"drafts": 100, "max_tokens": 32, "seconds": 60},
    )
    begun, cluster = begin_run(spec), LocalCluster()
    status = virtual_time.run(drive(cluster, begun))
    assert status.phase is Phase.FINISHED
    assert status.totals.done == rows
    seal_run(begun.storage, begun.worker_setup.run)
    return begun, len(cluster.workers)


def choice(begun: Begun) -> SpeculationDecided | None:
    replayed = replayed_run(begun.storage)
    assert replayed is not None
    made = [one for one in replayed.records if isinstance(one, SpeculationDecided) and one.by is DecidedBy.CALIBRATION]
    return made[-1] if made else None


@pytest.mark.parametrize(
    ("slots", "rows", "replicas", "expected"),
    [(4, 320, 1, "configured"), (64, 2400, 1, "off"), (8, 600, 2, "configured")],
)
def test_the_faster_setting_is_found_and_kept(
    tmp_path: Path, slots: int, rows: int, replicas: int, expected: str
) -> None:
    begun, engines = calibrated(tmp_path, slots, rows, replicas)
    decided = choice(begun)
    assert decided is not None
    assert decided.arm == expected
    assert engines <= replicas + 6, "calibration.max_engine_starts"
    figures = {row["arm"]: row for row in json.loads(decided.evidence)}
    assert figures["off"]["tokens_per_second"] == pytest.approx(slots / STEP, rel=0.07)
    cost = 1.1 + 1.5 * (slots - 1) / 63
    assert figures["configured"]["tokens_per_second"] == pytest.approx(slots * 2.1 / cost / STEP, rel=0.07)
    last = shard_table(tmp_path / "run").to_pylist()[-1]
    assert (last["observed"]["draft"] is not None) == (expected == "configured")


def test_what_was_measured_is_in_the_journal(tmp_path: Path) -> None:
    begun, _ = calibrated(tmp_path, 4, 240, arms=2)
    replayed = replayed_run(begun.storage)
    assert replayed is not None
    measured = [one for one in replayed.records if isinstance(one, ArmMeasured)]
    assert {one.arm for one in measured} == {"off", "configured"}
    assert all(one.seconds >= 8.0 for one in measured)


def test_a_run_that_is_nearly_over_is_not_calibrated(tmp_path: Path) -> None:
    begun, engines = calibrated(tmp_path, 16, 40)
    decided = choice(begun)
    assert decided is not None
    assert (decided.arm, decided.verdict) == ("configured", Verdict.UNMEASURED)
    assert engines == 1
