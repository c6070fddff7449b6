"""Counting finished rows by source, by replica and by length. Pure; column-wise, no loop over rows.

Tuples have no zeros at their end and maps no empty entries, so that equal counts are equal values whichever way they
came about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from regen.length_buckets import COUNT, lowest
from regen.own_thread import group_by
from regen.records import Acceptance, ReplicaTotals, SourceTotals, Status

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Parts:
    """See `Totals`."""

    by_source: dict[str, SourceTotals]
    by_replica: dict[int, ReplicaTotals]
    by_length: dict[int, Acceptance]


def count_parts(table: pa.Table) -> Parts:
    """What these rows amount to, in parts. `table` has at least `totals.COLUMNS` of the schema."""
    rows = _Rows(table)
    return Parts(_by_source(rows), _by_replica(rows), _by_length(rows))


def trimmed(counts: tuple[int, ...]) -> tuple[int, ...]:
    """Without zeros at the end."""
    end = len(counts)
    while end and not counts[end - 1]:
        end -= 1
    return counts[:end]


def combined(one: Mapping[K, V], other: Mapping[K, V], add: Callable[[V, V], V], nothing: V) -> dict[K, V]:
    """`add` for each key; entries that come to `nothing` are left out."""
    parts = dict(one)
    for key, values in other.items():
        parts[key] = add(parts.get(key, nothing), values)
    return {key: values for key, values in parts.items() if values != nothing}


class _Rows:
    """One table as flat columns: of rows, of generations, and of what was seen of generations."""

    def __init__(self, table: pa.Table) -> None:
        self.source = _whole(table["source"])
        observed = _whole(table["observed"])
        self.replica = pc.struct_field(observed, "replica")
        made, seen = _whole(table["generations"]), pc.struct_field(observed, "generations")
        generations = pc.list_flatten(made)
        self.row_of = pc.cast(pc.list_parent_indices(made), pa.int64())
        self.prompt_tokens = _lengths(generations, "prompt_token_ids")
        self.output_tokens = _lengths(generations, "completion_token_ids")
        self.seen = pc.list_flatten(seen)
        self.seen_row_of = pc.cast(pc.list_parent_indices(seen), pa.int64())
        self.seen_is_measure = pc.not_equal(_whole(table["status"]), pa.scalar(Status.DEGENERATE.value)).take(
            self.seen_row_of
        )
        self.seen_output_tokens = self.output_tokens.take(_same_turn(made, seen, self.seen_row_of))


def _by_source(rows: _Rows) -> dict[str, SourceTotals]:
    tokens = _tokens_by(rows.source, rows)
    lengths = _lengths_by_source(rows)
    acceptance = _acceptance_by(rows.source.take(rows.seen_row_of), rows.seen, rows.seen_is_measure)
    sources = {
        source: SourceTotals(
            *tokens.get(source, (0, 0, 0)), lengths.get(source, ()), acceptance.get(source, Acceptance())
        )
        for source in {*tokens, *acceptance}
    }
    return {source: part for source, part in sources.items() if part != SourceTotals()}


def _lengths_by_source(rows: _Rows) -> dict[str, tuple[int, ...]]:
    """Rows by their output tokens; rows without any generation are in no bucket."""
    by_row = group_by(pa.table({"row": rows.row_of, "tokens": rows.output_tokens}), "row").aggregate(
        [("tokens", "sum")]
    )
    flat = {"source": rows.source.take(_whole(by_row["row"])), "bucket": _buckets(_whole(by_row["tokens_sum"]))}
    grouped = group_by(pa.table(flat), "source", "bucket").aggregate([([], "count_all")])
    counts: dict[str, list[int]] = {}
    for source, bucket, count in _lines(grouped, "source", "bucket", "count_all"):
        counts.setdefault(source, [0] * COUNT)[bucket] += count
    return {source: trimmed(tuple(lengths)) for source, lengths in counts.items()}


def _by_replica(rows: _Rows) -> dict[int, ReplicaTotals]:
    tokens = _tokens_by(rows.replica, rows)
    acceptance = _acceptance_by(rows.replica.take(rows.seen_row_of), rows.seen)
    replicas = {
        replica: ReplicaTotals(*tokens.get(replica, (0, 0, 0))[1:], acceptance.get(replica, Acceptance()))
        for replica in {*tokens, *acceptance}
    }
    return {replica: part for replica, part in replicas.items() if part != ReplicaTotals()}


def _by_length(rows: _Rows) -> dict[int, Acceptance]:
    known = pc.and_(rows.seen_is_measure, pc.is_valid(rows.seen_output_tokens))
    found = _acceptance_by(_buckets(rows.seen_output_tokens), rows.seen, known)
    return {bucket: acceptance for bucket, acceptance in found.items() if acceptance != Acceptance()}


# --- columns -------------------------------------------------------------------------------------


def _same_turn(made: pa.Array[Any], seen: pa.Array[Any], seen_row_of: pa.Array[Any]) -> pa.Array[Any]:
    """For each generation that was seen the place of the one that was made, in the flat column; null without one."""
    place = _place_in_list(seen, seen_row_of)
    start = pc.add(_starts(made).take(seen_row_of), place)
    is_there = pc.less(place, _list_lengths(made).take(seen_row_of))
    places: pa.Array[Any] = pc.if_else(is_there, start, pa.scalar(None, pa.int64()))
    return places


def _place_in_list(lists: pa.Array[Any], parent_of: pa.Array[Any]) -> pa.Array[Any]:
    """Of each element of the flat column, its place in its own list."""
    return pc.subtract(pa.array(range(len(parent_of)), pa.int64()), _starts(lists).take(parent_of))


def _starts(lists: pa.Array[Any]) -> pa.Array[Any]:
    """Where each list begins in the flat column."""
    lengths = _list_lengths(lists)
    return pc.subtract(pc.cumulative_sum(lengths), lengths)


def _list_lengths(lists: pa.Array[Any]) -> pa.Array[Any]:
    """0 for a list that is null: it has no elements in the flat column."""
    lengths: pa.Array[Any] = pc.list_value_length(lists)
    return pc.cast(lengths, pa.int64()).fill_null(0)


def _lengths(structs: pa.Array[Any], name: str) -> pa.Array[Any]:
    lengths: pa.Array[Any] = pc.list_value_length(pc.struct_field(structs, name))
    return pc.cast(lengths, pa.int64())


def _buckets(tokens: pa.Array[Any]) -> pa.Array[Any]:
    """`length_buckets.bucket` of a column; null stays null."""
    bucket = pc.multiply(tokens, pa.scalar(0))
    longest = pc.max(tokens).as_py() or 0
    for index in range(1, COUNT):
        if lowest(index) > longest:
            break
        bucket = pc.add(bucket, pc.cast(pc.greater_equal(tokens, pa.scalar(lowest(index))), pa.int64()))
    return bucket


# --- sums by key ---------------------------------------------------------------------------------


def _acceptance_by(
    keys: pa.Array[Any], seen: pa.Array[Any], which: pa.Array[Any] | None = None
) -> dict[Any, Acceptance]:
    """The counters of what was seen, by key; `which`: only of these."""
    if which is not None:
        keys, seen = keys.filter(which), seen.filter(which)
    names = ("drafts", "drafted", "accepted")
    flat = {"key": keys, **{name: pc.struct_field(seen, name) for name in names}}
    grouped = group_by(pa.table(flat), "key").aggregate([(name, "sum") for name in names])
    by_position = _steps_by_position(keys, pc.struct_field(seen, "accepted_by_position"))
    return {
        key: Acceptance(drafts or 0, drafted or 0, accepted or 0, by_position.get(key, ()))
        for key, drafts, drafted, accepted in _lines(grouped, "key", *(f"{name}_sum" for name in names))
    }


def _steps_by_position(keys: pa.Array[Any], lists: pa.Array[Any]) -> dict[Any, tuple[int, ...]]:
    parent_of = pc.cast(pc.list_parent_indices(lists), pa.int64())
    flat = {"key": keys.take(parent_of), "place": _place_in_list(lists, parent_of), "steps": pc.list_flatten(lists)}
    grouped = group_by(pa.table(flat), "key", "place").aggregate([("steps", "sum")]).sort_by("place")
    steps: dict[Any, list[int]] = {}
    for key, count in _lines(grouped, "key", "steps_sum"):  # every place below the longest list's occurs
        steps.setdefault(key, []).append(count)
    return {key: trimmed(tuple(counts)) for key, counts in steps.items()}


def _tokens_by(keys: pa.Array[Any], rows: _Rows) -> dict[Any, tuple[int, int, int]]:
    """By key of the row: prompt tokens, output tokens, generations."""
    flat = {"key": keys.take(rows.row_of), "prompt": rows.prompt_tokens, "output": rows.output_tokens}
    grouped = group_by(pa.table(flat), "key").aggregate([("prompt", "sum"), ("output", "sum"), ([], "count_all")])
    return {key: tuple(counts) for key, *counts in _lines(grouped, "key", "prompt_sum", "output_sum", "count_all")}


def _lines(table: pa.Table, *names: str) -> Iterator[tuple[Any, ...]]:
    """Of a table of groups, which are few, one after another."""
    return zip(*(table[name].to_pylist() for name in names), strict=True)


def _whole(column: pa.ChunkedArray[Any]) -> pa.Array[Any]:
    """One array: places in a list are not told across chunks."""
    return column.combine_chunks()
