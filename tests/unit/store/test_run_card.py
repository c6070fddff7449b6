"""The dataset card: metadata that a parser reads, and no markup out of data."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import yaml

from regen.records import SourceTotals, Status, Totals
from regen.store.run_card import RunCardFacts, is_ours, run_card

NAME = "a|b <img src=x onerror=alert(1)> [link](javascript:x) `code`\n# heading"
FACTS = RunCardFacts(
    name="run",
    target="org/model",
    planned={"chat": 1000, NAME: 500},
    totals=Totals(
        outcomes={("chat", Status.OK): 900, ("chat", Status.REJECTED): 100, (NAME, Status.OK): 500},
        reasons={(Status.FAILED, "timeout | x"): 3},
        generations=1400,
        output_tokens=123_456,
        by_source={"chat": SourceTotals(output_tokens=100_000)},
    ),
    made_with=(("draft", "our-org/head"), ("sampling: top_p", "0.9 (generation_config)")),
    shards=3,
    has_eval_rows=False,
)


def front(text: str) -> dict[str, Any]:
    found = re.match(r"---\n(.*?)\n---\n", text, re.DOTALL)
    assert found
    parsed: dict[str, Any] = yaml.safe_load(found[1])
    return parsed


def test_the_metadata_names_size_task_and_files():
    assert front(run_card(FACTS)) == {
        "pretty_name": "run",
        "task_categories": ["text-generation"],
        "size_categories": ["1K<n<10K"],
        "tags": ["synthetic", "conversational", "speculative-decoding", "regen"],
        "configs": [
            {"config_name": "default", "data_files": [{"split": "train", "path": "shards/*.parquet"}]},
        ],
    }


@pytest.mark.parametrize(
    ("rows", "size"),
    [(0, "n<1K"), (999, "n<1K"), (1_000, "1K<n<10K"), (83_000, "10K<n<100K"), (10_000_000, "n>10M")],
)
def test_sizes_are_those_that_the_hub_knows(rows, size):
    facts = replace(FACTS, totals=replace(FACTS.totals, outcomes={("chat", Status.OK): rows}))
    assert front(run_card(facts))["size_categories"] == [size]


def test_rows_of_both_splits_are_not_called_train():
    text = run_card(replace(FACTS, has_eval_rows=True))
    assert front(text)["configs"][0]["data_files"][0]["split"] == "mixed"
    assert 'row["split"] == "train"' in text


def test_files_that_are_not_there_are_not_named():
    text = run_card(replace(FACTS, shards=0))
    assert "configs" not in front(text)
    assert "`regen seal`" in text


def test_what_is_not_finished_says_so():
    assert "**The run is not finished.**" not in run_card(FACTS)
    assert "**The run is not finished.**" in run_card(replace(FACTS, planned={"chat": 9999}))
    assert "7 rows are to be made again" in run_card(replace(FACTS, reopened=7))


def test_names_are_text_and_stay_in_their_cell():
    text = run_card(FACTS)
    (row,) = [line for line in text.splitlines() if "onerror" in line]
    assert row.startswith(
        "| a\\|b &lt;img src=x onerror=alert(1)&gt; \\[link\\](javascript:x) \\`code\\` # heading | 500 |"
    )
    assert "| chat | 1,000 | 900 | 100 | 100,000 |" in text
    assert "| failed | timeout \\| x | 3 |" in text


def test_a_card_without_the_mark_is_somebodys_own():
    text = run_card(FACTS)
    assert is_ours(text)
    assert not is_ours("\n".join(line for line in text.splitlines() if not line.startswith("<!--")))
