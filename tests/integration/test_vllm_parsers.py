"""vLLM's parsers over whole answers, with the toy target's tokenizer: no engine is started."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from regen.data.template import load_template
from regen.engines.vllm_parsers import VllmAnswerParser
from regen.errors import SpecError
from regen.protocols import Answer, ToolCall
from tests.toy_target import build_toy_target

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="its parsers come with vLLM")

TOOLS = json.dumps([{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}])
KIMI = (
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_end|>",
    "<|tool_call_argument_begin|>",
)
ONE_CALL = '<tool_call>{"name": "look", "arguments": {"x": 1}}</tool_call>'
KIMI_CALL = f'{KIMI[0]}{KIMI[2]}functions.look:3{KIMI[4]}{{"x": 1}}{KIMI[3]}{KIMI[1]}'


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The toy target's, with the tags that these formats need in the vocabulary."""
    template = load_template(build_toy_target(tmp_path_factory.mktemp("target")), False, {})
    template.tokenizer.add_tokens(["<think>", "</think>", *KIMI])
    return template.tokenizer


@pytest.fixture(scope="module")
def hermes(tokenizer: Any) -> VllmAnswerParser:
    return VllmAnswerParser(tokenizer, "deepseek_r1", "hermes")


def test_reasoning_calls_and_what_is_said_beside_them_come_apart(hermes: VllmAnswerParser) -> None:
    found = hermes.parse(Answer(f"<think>I look.</think>One moment.{ONE_CALL}", tools_json=TOOLS))
    assert found.reasoning == "I look."
    assert found.content == "One moment."
    assert found.calls == (ToolCall("look", '{"x": 1}'),)
    assert not found.is_thinking_open
    assert not found.has_open_call


@pytest.mark.parametrize("tools", [[{"foo": 1}], [{"type": "function", "function": {"name": "f", "parameters": []}}]])
def test_tools_that_vllm_refuses_cost_the_calls_and_not_the_reasoning(hermes: VllmAnswerParser, tools: Any) -> None:
    told = hermes.parse(Answer("<think>I look.</think>One moment.", tools_json=json.dumps(tools)))
    assert (told.reasoning, told.content, told.has_open_call) == ("I look.", "One moment.", False)
    for call in (ONE_CALL, '{"name": "look", "arguments": {}}'):
        found = hermes.parse(Answer(f"<think>I look.</think>{call}", tools_json=json.dumps(tools)))
        assert (found.reasoning, found.content, found.calls) == ("I look.", call, ())
        assert found.has_open_call


def test_calls_in_parallel_come_in_order(hermes: VllmAnswerParser) -> None:
    other = ONE_CALL.replace('"x": 1', '"x": 2')
    found = hermes.parse(Answer(ONE_CALL + other, tools_json=TOOLS))
    assert [call.arguments for call in found.calls] == ['{"x": 1}', '{"x": 2}']


def test_an_answer_without_any_tag_is_no_reasoning(hermes: VllmAnswerParser) -> None:
    found = hermes.parse(Answer("Just this."))
    assert (found.content, found.reasoning, found.is_thinking_open) == ("Just this.", None, False)


def test_a_thought_that_the_prompt_has_opened_is_reasoning(hermes: VllmAnswerParser) -> None:
    found = hermes.parse(Answer("Hm.</think>Good.", prompt_tail="<|im_start|>assistant\n<think>\n"))
    assert (found.content, found.reasoning) == ("Good.", "Hm.")
    unclosed = hermes.parse(Answer("Good morning", prompt_tail="<|im_start|>assistant\n<think>\n"))
    assert (unclosed.content, unclosed.reasoning, unclosed.is_thinking_open) == ("", "Good morning", True)


def test_a_thought_that_the_prompt_has_closed_is_none(hermes: VllmAnswerParser) -> None:
    found = hermes.parse(Answer("Good.", prompt_tail="<think>\n\n</think>\n\n"))
    assert (found.content, found.reasoning, found.is_thinking_open) == ("Good.", None, False)


def test_a_call_that_cannot_be_read_is_open(hermes: VllmAnswerParser) -> None:
    found = hermes.parse(Answer('Hey <tool_call>{"name": "look", "argum', tools_json=TOOLS))
    assert found.calls == ()
    assert found.has_open_call


def test_without_tools_nothing_is_a_call(hermes: VllmAnswerParser) -> None:
    found = hermes.parse(Answer(ONE_CALL))
    assert (found.calls, found.content, found.has_open_call) == ((), ONE_CALL, False)


def test_special_tokens_are_in_no_content(hermes: VllmAnswerParser) -> None:
    assert hermes.parse(Answer("Say<|im_start|> it.")).content == "Say it."


def test_kimis_ids_are_the_targets_own(tokenizer: Any) -> None:
    kimi = VllmAnswerParser(tokenizer, "kimi_k2", "kimi_k2")
    found = kimi.parse(Answer(f"<think>Hm.</think>{KIMI_CALL}", tools_json=TOOLS))
    assert found.calls == (ToolCall("look", '{"x": 1}', "functions.look:3"),)
    assert found.reasoning == "Hm."
    cut = kimi.parse(Answer(f"{KIMI[0]}{KIMI[2]}functions.lo", prompt_tail="<think></think>", tools_json=TOOLS))
    assert cut.has_open_call
    assert not found.has_open_call


def test_reasoning_alone_and_calls_alone(tokenizer: Any) -> None:
    reasoning = VllmAnswerParser(tokenizer, "deepseek_r1", None)
    found = reasoning.parse(Answer(f"<think>Hm.</think>{ONE_CALL}", tools_json=TOOLS))
    assert (found.reasoning, found.content, found.calls) == ("Hm.", ONE_CALL, ())
    assert reasoning.parse(Answer("Just this.")).content == "Just this."
    calls = VllmAnswerParser(tokenizer, None, "hermes")
    assert calls.parse(Answer(f"<think>Hm.</think>{ONE_CALL}", tools_json=TOOLS)).content == "<think>Hm.</think>"


def test_parsers_that_do_not_exist_or_do_not_fit_are_refused(tmp_path: Path) -> None:
    tokenizer = load_template(build_toy_target(tmp_path / "target"), False, {}).tokenizer
    with pytest.raises(SpecError, match=r"target.tool_parser: vLLM has no parser 'hermez'; it has .*hermes"):
        VllmAnswerParser(tokenizer, None, "hermez")
    with pytest.raises(SpecError, match="cannot read this target's answers"):
        VllmAnswerParser(tokenizer, "deepseek_r1", None)
