"""Rows that pass through, and conversations with tools, from raw row to sealed shard, over the fake engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from regen.data.plan import open_plan
from regen.records import OutputRow, Role, Split, Status
from regen.rows import from_table
from regen.run.commands.check import check
from regen.run.local import LocalCluster
from regen.run.look import look
from regen.run.session import seal_run, standing
from regen.run.start import Begun, StartOptions, begin
from regen.spec import RowsSpec
from tests import virtual_time
from tests.runs import drive, make_spec, shard_table, write_jsonl
from tests.toy_target import END_ID, START_ID

NATIVE: list[dict[str, Any]] = [
    {
        "messages": [
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "the target's own"},
            {"role": "user", "content": "two"},
            {"role": "assistant", "content": "also its own"},
        ]
    },
    {"input_ids": [START_ID, 97, 98, END_ID, 99, 100, END_ID], "loss_mask": [0, 0, 1, 1, 0, 1, 1]},
    {"messages": [{"role": "user", "content": "never answered"}]},
]
WITH_TOOLS: dict[str, Any] = {
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    "messages": [
        {"role": "user", "content": "call f"},
        {"role": "assistant", "tool_calls": [{"id": "c1", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
        {"role": "assistant", "content": "OLD ANSWER"},
        {"role": "user", "content": "thanks"},
    ],
}


@pytest.fixture
def begun(tmp_path: Path) -> Begun:
    """Three sources: passing through, one tool conversation, plain ones."""
    sources = [
        {"name": "own", "path": str(write_jsonl(tmp_path / "own.jsonl", NATIVE)), "mode": "native"},
        {"name": "tools", "path": str(write_jsonl(tmp_path / "tools.jsonl", [WITH_TOOLS]))},
        {"name": "plain", "path": str(write_jsonl(tmp_path / "plain.jsonl", [{"prompt": f"p{n}"} for n in range(9)]))},
    ]
    spec = make_spec(tmp_path, rows=[], sources=sources)
    spec = spec.model_copy(update={"rows": RowsSpec(eval_share=0.5)})
    return begin(spec, StartOptions(processes=1), say=lambda text: None)


def finished(begun: Begun) -> dict[str, list[OutputRow]]:
    virtual_time.run(drive(LocalCluster(), begun))
    seal_run(begun.storage, begun.worker_setup.run)
    rows = from_table(shard_table(Path(begun.worker_setup.run.run_url)))
    assert [row.ordinal for row in rows] == list(range(13))
    by_source: dict[str, list[OutputRow]] = {}
    for row in rows:
        by_source.setdefault(row.source, []).append(row)
    return by_source


def test_native_rows_are_rows_of_the_shards_as_they_were_given(begun: Begun) -> None:
    messages, tokens, unanswered = finished(begun)["own"]
    assert [row.status for row in (messages, tokens, unanswered)] == [Status.NATIVE, Status.NATIVE, Status.REJECTED]
    assert unanswered.reason == "no_answer"

    first, second = messages.generations
    opening = [START_ID, *b"user\none", END_ID, *b"\n", START_ID, *b"assistant\n"]
    assert list(first.prompt_token_ids) == opening
    assert list(first.completion_token_ids) == [*b"the target's own", END_ID]
    assert list(second.prompt_token_ids[: len(opening)]) == opening
    assert list(second.completion_token_ids) == [*b"also its own", END_ID]
    assert (first.content, first.loss_mask, first.sampling, first.cap) == ("the target's own", None, None, None)
    assert [message.content for message in messages.messages][1::2] == ["the target's own", "also its own"]

    (given,) = tokens.generations
    assert [*given.prompt_token_ids, *given.completion_token_ids] == NATIVE[1]["input_ids"]
    assert [0] * len(given.prompt_token_ids) + list(given.loss_mask or ()) == NATIVE[1]["loss_mask"]
    assert {generation.origin for generation in (first, second, given)} == {"native"}


def test_status_totals_and_verify_count_native_rows(begun: Begun) -> None:
    finished(begun)
    seen = look(begun.storage)
    assert (seen.planned, seen.is_finished) == (13, True)
    assert seen.totals.outcomes["own", Status.NATIVE] == 2
    assert seen.totals.by_status()[Status.NATIVE] == 2
    assert seen.totals.generations == 9 + 1, "what passes through was not made here"
    checked = check(begun.storage)
    assert checked.is_right, checked.findings
    assert checked.verification is not None
    assert checked.verification.outcomes[Status.NATIVE] == 2


def test_a_damaged_shard_of_native_rows_is_found(begun: Begun) -> None:
    finished(begun)
    (plan_row,) = [row for row in open_plan(begun.storage).scan() if row.location.endswith("own.jsonl:2")]
    shard = Path(begun.worker_setup.run.run_url, "shards", "shard-00000000-00000006.parquet")
    damaged = bytearray(shard.read_bytes())
    damaged[len(damaged) // 3] ^= 1
    shard.write_bytes(damaged)
    assert plan_row.native
    assert not check(begun.storage).is_right


def test_a_run_of_native_rows_alone_needs_no_engine(tmp_path: Path) -> None:
    source = {"name": "own", "path": str(write_jsonl(tmp_path / "own.jsonl", NATIVE)), "mode": "native"}
    begun = begin(make_spec(tmp_path, rows=[], sources=[source]), StartOptions(processes=1), say=lambda text: None)
    assert standing(begun.storage).is_finished
    seal_run(begun.storage, begun.worker_setup.run)
    assert check(begun.storage).is_right


def test_native_rows_come_back_the_same_when_sealed_again(begun: Begun) -> None:
    finished(begun)
    folder = Path(begun.worker_setup.run.run_url)
    before = {path.name: path.read_bytes() for path in (folder / "shards").iterdir()}
    for path in (folder / "shards").iterdir():
        path.unlink()
    seal_run(begun.storage, begun.worker_setup.run)
    assert {path.name: path.read_bytes() for path in (folder / "shards").iterdir()} == before


def test_without_a_parser_no_call_is_found_and_the_row_says_so(begun: Begun) -> None:
    (row,) = finished(begun)["tools"]
    assert (row.status, row.reason, row.stage) == (Status.PARTIAL, "no_tool_call", "generate")
    assert "target.tool_parser is none" in str(row.detail)
    assert [message.role for message in row.messages] == [Role.USER, Role.ASSISTANT]
    assert len(row.generations) == 1
    assert "c1" not in str(row.messages), "what the source had called is in no output"
    assert "OLD ANSWER" not in str(row)


def test_the_split_of_the_plan_is_in_every_row(begun: Begun) -> None:
    planned = {row.row_id: row.split for row in open_plan(begun.storage).scan()}
    rows = [row for rows in finished(begun).values() for row in rows]
    assert {row.row_id: row.split for row in rows} == planned
    assert set(planned.values()) == {Split.TRAIN, Split.EVAL}
