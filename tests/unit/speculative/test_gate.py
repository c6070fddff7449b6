"""The gate's verdicts: a catalogue of broken and of healthy warm-ups, and how often chance alone would turn one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from regen.records import Acceptance, CanaryMiss, WarmupReport
from regen.spec import SpeculationSpec
from regen.speculative.evidence import Severity
from regen.speculative.gate import DOUBTS, GateResult, GateVerdict, could_tell_more, judge
from regen.speculative.preflight import CHECKS

GSM8K, MT_BENCH = [0.53, 0.21, 0.07], [0.32, 0.04, 0.01]  # measured: one trained head on two sets of rows
FOUNDING_FAULT = [0.041, 0.002, 0.0]  # an EAGLE-3 head run as `eagle`: accept length 1.04
ZERO_ABOVE_8 = {"num_speculative_tokens_per_batch_size": [[1, 8, 3], [9, 64, 0]]}


def speculation(method: str = "eagle3", num_tokens: int = 3, **more: Any) -> SpeculationSpec:
    draft = {} if method in ("ngram", "suffix", "mtp") else {"draft": "heads/one"}
    return SpeculationSpec.model_validate({"method": method, "num_tokens": num_tokens, **draft, **more})


def counted(drafts: int, by_position: Sequence[int], num_tokens: int = 3) -> Acceptance:
    return Acceptance(drafts, drafts * num_tokens, sum(by_position), tuple(by_position))


def report(acceptance: Acceptance | None, answers: int = 64, tokens: int | None = None, **more: Any) -> WarmupReport:
    if tokens is None:
        tokens = answers + (acceptance.drafts + acceptance.accepted if acceptance else 64 * answers)
    return WarmupReport(10.0, answers, more.pop("degenerate", 0), tokens, acceptance, **more)


def verdict(seen: WarmupReport, spec: SpeculationSpec, **how: Any) -> GateVerdict:
    return judge(seen, spec, **how).verdict


# --- broken ones ---------------------------------------------------------------------------------


@pytest.mark.parametrize("accepted", [(0, 0, 0), (40, 10, 0), (50, 0, 0)])
@pytest.mark.parametrize("method", ["eagle", "eagle3", "mtp", "draft_model", "dflash", "medusa", "ngram", "suffix"])
def test_an_accept_length_of_one_is_dead_by_whatever_method(method: str, accepted: tuple[int, ...]) -> None:
    result = judge(report(counted(1000, accepted)), speculation(method))
    assert result.verdict is GateVerdict.DEAD
    assert result.is_bad
    assert result.accept_length == pytest.approx(1 + sum(accepted) / 1000)
    assert "1,000 drafts" in result.found
    assert result.causes


def test_the_founding_fault_names_its_cause_first() -> None:
    result = judge(report(counted(1000, (0, 0, 0))), speculation("eagle"))
    assert "EAGLE-3" in result.causes[0]
    assert "heads/one" in result.causes[0]


@pytest.mark.parametrize("acceptance", [None, Acceptance()])
def test_nothing_counted_where_drafts_were_due_is_absent_and_not_dead(acceptance: Acceptance | None) -> None:
    result = judge(report(acceptance, answers=10, tokens=640), speculation("mtp"), is_final=False)
    assert result.verdict is GateVerdict.ABSENT
    assert result.is_bad
    assert result.accept_length is None
    assert "MTP" in result.causes[0]


def test_lookup_drafts_may_be_none_but_their_counters_may_not_be_absent() -> None:
    seen = report(Acceptance(), tokens=5000)
    assert verdict(seen, speculation("ngram")) is GateVerdict.UNDECIDED
    assert verdict(replace(seen, acceptance=None), speculation("ngram")) is GateVerdict.ABSENT


def test_a_first_position_that_collapses_is_off_profile_although_alive() -> None:
    spec = speculation(expected={"by_position": [0.45]})
    result = judge(report(counted(1000, (100, 20, 3))), spec)
    assert result.verdict is GateVerdict.OFF_PROFILE
    assert result.accept_length == pytest.approx(1.123)
    assert "0.10" in result.found
    assert "0.45" in result.found
    assert "layer" in result.causes[0]


def test_a_later_position_that_collapses_is_off_profile_for_other_causes() -> None:
    spec = speculation(expected={"by_position": GSM8K})
    result = judge(report(counted(1000, (530, 20, 0))), spec)
    assert result.verdict is GateVerdict.OFF_PROFILE
    assert "position 1" in result.found
    assert "layer" not in result.causes[0]


@pytest.mark.parametrize(("temperature", "first"), [(0.0, 0.09), (0.6, 0.09), (1.0, 0.09)])
def test_wrong_layers_are_off_profile_at_every_temperature(temperature: float, first: float) -> None:
    spec = speculation(expected={"by_position": GSM8K})
    seen = report(counted(600, (round(600 * first), 12, 0)))
    result = judge(seen, spec, temperature=temperature)
    assert result.verdict is GateVerdict.OFF_PROFILE
    assert any("temperature" in cause for cause in result.causes) == bool(temperature)


def test_answers_that_the_target_would_not_give_are_garbage_before_anything_else() -> None:
    miss = CanaryMiss("ab" * 16, 7, 9.5)
    seen = report(counted(1000, (0, 0, 0)), canary_answers=8, canary_misses=(miss,))
    result = judge(seen, speculation())
    assert result.verdict is GateVerdict.GARBAGE
    assert "1 of 8" in result.found
    assert miss.row_id in result.found
    assert "9.5" in result.found


def test_a_draft_that_preflight_refused_has_to_show_that_it_is_whole() -> None:
    """The founding fault, forced past preflight: on some rows its accept length is 1.13, which alone is not dead."""
    forced = speculation("eagle", accept=["method-mismatch"])
    founding, whole = report(counted(1926, (220, 35, 4))), report(counted(1926, (617, 77, 20)))
    result = judge(founding, forced)
    assert result.verdict is GateVerdict.OFF_PROFILE
    assert "method-mismatch" in result.found
    assert "EAGLE-3" in result.causes[0]
    assert verdict(whole, forced) is GateVerdict.HEALTHY
    assert verdict(founding, speculation("eagle", accept=["lossy-verification"])) is GateVerdict.HEALTHY


def test_what_is_doubted_are_codes_that_preflight_refuses_by() -> None:
    refusing = {check.code for check in CHECKS if check.severity is Severity.REFUSE}
    assert refusing >= DOUBTS


# --- healthy ones --------------------------------------------------------------------------------


@pytest.mark.parametrize("num_tokens", [1, 5])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_one_and_five_tokens_greedy_and_sampled(num_tokens: int, temperature: float) -> None:
    by_position = [round(1000 * share) for share in (0.53, 0.21, 0.07, 0.02, 0.0)][:num_tokens]
    spec = speculation(num_tokens=num_tokens, expected={"by_position": [*GSM8K, 0.02, 0.01]})
    result = judge(report(counted(1000, by_position, num_tokens)), spec, temperature=temperature)
    assert result.verdict is GateVerdict.HEALTHY
    assert not result.is_bad
    assert result.causes == ()


def test_more_than_expected_is_no_fault() -> None:
    spec = speculation(expected={"by_position": [0.2, 0.1, 0.05]})
    assert verdict(report(counted(1000, (900, 800, 700))), spec) is GateVerdict.HEALTHY


def test_what_positions_may_fall_short_by_is_multiplied() -> None:
    """The trained head was seen with .53 .22 .04 on the very rows of its card."""
    spec = speculation(expected={"by_position": GSM8K})
    assert verdict(report(counted(20_000, (10_600, 4_400, 800))), spec) is GateVerdict.HEALTHY


def test_greedy_figures_are_not_demanded_of_sampling() -> None:
    spec = speculation(expected={"by_position": GSM8K})
    seen = report(counted(2000, (640, 150, 30)))
    assert verdict(seen, spec) is GateVerdict.OFF_PROFILE
    assert verdict(seen, spec, temperature=1.0) is GateVerdict.HEALTHY


def test_answers_too_short_for_drafts_are_undecided() -> None:
    assert verdict(report(None, answers=500, tokens=500), speculation()) is GateVerdict.UNDECIDED
    assert verdict(report(Acceptance(), answers=64, tokens=100), speculation()) is GateVerdict.UNDECIDED


def test_no_tokens_asked_for_is_undecided() -> None:
    assert verdict(report(None), speculation(num_tokens=0)) is GateVerdict.UNDECIDED


def test_a_schedule_may_draft_nothing_at_some_sizes_and_only_then() -> None:
    nothing = report(None)
    assert verdict(nothing, speculation(args=ZERO_ABOVE_8)) is GateVerdict.UNDECIDED
    always = {"num_speculative_tokens_per_batch_size": [[1, 8, 3], [9, 64, 1]]}
    assert verdict(nothing, speculation(args=always)) is GateVerdict.ABSENT
    assert verdict(report(counted(1000, (0, 0, 0))), speculation(args=ZERO_ABOVE_8)) is GateVerdict.DEAD


def test_drafts_of_different_lengths_are_compared_at_the_first_position_alone() -> None:
    spec = speculation(expected={"by_position": GSM8K})
    shorter = Acceptance(1000, 1200, 550, (530, 20, 0))
    assert verdict(report(shorter), spec) is GateVerdict.HEALTHY


def test_too_few_drafts_are_undecided_whatever_they_say() -> None:
    for accepted in [(0, 0, 0), (200, 100, 50)]:
        result = judge(report(counted(499, accepted)), speculation())
        assert result.verdict is GateVerdict.UNDECIDED
        assert "500" in result.found
    assert verdict(report(counted(500, (0, 0, 0))), speculation()) is GateVerdict.DEAD
    assert verdict(report(counted(60, (0, 0, 0))), speculation(warmup={"drafts": 60})) is GateVerdict.DEAD


def test_what_is_just_above_dead_is_not_called_healthy_by_few_drafts() -> None:
    assert verdict(report(counted(500, (30, 0, 0))), speculation()) is GateVerdict.UNDECIDED
    assert verdict(report(counted(20000, (1200, 0, 0))), speculation()) is GateVerdict.HEALTHY


def test_what_is_just_below_the_profile_is_measured_on_and_not_refused_at_the_end() -> None:
    spec = speculation(expected={"by_position": GSM8K})
    seen = report(counted(500, (180, 80, 30)))
    assert verdict(seen, spec, is_final=False) is GateVerdict.UNDECIDED
    assert verdict(seen, spec) is GateVerdict.HEALTHY


def test_waiting_for_drafts_has_an_end() -> None:
    assert could_tell_more(report(Acceptance(), tokens=9_000), speculation("ngram"))
    assert not could_tell_more(report(Acceptance(), tokens=10_000), speculation("ngram"))
    assert not could_tell_more(report(Acceptance(), answers=0, degenerate=160), speculation())


# --- by chance -----------------------------------------------------------------------------------


def warm_up(draw: random.Random, shares: Sequence[float], spec: SpeculationSpec, cap: int = 64) -> GateResult:
    """One warm-up as the engine's counters would tell it, judged after every answer until there is a verdict."""
    depth = spec.num_tokens
    at_least = [1.0, *shares[:depth], 0.0]
    weights = [at_least[accepted] - at_least[accepted + 1] for accepted in range(len(at_least) - 1)]
    drafts, by_position, tokens, answers = 0, [0] * depth, 0, 0
    while True:
        answers += 1
        left = max(1, round(cap * draw.uniform(0.1, 1.0)))
        tokens += left
        left -= 1
        while left > 0:
            accepted = draw.choices(range(len(weights)), weights)[0]
            for position in range(accepted):
                by_position[position] += 1
            drafts += 1
            left -= accepted + 1
        seen = report(counted(drafts, by_position, depth), answers=answers, tokens=tokens)
        goes_on = could_tell_more(seen, spec)
        result = judge(seen, spec, is_final=not goes_on)
        if result.verdict is not GateVerdict.UNDECIDED or not goes_on:
            return result


@pytest.mark.parametrize(
    ("shares", "num_tokens", "cap"),
    [(GSM8K, 3, 64), (MT_BENCH, 3, 64), (MT_BENCH, 1, 8), ([0.1], 1, 64), ([0.1, 0.02, 0, 0, 0], 5, 64)],
)
def test_chance_refuses_no_healthy_draft(shares: list[float], num_tokens: int, cap: int) -> None:
    draw = random.Random(f"healthy {shares} {num_tokens} {cap}")
    spec = speculation(num_tokens=num_tokens, expected={"by_position": shares})
    results = [warm_up(draw, shares, spec, cap) for _ in range(100)]
    assert not any(result.is_bad for result in results)


@pytest.mark.parametrize(("shares", "num_tokens"), [([0.0], 1), ([0.0, 0.0, 0.0], 3), (FOUNDING_FAULT, 3)])
def test_chance_lets_no_dead_draft_through(shares: list[float], num_tokens: int) -> None:
    draw = random.Random(f"dead {shares}")
    results = [warm_up(draw, shares, speculation("eagle", num_tokens)) for _ in range(100)]
    assert {result.verdict for result in results} == {GateVerdict.DEAD}
