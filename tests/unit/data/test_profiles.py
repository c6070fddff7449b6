"""Which profile a target has, what reads its answers, and how its reasoning is switched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from regen.data.profiles import NO_PROFILE, PROFILES, answer_format, find_profile, with_reasoning
from regen.errors import SpecError
from regen.spec import RunSpec, TargetSpec, parse_spec
from regen.spec_text import commented_spec

HYBRID = "{% if enable_thinking is false %}<think></think>{% endif %}<tool_call>"
CODER = "<tool_call>\n<function=example>"
R1 = "<think>\n```json tool▁calls▁begin"
V31 = "{% if thinking %}<think>{% endif %}tool▁calls▁begin"
KIMI = "{% if thinking is false %}<think></think>{% else %}<think>{% endif %}"
LLAMA = "<|start_header_id|>"


def target(**fields: Any) -> TargetSpec:
    return TargetSpec(model="m", **fields)


def spec(kind: str = "vllm", **fields: Any) -> RunSpec:
    return parse_spec(
        {
            "name": "x",
            "output": "x",
            "target": {"model": "m", **fields},
            "engine": {"kind": kind},
            "sampling": {"max_tokens": 8},
            "sources": [{"name": "s", "path": "s.jsonl"}],
        },
        origin="test",
    )


@pytest.mark.parametrize(
    ("config", "template", "name", "reasoning", "tools"),
    [
        ({"model_type": "kimi_k2"}, KIMI, "kimi-k2", "kimi_k2", "kimi_k2"),
        ({"model_type": "kimi_k2"}, "<|im_middle|>", "kimi-k2", None, "kimi_k2"),  # K2-Instruct does not reason
        ({"model_type": "kimi_k25", "text_config": {"model_type": "kimi_k2"}}, KIMI, "kimi-k2", "kimi_k2", "kimi_k2"),
        ({"model_type": "qwen3_moe"}, HYBRID, "qwen3", "qwen3", "hermes"),
        ({"model_type": "qwen3_moe"}, CODER, "qwen3", None, "qwen3_xml"),
        ({"model_type": "deepseek_v3"}, R1, "deepseek", "deepseek_r1", "deepseek_v3"),
        ({"model_type": "deepseek_v3"}, V31, "deepseek", "deepseek_v3", "deepseek_v31"),
        ({"model_type": "llama"}, LLAMA, "llama3", None, "llama3_json"),
        ({"model_type": "llama"}, "a helpful AI assistant named SmolLM", "smollm2", None, "hermes"),
        ({"model_type": "llama"}, "[INST]", "none", None, None),
        ({"model_type": "new"}, "<think>", "none", None, None),
    ],
)
def test_families_are_found_and_their_members_told_apart(
    config: dict[str, Any], template: str, name: str, reasoning: str | None, tools: str | None
) -> None:
    profile = find_profile(target(), config, template)
    assert profile.name == name
    found = answer_format(spec(), profile, template)
    assert (found.reasoning_parser, found.tool_parser) == (reasoning, tools)


def test_the_specs_own_words_win() -> None:
    qwen = find_profile(target(profile="qwen3"), {"model_type": "llama"}, LLAMA)
    assert qwen.name == "qwen3"
    assert find_profile(target(profile="none"), {"model_type": "qwen3"}, HYBRID) is NO_PROFILE
    found = answer_format(spec(reasoning_parser="none", tool_parser="xlam"), qwen, HYBRID)
    assert (found.reasoning_parser, found.tool_parser) == (None, "xlam")


def test_with_the_fake_engine_only_named_parsers_are_used() -> None:
    qwen = find_profile(target(profile="qwen3"), {}, "")
    assert answer_format(spec("fake"), qwen, HYBRID).tool_parser is None
    assert answer_format(spec("fake", tool_parser="hermes"), qwen, HYBRID).tool_parser == "hermes"


def test_every_profile_can_be_named() -> None:
    for profile in PROFILES:
        assert find_profile(target(profile=profile.name), {}, "") is profile


@pytest.mark.parametrize(
    ("reasoning", "mix"),
    [
        (True, [({"enable_thinking": True}, 1.0)]),  # how YAML reads a bare `on`
        ("off", [({"enable_thinking": False}, 1.0)]),
        ({"share": 0.25}, [({"enable_thinking": True}, 0.25), ({"enable_thinking": False}, 0.75)]),
        ({"share": 0}, [({"enable_thinking": False}, 1.0)]),
    ],
)
def test_reasoning_is_a_mix_of_the_familys_switch(reasoning: Any, mix: list[tuple[dict[str, bool], float]]) -> None:
    qwen = find_profile(target(profile="qwen3"), {}, HYBRID)
    made = with_reasoning(target(reasoning=reasoning), qwen, HYBRID)
    assert [(part.value, part.share) for part in made.template_kwargs_mix] == mix


def test_reasoning_that_cannot_be_switched_is_refused() -> None:
    with pytest.raises(SpecError, match=r"target.reasoning: the template of m \(profile smollm2\) has no switch"):
        with_reasoning(target(reasoning="on"), find_profile(target(profile="smollm2"), {}, ""), "SmolLM")
    qwen = find_profile(target(profile="qwen3"), {}, HYBRID)
    with pytest.raises(SpecError, match="no switch"):  # Qwen3-Instruct-2507: of the family, and it does not reason
        with_reasoning(target(reasoning="on"), qwen, "<tool_call>")
    with pytest.raises(SpecError, match=r"conflicts with target.template_kwargs.enable_thinking"):
        with_reasoning(target(reasoning="on", template_kwargs={"enable_thinking": True}), qwen, HYBRID)
    with pytest.raises(SpecError, match="reasoning conflicts with template_kwargs_mix"):
        spec(reasoning="on", template_kwargs_mix=[{"value": {}, "share": 1}])


def test_no_answer_but_the_names_of_profiles_is_taken() -> None:
    with pytest.raises(SpecError, match=r"target.profile"):
        spec(profile="kimi")


def test_the_commented_spec_shows_them(tmp_path: Path) -> None:
    assert "# reasoning: null" in commented_spec()
