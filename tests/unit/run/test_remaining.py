"""What is left, by groups of rows."""

import random
from collections import Counter
from typing import Any

import pytest

from regen import length_buckets
from regen.data.plan_summary import SourceSummary
from regen.observe.lengths import Group
from regen.ordinals import OrdinalSet
from regen.records import SourceTotals, Status, Totals
from regen.run.progress.remaining import Grouping, Remaining, earlier_lengths, interrupted, left_by_source, waiting_last
from regen.spec import parse_spec

ROWS = 4000


def source(name: str, rows: int = 100, **changes: Any) -> SourceSummary:
    values = {"accepted": rows, "rejected": {}, "notes": {}, "prompt_tokens": 0, "longest_prompt_tokens": 0}
    return SourceSummary(name=name, rows=rows, **{**values, "turns": rows, "files": (), "most_turns": 1, **changes})


SPEC = parse_spec(
    {
        "name": "r",
        "output": "run",
        "target": {"model": "m"},
        "engine": {"kind": "fake", "slots": 4, "max_model_len": 8192},
        "sampling": {"max_tokens": 1000},
        "sources": [{"name": "a", "path": "a"}, {"name": "b", "path": "b", "sampling": {"max_tokens": 4000}}],
    },
    origin="test",
)


# --- groups ----------------------------------------------------------------------------------------


def test_a_group_is_capped_by_its_turns_times_its_own_cap() -> None:
    sources = [source("a", turns=150, most_turns=5), source("b", native=50, turns=50)]
    assert Grouping().groups(sources, SPEC, None) == {"a": Group(5000, 1.5), "b": Group(4000, 1.0)}


def test_an_old_plan_does_not_say_how_many_turns_there_are_at_most() -> None:
    groups = Grouping().groups([source("a", turns=150, most_turns=0), source("b", most_turns=0)], SPEC, None)
    assert groups == {"a": Group(6000, 1.5), "b": Group(4000, 1.0)}


def test_rows_that_stand_apart_have_groups_of_their_own() -> None:
    grouping = Grouping(frozenset({3}), OrdinalSet(10, [7]))
    names = [grouping.group_of(ordinal, "a") for ordinal in (0, 3, 7)]
    assert len(set(names)) == 3
    groups = grouping.groups([source("a")], SPEC, 8000)
    assert groups[names[1]] == Group(1000, 1.0, interrupted_of="a")
    assert groups[names[2]] == Group(8000, 1.0), "opened again with another cap"


# --- what is left ------------------------------------------------------------------------------------


def test_left_by_source_is_the_plan_without_outcomes() -> None:
    totals = Totals({("a", Status.OK): 30, ("a", Status.REJECTED): 5, ("b", Status.NATIVE): 100})
    assert left_by_source([source("a"), source("b")], totals) == {"a": 65, "b": 0}


def test_what_ends_is_left_no_more_and_the_sum_is_as_the_schedule_says() -> None:
    left = Remaining({"a": 60, "b": 40})
    left.ended({"a": 20})
    assert left.by_group(80) == {"a": 40, "b": 40}
    assert left.by_group(100) == {"a": 50, "b": 50}, "twenty rows have come back, nobody said which"
    assert left.by_group(0) == {}
    left.ended({"a": 50, "b": 40})
    assert left.by_group(3) == {"a": 3}, "never nothing while rows are left"


@pytest.mark.parametrize("total", [1, 7, 100, 1001])
def test_no_row_is_lost_in_rounding(total: int) -> None:
    assert sum(Remaining({"a": 3, "b": 3, "c": 1}).by_group(total).values()) == total


# --- interrupted rows ------------------------------------------------------------------------------


def killed(slots: int, share: float, seed: int = 1) -> tuple[list[int], set[int]]:
    """(made, in work) of a run in the plan's order, killed when this share is made."""
    draw, begun = random.Random(seed), slots
    made: list[int] = []
    at_work = set(range(slots))
    while len(made) < share * ROWS:
        done = draw.choice(sorted(at_work))
        at_work.remove(done)
        made.append(done)
        at_work.add(begun)
        begun += 1
    return made, at_work


@pytest.mark.parametrize("share", [0.1, 0.6])
def test_rows_below_the_last_one_made_were_in_work(share: float) -> None:
    made, at_work = killed(64, share)
    found = interrupted(OrdinalSet(ROWS, made), OrdinalSet(ROWS, made), 4 * 80)
    assert found == {ordinal for ordinal in at_work if ordinal < max(made)}
    assert len(found) > 30


def test_rows_that_the_plan_settles_are_no_front() -> None:
    made, at_work = killed(64, 0.5)
    settled = [ordinal for ordinal in range(ROWS) if ordinal % 3 == 0 and ordinal not in at_work]
    found = interrupted(OrdinalSet(ROWS, made), OrdinalSet(ROWS, [*made, *settled]), 4 * 80)
    assert found == {ordinal for ordinal in at_work if ordinal < max(made)}


def test_a_pilots_rows_are_no_front() -> None:
    pilot = OrdinalSet(ROWS, random.Random(1).sample(range(ROWS), 50))
    assert interrupted(pilot, pilot, 4 * 80) == frozenset()


def test_after_a_pilot_the_front_of_the_run_is_found() -> None:
    made, at_work = killed(64, 0.5)
    pilot = [ordinal for ordinal in random.Random(1).sample(range(ROWS), 50) if ordinal not in at_work]
    done = OrdinalSet(ROWS, [*made, *pilot])
    found = interrupted(done, done, 4 * 80)
    assert {ordinal for ordinal in at_work if ordinal < max(made)} <= found
    assert len(found) <= 64 + 80


def test_nothing_was_in_work_where_all_or_nothing_is_made() -> None:
    for made in (range(0), range(ROWS), range(100)):
        assert interrupted(OrdinalSet(ROWS, made), OrdinalSet(ROWS, made), 320) == frozenset()


# --- lengths of earlier sessions -------------------------------------------------------------------


def totals_of(lengths: list[int], cut: int = 0) -> Totals:
    counted = Counter(map(length_buckets.bucket, lengths))
    buckets = tuple(counted[index] for index in range(max(counted) + 1))
    outcomes = {("a", Status.OK): len(lengths) - cut, ("a", Status.TRUNCATED): cut}
    return Totals(outcomes, by_source={"a": SourceTotals(lengths=buckets)})


def test_buckets_give_lengths_that_are_near() -> None:
    lengths = [max(1, round(random.Random(seed).lognormvariate(6, 1))) for seed in range(5000)]
    found = [tokens for _, tokens, rows in earlier_lengths(totals_of(lengths), {"a": 10**6}) for _ in range(rows)]
    assert len(found) == len(lengths)
    assert sum(found) == pytest.approx(sum(lengths), rel=0.02)
    for share in (0.1, 0.5, 0.9):
        place = int(share * len(lengths))
        assert sorted(found)[place] == pytest.approx(sorted(lengths)[place], rel=0.15)


@pytest.mark.parametrize("cap", [1000, 1024, 1448])
def test_rows_that_were_cut_are_at_the_cap_and_others_below(cap: int) -> None:
    lengths = [cap] * 40 + [cap - 5] * 60
    found = Counter({tokens: rows for _, tokens, rows in earlier_lengths(totals_of(lengths, 40), {"a": cap}) if rows})
    assert found[cap] == 40
    assert sum(rows for tokens, rows in found.items() if tokens < cap) == 60


def test_sources_without_rows_say_nothing() -> None:
    assert not [one for one in earlier_lengths(totals_of([5]), {"b": 100}) if one[2]]


# --- rows in work ------------------------------------------------------------------------------------


def test_rows_that_wait_for_a_slot_have_not_begun() -> None:
    listed = [("a", 0), ("b", 64), ("a", 0), ("a", 0), ("b", 128)]
    assert waiting_last(listed, decoding=4) == [("b", 64), ("b", 128), ("a", 0), ("a", 0)]
    assert waiting_last(listed, decoding=1) == [("b", 64), ("b", 128)]
