"""Counts of acceptance: what is added up, how sure it is, where there is most to gain, and whether a head is dead."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regen.records import Acceptance
from regen.speculative.acceptance import (
    ANSWER_TOKENS,
    AcceptanceCounts,
    Arm,
    Bucket,
    Measured,
    Pair,
    Tally,
    Verdict,
    bucket,
    difference,
    verdict,
    weak_spots,
)


def measured(source: str = "chat", acceptance: Acceptance | None = None, **fields: object) -> Measured:
    whole = Measured(source, 0, 100, 50, "vllm 1", "head-a", acceptance)
    return whole._replace(**fields)  # type: ignore[arg-type]


def steps(drafts: int, accepted: int) -> Acceptance:
    """One draft token a step."""
    return Acceptance(drafts, drafts, accepted, (accepted,))


def counted(seen: Iterable[Measured]) -> AcceptanceCounts:
    counts = AcceptanceCounts()
    for one in seen:
        counts.add(one)
    return counts


def tally(*seen: Acceptance | None) -> Tally:
    made = Tally()
    for acceptance in seen:
        made.add(acceptance, 10)
    return made


def test_accept_length_is_of_all_drafts_together_and_no_mean_of_means() -> None:
    made = tally(steps(1, 1), steps(99, 0))
    assert made.accept_length == pytest.approx(1.01)
    assert made.shares == pytest.approx((0.01,))


def test_absent_counters_are_counted_and_are_no_zero() -> None:
    made = tally(steps(10, 5), None, None)
    assert (made.generations, made.absent, made.accept_length) == (1, 2, 1.5)
    assert tally(None).accept_length is None
    assert tally(None).to_json()["accept_length"] is None


def test_positions_of_different_depth_are_added_place_by_place() -> None:
    assert tally(Acceptance(10, 10, 4, (4,)), Acceptance(10, 30, 9, (6, 2, 1))).shares == (0.5, 0.1, 0.05)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 50), st.integers(0, 50)), max_size=30), st.integers(0, 30))
def test_parts_counted_apart_are_the_whole(drawn: list[tuple[int, int, int]], cut: int) -> None:
    seen = [measured(f"s{source}", steps(n, min(n, a)), turn=source, answer_tokens=n) for source, n, a in drawn]
    whole, part = counted(seen), counted(seen[:cut])
    part.merge(counted(seen[cut:]))
    assert part.cells == whole.cells
    assert part.total == whole.total


def test_dimensions_add_up_to_the_same_total_in_their_own_order() -> None:
    seen = [
        measured(source, steps(10, n), turn=n % 3, prompt_tokens=n * 100, answer_tokens=4**n)
        for n, source in enumerate(("code", "chat", "math", "chat", "code", "chat"))
    ]
    counts = counted(seen)
    by_source = counts.by(lambda cell: cell.source)
    by_answer = counts.by(lambda cell: cell.answer_tokens)
    assert list(by_source) == ["chat", "code", "math"]
    assert [range_.first for range_ in by_answer] == [0, 64, 256, 1024]
    for table in (by_source, by_answer, counts.by(lambda cell: cell.turn)):
        assert sum(one.drafts for one in table.values()) == counts.total.drafts == 60


def test_a_draft_changed_in_the_middle_is_told_apart_from_the_one_before() -> None:
    seen = [
        measured(acceptance=steps(100, 10)),
        measured(acceptance=steps(200, 160), draft="head-b"),
        measured(acceptance=None, draft=None),
    ]
    counts = counted(seen)
    assert counts.arms == [Arm("head-b", "vllm 1"), Arm("head-a", "vllm 1"), Arm(None, "vllm 1")]
    assert [counts.of_arm(arm).total.accept_length for arm in counts.arms] == [1.8, 1.1, None]


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, (0, 63)), (63, (0, 63)), (64, (64, 255)), (16383, (4096, 16383)), (16384, (16384, None))],
)
def test_a_value_at_a_bound_begins_the_next_range(value: int, expected: tuple[int, int | None]) -> None:
    assert bucket(value, ANSWER_TOKENS) == Bucket(*expected)


def test_the_interval_covers_the_truth_though_answers_differ_from_one_another() -> None:
    """Answers of one source differ far more than drafts of one answer: an interval over drafts covers a third here."""
    draw, covered = random.Random(5), 0
    for _ in range(300):
        made = Tally()
        for _ in range(60):
            share = draw.choice((0.2, 0.8))
            made.add(steps(100, sum(draw.random() < share for _ in range(100))), 100)
        assert made.interval is not None
        covered += made.interval.low <= 1.5 <= made.interval.high
    assert 0.9 < covered / 300 < 0.99


def test_one_answer_has_no_interval_and_few_are_small() -> None:
    assert tally(steps(1000, 500)).interval is None
    assert tally(steps(1000, 500)).is_small
    assert tally(*[steps(10, 5)] * 40).is_small
    assert not tally(*[steps(20, 5)] * 40).is_small


def noisy(source: str, generations: int, drafts: int, accepted: int, **fields: object) -> list[Measured]:
    """Half of the answers one more, half one less."""
    return [
        measured(source, steps(drafts, accepted + (1 if number % 2 else -1)), **fields) for number in range(generations)
    ]


def test_most_to_gain_is_many_drafts_times_shortfall() -> None:
    counts = counted(
        [
            *noisy("math", 100, 100, 80),
            *noisy("rare", 40, 20, 2),
            *noisy("chat", 400, 100, 40),
            *noisy("code", 100, 100, 50),
        ]
    )
    spots = weak_spots(counts)
    assert [spot.source for spot in spots] == ["chat", "code", "rare"]
    assert spots[0].reference == pytest.approx(1.8)
    assert spots[0].saved_steps == pytest.approx(40_000 * (1 - 1.4 / 1.8))
    assert spots[0].share == pytest.approx(spots[0].saved_steps / counts.total.drafts)


def test_lengths_of_one_source_are_told_apart_and_chance_is_no_weakness() -> None:
    short, long = noisy("math", 100, 100, 80), noisy("math", 100, 100, 20, prompt_tokens=4000)
    (spot,) = weak_spots(counted([*noisy("best", 100, 100, 80), *short, *long]))
    assert (spot.source, spot.prompt_tokens.first) == ("math", 2048)


def test_without_a_source_that_is_known_well_there_is_nothing_to_rank_by() -> None:
    assert weak_spots(counted(noisy("chat", 3, 10, 5))) == []


def test_the_difference_is_paired_by_generation() -> None:
    """Answers differ widely and the head gains a little in each: unpaired, that could not be seen."""
    draw = random.Random(3)
    pairs = []
    for _ in range(50):
        accepted = draw.randrange(10, 90)
        pairs.append(Pair(steps(100, accepted), steps(100, accepted + draw.choice((2, 4)))))
    found = difference(pairs)
    assert found is not None
    assert found.interval is not None
    assert found.value == pytest.approx(0.03, abs=0.005)
    assert 0.02 < found.interval.low < found.value < found.interval.high < 0.04


def test_a_generation_without_counters_is_in_no_difference() -> None:
    both = Pair(steps(10, 2), steps(10, 4))
    found = difference([both, both, Pair(None, steps(10, 10)), Pair(steps(10, 10), None)])
    assert found is not None
    assert found.generations == 2
    assert found.value == pytest.approx(0.2)
    assert difference([Pair(None, steps(10, 10))]) is None


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ([steps(500, 25)], Verdict.DEAD),
        ([steps(499, 0)], Verdict.TOO_FEW_DRAFTS),
        ([steps(500, 26)], Verdict.ALIVE),
        ([steps(10, 9)], Verdict.ALIVE),
        ([Acceptance()], Verdict.TOO_FEW_DRAFTS),
        ([None, None], Verdict.NO_COUNTERS),
        ([], Verdict.NO_COUNTERS),
    ],
)
def test_verdicts_come_from_raw_counters(seen: list[Acceptance | None], expected: Verdict) -> None:
    assert verdict(tally(*seen)) is expected
