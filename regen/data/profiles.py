"""What is particular about families of targets, as data: found from config.json and the chat template. Pure.

A profile says which of vLLM's parsers read the family's answers, which template kwarg switches reasoning, how calls of
tools are named, and whether the tokenizer is Python code of its own. Members of one family differ; what tells them
apart stands in their templates, so each choice names the text that it needs there. A target of no known family works
from its template alone, and its answers are taken as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from regen.errors import SpecError
from regen.spec import RunSpec, TargetSpec, TemplateKwargsShare

AUTO, NONE = "auto", "none"


@dataclass(frozen=True, slots=True)
class Choice:
    """A parser of vLLM, and what the template has to hold (`has`) and must not hold (`lacks`) for it."""

    parser: str
    has: str = ""
    lacks: str | None = None

    def fits(self, template_source: str) -> bool:
        return self.has in template_source and (self.lacks is None or self.lacks not in template_source)


@dataclass(frozen=True, slots=True)
class Profile:
    """One family. `template_has` tells families of one model type apart; the first choice that fits is taken.

    `switch` is the template kwarg that turns reasoning on and off, where the template knows it. `tool_call_id` names
    calls, `index` counting over the whole conversation.
    """

    name: str
    model_types: tuple[str, ...] = ()
    template_has: str = ""
    reasoning: tuple[Choice, ...] = ()
    tools: tuple[Choice, ...] = ()
    switch: str | None = None
    tool_call_id: str = "call_{index}"
    needs_remote_code: bool = False


NO_PROFILE = Profile(NONE)
PROFILES = (
    Profile(
        "kimi-k2",  # Kimi-K2, K2-Thinking, K2.5
        model_types=("kimi_k2", "kimi_k25"),
        reasoning=(Choice("kimi_k2", has="think>"),),
        tools=(Choice("kimi_k2"),),
        switch="thinking",
        tool_call_id="functions.{name}:{index}",
        needs_remote_code=True,
    ),
    Profile(
        "qwen3",
        model_types=("qwen3", "qwen3_moe", "qwen3_next", "qwen3_5", "qwen3_5_moe"),
        reasoning=(Choice("qwen3", has="think>"),),
        tools=(Choice("qwen3_xml", has="<function="), Choice("hermes", has="<tool_call>")),
        switch="enable_thinking",
    ),
    Profile(
        "deepseek",  # V3, R1, V3.1
        model_types=("deepseek_v3",),
        reasoning=(Choice("deepseek_v3", has="thinking"), Choice("deepseek_r1", has="think>")),
        tools=(Choice("deepseek_v3", has="```json"), Choice("deepseek_v31", has="tool▁calls▁begin")),
        switch="thinking",
    ),
    Profile(
        "llama3",
        model_types=("llama", "mllama"),
        template_has="<|start_header_id|>",
        tools=(Choice("llama3_json"),),
    ),
    Profile("smollm2", model_types=("llama",), template_has="SmolLM", tools=(Choice("hermes"),)),
)


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """How answers are read: vLLM's parsers by name (None: not at all), and what calls are named in the history."""

    reasoning_parser: str | None = None
    tool_parser: str | None = None
    tool_call_id: str = NO_PROFILE.tool_call_id


def find_profile(spec: TargetSpec, config: Mapping[str, Any], template_source: str) -> Profile:
    """The profile that the spec names, or the one that config and template show."""
    if spec.profile == NONE:
        return NO_PROFILE
    if spec.profile != AUTO:
        return next(profile for profile in PROFILES if profile.name == spec.profile)
    text_config = config.get("text_config")
    parts = (config, text_config if isinstance(text_config, Mapping) else {})
    types = {part.get("model_type") for part in parts}
    for profile in PROFILES:
        if types.intersection(profile.model_types) and profile.template_has in template_source:
            return profile
    return NO_PROFILE


def answer_format(spec: RunSpec, profile: Profile, template_source: str) -> AnswerFormat:
    """What reads this target's answers. The spec's own names win over the profile's.

    The fake engine makes no answer in a target's format: with it only what the spec names is used.
    """
    is_fake = spec.engine.kind == "fake"

    def chosen(given: str, choices: tuple[Choice, ...]) -> str | None:
        if given != AUTO:
            return None if given == NONE else given
        fitting = (choice.parser for choice in choices if choice.fits(template_source))
        return None if is_fake else next(fitting, None)

    return AnswerFormat(
        reasoning_parser=chosen(spec.target.reasoning_parser, profile.reasoning),
        tool_parser=chosen(spec.target.tool_parser, profile.tools),
        tool_call_id=profile.tool_call_id,
    )


def with_reasoning(spec: TargetSpec, profile: Profile, template_source: str) -> TargetSpec:
    """`target.reasoning` as the mix of template kwargs that it stands for. Raises SpecError where it cannot be."""
    if spec.reasoning is None:
        return spec
    switch = profile.switch
    if switch is None or switch not in template_source:
        raise SpecError(
            f"target.reasoning: the template of {spec.model} (profile {profile.name}) has no switch for it that is"
            " known here; leave it out, or give the template's own words in target.template_kwargs"
        )
    if switch in spec.template_kwargs:
        raise SpecError(f"target.reasoning conflicts with target.template_kwargs.{switch}: it sets the same")
    share = {"on": 1.0, "off": 0.0}[spec.reasoning] if isinstance(spec.reasoning, str) else spec.reasoning.share
    parts = [(True, share), (False, 1 - share)]
    mix = [TemplateKwargsShare(value={switch: is_on}, share=part) for is_on, part in parts if part]
    return spec.model_copy(update={"template_kwargs_mix": mix, "reasoning": None})
