"""The founding fault, refused from files alone; and what is healthy, let through."""

from __future__ import annotations

from typing import Any

import pytest

from regen.spec import SamplingSpec, SpeculationSpec
from regen.speculative.preflight import Evidence, Severity, draft_family, preflight


def evidence(method: str, config: dict[str, Any] | None, **options: Any) -> Evidence:
    draft = None if config is None else "some/folder"
    speculation = SpeculationSpec.model_validate({"method": method, "draft": draft, "num_tokens": 3})
    sampling = SamplingSpec.model_validate({"max_tokens": 8, **options.get("sampling", {})})
    return Evidence(speculation, sampling, options.get("generation_config", {}), config)


@pytest.mark.parametrize(
    "architecture", ["LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "Eagle3DeepseekV2ForCausalLM"]
)
def test_eagle_asked_for_an_eagle3_draft_is_refused_naming_both(architecture: str) -> None:
    (finding,) = preflight(evidence("eagle", {"architectures": [architecture]}))
    assert finding.severity is Severity.REFUSE
    assert "'eagle'" in finding.found
    assert architecture in finding.found
    assert "'eagle3'" in finding.fix


@pytest.mark.parametrize(
    ("method", "config"),
    [
        ("eagle3", {"architectures": ["LlamaForCausalLMEagle3"]}),
        ("eagle3", {"speculators_model_type": "eagle3", "architectures": ["Eagle3Speculator"]}),
        ("eagle", {"architectures": ["EagleLlamaForCausalLM"]}),
        ("draft_model", {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}),
        ("ngram", None),
    ],
)
def test_a_method_that_fits_its_draft_passes(method: str, config: dict[str, Any] | None) -> None:
    assert preflight(evidence(method, config)) == []


def test_the_family_comes_from_the_config_and_a_bare_model_is_a_draft_model() -> None:
    assert draft_family({"architectures": ["Qwen3ForCausalLM"]}) == "draft_model"


@pytest.mark.parametrize(
    "options",
    [{"sampling": {"min_p": 0.05}}, {"generation_config": {"min_p": 0.05}}],
    ids=["spec", "generation_config"],
)
def test_min_p_with_speculation_is_refused_before_83000_equal_failures(options: dict[str, Any]) -> None:
    (finding,) = preflight(evidence("ngram", None, **options))
    assert finding.code == "sampling-excludes-speculation"


def test_an_explicit_zero_wins_over_the_generation_config() -> None:
    given = evidence("ngram", None, sampling={"min_p": 0.0}, generation_config={"min_p": 0.05})
    assert preflight(given) == []
