"""A pilot over the fake engine, on one event loop: its sample and nothing else, then the run makes the rest."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from regen.data.plan import open_plan
from regen.errors import SourceError
from regen.observe.pilot_page import TokenKind, pilot_page
from regen.records import CoordinatorStatus, Phase
from regen.run.commands.check import check
from regen.run.commands.pilot import Pilot, begin_pilot, note_session, read_pilot, rows_left
from regen.run.local import LocalCluster
from regen.run.session import seal_run, standing
from regen.run.start import Begun, StartOptions
from regen.spec import RunSpec, dump_spec
from regen.store.committed import CommittedRows
from regen.store.parquet import integers
from tests import virtual_time
from tests.chaos.ray_cluster import ENVIRONMENT, RayHead
from tests.processes import PATIENCE_SECONDS, regen, regen_here
from tests.runs import begin_run, conversations, drive, make_spec, shard_table, with_draft, write_jsonl

SHORT = {"warmup": {"drafts": 50, "max_tokens": 16, "seconds": 20.0, "canary_rows": 0}, "gate": "warn"}


def two_sources(folder: Path, **sections: Any) -> RunSpec:
    few = write_jsonl(folder / "few.jsonl", [{"prompt": f"few {number}"} for number in range(6)])
    many = write_jsonl(folder / "many.jsonl", conversations(60))
    return make_spec(
        folder, rows=1, sources=[{"name": "few", "path": str(few)}, {"name": "many", "path": str(many)}], **sections
    )


def begin(spec: RunSpec, rows: int = 12) -> Begun:
    return begin_pilot(spec, StartOptions(processes=1), rows, lambda text: None)


def made(begun: Begun) -> CoordinatorStatus:
    status = virtual_time.run(drive(LocalCluster(), begun))
    note_session(begun, status)
    return status


def committed(begun: Begun) -> list[int]:
    tables = CommittedRows(begun.storage, begun.plan_summary.rows).tables(("status",))
    return sorted(ordinal for table in tables for ordinal in integers(table, "ordinal"))


def kinds(pilot: Pilot) -> set[TokenKind]:
    return {piece.kind for row in pilot.view.rows for answer in row.answers for piece in answer.pieces}


def test_exactly_the_sample_is_committed_and_the_run_makes_the_rest_once(tmp_path: Path) -> None:
    spec = two_sources(tmp_path, engine={"replicas": 2})
    pilot = begin(spec)
    sample = list(pilot.worker_setup.run.pilot_rows)
    assert len(sample) == 12
    assert {row.source for row in open_plan(pilot.storage).rows(sample)} == {"few", "many"}
    assert made(pilot).phase is Phase.DRAINED
    assert committed(pilot) == sample
    assert rows_left(pilot) == 0

    run = begin_run(spec)
    status = virtual_time.run(drive(LocalCluster(), run))
    assert (status.phase, status.session_rows) == (Phase.FINISHED, 66 - 12)
    assert committed(run) == list(range(66))
    seal_run(run.storage, run.worker_setup.run)
    assert check(run.storage).is_right
    sessions = {row["ordinal"]: row["observed"]["session"] for row in shard_table(tmp_path / "run").to_pylist()}
    by_pilot = [ordinal for ordinal, session in sessions.items() if session == pilot.worker_setup.run.session]
    assert by_pilot == sample


def test_a_pilot_done_again_is_the_same_and_a_larger_one_makes_only_what_is_missing(tmp_path: Path) -> None:
    spec = make_spec(tmp_path, rows=40)
    first = begin(spec, rows=10)
    made(first)
    again = begin(spec, rows=10)
    assert again.worker_setup.run.pilot_rows == first.worker_setup.run.pilot_rows
    assert rows_left(again) == 0
    larger = begin(spec, rows=15)
    assert set(larger.worker_setup.run.pilot_rows) > set(first.worker_setup.run.pilot_rows)
    assert made(larger).session_rows == 5
    assert len(committed(larger)) == 15


def test_a_pilot_larger_than_the_plan_finishes_the_run(tmp_path: Path) -> None:
    pilot = begin(make_spec(tmp_path, rows=9), rows=50)
    assert made(pilot).phase is Phase.FINISHED
    assert standing(pilot.storage).is_finished


def test_a_coordinator_that_dies_goes_on_with_the_sample_alone(tmp_path: Path) -> None:
    spec = make_spec(tmp_path, rows=60, engine={"step_seconds": 0.01, "answer_tokens": 30, "slots": 4})
    pilot = begin(spec, rows=16)

    async def killed() -> None:
        cluster = LocalCluster()
        work = asyncio.ensure_future(drive(cluster, pilot))
        await asyncio.sleep(0.8)
        assert cluster.coordinator is not None
        await cluster.coordinator.restart()
        await work

    virtual_time.run(killed())
    assert committed(pilot) == list(pilot.worker_setup.run.pilot_rows)


def test_rows_that_the_plan_settles_are_not_sampled(tmp_path: Path) -> None:
    rows = [{"prompt": ""} if number % 2 else {"prompt": f"say {number}"} for number in range(20)]
    pilot = begin(make_spec(tmp_path, rows=rows), rows=20)
    assert len(pilot.worker_setup.run.pilot_rows) == 10
    made(pilot)
    assert read_pilot(pilot, None).is_complete


def test_nothing_to_try_is_said(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="nothing to try"):
        begin(make_spec(tmp_path, rows=[{"prompt": ""}]))


@pytest.mark.ray
def test_the_command_makes_the_sample_and_the_run_goes_on(tmp_path: Path, ray_head: RayHead) -> None:
    on_ray = partial(regen, cwd=tmp_path, more=ENVIRONMENT, timeout_seconds=PATIENCE_SECONDS)
    there = ("--address", ray_head.address)
    (tmp_path / "spec.yaml").write_text(dump_spec(make_spec(tmp_path, rows=20)), encoding="utf-8")
    refused = regen_here("pilot", "spec.yaml", "--page", "nowhere/page.html", cwd=tmp_path)
    assert (refused.returncode, (tmp_path / "run").exists()) == (2, False)
    made = on_ray("pilot", "spec.yaml", "--rows", "8", *there)
    assert made.returncode == 0, made.stderr
    assert "The whole run" in made.stdout
    seen = json.loads(regen_here("status", "run", "--json", cwd=tmp_path).stdout)
    assert (sum(seen["outcomes"].values()), seen["is_finished"]) == (8, False)
    assert (tmp_path / "run" / "pilot.html").read_text(encoding="utf-8").count("<details>") == 8
    assert on_ray("run", "spec.yaml", *there).returncode == 0
    again = on_ray("pilot", "spec.yaml", "--rows", "8", "--page", "page.html", "--json", *there)
    assert json.loads(again.stdout)["done"] == 8
    assert (tmp_path / "page.html").exists()
    assert regen_here("verify", "run", cwd=tmp_path).returncode == 0


# --- what it tells -------------------------------------------------------------------------------


def test_figures_by_source_and_for_the_whole_run(tmp_path: Path) -> None:
    spec = two_sources(tmp_path, sampling={"max_tokens": 12}, engine={"step_seconds": 0.002})
    pilot = begin(spec, rows=24)
    made(pilot)
    found = read_pilot(pilot, 2.0)
    assert found.is_complete
    few, many = found.view.sources
    assert (few.source, few.rows, few.sampled, few.done) == ("few", 6, 6, 6)
    assert (many.source, many.rows, many.sampled, many.done) == ("many", 60, 18, 18)
    rows = list(CommittedRows(pilot.storage, 66).rows(pilot.worker_setup.run.pilot_rows))
    assert few.truncated + many.truncated == sum(row.status == "truncated" for row in rows) > 0
    tokens = {
        name: [sum(len(one.completion_token_ids) for one in row.generations) for row in rows if row.source == name]
        for name in ("few", "many")
    }
    whole = sum(tokens["few"]) + 60 * sum(tokens["many"]) / 18
    assert found.estimate.tokens == pytest.approx(whole)
    assert found.estimate.hours is not None
    assert 0 < found.estimate.hours[0] <= found.estimate.hours[1]
    assert found.estimate.cost is None, "no GPU, no cost"
    assert found.to_json()["done"] == 24


def test_of_a_range_the_figures_are_for_as_many_engines_as_made_the_sample(tmp_path: Path) -> None:
    engine = {"replicas": {"min": 1, "max": 8}, "slots": 2, "step_seconds": 0.05}
    pilot = begin(two_sources(tmp_path, engine=engine), rows=20)
    made(pilot)
    rows = CommittedRows(pilot.storage, pilot.plan_summary.rows).rows(pilot.worker_setup.run.pilot_rows)
    engines = len({row.observed.replica for row in rows})
    notes = " ".join(read_pilot(pilot, None).view.notes)
    assert engines in range(2, 9)
    assert f"a fleet like the pilot's, of {engines} where 1 to 8 may be" in notes
    assert f" of {2 * engines} slots at work" in notes


def test_every_answer_is_on_the_page_with_its_text(tmp_path: Path) -> None:
    pilot = begin(make_spec(tmp_path, rows=12), rows=6)
    made(pilot)
    found = read_pilot(pilot, None)
    rows = {row.row_id: row for row in CommittedRows(pilot.storage, 12).rows(pilot.worker_setup.run.pilot_rows)}
    assert {row.row_id for row in found.view.rows} == rows.keys()
    for row in found.view.rows:
        for answer, generation in zip(row.answers, rows[row.row_id].generations, strict=True):
            assert len(answer.pieces) == len(generation.completion_token_ids)
            assert "".join(piece.text for piece in answer.pieces[:-1]).strip() == generation.text.strip()
            assert answer.pieces[-1].closes
    assert kinds(found) == {TokenKind.SAMPLED}
    assert pilot_page(found.view).count("<details>") == 6


def test_with_a_draft_every_token_says_how_it_came(tmp_path: Path) -> None:
    spec = with_draft(make_spec(tmp_path, rows=30), tmp_path, calibrate="auto", **SHORT)
    pilot = begin(spec, rows=10)
    status = made(pilot)
    assert status.speculation.phase == "configured", "a pilot does not calibrate"
    found = read_pilot(pilot, None)
    assert kinds(found) == {TokenKind.ACCEPTED, TokenKind.CORRECTED, TokenKind.OWN}
    rows = list(CommittedRows(pilot.storage, 30).rows(pilot.worker_setup.run.pilot_rows))
    seen = [one.acceptance for row in rows for one in row.observed.generations]
    accepted = sum(one.accepted for one in seen if one is not None)
    shown = [piece.kind for row in found.view.rows for one in row.answers for piece in one.pieces]
    # The last step's accepted tokens may lie beyond the end.
    beyond = accepted - shown.count(TokenKind.ACCEPTED)
    assert 0 <= beyond <= 3 * len(seen)
    assert shown.count(TokenKind.ACCEPTED) > len(seen)


def test_without_kept_steps_drafts_are_not_told_apart_and_the_page_says_so(tmp_path: Path) -> None:
    spec = with_draft(make_spec(tmp_path, rows=8), tmp_path, **SHORT)
    virtual_time.run(drive(LocalCluster(), begin_run(spec)))
    found = read_pilot(begin(spec, rows=4), None)
    assert kinds(found) == {TokenKind.SAMPLED}
    assert "steps were not kept" in pilot_page(found.view)
    assert found.estimate.hours is None
