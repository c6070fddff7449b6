"""A few committed rows for the page: what was asked, what was answered.

They come from files spread over the whole journal (over the shards of a closed run), of each source in turn. Reads one
row group of a few files. All texts are cut to what a page can bear.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from regen.observe.page.facts import SampleFacts, TurnFacts
from regen.protocols import Storage
from regen.store.files import JournalFiles
from regen.store.layout import SHARDS, shard_range
from regen.store.parquet import RowsFile

ROWS = 12
FILES = 8
MORE_OF_A_FILE = 2
MOST_MESSAGES = 8
MOST_CHARACTERS = 2000
_COLUMNS = (
    "ordinal",
    "row_id",
    "source",
    "location",
    "status",
    "reason",
    "round",
    "messages",
    *(f"generations.list.element.{name}" for name in ("turn", "completion_token_ids", "finish_reason", "labels")),
)

Row = Mapping[str, Any]


def sampled_rows(storage: Storage, is_current: Callable[[int, int], bool]) -> tuple[SampleFacts, ...]:
    """`is_current(ordinal, round)`: whether a row of this round is what counts.

    Raises JournalDamaged, StoreUnavailable, StoreRefused.
    """
    kept: list[Row] = []
    for table in _tables(storage):
        known = {row["source"] for row in kept}
        kept += list(_chosen(table, is_current, known))[: ROWS - len(kept)]
        if len(kept) == ROWS:
            break
    return tuple(map(_sample, kept))


def _tables(storage: Storage) -> Iterator[pa.Table]:
    """The first row group of each of a few files; the newest file first, since it is what somebody looks for."""
    files = JournalFiles(storage)
    if files.closed() is not None:
        for key in _spread([stored.key for stored in storage.list(SHARDS) if shard_range(stored.key)]):
            with storage.open(key) as source:
                yield from _first(RowsFile(source, f"{storage.url}/{key}").groups(_COLUMNS))
        return
    # Some files carry records only: more are looked at than rows are wanted from.
    for number in _spread([file.number for file in files.files()]):
        yield from _first(files.read_groups(number, _COLUMNS))


def _spread(found: Sequence[Any]) -> list[Any]:
    """At most `FILES` of them, evenly, from the last to the first."""
    if len(found) <= FILES:
        return list(reversed(found))
    return [found[round((FILES - 1 - step) * (len(found) - 1) / (FILES - 1))] for step in range(FILES)]


def _first(groups: Iterable[pa.Table]) -> Iterator[pa.Table]:
    for table in groups:
        yield table
        return


def _chosen(table: pa.Table, is_current: Callable[[int, int], bool], known: Container[str]) -> Iterator[Row]:
    """One row of every source of this table that has none yet, and some more."""
    columns = (table[name].to_pylist() for name in ("source", "ordinal", "round"))
    current = [
        (source, index)
        for index, (source, ordinal, round_) in enumerate(zip(*columns, strict=True))
        if is_current(ordinal, round_)
    ]
    firsts = {source: index for source, index in reversed(current) if source not in known}
    others = [index for _, index in current if index not in firsts.values()]
    for index in [*firsts.values(), *others[:MORE_OF_A_FILE]]:
        yield table.slice(index, 1).to_pylist()[0]


def _sample(row: Row) -> SampleFacts:
    generations = {generation["turn"]: generation for generation in row["generations"]}
    turns, turn = list[TurnFacts](), 0
    for message in row["messages"][:MOST_MESSAGES]:
        is_answer = message["role"] == "assistant"
        turns += _turns(message, generations.get(turn) if is_answer else None)
        turn += is_answer
    return SampleFacts(
        row_id=row["row_id"],
        source=row["source"],
        location=row["location"],
        status=row["status"],
        reason=row["reason"] or "",
        output_tokens=sum(len(generation["completion_token_ids"]) for generation in row["generations"]),
        turns=tuple(turns),
        cut=max(0, len(row["messages"]) - MOST_MESSAGES),
    )


def _turns(message: Row, generation: Row | None) -> Iterator[TurnFacts]:
    """A message with its reasoning before it and its calls after it."""
    role, is_answer = message["role"], generation is not None
    if message.get("reasoning"):
        yield _turn(f"{role}, reasoning", message["reasoning"], "", is_answer)
    if message["content"] or not message.get("tool_calls"):
        yield _turn(role, message["content"] or "", _about(generation), is_answer)
    if message.get("tool_calls"):
        yield _turn(f"{role}, calls", message["tool_calls"], "", is_answer)


def _turn(role: str, text: str, about: str, is_answer: bool) -> TurnFacts:
    return TurnFacts(role, text[:MOST_CHARACTERS], max(0, len(text) - MOST_CHARACTERS), about, is_answer)


def _about(generation: Row | None) -> str:
    if generation is None:
        return ""
    parts = [f"{len(generation['completion_token_ids']):,} tokens", f"finished: {generation['finish_reason']}"]
    return ", ".join(parts + [label.replace("_", " ") for label in generation["labels"]])
