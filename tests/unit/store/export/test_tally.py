"""Counts of an export, and the card that is made of them."""

from __future__ import annotations

from typing import Any

import yaml

from regen.store.export.card import CardFacts, Markers, card, manifest
from regen.store.export.conversation import Fields
from regen.store.export.files import WrittenFile
from regen.store.export.format import Record
from regen.store.export.formats import FORMATS
from regen.store.export.selection import Kept, LeftOut, Selection
from regen.store.export.tally import Tally
from tests.exportable import finished, generation


def record(tokens: int, context: int = 1) -> Record:
    return Record({}, "train", tokens, context, tokens - context, 1)


def kept(**more: Any) -> Kept:
    return Kept(finished(**more), (generation(),))


def filled() -> Tally:
    tally = Tally(limit_tokens=10)
    tally.keep(kept(), [record(10)], [])
    tally.keep(kept(source="other"), [record(11)], [LeftOut("no token to train on")])
    tally.keep(Kept(finished(), (generation(),), turns_left_out=2), [record(20, context=10)], [])
    tally.keep(kept(), [], [LeftOut("retokenises_differently")])
    tally.leave_out(finished(source="a | b\n"), "truncated: cap")
    return tally


def test_every_row_is_kept_or_left_out() -> None:
    tally = filled()
    assert (tally.rows_seen, tally.rows_kept) == (5, 3)
    assert dict(tally.reasons()) == {"retokenises_differently": 1, "truncated: cap": 1}
    assert dict(tally.turns_left_out) == {"no token to train on": 1, "not a good turn of its row": 2}


def test_a_record_beyond_the_limit_loses_its_end_or_all_that_is_trained_on() -> None:
    tally = filled()
    assert (tally.cut_records, tally.lost_records, tally.longest_tokens) == (1, 1, 20)
    without = Tally(limit_tokens=None)
    without.keep(kept(), [record(10**6)], [])
    assert (without.cut_records, without.lost_records) == (0, 0)


RUN = CardFacts(
    name="a run",
    fingerprint="f" * 32,
    target="org/model",
    target_commit="abc",
    engine="vllm 0.32",
    draft=None,
    sampling={"temperature": "0.6 (spec)"},
    template_kwargs={"thinking": True},
    planned=9,
    done=5,
    regen_version="1",
)
FILES = [WrittenFile("train-00000.jsonl", "train", 3, 100, "0" * 32)]


def made_card(name: str, run: CardFacts = RUN) -> str:
    markers = Markers("<|im_start|>assistant\n", "<|im_end|>", "\n")
    return card(run, FORMATS[name], Selection(), filled(), FILES, Fields(), markers)


def test_the_card_says_what_is_in_it_what_is_not_and_how_it_was_made() -> None:
    text = made_card("speculators")
    for said in (
        "org/model",
        "abc",
        "f" * 32,
        "0.6 (spec)",
        "vllm 0.32",
        "| chat | retokenises_differently | 1 |",
        r"| a \| b | truncated: cap | 1 |",
        "| not a good turn of its row | 2 |",
        "5 of 9 rows had an outcome",
        "--seq-length is 8,192: 2 records are longer",
        "To be filled in",
    ):
        assert said in text, said
    _, front, _ = text.split("---\n", 2)
    assert yaml.safe_load(front)["configs"][0]["data_files"] == [{"split": "train", "path": ["train-00000.jsonl"]}]


def test_every_format_has_a_card() -> None:
    for name in FORMATS:
        assert "{" not in made_card(name).split("## How to read it")[1].split("## What is in it")[0]


def test_the_manifest_says_the_same_for_machines() -> None:
    said = manifest(RUN, FORMATS["speculators"], Selection(), filled(), FILES)
    assert yaml.safe_load(yaml.safe_dump(said, sort_keys=False)) == said
    assert said["counts"]["rows_left_out"]["chat"] == {"retokenises_differently": 1}
    assert said["files"][0]["digest"] == "0" * 32
