"""The settings that are compared: what they are, and that preflight lets them through."""

from __future__ import annotations

from pathlib import Path

import pytest

from regen.data.target import resolve_target
from regen.records import Acceptance, WarmupReport
from regen.run import setup
from regen.run.speculation.preflight import examine
from regen.spec import ExpectedAcceptance, SpeculationSpec
from regen.speculative.arms import CONFIGURED, OFF, arms
from regen.speculative.evidence import Severity
from regen.speculative.gate import judge
from regen.store.storage import open_storage
from tests.runs import make_spec, with_draft

EAGLE = SpeculationSpec(method="eagle3", draft="d", num_tokens=5)


def names(speculation: SpeculationSpec, slots: int = 64, at_most: int = 9, has_schedules: bool = True) -> list[str]:
    return [arm.name for arm in arms(speculation, slots, at_most, has_schedules)]


def test_off_and_configured_come_first_and_the_grid_in_order_of_promise() -> None:
    assert names(EAGLE) == ["off", "configured", "tokens-2", "tokens-1", "ngram-4", "schedule-32"]
    assert names(EAGLE, at_most=3) == ["off", "configured", "tokens-2"]
    assert names(EAGLE, at_most=1) == ["off", "configured"]
    assert names(EAGLE, has_schedules=False)[-1] == "ngram-4"


def test_the_names_are_those_that_engines_are_assigned_by() -> None:
    assert (OFF, CONFIGURED) == (setup.OFF, setup.CONFIGURED)


@pytest.mark.parametrize(
    ("speculation", "expected"),
    [
        (SpeculationSpec(method="ngram", num_tokens=4), ["tokens-2", "tokens-1"]),
        (SpeculationSpec(method="eagle3", draft="d", num_tokens=1), ["ngram-4"]),
        (SpeculationSpec(method="eagle3", draft="d", num_tokens=3), ["tokens-1", "ngram-4", "schedule-32"]),
        (SpeculationSpec(method="mtp", num_tokens=4), ["tokens-1", "ngram-4"]),
        (
            EAGLE.model_copy(update={"args": {"num_speculative_tokens_per_batch_size": [[1, 8, 5]]}}),
            ["tokens-2", "tokens-1", "ngram-4"],
        ),
    ],
)
def test_the_grid_has_only_what_fits_the_draft(speculation: SpeculationSpec, expected: list[str]) -> None:
    assert names(speculation)[2:] == expected


def test_arms_draft_as_configured_but_for_what_their_name_says() -> None:
    expected = ExpectedAcceptance(by_position=[0.5, 0.4, 0.3, 0.2, 0.1])
    configured = EAGLE.model_copy(update={"args": {"draft_tensor_parallel_size": 1}, "expected": expected})
    by_name = {arm.name: arm.speculation for arm in arms(configured, 64, 9, True)}
    assert by_name["off"] is None
    assert by_name["configured"] == configured
    two = by_name["tokens-2"]
    assert two is not None
    assert (two.num_tokens, two.draft, two.args) == (2, "d", configured.args)
    assert two.expected is not None
    assert two.expected.by_position == [0.5, 0.4]
    ngram = by_name["ngram-4"]
    assert ngram is not None
    assert (ngram.method, ngram.draft, ngram.expected) == ("ngram", None, None)
    schedule = by_name["schedule-32"]
    assert schedule is not None
    assert schedule.args["num_speculative_tokens_per_batch_size"] == [[1, 32, 5], [33, 64, 1]]
    assert schedule.expected is None


def test_doubts_about_the_draft_are_not_held_against_prompt_lookup() -> None:
    """Its accept length of 1.3 would be too little for a head that preflight has doubts about, and is good for it."""
    accept = ["method-mismatch", "lossy-verification"]
    configured = EAGLE.model_copy(update={"accept": accept, "layer_convention": "output"})
    by_name = {arm.name: arm.speculation for arm in arms(configured, 64, 9, True)}
    fewer, ngram = by_name["tokens-2"], by_name["ngram-4"]
    assert fewer is not None
    assert (fewer.accept, fewer.layer_convention) == (accept, "output")
    assert ngram is not None
    assert (ngram.accept, ngram.layer_convention) == (["lossy-verification"], "input")
    seen = WarmupReport(1.0, 100, 0, 3000, Acceptance(1000, 4000, 300, (150, 75, 50, 25)))
    assert judge(seen, fewer).is_bad
    assert not judge(seen, ngram).is_bad


def test_preflight_refuses_no_arm_for_more_than_the_configured_one(tmp_path: Path) -> None:
    spec = with_draft(make_spec(tmp_path), tmp_path, expected={"by_position": [0.5, 0.3, 0.1]})
    target, storage = resolve_target(spec.target), open_storage(spec.output)

    def refused(speculation: SpeculationSpec | None) -> set[str]:
        findings = examine(spec.model_copy(update={"speculation": speculation}), target, storage)
        return {finding.code for finding in findings if finding.severity is Severity.REFUSE}

    assert spec.speculation is not None
    made = arms(spec.speculation, 8, 9, True)
    assert len(made) == 5
    for arm in made:
        assert refused(arm.speculation) <= refused(spec.speculation), arm.name
