"""report.html and the dataset card of real folders: finished, half way, closed, hostile, local and on S3."""

from __future__ import annotations

import asyncio
import io
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from regen.cli import app
from regen.errors import StoreRefused
from regen.observe.log import Log
from regen.observe.page.facts import PageFacts
from regen.observe.page.page import whole_page
from regen.records import Status
from regen.run.command import leave_report, settle
from regen.run.commands.clean import clean
from regen.run.local import LocalCluster
from regen.run.page.facts import from_store
from regen.run.page.report import leave_pages, write_pages
from regen.run.session import seal_run
from regen.run.start import Begun
from regen.store.storage import open_storage
from tests import virtual_time
from tests.runs import begin_run, drive, make_spec, with_draft
from tests.s3_server import S3Server

PROMPT = "<script>window.ran=1</script><img src=x onerror=window.ran=1>\"'&</pre></main>\u202eevil"
ROWS = [{"prompt": f"{number} {PROMPT}"} for number in range(12)]


def finished(folder: Path, rows: int | list[dict[str, Any]] = 30, **sections: Any) -> Begun:
    begun = begin_run(make_spec(folder, rows, **sections))
    virtual_time.run(drive(LocalCluster(), begun))
    seal_run(begun.storage, begun.worker_setup.run)
    return begun


def read(begun: Begun, key: str) -> str:
    return begun.storage.read(key).decode()


def test_a_finished_run(tmp_path):
    begun = finished(tmp_path, engine={"replicas": 2})
    run = from_store(begun.storage)
    facts = run.page(_now())
    assert (facts.phase, facts.has_ended, facts.progress.done, facts.progress.planned) == ("finished", True, 30, 30)
    (source,) = facts.sources
    assert source.outcomes == {Status.OK: 30}
    assert sum(source.lengths) == 30
    assert source.output_tokens == facts.progress.output_tokens == run.known.totals.output_tokens > 0
    assert sum(replica.rows for replica in facts.replicas) == 30
    assert len(facts.replicas) == 2
    assert facts.history[-1].output_tokens == source.output_tokens
    assert {event.text.split(" on ")[0] for event in facts.events if "began" in event.text} == {
        f"session {begun.worker_setup.run.session} began"
    }
    assert facts.samples
    sample = facts.samples[0]
    assert [turn.is_answer for turn in sample.turns].count(True) >= 1
    assert sample.output_tokens > 0


def test_acceptance_is_by_source_position_and_length(tmp_path):
    spec = with_draft(make_spec(tmp_path, 30, engine={"acceptance_by_position": [0.7, 0.4, 0.2]}), tmp_path)
    begun = begin_run(spec)
    virtual_time.run(drive(LocalCluster(), begun))
    facts = from_store(begun.storage).page(_now())
    assert facts.acceptance.drafts > 0
    assert facts.acceptance == facts.sources[0].acceptance
    assert sum(seen.drafts for seen in facts.by_length.values()) == facts.acceptance.drafts
    assert len(facts.acceptance.accepted_by_position) == 3


def test_a_hostile_prompt_is_text_in_the_page(tmp_path):
    begun = finished(tmp_path, ROWS)
    write_pages(begun.storage, lambda text: None)
    page = read(begun, "report.html")
    assert "&lt;script&gt;window.ran=1&lt;/script&gt;" in page
    assert "<script>window" not in page
    assert "<img" not in page
    assert "[U+202E]evil" in page


def test_samples_are_off_by_a_switch(tmp_path):
    begun = finished(tmp_path, ROWS)
    write_pages(begun.storage, lambda text: None, with_samples=False)
    assert "window.ran" not in read(begun, "report.html")


def test_half_a_run_and_one_that_is_not_begun(tmp_path):
    begun = begin_run(make_spec(tmp_path, 9))
    facts = from_store(begun.storage).page(_now())
    assert (facts.phase, facts.progress.done, facts.progress.planned) == ("not begun", 0, 9)
    write_pages(begun.storage, lambda text: None)
    card = read(begun, "README.md")
    assert "0 of 9 conversations" in card
    assert "configs:" not in card


def test_in_the_middle_of_a_run(tmp_path):
    begun = begin_run(make_spec(tmp_path, 60, engine={"step_seconds": 0.01}))

    async def half() -> PageFacts:
        work = asyncio.ensure_future(drive(LocalCluster(), begun))
        while True:
            run = await asyncio.to_thread(from_store, begun.storage)
            if run.known.totals.done or work.done():
                break
            await asyncio.sleep(0.02)
        await work
        return run.page(_now())

    facts = virtual_time.run(half())
    assert 0 < facts.progress.done < 60
    assert (facts.phase, facts.has_ended) == ("running", False)
    assert facts.progress.in_flight is not None
    assert facts.samples
    assert "nobody runs it" not in whole_page(facts)


def test_a_closed_run_is_sampled_from_its_shards(tmp_path):
    begun = finished(tmp_path, 12)
    clean(begun.storage, journal=True, is_dry_run=False, say=lambda text: None)
    facts = from_store(begun.storage).page(_now())
    assert facts.progress.done == 12
    assert facts.samples
    assert any("closed" in event.text for event in facts.events)


def test_a_card_that_was_made_somebodys_own_stays(tmp_path):
    begun, said = finished(tmp_path, 6), list[str]()
    begun.storage.replace("README.md", b"mine")
    write_pages(begun.storage, said.append)
    assert read(begun, "README.md") == "mine"
    assert any("stays as it is" in line for line in said)


def test_the_folder_loads_as_a_dataset(tmp_path, monkeypatch):
    begun = finished(tmp_path, 20)
    write_pages(begun.storage, lambda text: None)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    datasets = pytest.importorskip("datasets")
    loaded = datasets.load_dataset(str(tmp_path / "run"), cache_dir=str(tmp_path / "cache"))
    assert list(loaded) == ["train"]
    assert sorted(loaded["train"]["ordinal"]) == list(range(20))


def test_on_s3(s3: S3Server, tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3.endpoint)
    begun = finished(tmp_path, 9, output=s3.fresh_url())
    write_pages(open_storage(begun.storage.url), lambda text: None)
    assert read(begun, "report.html").startswith("<!DOCTYPE html>")
    assert "9 of 9 conversations" in read(begun, "README.md")


def test_the_command_writes_both_or_one_file_elsewhere(tmp_path):
    begun = finished(tmp_path, 6)
    elsewhere = tmp_path / "page.html"
    shown = CliRunner().invoke(app, ["report", begun.storage.url, "--html", str(elsewhere), "--no-samples", "--json"])
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.stdout)["rows"] == 6
    assert "Switched off" in elsewhere.read_text()
    assert not (tmp_path / "run" / "report.html").exists()
    assert CliRunner().invoke(app, ["report", begun.storage.url]).exit_code == 0
    assert (tmp_path / "run" / "report.html").exists()
    assert (tmp_path / "run" / "README.md").exists()


def test_a_page_that_cannot_be_written_ends_nothing(tmp_path):
    begun, said = finished(tmp_path, 6), list[str]()
    begun.storage.replace("run.json", b"{}")
    leave_pages(begun.storage, said.append)
    assert any("the report is not written" in line and "regen report" in line for line in said)


def test_a_defect_in_the_page_ends_nothing(tmp_path, monkeypatch, capfd):
    begun, said = begin_run(make_spec(tmp_path, 3)), list[str]()
    monkeypatch.setattr("regen.run.page.report.whole_page", lambda facts: 1 / 0)
    leave_pages(begun.storage, said.append)
    assert said == ["the report is not written (ZeroDivisionError: division by zero)"]
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_a_report_json_that_cannot_be_written_is_said_and_the_run_is_sealed_all_the_same(tmp_path, monkeypatch):
    begun, err = begin_run(make_spec(tmp_path, 6)), io.StringIO()
    last = virtual_time.run(drive(LocalCluster(), begun))
    for error in (StoreRefused("report.json: no permission"), ZeroDivisionError("no price")):

        def refused(*args: object, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr("regen.run.session.write_report", refused)
        leave_report(begun, last, Log(stream=lambda: err))
    assert "report.json is not written (StoreRefused: report.json: no permission)" in err.getvalue()
    assert "report.json is not written (ZeroDivisionError: no price)" in err.getvalue()
    assert settle(begun, lambda text: None).is_finished


def test_a_folder_that_is_only_to_be_read_names_the_way_out(tmp_path, monkeypatch):
    begun = begin_run(make_spec(tmp_path, 3))

    def refused(*args: object) -> None:
        raise StoreRefused("report.html: Permission denied")

    monkeypatch.setattr(begun.storage, "replace", refused)
    with pytest.raises(StoreRefused, match=r"Permission denied.* --html FILE"):
        write_pages(begun.storage, lambda text: None)


def _now() -> datetime:
    return datetime.now(UTC)
