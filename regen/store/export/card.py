"""The dataset card and the manifest of an export. Pure: facts in, text and plain data out.

The card's front matter names the files of each split, for `datasets.load_dataset(FOLDER)`. No license is claimed: the
answers come under the terms of the target, the prompts under those of their sources.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any, Protocol

import yaml

from regen.records import Status
from regen.store.export.conversation import Fields
from regen.store.export.format import Format
from regen.store.export.selection import Selection
from regen.store.export.tally import Tally

MANIFEST_VERSION = 1


class DataFile(Protocol):
    """See `files.WrittenFile`."""

    @property
    def name(self) -> str: ...

    @property
    def split(self) -> str: ...


@dataclass(frozen=True, slots=True)
class CardFacts:
    """What the run says of itself. `sampling` is text by field; `done` of `planned` rows had an outcome.

    `reopened` of them were wanted once more and still had their older result.
    """

    name: str
    fingerprint: str
    target: str
    target_commit: str
    engine: str
    draft: str | None
    sampling: Mapping[str, str]
    template_kwargs: Mapping[str, Any]
    planned: int
    done: int
    regen_version: str
    reopened: int = 0


@dataclass(frozen=True, slots=True)
class Markers:
    """Text that the template writes around an answer, for the guide of a format."""

    before: str
    closing: str
    behind: str


# What would begin code, a link or another cell; the first escapes the others. Emphasis does no harm.
_MARKUP = "\\|`[]"

NOT_FOUND = Markers(*["(not found: see the target's chat template)"] * 3)


def manifest(
    run: CardFacts, format_: Format, selection: Selection, tally: Tally, files: Sequence[Any]
) -> dict[str, Any]:
    """Everything that the card says, for machines."""
    return {
        "version": MANIFEST_VERSION,
        "format": format_.name,
        "run": {**asdict(run), "sampling": dict(run.sampling), "template_kwargs": dict(run.template_kwargs)},
        "statuses": sorted(status.value for status in selection.statuses),
        "split": selection.split,
        "counts": tally.to_json(),
        "files": [asdict(file) for file in files],
    }


def card(
    run: CardFacts,
    format_: Format,
    selection: Selection,
    tally: Tally,
    files: Sequence[DataFile],
    fields: Fields,
    markers: Markers,
) -> str:
    """README.md of the export."""
    sections = (
        _front_matter(files, format_.features(fields)),
        f"# {run.name}: answers of {run.target}",
        _summary(run, format_, selection, tally),
        "## How to read it\n\n" + _guide(format_, fields, markers) + "\n\n" + _lengths(format_, tally),
        "## What is in it\n\n" + _kept(tally),
        "## What was left out\n\n" + _left_out(tally),
        "## How it was made\n\n" + _origin(run),
        "## License\n\nTo be filled in by whoever publishes this: the terms of the target and of every source apply.",
    )
    return "\n\n".join(sections) + "\n"


def _front_matter(files: Sequence[DataFile], features: list[dict[str, Any]] | None) -> str:
    by_split: dict[str, list[str]] = {}
    for file in files:
        by_split.setdefault(file.split, []).append(file.name)
    data_files = [{"split": split, "path": names} for split, names in sorted(by_split.items())]
    front: dict[str, Any] = {"configs": [{"config_name": "default", "data_files": data_files}]}
    if features is not None:
        front["dataset_info"] = {"config_name": "default", "features": features}
    return f"---\n{yaml.safe_dump(front, sort_keys=False)}---"


def _summary(run: CardFacts, format_: Format, selection: Selection, tally: Tally) -> str:
    kinds = ", ".join(status.value for status in Status if status in selection.statuses)
    records = ", ".join(f"{count:,} {split}" for split, count in sorted(tally.records.items()))
    lines = [
        f"Format `{format_.name}`: {records} records with {tally.generations:,} generations out of {tally.rows_kept:,}"
        f" conversations; {tally.trained_tokens:,} of {tally.tokens:,} tokens are trained on. Statuses: {kinds}."
        f" Split: {selection.split}."
    ]
    if run.done < run.planned:
        lines.append(
            f"**The run was not finished**: {run.done:,} of {run.planned:,} rows had an outcome. What is done first is"
            " not a fair sample of a run: short answers come early."
        )
    if run.reopened:
        lines.append(f"{run.reopened:,} rows were to be made again and still had their older result.")
    return "\n\n".join(lines)


def _guide(format_: Format, fields: Fields, markers: Markers) -> str:
    parser = "thinking" if fields.reasoning or fields.calls else "general"
    return format_.guide.format(**asdict(markers), parser=parser)


def _lengths(format_: Format, tally: Tally) -> str:
    longest = f"The longest record has {tally.longest_tokens:,} tokens."
    limit = format_.limit
    if limit is None:
        return longest
    if limit.default_tokens is None:
        return f"{longest} {limit.setting} must be at least that, or records are cut."
    over = tally.cut_records + tally.lost_records
    return (
        f"{longest} Unless told otherwise, {limit.setting} is {limit.default_tokens:,}: {over:,} records are longer;"
        f" {tally.cut_records:,} of them would lose their end, and {tally.lost_records:,} all that is trained on."
    )


def _kept(tally: Tally) -> str:
    statuses = sorted({status for _, status in tally.kept})
    sources = sorted({source for source, _ in tally.kept})
    rows = [[source, *(f"{tally.kept[source, status]:,}" for status in statuses)] for source in sources]
    return markdown_table(["source", *statuses], rows)


def _left_out(tally: Tally) -> str:
    if not tally.rows_left_out and not tally.turns_left_out:
        return "Nothing."
    rows = [[source, reason, f"{count:,}"] for (source, reason), count in sorted(tally.rows_left_out.items())]
    text = markdown_table(["source", "reason", "rows"], rows) if rows else ""
    turns = [[reason, f"{count:,}"] for reason, count in sorted(tally.turns_left_out.items())]
    if turns:
        text += "\n\nSingle turns of rows that are in it:\n\n" + markdown_table(["reason", "turns"], turns)
    return text.strip()


def _origin(run: CardFacts) -> str:
    facts = [
        ("run", run.name),
        ("fingerprint", run.fingerprint),
        ("target", run.target),
        ("target's commit", run.target_commit),
        ("engine", run.engine),
        ("draft", run.draft or "none: speculation was off"),
        ("template kwargs", str(dict(run.template_kwargs)) if run.template_kwargs else "none"),
        *((f"sampling: {name}", value) for name, value in run.sampling.items()),
        ("rows with an outcome", f"{run.done:,} of {run.planned:,}"),
        ("regen", run.regen_version),
    ]
    return markdown_table(["", ""], [[name, value] for name, value in facts])


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells are text: what would be markup in them is not."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(markdown_text(cell) for cell in line) + " |" for line in lines)


def markdown_text(text: str) -> str:
    """One line that says what it says, whatever signs are in it."""
    text = escape(text, quote=False)
    for sign in _MARKUP:
        text = text.replace(sign, f"\\{sign}")
    return " ".join(text.split())
