"""The one declared schema of finished rows, and the way between `OutputRow` and Arrow.

The same schema is in every journal file and shard of every run; nothing is inferred. *Determined* columns follow from
spec, input and engine; `observed` does not, and neither digests nor comparisons look at it. `digest` is a 16-byte
BLAKE2b (hex) over the determined columns of its row, except `ordinal`: a row keeps its digest wherever it stands.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from regen.records import (
    Acceptance,
    FinishReason,
    Generation,
    Label,
    Message,
    Observed,
    ObservedGeneration,
    Origin,
    OutputRow,
    Role,
    Sampling,
    Split,
    Stage,
    Status,
)

_MESSAGE = pa.struct(
    [
        pa.field("role", pa.string(), nullable=False),
        pa.field("content", pa.string()),
        pa.field("reasoning", pa.string()),
        pa.field("tool_calls", pa.string()),
        pa.field("tool_call_id", pa.string()),
        pa.field("name", pa.string()),
    ]
)
GENERATION = pa.struct(
    [
        pa.field("turn", pa.int32(), nullable=False),
        pa.field("origin", pa.string(), nullable=False),
        pa.field("prompt_token_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("completion_token_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("loss_mask", pa.list_(pa.int8())),
        pa.field("text", pa.string(), nullable=False),
        pa.field("reasoning", pa.string()),
        pa.field("content", pa.string(), nullable=False),
        pa.field("tool_calls", pa.string()),
        pa.field("labels", pa.list_(pa.string()), nullable=False),
        pa.field("finish_reason", pa.string()),
        pa.field("stop_reason", pa.string()),
        pa.field("sampling", pa.string()),
        pa.field("cap", pa.int32()),
        pa.field("seed", pa.int64()),
    ]
)
_OBSERVED_GENERATION = pa.struct(
    [
        pa.field("turn", pa.int32(), nullable=False),
        pa.field("drafts", pa.int64()),
        pa.field("drafted", pa.int64()),
        pa.field("accepted", pa.int64()),
        pa.field("accepted_by_position", pa.list_(pa.int64())),
        pa.field("queue_seconds", pa.float64(), nullable=False),
        pa.field("first_token_seconds", pa.float64(), nullable=False),
        pa.field("decode_seconds", pa.float64(), nullable=False),
    ]
)
_OBSERVED = pa.struct(
    [
        pa.field("replica", pa.int32(), nullable=False),
        pa.field("session", pa.string(), nullable=False),
        pa.field("attempts", pa.int32(), nullable=False),
        pa.field("engine", pa.string(), nullable=False),
        pa.field("draft", pa.string()),
        pa.field("fingerprint", pa.string(), nullable=False),
        pa.field("generations", pa.list_(_OBSERVED_GENERATION), nullable=False),
    ]
)
_COLUMNS: list[pa.Field[Any]] = [
    pa.field("ordinal", pa.int64(), nullable=False),
    pa.field("row_id", pa.string(), nullable=False),
    pa.field("source", pa.string(), nullable=False),
    pa.field("location", pa.string(), nullable=False),
    pa.field("source_id", pa.string()),
    pa.field("split", pa.string(), nullable=False),
    pa.field("status", pa.string(), nullable=False),
    pa.field("stage", pa.string()),
    pa.field("reason", pa.string()),
    pa.field("detail", pa.string()),
    pa.field("round", pa.int32(), nullable=False),
    pa.field("messages", pa.list_(_MESSAGE), nullable=False),
    pa.field("tools", pa.string()),
    pa.field("template_kwargs", pa.string()),
    pa.field("generations", pa.list_(GENERATION), nullable=False),
    pa.field("digest", pa.string(), nullable=False),
    pa.field("observed", _OBSERVED, nullable=False),
]
SCHEMA = pa.schema(_COLUMNS)
_NOT_DETERMINED = ("ordinal", "digest", "observed")


def determined_digest(values: dict[str, Any]) -> str:
    """32 hex digits over the determined columns of one row, given as Arrow's `to_pylist` gives it."""
    determined = {name: value for name, value in values.items() if name not in _NOT_DETERMINED}
    text = json.dumps(determined, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.blake2b(text.encode("ascii"), digest_size=16).hexdigest()


def to_values(row: OutputRow) -> dict[str, Any]:
    """One row as plain values in the schema's shape, digest included."""
    values: dict[str, Any] = {
        "ordinal": row.ordinal,
        "row_id": row.row_id,
        "source": row.source,
        "location": row.location,
        "source_id": row.source_id,
        "split": row.split.value,
        "status": row.status.value,
        "stage": row.stage.value if row.stage else None,
        "reason": row.reason,
        "detail": row.detail,
        "round": row.round,
        "messages": [_message_values(message) for message in row.messages],
        "tools": row.tools_json,
        "template_kwargs": row.template_kwargs_json,
        "generations": [generation_values(generation) for generation in row.generations],
    }
    values["digest"] = determined_digest(values)
    values["observed"] = _observed_values(row.observed)
    return values


def to_table(rows: Iterable[OutputRow]) -> pa.Table:
    """Rows as an Arrow table in `SCHEMA`. Text must be valid Unicode (no unpaired surrogates)."""
    return pa.Table.from_pylist([to_values(row) for row in rows], schema=SCHEMA)


def to_bytes(table: pa.Table) -> bytes:
    """An Arrow stream, for one exchange between worker and coordinator."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def from_bytes(data: bytes) -> pa.Table:
    """The table of `to_bytes`. Raises pyarrow.ArrowInvalid on anything else."""
    with pa.ipc.open_stream(pa.BufferReader(data)) as reader:
        return reader.read_all()


def from_table(table: pa.Table) -> list[OutputRow]:
    """Rows back as values (tests, reports): the inverse of `to_table`."""
    return [_row(values) for values in table.to_pylist()]


@dataclass(frozen=True, slots=True)
class SeenGeneration:
    """What was seen of one generation: its row's source and outcome, the prompt's length, what was accepted."""

    source: str
    status: Status
    prompt_tokens: int
    acceptance: Acceptance | None


def seen_generations(table: pa.Table) -> Iterator[SeenGeneration]:
    """Of every row of a table in `SCHEMA`, in order. Reads lengths, not ids."""
    generations = pc.list_flatten(table.column("generations"))
    lengths = iter(pc.list_value_length(pc.struct_field(generations, "prompt_token_ids")).to_pylist())
    columns = (
        table.column("source"),
        table.column("status"),
        pc.list_value_length(table.column("generations")),
        pc.struct_field(table.column("observed"), "generations"),
    )
    for source, status, count, seen in zip(*(column.to_pylist() for column in columns), strict=True):
        prompt_tokens = list(islice(lengths, count))
        for values, tokens in zip(seen, prompt_tokens, strict=False):  # a row that passed through was not observed
            yield SeenGeneration(source, Status(status), tokens, _acceptance(values))


def garbage_labels(table: pa.Table) -> Iterator[tuple[int, Label | None]]:
    """Of every row with an answer, in order: its ordinal, and the first label that makes an answer of it none."""
    labels = pc.struct_field(pc.list_flatten(table.column("generations")), "labels").to_pylist()
    counts = pc.list_value_length(table.column("generations")).to_pylist()
    answers = iter(labels)
    ordinals: list[Any] = table.column("ordinal").to_pylist()  # never null
    for ordinal, count in zip(ordinals, counts, strict=True):
        said = [Label(label) for answer in islice(answers, count) for label in answer]
        if count:
            yield ordinal, next((label for label in said if label.is_degenerate), None)


def output_tokens(table: pa.Table) -> Iterator[int | None]:
    """Of every row of a table in `SCHEMA`, in order: its output tokens in all; None for one without a generation."""
    generations = pc.list_flatten(table.column("generations"))
    lengths = iter(pc.list_value_length(pc.struct_field(generations, "completion_token_ids")).to_pylist())
    for count in pc.list_value_length(table.column("generations")).to_pylist():
        yield sum(islice(lengths, count)) if count else None


def _message_values(message: Message) -> dict[str, Any]:
    """What the source's own answer had called is no part of an output row."""
    return {
        "role": message.role.value,
        "content": message.content,
        "reasoning": message.reasoning,
        "tool_calls": message.tool_calls_json,
        "tool_call_id": message.tool_call_id,
        "name": message.name,
    }


def generation_values(generation: Generation) -> dict[str, Any]:
    """One generation as plain values in the shape of `GENERATION`."""
    return {
        "turn": generation.turn,
        "origin": generation.origin.value,
        "prompt_token_ids": list(generation.prompt_token_ids),
        "completion_token_ids": list(generation.completion_token_ids),
        "loss_mask": None if generation.loss_mask is None else list(generation.loss_mask),
        "text": generation.text,
        "reasoning": generation.reasoning,
        "content": generation.content,
        "tool_calls": generation.tool_calls_json,
        "labels": [label.value for label in generation.labels],
        "finish_reason": generation.finish_reason.value if generation.finish_reason else None,
        "stop_reason": generation.stop_reason,
        "sampling": json.dumps(asdict(generation.sampling), sort_keys=True) if generation.sampling else None,
        "cap": generation.cap,
        "seed": generation.seed,
    }


def _observed_values(observed: Observed) -> dict[str, Any]:
    return {
        "replica": observed.replica,
        "session": observed.session,
        "attempts": observed.attempts,
        "engine": observed.engine,
        "draft": observed.draft,
        "fingerprint": observed.fingerprint,
        "generations": [_observed_generation_values(seen) for seen in observed.generations],
    }


def _observed_generation_values(seen: ObservedGeneration) -> dict[str, Any]:
    acceptance = seen.acceptance
    return {
        "turn": seen.turn,
        "drafts": acceptance.drafts if acceptance else None,
        "drafted": acceptance.drafted if acceptance else None,
        "accepted": acceptance.accepted if acceptance else None,
        "accepted_by_position": list(acceptance.accepted_by_position) if acceptance else None,
        "queue_seconds": seen.queue_seconds,
        "first_token_seconds": seen.first_token_seconds,
        "decode_seconds": seen.decode_seconds,
    }


def _row(values: dict[str, Any]) -> OutputRow:
    return OutputRow(
        ordinal=values["ordinal"],
        row_id=values["row_id"],
        source=values["source"],
        location=values["location"],
        source_id=values["source_id"],
        status=Status(values["status"]),
        round=values["round"],
        messages=tuple(_message(message) for message in values["messages"]),
        generations=tuple(generation_of(generation) for generation in values["generations"]),
        observed=_observed(values["observed"]),
        tools_json=values["tools"],
        template_kwargs_json=values["template_kwargs"],
        stage=Stage(values["stage"]) if values["stage"] else None,
        reason=values["reason"],
        detail=values["detail"],
        split=Split(values["split"]),
    )


def _message(values: dict[str, Any]) -> Message:
    return Message(
        role=Role(values["role"]),
        content=values["content"],
        reasoning=values["reasoning"],
        tool_calls_json=values["tool_calls"],
        tool_call_id=values["tool_call_id"],
        name=values["name"],
    )


def generation_of(values: dict[str, Any]) -> Generation:
    """The inverse of `generation_values`."""
    return Generation(
        turn=values["turn"],
        origin=Origin(values["origin"]),
        prompt_token_ids=tuple(values["prompt_token_ids"]),
        completion_token_ids=tuple(values["completion_token_ids"]),
        text=values["text"],
        content=values["content"],
        finish_reason=FinishReason(values["finish_reason"]) if values["finish_reason"] else None,
        stop_reason=values["stop_reason"],
        sampling=_sampling(values["sampling"]),
        cap=values["cap"],
        seed=values["seed"],
        loss_mask=_optional_tuple(values["loss_mask"]),
        reasoning=values["reasoning"],
        tool_calls_json=values["tool_calls"],
        labels=tuple(Label(label) for label in values["labels"]),
    )


def _sampling(text: str | None) -> Sampling | None:
    if text is None:
        return None
    values = json.loads(text)
    for name in ("stop", "stop_token_ids"):
        values[name] = tuple(values[name])
    return Sampling(**values)


def _observed(values: dict[str, Any]) -> Observed:
    return Observed(
        replica=values["replica"],
        session=values["session"],
        attempts=values["attempts"],
        engine=values["engine"],
        draft=values["draft"],
        fingerprint=values["fingerprint"],
        generations=tuple(
            ObservedGeneration(
                turn=seen["turn"],
                acceptance=_acceptance(seen),
                queue_seconds=seen["queue_seconds"],
                first_token_seconds=seen["first_token_seconds"],
                decode_seconds=seen["decode_seconds"],
            )
            for seen in values["generations"]
        ),
    )


def _acceptance(seen: dict[str, Any]) -> Acceptance | None:
    if seen["drafts"] is None:
        return None
    return Acceptance(seen["drafts"], seen["drafted"], seen["accepted"], tuple(seen["accepted_by_position"] or ()))


def _optional_tuple(values: Sequence[int] | None) -> tuple[int, ...] | None:
    return None if values is None else tuple(values)
