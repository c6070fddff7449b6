import json
from dataclasses import replace

import pytest

from regen.data import plan as plans
from regen.data.plan import damaged_parts, open_plan, read_summary
from regen.data.plan_rows import from_values, to_values
from regen.data.plan_summary import PLAN_KEY, PlanSummary, SourceSummary
from regen.data.plan_writer import PlanWriter
from regen.errors import JournalDamaged
from regen.own_thread import read_parquet
from regen.records import Conversation, Message, PlannedRow, Refusal, Role, Stage, Status
from tests.memory_storage import MemoryStorage


def planned(number, refusal=None):
    text = f'row {number}: "é" \u2028 \U0001f600 \\ \n'
    messages = (Message(Role.SYSTEM, ""), Message(Role.USER, text), Message(Role.ASSISTANT, None))
    return PlannedRow(
        ordinal=number,
        row_id=f"{number:032x}",
        source="b" if number % 3 == 0 else "a",
        location=f"x.jsonl:{number + 1}",
        source_id=None if number % 2 else str(number),
        conversation=None
        if refusal
        else Conversation(messages, tools_json='[{"b": 1, "a": 2}]', sampling={"top_k": 3}),
        prompt_tokens=number,
        refusal=refusal,
    )


def rows_of(count):
    refusal = Refusal(Stage.LOAD, "bad_json", "column 3")
    return [planned(number, refusal if number % 7 == 5 else None) for number in range(count)]


def write(storage, rows, part_rows=700, session="s"):
    with PlanWriter(storage, session, part_rows) as writer:
        for row in rows:
            writer.add(to_values(row))
        parts, digest = writer.finish()
    refused = sum(row.refusal is not None for row in rows)
    sources = tuple(SourceSummary(name, 0, 0, {}, {}, 0, 0, 0, ()) for name in ("a", "b"))
    summary = PlanSummary(session, len(rows), refused, digest, parts, sources)
    assert storage.create(PLAN_KEY, summary.to_json())
    return summary


@pytest.fixture
def storage():
    return MemoryStorage()


def test_rows_come_back_as_they_were(storage):
    rows = rows_of(2000)
    summary = write(storage, rows)
    assert [part.rows for part in summary.parts] == [700, 700, 600]
    plan = open_plan(storage)
    assert (plan.count, plan.digest, plan.sources) == (2000, summary.digest, ("a", "b"))
    assert list(plan.scan()) == rows
    assert list(plan.scan(690, 710)) == rows[690:710]
    assert list(plan.scan(1990, 5000)) == rows[1990:]
    assert list(plan.scan(10, 10)) == []
    assert plan.rows([1999, 0, 700, 699, 0]) == [rows[1999], rows[0], rows[700], rows[699], rows[0]]
    asked = [1999, 0, 700, 699, 1, 0]
    assert plan.sources_of(asked) == [rows[ordinal].source for ordinal in asked]
    assert plan.sources_of([]) == []


def test_refused_rows_are_listed_in_order(storage):
    rows = rows_of(2000)
    write(storage, rows)
    assert list(open_plan(storage).settled()) == [
        (row.ordinal, row.source, Status.REJECTED) for row in rows if row.refusal
    ]


def test_of_parts_without_settled_rows_no_row_is_read_to_list_them(storage, monkeypatch):
    rows = [planned(number, Refusal(Stage.LOAD, "bad_json") if number == 1500 else None) for number in range(3000)]
    write(storage, rows, part_rows=500)
    read = []

    def reading(file, columns):
        read.append(file.metadata.num_rows)
        return read_parquet(file, columns)

    monkeypatch.setattr(plans, "read_parquet", reading)

    assert list(open_plan(storage).settled()) == [(1500, "b", Status.REJECTED)]
    assert read == [500]


@pytest.mark.parametrize("ordinal", [-1, 2000])
def test_an_ordinal_outside_is_an_error(storage, ordinal):
    write(storage, rows_of(2000))
    with pytest.raises(IndexError, match="outside a plan of 2000 rows"):
        open_plan(storage).rows([ordinal])


def test_memory_does_not_grow_with_what_was_read(storage):
    write(storage, rows_of(20_000), part_rows=2000)
    plan = open_plan(storage)
    for start in range(0, 20_000, 100):
        plan.rows([start])
    assert list(plan.rows([0])) == [planned(0)]
    assert sum(len(group) for group in plan._groups.values()) <= 16 * 512


def test_the_digest_is_over_rows_not_over_sessions_or_parts():
    rows = rows_of(900)
    digests = {write(MemoryStorage(), rows, part, session).digest for part, session in ((100, "s"), (900, "t"))}
    assert len(digests) == 1
    other = [*rows[:-1], planned(899, Refusal(Stage.LOAD, "other"))]
    assert write(MemoryStorage(), other).digest not in digests
    assert write(MemoryStorage(), rows[::-1]).digest not in digests
    assert write(MemoryStorage(), [replace(rows[0], row_id="f" * 32), *rows[1:]]).digest not in digests
    assert write(MemoryStorage(), [replace(rows[0], location="elsewhere"), *rows[1:]]).digest in digests


def test_a_summary_comes_back_as_it_was(storage):
    summary = write(storage, rows_of(10))
    assert read_summary(storage) == summary
    assert read_summary(MemoryStorage()) is None


def test_no_plan_says_so(storage):
    with pytest.raises(JournalDamaged, match=r"has no plan\.json"):
        open_plan(storage)


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"version": 3}', b'{"version": 1}'])
def test_a_damaged_summary_is_named(storage, content):
    storage.replace(PLAN_KEY, content)
    with pytest.raises(JournalDamaged, match=r"plan\.json"):
        open_plan(storage)


@pytest.mark.parametrize("damage", ["missing", "short", "other rows", "altered"])
def test_a_damaged_part_is_named(storage, damage):
    summary = write(storage, rows_of(2000))
    key = summary.parts[1].key
    content = storage.read(key)
    if damage == "missing":
        storage.delete(key)
    elif damage == "short":
        storage.replace(key, content[:-10])
    elif damage == "other rows":
        edited = json.loads(storage.read(PLAN_KEY))
        edited["parts"][1]["rows"] -= 1
        edited["rows"] -= 1
        storage.replace(PLAN_KEY, json.dumps(edited).encode())
    else:
        storage.replace(key, content[:300] + bytes(300) + content[600:])
        assert damaged_parts(storage, summary) == [
            problem for problem in damaged_parts(storage, summary) if key in problem and "digest" in problem
        ]
    with pytest.raises(JournalDamaged, match="part-00001"):
        list(open_plan(storage).scan())
    if damage in ("missing", "short"):
        with pytest.raises(JournalDamaged, match="part-00001"):
            open_plan(storage)


def test_whole_parts_have_no_damage(storage):
    assert damaged_parts(storage, write(storage, rows_of(2000))) == []


def test_a_part_in_the_place_of_another_is_found_out(storage):
    summary = write(storage, rows_of(1400))
    first, second = (storage.read(part.key) for part in summary.parts)
    edited = json.loads(storage.read(PLAN_KEY))
    for part, content in zip(edited["parts"], (second, first), strict=True):
        storage.replace(part["key"], content)
        part["bytes"] = len(content)
    storage.replace(PLAN_KEY, json.dumps(edited).encode())
    with pytest.raises(JournalDamaged, match="holds ordinal"):
        open_plan(storage).rows([0])


@pytest.mark.parametrize("key", ["../../etc/passwd", "/etc/passwd", "plan/../x.parquet", "plan/s/../../x.parquet", ""])
def test_a_plan_reads_no_file_but_its_parts(storage, key):
    summary = json.loads(write(storage, rows_of(9)).to_json())
    summary["parts"][0]["key"] = key
    storage.replace(PLAN_KEY, json.dumps(summary).encode())
    with pytest.raises(JournalDamaged, match=r"no name of a part"):
        open_plan(storage)


def test_a_message_with_reasoning_survives():
    message = Message(Role.ASSISTANT, "x", reasoning="why")
    row = PlannedRow(0, "0" * 32, "a", "x:1", None, Conversation((message,)), 0)
    assert from_values(to_values(row)) == row
