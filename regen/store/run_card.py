"""The dataset card of a run folder: README.md with the metadata that Hugging Face reads. Pure: facts in, text out.

No license is claimed: the answers come under the terms of the target, the prompts under those of their sources. A card
that somebody has made his own is told by its mark, which is gone then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from regen.records import SourceTotals, Status, Totals
from regen.store.export.card import markdown_table, markdown_text

MARK = "<!-- Written by regen, and written anew with every report. Take this line out to keep what you change. -->"
_SIZES = (
    (1_000, "n<1K"),
    (10_000, "1K<n<10K"),
    (100_000, "10K<n<100K"),
    (1_000_000, "100K<n<1M"),
    (10_000_000, "1M<n<10M"),
)


@dataclass(frozen=True, slots=True)
class RunCardFacts:
    """`planned` by source, in the plan's order; `made_with` are names and values. `shards` of the run are sealed.

    `has_eval_rows`: rows of both splits stand in every shard, told apart by their column.
    """

    name: str
    target: str
    planned: Mapping[str, int]
    totals: Totals
    made_with: tuple[tuple[str, str], ...]
    shards: int
    has_eval_rows: bool
    reopened: int = 0


def run_card(facts: RunCardFacts) -> str:
    """README.md."""
    sections = (
        f"---\n{yaml.safe_dump(_front_matter(facts), sort_keys=False)}---",
        MARK,
        f"# {facts.name}: answers of {markdown_text(facts.target)}",
        _summary(facts),
        "## How to read it\n\n" + _guide(facts),
        "## What is in it\n\n" + _outcomes(facts),
        "## Why rows are not ok\n\n" + _reasons(facts.totals),
        "## How it was made\n\n" + markdown_table(["", ""], [list(one) for one in facts.made_with]),
        "## License\n\nTo be filled in by whoever publishes this: the terms of the target and of every source apply.",
    )
    return "\n\n".join(sections) + "\n"


def is_ours(text: str) -> bool:
    """Whether a README.md may be written anew."""
    return MARK in text


def _front_matter(facts: RunCardFacts) -> dict[str, Any]:
    front: dict[str, Any] = {
        "pretty_name": facts.name,
        "task_categories": ["text-generation"],
        "size_categories": [_size(facts.totals.done)],
        "tags": ["synthetic", "conversational", "speculative-decoding", "regen"],
    }
    if facts.shards:
        files = {"split": _split(facts), "path": "shards/*.parquet"}
        front["configs"] = [{"config_name": "default", "data_files": [files]}]
    return front


def _split(facts: RunCardFacts) -> str:
    """`train` only where every row is of it."""
    return "mixed" if facts.has_eval_rows else "train"


def _size(rows: int) -> str:
    return next((name for limit, name in _SIZES if rows < limit), "n>10M")


def _summary(facts: RunCardFacts) -> str:
    totals, planned = facts.totals, sum(facts.planned.values())
    lines = [
        f"{totals.done:,} of {planned:,} conversations, sources: {len(facts.planned):,}, with {totals.generations:,}"
        f" answers and {totals.output_tokens:,} output tokens that the target made."
    ]
    if totals.done < planned:
        lines.append("**The run is not finished.** What is done first is no fair sample: short answers come early.")
    if facts.reopened:
        lines.append(f"{facts.reopened:,} rows are to be made again, and still have their older result.")
    return "\n\n".join(lines)


def _guide(facts: RunCardFacts) -> str:
    if not facts.shards:
        return "Nothing is sealed yet: `regen seal` writes the shards that are complete."
    split = _split(facts)
    guide = (
        f'`datasets.load_dataset(FOLDER, split="{split}")` reads `shards/*.parquet`: one row a conversation, the same'
        " columns in every file. `generations` holds per answer the prompt ids and completion ids as the engine saw and"
        " sampled them: ids are the truth, text is a view. Train on rows whose `status` is `ok` or `native`."
    )
    if facts.has_eval_rows:
        guide += ' Both splits are in it: `dataset.filter(lambda row: row["split"] == "train")`.'
    return guide


def _outcomes(facts: RunCardFacts) -> str:
    outcomes = facts.totals.outcomes
    statuses = [status for status in Status if any(known is status for _, known in outcomes)]
    rows = []
    for source, planned in facts.planned.items():
        made = facts.totals.by_source.get(source, SourceTotals())
        counts = [f"{outcomes.get((source, status), 0):,}" for status in statuses]
        rows.append([source, f"{planned:,}", *counts, f"{made.output_tokens:,}"])
    return markdown_table(["source", "planned", *statuses, "output tokens"], rows)


def _reasons(totals: Totals) -> str:
    if not totals.reasons:
        return "No row that was sent is without a good answer. Rows that were refused before carry their reason."
    ordered = sorted(totals.reasons.items(), key=lambda item: -item[1])
    return markdown_table(
        ["outcome", "reason", "rows"], [[status.value, reason, f"{rows:,}"] for (status, reason), rows in ordered]
    )
