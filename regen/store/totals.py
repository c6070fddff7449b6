"""Counting finished rows: a table's `Totals`, sums and differences. Pure; column-wise, no loop over rows.

A difference is exact: nothing, not even zeros, is left of rows that were taken out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from regen.own_thread import group_by
from regen.records import Acceptance, Label, ReplicaTotals, SourceTotals, Status, Totals
from regen.store.totals_in_parts import combined, count_parts, trimmed

K = TypeVar("K")

COLUMNS = ("source", "status", "reason", "generations", "observed")


def count(table: pa.Table) -> Totals:
    """What these rows amount to. `table` has at least `COLUMNS` of the schema."""
    generations = pc.list_flatten(table["generations"])
    parts = count_parts(table)
    return Totals(
        outcomes=_outcomes(table),
        reasons=_reasons(table),
        replicas=_replicas(table),
        labels=_labels(table),
        prompt_tokens=_lengths(generations, "prompt_token_ids"),
        output_tokens=_lengths(generations, "completion_token_ids"),
        generations=len(generations),
        acceptance=_acceptance(pc.list_flatten(pc.struct_field(table["observed"], "generations"))),
        by_source=parts.by_source,
        by_replica=parts.by_replica,
        by_length=parts.by_length,
    )


def plus(one: Totals, other: Totals) -> Totals:
    return _combined(one, other, 1)


def minus(one: Totals, other: Totals) -> Totals:
    """What remains of `one` when `other`, a part of it, is taken out."""
    return _combined(one, other, -1)


def to_json(totals: Totals) -> dict[str, Any]:
    """Plain data for a footer."""
    acceptance = totals.acceptance
    return {
        "outcomes": [[source, status.value, rows] for (source, status), rows in sorted(totals.outcomes.items())],
        "reasons": [[status.value, reason, rows] for (status, reason), rows in sorted(totals.reasons.items())],
        "replicas": [[replica, status.value, rows] for (replica, status), rows in sorted(totals.replicas.items())],
        "labels": [[source, label.value, turns] for (source, label), turns in sorted(totals.labels.items())],
        "prompt_tokens": totals.prompt_tokens,
        "output_tokens": totals.output_tokens,
        "generations": totals.generations,
        "drafts": acceptance.drafts,
        "drafted": acceptance.drafted,
        "accepted": acceptance.accepted,
        "accepted_by_position": list(acceptance.accepted_by_position),
        "by_source": [_source_json(source, part) for source, part in sorted(totals.by_source.items())],
        "by_replica": [_replica_json(replica, part) for replica, part in sorted(totals.by_replica.items())],
        "by_length": [[bucket, *_acceptance_json(part)] for bucket, part in sorted(totals.by_length.items())],
    }


def from_json(values: Mapping[str, Any]) -> Totals:
    """The inverse of `to_json`. Raises KeyError, TypeError or ValueError on anything else."""
    return Totals(
        outcomes={(str(source), Status(status)): int(rows) for source, status, rows in values["outcomes"]},
        reasons={(Status(status), str(reason)): int(rows) for status, reason, rows in values["reasons"]},
        replicas={(int(replica), Status(status)): int(rows) for replica, status, rows in values["replicas"]},
        labels={(str(source), Label(label)): int(turns) for source, label, turns in values["labels"]},
        prompt_tokens=int(values["prompt_tokens"]),
        output_tokens=int(values["output_tokens"]),
        generations=int(values["generations"]),
        acceptance=Acceptance(
            int(values["drafts"]),
            int(values["drafted"]),
            int(values["accepted"]),
            tuple(int(steps) for steps in values["accepted_by_position"]),
        ),
        by_source={str(source): _source_of(part) for source, *part in values["by_source"]},
        by_replica={int(replica): _replica_of(part) for replica, *part in values["by_replica"]},
        by_length={int(bucket): _acceptance_of(part) for bucket, *part in values["by_length"]},
    )


def _source_json(source: str, part: SourceTotals) -> list[Any]:
    counts = (part.prompt_tokens, part.output_tokens, part.generations)
    return [source, *counts, list(part.lengths), *_acceptance_json(part.acceptance)]


def _source_of(values: list[Any]) -> SourceTotals:
    prompt_tokens, output_tokens, generations, lengths, *acceptance = values
    rows = tuple(int(count) for count in lengths)
    return SourceTotals(int(prompt_tokens), int(output_tokens), int(generations), rows, _acceptance_of(acceptance))


def _replica_json(replica: int, part: ReplicaTotals) -> list[Any]:
    return [replica, part.output_tokens, part.generations, *_acceptance_json(part.acceptance)]


def _replica_of(values: list[Any]) -> ReplicaTotals:
    output_tokens, generations, *acceptance = values
    return ReplicaTotals(int(output_tokens), int(generations), _acceptance_of(acceptance))


def _acceptance_json(acceptance: Acceptance) -> list[int]:
    """Three counters, and then as many as there are positions."""
    return [acceptance.drafts, acceptance.drafted, acceptance.accepted, *acceptance.accepted_by_position]


def _acceptance_of(values: list[Any]) -> Acceptance:
    drafts, drafted, accepted, *by_position = map(int, values)
    return Acceptance(drafts, drafted, accepted, tuple(by_position))


def _outcomes(table: pa.Table) -> dict[tuple[str, Status], int]:
    grouped = group_by(table.select(["source", "status"]), "source", "status").aggregate([([], "count_all")])
    columns = (grouped[name].to_pylist() for name in ("source", "status", "count_all"))
    return {(source, Status(status)): rows for source, status, rows in zip(*columns, strict=True)}


def _reasons(table: pa.Table) -> dict[tuple[Status, str], int]:
    told = table.select(["status", "reason"]).filter(pc.is_valid(table["reason"]))
    grouped = group_by(told, "status", "reason").aggregate([([], "count_all")])
    columns = (grouped[name].to_pylist() for name in ("status", "reason", "count_all"))
    return {(Status(status), reason): rows for status, reason, rows in zip(*columns, strict=True)}


def _replicas(table: pa.Table) -> dict[tuple[int, Status], int]:
    made = pa.table({"replica": pc.struct_field(table["observed"], "replica"), "status": table["status"]})
    grouped = group_by(made, "replica", "status").aggregate([([], "count_all")])
    columns = (grouped[name].to_pylist() for name in ("replica", "status", "count_all"))
    return {(replica, Status(status)): rows for replica, status, rows in zip(*columns, strict=True)}


def _labels(table: pa.Table) -> dict[tuple[str, Label], int]:
    rows = table.select(["source", "generations"]).combine_chunks()
    sources = rows["source"].take(pc.list_parent_indices(rows["generations"]))
    labels = pc.struct_field(pc.list_flatten(rows["generations"]), "labels")
    labelled = pa.table({"source": sources.take(pc.list_parent_indices(labels)), "label": pc.list_flatten(labels)})
    grouped = group_by(labelled, "source", "label").aggregate([([], "count_all")])
    columns = (grouped[name].to_pylist() for name in ("source", "label", "count_all"))
    return {(source, Label(label)): turns for source, label, turns in zip(*columns, strict=True)}


def _lengths(structs: pa.Array[Any] | pa.ChunkedArray[Any], name: str) -> int:
    return _sum(pc.list_value_length(pc.struct_field(structs, name)))


def _acceptance(seen: pa.ChunkedArray[Any]) -> Acceptance:
    by_position = pc.struct_field(seen, "accepted_by_position")
    longest = pc.max(pc.list_value_length(by_position)).as_py() or 0
    return Acceptance(
        drafts=_sum(pc.struct_field(seen, "drafts")),
        drafted=_sum(pc.struct_field(seen, "drafted")),
        accepted=_sum(pc.struct_field(seen, "accepted")),
        accepted_by_position=trimmed(
            tuple(
                _sum(pc.list_flatten(pc.list_slice(by_position, position, position + 1))) for position in range(longest)
            )
        ),
    )


def _sum(values: pa.ChunkedArray[Any]) -> int:
    return int(pc.sum(values).as_py() or 0)


def _combined(one: Totals, other: Totals, sign: int) -> Totals:
    return Totals(
        outcomes=_combined_counts(one.outcomes, other.outcomes, sign),
        reasons=_combined_counts(one.reasons, other.reasons, sign),
        replicas=_combined_counts(one.replicas, other.replicas, sign),
        labels=_combined_counts(one.labels, other.labels, sign),
        prompt_tokens=one.prompt_tokens + sign * other.prompt_tokens,
        output_tokens=one.output_tokens + sign * other.output_tokens,
        generations=one.generations + sign * other.generations,
        acceptance=_acceptance_sum(sign, one.acceptance, other.acceptance),
        by_source=combined(one.by_source, other.by_source, partial(_source_sum, sign), SourceTotals()),
        by_replica=combined(one.by_replica, other.by_replica, partial(_replica_sum, sign), ReplicaTotals()),
        by_length=combined(one.by_length, other.by_length, partial(_acceptance_sum, sign), Acceptance()),
    )


def _source_sum(sign: int, one: SourceTotals, other: SourceTotals) -> SourceTotals:
    return SourceTotals(
        one.prompt_tokens + sign * other.prompt_tokens,
        one.output_tokens + sign * other.output_tokens,
        one.generations + sign * other.generations,
        trimmed(tuple(a + sign * b for a, b in zip_longest(one.lengths, other.lengths, fillvalue=0))),
        _acceptance_sum(sign, one.acceptance, other.acceptance),
    )


def _replica_sum(sign: int, one: ReplicaTotals, other: ReplicaTotals) -> ReplicaTotals:
    return ReplicaTotals(
        one.output_tokens + sign * other.output_tokens,
        one.generations + sign * other.generations,
        _acceptance_sum(sign, one.acceptance, other.acceptance),
    )


def _acceptance_sum(sign: int, one: Acceptance, other: Acceptance) -> Acceptance:
    both = one + _scaled(other, sign)
    return replace(both, accepted_by_position=trimmed(both.accepted_by_position))


def _combined_counts(one: Mapping[K, int], other: Mapping[K, int], sign: int) -> dict[K, int]:
    counts = dict(one)
    for key, rows in other.items():
        counts[key] = counts.get(key, 0) + sign * rows
    return {key: rows for key, rows in counts.items() if rows}


def _scaled(acceptance: Acceptance, sign: int) -> Acceptance:
    return Acceptance(
        sign * acceptance.drafts,
        sign * acceptance.drafted,
        sign * acceptance.accepted,
        tuple(sign * steps for steps in acceptance.accepted_by_position),
    )
