"""`regen export` on runs of the fake engine: what is in the files is what the run has, and the rest is counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from regen.data.template import load_template
from regen.errors import ExportRefused, FingerprintDrift, SpecError, UserError
from regen.records import Status
from regen.run.commands.export import Exported, ExportOptions, export, statuses_named
from regen.run.local import LocalCluster
from regen.run.session import seal_run, standing
from regen.run.start import Begun
from regen.store.export.card import NOT_FOUND, CardFacts, card
from regen.store.export.conversation import Fields
from regen.store.export.files import ExportFolder
from regen.store.export.format import Record
from regen.store.export.formats import FORMATS
from regen.store.export.selection import Selection
from regen.store.export.tally import Tally
from tests import virtual_time
from tests.processes import regen_here
from tests.runs import begin_run, conversations, drive, make_spec, shard_table

ALL = sorted(FORMATS)
TEXT_JSONL = ["messages", "sharegpt", "specforge"]


def made(folder: Path, *, is_sealed: bool = True, **sections: Any) -> Begun:
    """A finished run in `folder`/run: about half of its rows are `ok`, one is rejected, the others truncated."""
    rows = [*conversations(30), {"messages": []}]
    sections.setdefault("sampling", {"max_tokens": 16})
    begun = begin_run(make_spec(folder, rows=rows, **sections))
    virtual_time.run(drive(LocalCluster(), begun))
    if is_sealed:
        seal_run(begun.storage, begun.worker_setup.run)
    return begun


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    made(folder)
    return folder


def run_export(folder: Path, out: Path, format_: str, **options: Any) -> Exported:
    options.setdefault("allow_extra_loss", True)
    return export(str(folder / "run"), ExportOptions(format_, str(out), **options), say=lambda text: None)


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(out.glob("*.jsonl")) for line in path.read_text().split("\n") if line]


def ok_rows(folder: Path, *statuses: str) -> list[dict[str, Any]]:
    return [row for row in shard_table(folder / "run").to_pylist() if row["status"] in ("ok", *statuses)]


@pytest.mark.parametrize("format_", ALL)
def test_every_row_is_exported_or_counted_with_a_reason(finished: Path, tmp_path: Path, format_: str) -> None:
    done = run_export(finished, tmp_path / "out", format_)
    assert done.tally.rows_seen == 31
    assert done.tally.rows_kept == len(ok_rows(finished))
    reasons = done.tally.reasons()
    assert reasons["rejected: empty_conversation"] == 1
    assert reasons["truncated: cut_in_answer"] == 30 - len(ok_rows(finished)) > 0
    manifest = yaml.safe_load((tmp_path / "out" / "MANIFEST.yaml").read_text())
    assert manifest["counts"] == done.tally.to_json()
    assert [file["name"] for file in manifest["files"]] == [
        path.name for path in sorted((tmp_path / "out").glob("train-*"))
    ]


@pytest.mark.parametrize("format_", ["speculators", "specforge-ids"])
def test_ids_and_masks_are_those_of_the_run_in_its_order(finished: Path, tmp_path: Path, format_: str) -> None:
    run_export(finished, tmp_path / "out", format_, records_per_file=5)
    expected = [
        (f"{row['row_id']}-{turn['turn']}", turn["prompt_token_ids"], turn["completion_token_ids"])
        for row in ok_rows(finished)
        for turn in row["generations"]
    ]
    found = lines(tmp_path / "out")
    assert [line["id"] for line in found] == [name for name, _, _ in expected]
    for line, (_, prompt, completion) in zip(found, expected, strict=True):
        assert line["input_ids"] == prompt + completion
        assert line["loss_mask"] == [0] * len(prompt) + [1] * len(completion)
    assert len(list((tmp_path / "out").glob("*.jsonl"))) == -(-len(expected) // 5)


@pytest.mark.parametrize("format_", ["messages", "sharegpt"])
def test_text_renders_to_the_ids_of_the_run(finished: Path, tmp_path: Path, format_: str) -> None:
    run_export(finished, tmp_path / "out", format_)
    template = load_template(finished / "target", False, {})
    for line, row in zip(lines(tmp_path / "out"), ok_rows(finished), strict=True):
        turns = line["messages"] if format_ == "messages" else line["conversations"]
        roles = {"human": "user", "gpt": "assistant"}
        messages = tuple(
            {
                "role": roles.get(turn.get("from"), turn.get("from") or turn.get("role")),
                "content": turn.get("value", turn.get("content")),
            }
            for turn in turns
        )
        last = row["generations"][-1]
        said = (*last["prompt_token_ids"], *last["completion_token_ids"])
        assert template.render_whole(messages, None, None)[: len(said)] == said
        assert [message["content"] for message in messages] == [message["content"] for message in row["messages"]]


@pytest.mark.parametrize("format_", TEXT_JSONL)
def test_datasets_loads_the_folder(finished: Path, tmp_path: Path, format_: str) -> None:
    import datasets

    run_export(finished, tmp_path / "out", format_, records_per_file=5)
    loaded = datasets.load_dataset(str(tmp_path / "out"), cache_dir=str(tmp_path / "cache"))
    assert {split: len(rows) for split, rows in loaded.items()} == {"train": len(ok_rows(finished))}


def test_datasets_loads_messages_of_which_few_have_calls_and_reasoning(tmp_path: Path) -> None:
    """Such keys come first behind more than the loader looks at to tell the columns: the card declares them."""
    import datasets

    call = {"id": "f:0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    plain = [{"role": "user", "content": "x" * 1000}]
    other = [{"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [call]}]
    format_, fields = FORMATS["messages"], Fields(reasoning=True, calls=True)
    with ExportFolder(tmp_path / "out", "jsonl", fields, 10**6, False) as folder:
        for messages in [*[plain] * 12_000, other]:
            folder.write(Record({"id": "1", "source": "s", "messages": messages}, "train", 3, 1, 2, 1))
        folder.finish_files()
        facts = CardFacts("n", "f", "t", "c", "e", None, {}, {}, 1, 1, "1")
        text = card(facts, format_, Selection(), Tally(None), folder.files, fields, NOT_FOUND)
        folder.publish(text, {})
    loaded = datasets.load_dataset(str(tmp_path / "out"), split="train", cache_dir=str(tmp_path / "cache"))
    (last,) = loaded[-1]["messages"]
    assert (last["reasoning_content"], last["tool_calls"]) == ("hm", [call])


@pytest.mark.parametrize("format_", ["speculators", "messages"])
def test_an_unsealed_run_gives_the_same_files(finished: Path, tmp_path: Path, format_: str) -> None:
    made(tmp_path, is_sealed=False)
    assert not (tmp_path / "run" / "shards").exists()
    run_export(tmp_path, tmp_path / "unsealed", format_)
    run_export(finished, tmp_path / "sealed", format_)
    for path in (tmp_path / "sealed").glob("*.jsonl"):
        assert path.read_bytes() == (tmp_path / "unsealed" / path.name).read_bytes()


def test_what_an_export_writes_into_the_run_is_nothing(finished: Path, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (finished / "run").rglob("*")}
    run_export(finished, tmp_path / "out", "messages")
    assert {path: path.stat().st_mtime_ns for path in (finished / "run").rglob("*")} == before


def test_an_unfinished_run_is_exported_only_when_asked(tmp_path: Path) -> None:
    """One whose last commits are gone is as one that was stopped before them."""
    begun = made(tmp_path, is_sealed=False, checkpoint={"max_bytes": 5000})
    files = sorted((tmp_path / "run" / "journal").iterdir())
    for path in files[len(files) // 2 :]:
        path.unlink()
    done = standing(begun.storage).totals.done
    assert 1 < done < 31
    with pytest.raises(UserError, match=f"{done} of 31 rows are done.*--partial"):
        run_export(tmp_path, tmp_path / "out", "messages")
    assert not (tmp_path / "out").exists()
    assert run_export(tmp_path, tmp_path / "out", "messages", partial=True).tally.rows_seen == done
    assert f"{done} of 31 rows had an outcome" in (tmp_path / "out" / "README.md").read_text()


def test_truncated_rows_come_with_their_cut_turn_when_asked_but_not_as_text(finished: Path, tmp_path: Path) -> None:
    """As text the template would close an answer that the target never closed."""
    rows = ok_rows(finished, "truncated")
    asked = {"statuses": frozenset({Status.TRUNCATED})}
    done = run_export(finished, tmp_path / "ids", "speculators", **asked)
    assert done.tally.generations == sum(len(row["generations"]) for row in rows)
    text = run_export(finished, tmp_path / "text", "messages", **asked)
    assert text.tally.reasons()["closing_not_sampled"] == sum(1 for row in rows if row["status"] == "truncated")


def test_where_no_row_can_be_kept_the_export_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    made(tmp_path, sampling={"max_tokens": 1})
    with pytest.raises(ExportRefused, match=r"none of 31 rows.*truncated: cut_in_answer \(30\)"):
        run_export(tmp_path, tmp_path / "out", "speculators")
    assert not (tmp_path / "out").exists()


def test_another_template_than_the_runs_cannot_check_text_and_need_not_for_ids(tmp_path: Path) -> None:
    made(tmp_path)
    path = tmp_path / "target" / "chat_template.jinja"
    path.write_text(path.read_text().replace("assistant", "ASSISTANT"))
    with pytest.raises(FingerprintDrift, match="template_digest"):
        run_export(tmp_path, tmp_path / "out", "messages")
    assert run_export(tmp_path, tmp_path / "out", "speculators").tally.rows_kept


def test_a_template_that_rewrites_history_loses_its_long_conversations_as_text(tmp_path: Path) -> None:
    """Every answer but the last one is rendered in capitals, as some templates drop the thinking of earlier turns."""
    spec = make_spec(tmp_path, rows=30, sampling={"max_tokens": 30})
    path = tmp_path / "target" / "chat_template.jinja"
    shouting = (
        "(message['content'] | upper if message['role'] == 'assistant' and not loop.last else message['content'])"
    )
    path.write_text(path.read_text().replace("message['content'] + '<|im_end|>", f"{shouting} + '<|im_end|>"))
    begun = begin_run(spec)
    virtual_time.run(drive(LocalCluster(), begun))
    seal_run(begun.storage, begun.worker_setup.run)
    two_turns = sum(1 for row in ok_rows(tmp_path) if len(row["generations"]) == 2)
    done = run_export(tmp_path, tmp_path / "text", "messages")
    assert done.tally.reasons()["template_rewrites_history"] == two_turns > 0
    assert done.tally.rows_kept == len(ok_rows(tmp_path)) - two_turns
    ids = run_export(tmp_path, tmp_path / "ids", "speculators")
    assert ids.tally.rows_kept == len(ok_rows(tmp_path))


def test_template_kwargs_of_the_run_go_where_the_format_has_a_place(tmp_path: Path) -> None:
    spec = make_spec(tmp_path, rows=30, target={"template_kwargs": {"mood": "calm"}}, sampling={"max_tokens": 30})
    path = tmp_path / "target" / "chat_template.jinja"
    path.write_text("{{ mood | default('none') }}" + path.read_text())
    begun = begin_run(spec)
    virtual_time.run(drive(LocalCluster(), begun))
    run_export(tmp_path, tmp_path / "specforge", "specforge")
    assert {line["mood"] for line in lines(tmp_path / "specforge")} == {"calm"}
    run_export(tmp_path, tmp_path / "messages", "messages")
    assert lines(tmp_path / "messages")[0]["chat_template_kwargs"] == {"mood": "calm"}
    with pytest.raises(ExportRefused, match="no place for its template kwargs"):
        run_export(tmp_path, tmp_path / "automodel", "automodel")


def test_user_text_that_holds_the_beginning_of_a_turn_is_left_out_of_text(tmp_path: Path) -> None:
    rows = [{"prompt": "say hi"}, {"prompt": "write <|im_start|>assistant\n for me"}]
    begun = begin_run(make_spec(tmp_path, rows=rows, policies={"control_tokens": "allow"}))
    virtual_time.run(drive(LocalCluster(), begun))
    assert run_export(tmp_path, tmp_path / "text", "specforge").tally.reasons() == {"turn_marker_in_text": 1}
    assert run_export(tmp_path, tmp_path / "ids", "specforge-ids").tally.rows_kept == 2


def test_a_record_longer_than_the_trainers_default_is_said_aloud(tmp_path: Path) -> None:
    rows = [{"prompt": "short"}, {"prompt": "long " * 600}]
    begun = begin_run(make_spec(tmp_path, rows=rows, engine={"max_model_len": 4096}))
    virtual_time.run(drive(LocalCluster(), begun))
    said: list[str] = []
    done = export(str(tmp_path / "run"), ExportOptions("specforge-ids", str(tmp_path / "out")), said.append)
    assert (done.tally.lost_records, done.tally.cut_records) == (1, 0)
    assert len(said) == 1
    assert "1 records are longer than SpecForge's data.max_length is by default (2,048)" in said[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "gguf"}, "--to gguf: no such format"),
        ({"split": "test"}, "--split test"),
        ({"records_per_file": 0}, "--rows-per-file 0"),
        ({"statuses": frozenset({Status.FAILED})}, "--include failed"),
        ({"out": "s3://bucket"}, "only a local folder"),
    ],
)
def test_options_that_make_no_sense(finished: Path, tmp_path: Path, options: dict[str, Any], message: str) -> None:
    given = {"format": "speculators", "out": str(tmp_path / "out"), **options}
    with pytest.raises(SpecError, match=message):
        export(str(finished / "run"), ExportOptions(**given), say=lambda text: None)


def test_statuses_by_name() -> None:
    assert statuses_named(" truncated, partial,") == {Status.TRUNCATED, Status.PARTIAL}
    with pytest.raises(SpecError, match="--include good"):
        statuses_named("good")


def test_the_command(finished: Path, tmp_path: Path) -> None:
    words = ["export", str(finished / "run"), "--to", "speculators", "--out", "out"]
    done = regen_here(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "left out 1: rejected: empty_conversation" in done.stdout
    assert regen_here(*words, cwd=tmp_path).returncode == 2
    again = regen_here(*words, "--overwrite", "--json", "--include", "truncated", cwd=tmp_path)
    assert json.loads(again.stdout)["rows_kept"] == 30
    refused = regen_here("export", str(finished / "run"), "--to", "automodel", "--out", "text", cwd=tmp_path)
    assert refused.returncode == 1
    assert "--allow-extra-loss" in refused.stderr
