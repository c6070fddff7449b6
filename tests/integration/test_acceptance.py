"""`regen report` and `regen evaluate` on runs of the fake engine: real rows, real folders, real files of heads."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from regen.errors import EngineStalled, FingerprintDrift, PreflightRefused, SpecError
from regen.records import Status
from regen.run.commands.evaluate import Evaluation, evaluate
from regen.run.commands.report import Report, report
from regen.run.commands.retry import retry
from regen.run.driver import Driver
from regen.run.local import LocalCluster
from regen.run.session import seal_run
from regen.run.start import Begun, StartOptions, resume
from regen.spec import RunSpec
from regen.speculative.acceptance import Verdict
from regen.store.choosing import Wanted
from regen.store.local import LocalStorage
from tests import virtual_time
from tests.heads import TARGET, VOCABULARY, eagle3
from tests.processes import regen_here
from tests.runs import begin_run, drive, make_spec, shard_table, write_jsonl
from tests.toy_target import END_ID

# The warm-up is another test's: here a fault is to strike rows, and a dead draft to be run.
BRIEF = {"rows": 2, "drafts": 1, "max_tokens": 8, "canary_rows": 0}
SPECULATION = {
    "method": "eagle3",
    "num_tokens": 3,
    "calibrate": "off",
    "gate": "warn",
    "guard": "warn",
    "warmup": BRIEF,
}


def spec_with_head(folder: Path, head: str = "head-a", rows: int = 30, **sections: Any) -> RunSpec:
    """Two sources; a target and a head that fit each other by config."""
    if not (folder / head).exists():
        eagle3().write(folder / head)
    other = write_jsonl(folder / "other.jsonl", ({"prompt": f"other {number}"} for number in range(rows // 2)))
    spec = make_spec(
        folder,
        rows=rows,
        speculation={**SPECULATION, "draft": str(folder / head)},
        sources=[{"name": "rows", "path": str(folder / "rows.jsonl")}, {"name": "other", "path": str(other)}],
        **sections,
    )
    config = {**TARGET, "eos_token_id": END_ID, "vocab_size": VOCABULARY}
    (folder / "target" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return spec


def finished(spec: RunSpec) -> Begun:
    begun = begin_run(spec)
    virtual_time.run(drive(LocalCluster(), begun))
    seal_run(begun.storage, begun.worker_setup.run)
    return begun


async def drained_early(begun: Begun) -> None:
    """A session that is told to drain as soon as anything is committed."""
    driver = Driver(LocalCluster(), begun.worker_setup, watch=lambda status: None, log=lambda text: None)
    work = asyncio.ensure_future(driver.run())
    while not work.done() and not (await asyncio.to_thread(report, begun.storage)).rows:
        await asyncio.sleep(0.02)
    driver.drain(1.0)
    await work


def run_of(folder: Path) -> LocalStorage:
    return LocalStorage(folder / "run")


def content(folder: Path) -> dict[str, str]:
    """Every file of a run, by digest."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def evaluated(folder: Path, head: str = "head-a", rows: int = 5, **options: Any) -> Evaluation:
    return evaluate(run_of(folder), str(folder / head), {"method": "eagle3", **options}, rows, say=lambda text: None)


def give_engine(begun: Begun, **settings: Any) -> None:
    """Change the engine of a finished run: the faults are for the evaluation only."""
    path = Path(begun.storage.url) / "run.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    record["spec"]["engine"].update(settings)
    path.write_text(json.dumps(record), encoding="utf-8")


# --- regen report --------------------------------------------------------------------------------


def seen_in_shards(folder: Path) -> tuple[int, int, int]:
    """(generations, drafts, accepted), added up by hand from the sealed rows."""
    seen = [one for row in shard_table(folder / "run").to_pylist() for one in row["observed"]["generations"]]
    return len(seen), sum(one["drafts"] for one in seen), sum(one["accepted"] for one in seen)


def test_a_report_adds_up_to_what_the_rows_say(tmp_path: Path) -> None:
    finished(spec_with_head(tmp_path))
    made = report(run_of(tmp_path))
    (arm,) = made.arms
    generations, drafts, accepted = seen_in_shards(tmp_path)
    assert (made.rows, made.planned) == (45, 45)
    assert arm.arm == (str(tmp_path / "head-a"), "fake")
    assert (arm.total.generations, arm.total.drafts, arm.total.accepted) == (generations, drafts, accepted)
    assert set(arm.tables["source"]) == {"rows", "other"}
    assert [(turn.first, turn.last) for turn in arm.tables["turn"]] == [(0, 0), (1, 1)]  # type: ignore[union-attr]
    for table in arm.tables.values():
        assert sum(tally.drafts for tally in table.values()) == drafts


def test_lengths_are_those_of_the_stored_ids(tmp_path: Path) -> None:
    finished(spec_with_head(tmp_path, engine={"answer_tokens": 60}))
    (arm,) = report(run_of(tmp_path)).arms
    made = [one for row in shard_table(tmp_path / "run").to_pylist() for one in row["generations"]]
    short = sum(len(one["completion_token_ids"]) < 64 for one in made)
    counts = {value.first: tally.generations for value, tally in arm.tables["answer_tokens"].items()}  # type: ignore[union-attr]
    assert counts == {0: short, 64: len(made) - short}


def test_in_the_middle_of_a_run_the_committed_rows_are_reported(tmp_path: Path) -> None:
    begun = begin_run(spec_with_head(tmp_path, rows=60, engine={"step_seconds": 0.001}))

    async def half() -> Report:
        work = asyncio.ensure_future(drive(LocalCluster(), begun))
        while not (made := await asyncio.to_thread(report, run_of(tmp_path))).rows and not work.done():
            await asyncio.sleep(0.02)
        await work
        return made

    made = virtual_time.run(half())
    assert 0 < made.rows <= made.planned
    assert sum(arm.total.generations for arm in made.arms) >= made.rows
    assert report(run_of(tmp_path)).rows == 90


def test_a_run_that_changed_its_draft_has_a_table_for_each(tmp_path: Path) -> None:
    slow = {"step_seconds": 0.02, "slots": 2}
    virtual_time.run(drained_early(begin_run(spec_with_head(tmp_path, "head-a", rows=60, engine=slow))))
    virtual_time.run(drive(LocalCluster(), begin_run(spec_with_head(tmp_path, "head-b", rows=60))))
    made = report(run_of(tmp_path))
    assert made.rows == 90
    assert {Path(arm.arm.draft or "").name for arm in made.arms} == {"head-a", "head-b"}


def test_counters_that_never_came_are_counted_as_absent(tmp_path: Path) -> None:
    finished(spec_with_head(tmp_path, engine={"counters_absent": True}))
    (arm,) = report(run_of(tmp_path)).arms
    assert (arm.total.generations, arm.total.accept_length) == (0, None)
    assert arm.total.absent == len(
        [one for row in shard_table(tmp_path / "run").to_pylist() for one in row["generations"]]
    )
    assert "absent is not zero" in regen_here("report", "run", cwd=tmp_path).stdout


def test_degenerate_rows_are_counted_and_in_no_figure(tmp_path: Path) -> None:
    """An answer of closing ids alone is empty: its row is degenerate."""
    finished(spec_with_head(tmp_path, rows=20, engine={"vocabulary": [END_ID, END_ID]}))
    made = report(run_of(tmp_path))
    assert made.degenerate_rows == made.rows == 30
    assert made.degenerate_generations == 30
    assert made.arms == []


def test_a_looping_answer_behind_good_ones_is_counted_and_in_no_figure(tmp_path: Path) -> None:
    """Its row is partial: the good turn before it is measured."""
    scripts = [("then?", b"I use 460. " * 60), ("user", b"A good answer.")]
    answers = [{"prompt_ids": list(key.encode()), "ids": list(text)} for key, text in scripts]
    finished(spec_with_head(tmp_path, engine={"answers": answers}, sampling={"max_tokens": 1000}))
    kept = [row for row in shard_table(tmp_path / "run").to_pylist() if row["status"] == "partial"]
    assert [(row["reason"], len(row["generations"])) for row in kept] == [("loop", 2)] * 10
    made = report(run_of(tmp_path))
    (arm,) = made.arms
    assert (made.rows, made.degenerate_rows, made.degenerate_generations) == (45, 0, 10)
    assert arm.total.generations == 45
    assert [tally.generations for tally in arm.tables["turn"].values()] == [45]


def test_rows_that_were_made_again_are_reported_as_they_are_now(tmp_path: Path) -> None:
    finished(spec_with_head(tmp_path, sampling={"max_tokens": 12}))
    cut = sum(row["status"] == "truncated" for row in shard_table(tmp_path / "run").to_pylist())
    assert retry(run_of(tmp_path), Wanted(frozenset({Status.TRUNCATED})), {"max_tokens": 100}).rows == cut > 0
    before = report(run_of(tmp_path))
    again = resume(run_of(tmp_path).url, StartOptions(processes=1), say=lambda text: None)
    virtual_time.run(drive(LocalCluster(), again))
    seal_run(again.storage, again.worker_setup.run)
    made = report(run_of(tmp_path))
    (arm,) = made.arms
    generations, drafts, accepted = seen_in_shards(tmp_path)
    assert (before.rows, made.rows) == (45, 45)
    assert (arm.total.generations, arm.total.drafts, arm.total.accepted) == (
        generations,
        drafts,
        accepted,
    )


def test_report_prints_tables_and_one_json_document(tmp_path: Path) -> None:
    finished(spec_with_head(tmp_path, rows=80))
    shown = regen_here("report", "run", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "head-a on fake" in shown.stdout
    found = json.loads(regen_here("report", "run", "--json", cwd=tmp_path).stdout)
    (draft,) = found["drafts"]
    assert {one["value"] for one in draft["by_source"]} == {"rows", "other"}
    assert draft["all"]["accept_length"] == pytest.approx(1 + draft["all"]["accepted"] / draft["all"]["drafts"])
    assert draft["all"]["interval"][0] < draft["all"]["accept_length"] < draft["all"]["interval"][1]
    assert [one["value"]["first"] for one in draft["by_turn"]] == [0, 1]


def test_a_folder_without_a_run_has_no_report(tmp_path: Path) -> None:
    assert regen_here("report", "nothing", cwd=tmp_path).returncode == 2


# --- regen evaluate ------------------------------------------------------------------------------


def test_the_same_answers_are_made_again_and_compared_with_what_was_recorded(tmp_path: Path) -> None:
    finished(spec_with_head(tmp_path))
    before = content(tmp_path / "run")
    made = evaluated(tmp_path, "head-a")
    assert [one.source for one in made.sources] == ["other", "rows"]
    assert made.rows == 10
    for one in (*made.sources, made.total):
        assert one.identical == one.generations == one.recorded.generations == one.now.generations > 0
        assert one.recorded == one.now
        assert one.difference is not None
        assert one.difference.value == 0
    assert content(tmp_path / "run") == before


def test_the_sample_is_the_same_for_the_same_rows_however_they_were_made(tmp_path: Path) -> None:
    for name, replicas in (("one", 1), ("two", 2)):
        (tmp_path / name).mkdir()
        finished(spec_with_head(tmp_path / name, engine={"replicas": replicas}))
    one, two = (evaluated(tmp_path / name).total for name in ("one", "two"))
    assert one.now == two.now
    assert one.generations < 45


def test_more_tokens_are_asked_of_the_head_than_the_run_asked_for(tmp_path: Path) -> None:
    finished(spec_with_head(tmp_path))
    made = evaluated(tmp_path, num_tokens=2, rows=20).total
    assert (len(made.now.by_position), len(made.recorded.by_position)) == (2, 3)
    assert made.difference is not None
    assert made.difference.interval is not None


def test_rows_that_were_made_without_speculation_have_nothing_recorded(tmp_path: Path) -> None:
    spec = spec_with_head(tmp_path).model_copy(update={"speculation": None})
    finished(spec)
    with pytest.raises(SpecError, match="--num-tokens"):
        evaluated(tmp_path)
    made = evaluated(tmp_path, num_tokens=3).total
    assert (made.recorded.generations, made.recorded.absent) == (0, made.generations)
    assert made.difference is None
    assert made.now.accept_length is not None


def test_a_head_that_cannot_work_is_refused_before_an_engine_starts(tmp_path: Path) -> None:
    begun = finished(spec_with_head(tmp_path))
    give_engine(begun, faults=[{"kind": "die_at_start"}])
    broken = eagle3()
    broken.config["hidden_size"] = 64
    broken.write(tmp_path / "broken")
    with pytest.raises(PreflightRefused, match="hidden-size"):
        evaluated(tmp_path, "broken")


def test_a_setting_that_is_none_is_named_with_its_path(tmp_path: Path) -> None:
    finished(spec_with_head(tmp_path))
    with pytest.raises(SpecError, match=r"speculation\.layer_convention"):
        evaluated(tmp_path, layer_convention="sideways")


def test_another_target_is_refused(tmp_path: Path) -> None:
    finished(spec_with_head(tmp_path))
    config = tmp_path / "target" / "generation_config.json"
    config.write_text(config.read_text().replace("0.7", "0.8"))
    with pytest.raises(FingerprintDrift, match=r"target\.commit"):
        evaluated(tmp_path)


def test_an_engine_that_goes_silent_ends_the_evaluation(tmp_path: Path) -> None:
    begun = finished(spec_with_head(tmp_path))
    give_engine(begun, faults=[{"kind": "hang", "after_requests": 2}], stall_timeout_seconds=0.2)
    with pytest.raises(EngineStalled, match="stall_timeout_seconds"):
        evaluated(tmp_path)


def test_what_the_engine_refuses_is_counted_and_in_no_figure(tmp_path: Path) -> None:
    begun = finished(spec_with_head(tmp_path))
    give_engine(begun, faults=[{"kind": "refuse", "times": 2}])
    made = evaluated(tmp_path)
    assert made.unanswered == {"engine_refused": 2}
    assert made.total.generations == sum(made.recorded_by.values()) - 2


@pytest.mark.parametrize(
    ("engine", "code", "said"),
    [
        ({"acceptance_by_position": [0.0]}, 3, "this head is dead: accept length 1.000"),
        ({"counters_absent": True}, 1, "Absent is not zero"),
        ({"answer_tokens": 1, "acceptance_by_position": [0.0]}, 0, "undecided"),
        ({}, 0, "this head drafts"),
    ],
)
def test_the_verdict_is_the_exit_code_and_the_last_word(
    tmp_path: Path, engine: dict[str, Any], code: int, said: str
) -> None:
    finished(spec_with_head(tmp_path, engine={"answer_tokens": 40, **engine}))
    made = evaluated(tmp_path, rows=40)
    assert made.exit_code == code
    assert said in "\n".join(made.remarks())


def test_a_dead_head_ends_with_3_and_the_json_is_still_one_document(tmp_path: Path) -> None:
    finished(spec_with_head(tmp_path, engine={"answer_tokens": 40, "acceptance_by_position": [0.0]}))
    done = regen_here("evaluate", "run", "--draft", "head-a", "--json", cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    assert "this head is dead" in done.stderr
    assert "perhaps the " in done.stderr
    assert json.loads(done.stdout)["verdict"] == Verdict.DEAD


def test_evaluate_prints_a_table_with_both_drafts(tmp_path: Path) -> None:
    finished(spec_with_head(tmp_path))
    eagle3().write(tmp_path / "head-b")
    done = regen_here("evaluate", "run", "--draft", "head-b", "--rows", "4", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "recorded" in done.stdout
    assert "difference" in done.stdout
    assert f"with {tmp_path / 'head-a'} on fake" in done.stderr
