"""What a run will take: tokens by source, hours with the tail, ranges that say what they rest on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from regen.run.commands.estimate import Basis, Estimate, FullSpeed, Range, Resources, SourceFacts, SpeedBasis, estimate

HELD = Resources(slots=64, gpus=8, price_per_gpu_hour=2.0)


def facts(name: str = "chat", rows: int = 10_000, turns: float = 1.0, **more: Any) -> SourceFacts:
    given = {"left": rows, "cap_tokens": 8192, "first_prompt_tokens": 100.0, **more}
    return SourceFacts(name=name, rows=rows, turns=turns, **given)


def made(source: SourceFacts, tokens: int, rows: int = 100) -> SourceFacts:
    """Rows of it that are done, half of them twice as long as the others."""
    lengths = [(tokens * 2 // 3, rows // 2), (tokens * 4 // 3, rows // 2)]
    total = sum(length * count for length, count in lengths)
    return replace(
        source,
        left=source.rows - rows,
        made_rows=rows,
        made_prompt_tokens=rows * 300,
        made_output_tokens=total,
        lengths=lengths,
    )


def at(rate: float, low: float | None = None, high: float | None = None) -> FullSpeed:
    return FullSpeed(Range(low or rate, rate, high or rate), SpeedBasis.GIVEN)


def whole(found: Range | None) -> Range:
    assert found is not None
    assert found.low <= found.mid <= found.high
    return found


def of(*sources: SourceFacts, speed: FullSpeed | None = None, assumed: float | None = None, **more: Any) -> Estimate:
    return estimate(sources, speed, more.pop("held", HELD), assumed, **more)


def test_a_source_goes_by_its_own_rows_and_only_what_is_left_counts() -> None:
    found = of(made(facts(), 600))
    assert [one.basis for one in found.sources] == [Basis.MADE]
    assert whole(found.output_tokens).mid == pytest.approx(9900 * 600)
    assert found.prompt_tokens == 9900 * 300
    assert found.most_output_tokens == 9900 * 8192


def test_a_source_without_rows_goes_by_the_answers_of_the_others() -> None:
    found = of(made(facts("chat"), 600), facts("talk", rows=100, turns=3.0))
    talk = found.sources[1]
    assert talk.basis is Basis.OTHERS
    assert talk.output_tokens_per_row == pytest.approx(1800)
    # Three prompts; the second holds one answer, the third two of them.
    assert talk.prompt_tokens == pytest.approx(100 * (3 * 100 + 3 * 600))


def test_an_assumption_is_only_for_sources_without_rows() -> None:
    found = of(made(facts("chat"), 600), facts("talk", rows=100), assumed=50)
    assert [one.basis for one in found.sources] == [Basis.MADE, Basis.ASSUMED]
    assert found.sources[1].output_tokens_per_row == pytest.approx(50, rel=0.02)


def test_an_assumption_says_so_with_a_wider_range() -> None:
    sure, assumed = of(made(facts(), 600, rows=2000)), of(facts(), assumed=600)
    spread = [whole(one.output_tokens).high / whole(one.output_tokens).low for one in (sure, assumed)]
    assert spread[0] < 1.2
    assert spread[1] == pytest.approx(1.5**2, rel=0.2)


def test_assumed_answers_are_cut_at_the_cap() -> None:
    found = of(facts(cap_tokens=100), assumed=1000)
    assert 90 < (found.sources[0].output_tokens_per_row or 0) <= 100


def test_without_rows_and_assumption_only_the_most_is_known() -> None:
    found = of(facts(rows=10), speed=at(100))
    assert (found.output_tokens, found.hours, found.cost, found.row_bytes) == (None, None, None, None)
    assert (found.most_output_tokens, found.prompt_tokens) == (81_920, 1000)


@pytest.mark.parametrize("rate", [0.5, 100.0, 50_000.0])
def test_a_long_run_takes_its_tokens_over_the_speed(rate: float) -> None:
    found = of(made(facts(rows=100_000), 600, rows=2000), speed=at(rate))
    assert whole(found.hours).mid == pytest.approx(98_000 * 600 / rate / 3600, rel=0.01)


def test_a_short_run_is_mostly_tail() -> None:
    """64 rows over 64 slots last as long as the longest of them."""
    found = of(made(facts(rows=164), 600), speed=at(64.0))
    assert whole(found.hours).mid > 1.2 * 64 * 600 / 64.0 / 3600


def test_a_speed_that_is_not_sure_widens_the_range() -> None:
    source = made(facts(rows=50_000), 600, rows=2000)
    sure, unsure = (whole(of(source, speed=speed).hours) for speed in (at(100), at(100, 50, 200)))
    assert unsure.mid == sure.mid
    assert unsure.low == pytest.approx(sure.low / 2, rel=0.01)
    assert unsure.high == pytest.approx(sure.high * 2, rel=0.01)


def test_cost_is_hours_times_gpus_times_price() -> None:
    found = of(made(facts(), 600), speed=at(100))
    hours = whole(found.hours)
    assert whole(found.gpu_hours).mid == pytest.approx(hours.mid * 8)
    assert whole(found.cost).high == pytest.approx(hours.high * 16)
    for held in (Resources(64, 0, 2.0), Resources(64, 8, None)):
        assert of(made(facts(), 600), speed=at(100), held=held).cost is None


def test_too_few_rows_make_no_hours() -> None:
    found = of(made(facts(), 600, rows=2), speed=at(100))
    assert found.hours is None
    assert found.output_tokens is not None


def test_a_finished_run_takes_nothing_more() -> None:
    found = of(replace(made(facts(rows=100), 600), left=0), speed=at(100))
    assert whole(found.hours) == Range(0, 0, 0)
    assert whole(found.output_tokens) == Range(0, 0, 0)


def test_a_row_on_disk_is_measured_or_reckoned() -> None:
    assert of(made(facts(), 600), row_bytes=1234.0).row_bytes == 1234.0
    short, long = (of(facts(), assumed=tokens).row_bytes or 0 for tokens in (100, 1000))
    assert 300 < short < long


def test_an_assumption_changes_nothing_where_rows_are_made() -> None:
    source = made(facts(), 600)
    assert of(source, speed=at(100), assumed=5) == of(source, speed=at(100))


def test_few_rows_that_are_left_may_be_longer_than_the_mean() -> None:
    """However many were seen: 16 rows differ from one another."""
    many, few = (of(replace(made(facts(), 600, rows=5000), left=left)) for left in (5000, 16))
    spread = [whole(one.output_tokens).high / whole(one.output_tokens).mid for one in (many, few)]
    assert spread[0] < 1.05 < spread[1]


def test_hours_go_by_the_mean_itself_and_not_by_the_bins_it_is_in() -> None:
    source = replace(made(facts(rows=100_000), 600, rows=2000), lengths=[(540, 2000)], made_output_tokens=2000 * 540)
    found = of(source, speed=at(100))
    assert whole(found.hours).mid == pytest.approx(98_000 * 540 / 100 / 3600, rel=0.01)


def test_a_given_speed_is_taken_as_it_is() -> None:
    """The ends of the hours are those of the tokens, and nothing for a rate that may change."""
    found = of(facts(rows=100_000), speed=at(100), assumed=600)
    tokens, hours = whole(found.output_tokens), whole(found.hours)
    assert hours.low == pytest.approx(tokens.low / 100 / 3600, rel=0.02)
    assert hours.high == pytest.approx(tokens.high / 100 / 3600, rel=0.02)
