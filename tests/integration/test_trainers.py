"""Exports read back by the trainers' own code: ids come back identical, and masks cover what was sampled.

A run on the fake engine, over a toy target whose bytes are its tokens. `tests/trainers.py` says how trainers get here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from regen.errors import ExportRefused
from regen.run.commands.export import ExportOptions, export
from regen.run.local import LocalCluster
from regen.run.session import seal_run
from regen.store.export.formats import FORMATS
from tests import virtual_time
from tests.runs import begin_run, conversations, drive, make_spec, shard_table
from tests.toy_target import CHAT_TEMPLATE
from tests.trainers import read_by, run_in

pytestmark = pytest.mark.trainer

ODD_TEXT = "lines\u2028that\u2029break\x85elsewhere, \U0001f600 \x00 \u0301 and\r\ntabs\t"
LINE_BREAK = ord("\n")

Trainer = Callable[[str], Path]
Pair = tuple[tuple[int, ...], tuple[int, ...]]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a sealed `run`, of which some rows are truncated and one is rejected, and its `target`."""
    return finished_run(tmp_path_factory.mktemp("finished"), CHAT_TEMPLATE)


def finished_run(folder: Path, template: str) -> Path:
    rows = [*conversations(40), {"prompt": ODD_TEXT}, {"prompt": ""}]
    spec = make_spec(folder, rows=rows, sampling={"max_tokens": 20})
    (folder / "target" / "chat_template.jinja").write_text(template, encoding="utf-8")
    begun = begin_run(spec)
    virtual_time.run(drive(LocalCluster(), begun))
    seal_run(begun.storage, begun.worker_setup.run)
    return folder


def exported(finished: Path, tmp_path: Path, format_: str, **options: Any) -> Path:
    out = tmp_path / format_
    export(str(finished / "run"), ExportOptions(format_, str(out), **options), say=lambda text: None)
    return out


def good_rows(finished: Path) -> list[dict[str, Any]]:
    rows = [row for row in shard_table(finished / "run").to_pylist() if row["status"] == "ok"]
    assert {len(row["generations"]) for row in rows} == {1, 2}
    return rows


def generations(finished: Path) -> list[Pair]:
    """Ids and mask of every good generation, as the run has them."""
    return sorted(
        (
            (*generation["prompt_token_ids"], *generation["completion_token_ids"]),
            (0,) * len(generation["prompt_token_ids"]) + (1,) * len(generation["completion_token_ids"]),
        )
        for row in good_rows(finished)
        for generation in row["generations"]
    )


def conversations_as_wholes(finished: Path, behind: tuple[int, ...], is_behind_trained: bool) -> list[Pair]:
    """Ids and mask of every good conversation: all of its answers, and what the template writes behind each."""
    return sorted(_whole(row["generations"], behind, is_behind_trained) for row in good_rows(finished))


def _whole(turns: list[dict[str, Any]], behind: tuple[int, ...], is_behind_trained: bool) -> Pair:
    ids: tuple[int, ...] = ()
    mask: tuple[int, ...] = ()
    for turn in turns:
        prompt, completion = tuple(turn["prompt_token_ids"]), tuple(turn["completion_token_ids"])
        assert prompt[: len(ids)] == ids
        mask += (0,) * (len(prompt) - len(ids)) + (1,) * len(completion) + (int(is_behind_trained),) * len(behind)
        ids = prompt + completion + behind
    return ids, mask


def pairs(rows: Iterable[dict[str, Any]]) -> list[Pair]:
    return sorted((tuple(row["input_ids"]), tuple(row["loss_mask"])) for row in rows)


def test_speculators_prepares_the_very_ids_and_masks(finished: Path, tmp_path: Path, trainer: Trainer) -> None:
    import datasets

    out = exported(finished, tmp_path, "speculators", records_per_file=7)
    words: list[str | Path] = [
        "speculators",
        "prepare-data",
        "--model",
        finished / "target",
        "--data",
        out,
        "--output",
        "prepared",
    ]
    run_in(trainer("speculators"), [*words, "--num-preprocessing-workers", "1"], tmp_path)
    prepared = datasets.load_from_disk(str(tmp_path / "prepared"))
    assert pairs(prepared) == generations(finished)
    assert [row["seq_len"] for row in prepared] == [len(row["input_ids"]) for row in prepared]


def test_speculators_cuts_where_the_card_says_that_it_does(trainer: Trainer) -> None:
    (source,) = trainer("speculators").glob("lib/*/site-packages/speculators/cli/prepare_data.py")
    default = re.search(r"seq_length: Annotated\[.*?\] = (\d+)", source.read_text(encoding="utf-8"), re.DOTALL)
    limit = FORMATS["speculators"].limit
    assert limit is not None
    assert default is not None
    assert int(default[1]) == limit.default_tokens


def test_specforge_takes_the_very_ids_and_masks(finished: Path, tmp_path: Path, trainer: Trainer) -> None:
    out = exported(finished, tmp_path, "specforge-ids")
    found = read_by(trainer("specforge"), "specforge_ids.py", [out / "train-00000.jsonl"], tmp_path)
    assert pairs(found["rows"]) == generations(finished)
    for name in ("specforge", "specforge-ids"):
        limit = FORMATS[name].limit
        assert limit is not None
        assert limit.default_tokens == found["max_length"]


def test_specforge_renders_conversations_to_the_very_ids_and_masks(
    finished: Path, tmp_path: Path, trainer: Trainer
) -> None:
    """The template's line break behind each answer is there and bears no loss."""
    out = exported(finished, tmp_path, "specforge")
    arguments = [out / "train-00000.jsonl", finished / "target", out / "README.md"]
    found = read_by(trainer("specforge"), "specforge_conversations.py", arguments, tmp_path)
    assert pairs(found["rows"]) == conversations_as_wholes(finished, (LINE_BREAK,), is_behind_trained=False)


def test_automodel_renders_conversations_to_the_very_ids_and_masks(tmp_path: Path, trainer: Trainer) -> None:
    """With a template that writes nothing behind an answer."""
    finished = finished_run(tmp_path, CHAT_TEMPLATE.replace("<|im_end|>\n", "<|im_end|>"))
    out = exported(finished, tmp_path, "automodel", records_per_file=7)
    found = read_by(trainer("automodel"), "automodel_chat.py", [out, finished / "target"], tmp_path)
    assert pairs(found["rows"]) == conversations_as_wholes(finished, (), is_behind_trained=False)


def test_where_automodel_would_train_on_more_it_must_be_said(finished: Path, tmp_path: Path, trainer: Trainer) -> None:
    with pytest.raises(ExportRefused, match=r"train on '\\n'"):
        exported(finished, tmp_path, "automodel")
    out = exported(finished, tmp_path, "automodel", allow_extra_loss=True)
    found = read_by(trainer("automodel"), "automodel_chat.py", [out, finished / "target"], tmp_path)
    assert pairs(found["rows"]) == conversations_as_wholes(finished, (LINE_BREAK,), is_behind_trained=True)
