"""vLLM's own reasoning and tool parsers over whole answers: by name, as `vllm serve` takes them.

Guarantees: an answer is read as vLLM's server would read it, but for three things. Where neither the prompt nor the
answer opens a thought there is no reasoning (vLLM's parsers take an answer without any tag for nothing but reasoning).
A call that was opened and not closed, or not read, is said to be open (vLLM makes it content, drops it, or makes a call
of what there is). Where the tools or a call make a parser raise, reasoning is still read, what looks like a call is
said to be open, and the text is content.
Needs a tokenizer and no engine. Costs about 10 s to load (vLLM's imports) and well under a millisecond an answer.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from regen.errors import SpecError
from regen.protocols import Answer, ParsedAnswer, ToolCall

_LOG = logging.getLogger(__name__)
# What vLLM's parsers call the texts that open and close calls: as attributes, and as terminals of declarative parsers.
_OPENING = (
    *("tool_call_start_token", "tool_calls_start_token", "bot_token", "response_start_token"),
    *("TOOL_START", "TOOL_SECTION_START", "TOOL_REQUESTS_START", "TOOL_TOKEN", "TOOL_STRING"),
)
_CLOSING = (
    *("tool_call_end_token", "tool_calls_end_token", "response_end_token"),
    *("TOOL_END", "TOOL_SECTION_END", "TOOL_REQUESTS_END"),
)
_INVENTED_ID = "chatcmpl-tool-"  # vLLM's random ids, for formats that have none


class VllmAnswerParser:
    """`protocols.AnswerParser`: a reasoning parser, a tool parser, or both."""

    def __init__(self, tokenizer: Any, reasoning_parser: str | None, tool_parser: str | None) -> None:
        """Names are those of vLLM (kimi_k2, qwen3, hermes, ...); None: that part is not looked for.

        Raises SpecError: a name that vLLM does not have, or one that cannot work with this tokenizer.
        """
        from vllm.tokenizers.hf import get_cached_tokenizer

        self._tokenizer = get_cached_tokenizer(tokenizer)  # or each parser would read the vocabulary anew
        self._with_reasoning = _parser_class(self._tokenizer, reasoning_parser, tool_parser)
        self._without_reasoning = _parser_class(self._tokenizer, None, tool_parser)
        made = self._with_reasoning(self._tokenizer) if self._with_reasoning else None
        self._thinking_tags = _thinking_tags(made.reasoning_parser) if made else None
        self._opening = tuple(_markers(made.tool_parser, _OPENING)) if made else ()
        self._closing = tuple(_markers(made.tool_parser, _CLOSING)) if made else ()
        self._special = tuple(self._tokenizer.all_special_tokens)

    def parse(self, answer: Answer) -> ParsedAnswer:
        is_begun, is_open = self._thinking(answer)
        try:
            (reasoning, content, calls), is_read = self._parsed(answer, is_begun), True
        except Exception:
            _LOG.warning("vLLM's parser failed on an answer: calls are not read", exc_info=True)
            (reasoning, content, calls), is_read = self._parsed_without_tools(answer, is_begun), False
        return ParsedAnswer(
            content=self._plain(content or ""),
            reasoning=self._plain(reasoning or "") or None,
            calls=calls,
            is_thinking_open=is_open and not calls,
            has_open_call=answer.tools_json is not None
            and (self._leaves_call_open(answer.text, bool(calls)) or not (is_read or _is_prose(content))),
        )

    def _parsed_without_tools(
        self, answer: Answer, is_begun: bool
    ) -> tuple[str | None, str | None, tuple[ToolCall, ...]]:
        """As far as the reasoning parser reads it: vLLM refuses some tools, and some answers, as a whole."""
        try:
            return self._parsed(replace(answer, tools_json=None), is_begun)
        except Exception:
            _LOG.warning("vLLM's reasoning parser failed on an answer, which is taken as it is", exc_info=True)
            return None, answer.text, ()

    def _thinking(self, answer: Answer) -> tuple[bool, bool]:
        """(there is reasoning to look for, it was not closed)."""
        if self._thinking_tags is None:
            return self._with_reasoning is not self._without_reasoning, False
        start, end = self._thinking_tags
        opened_before = answer.prompt_tail.rfind(start) > answer.prompt_tail.rfind(end)
        is_begun = opened_before or start in answer.text or end in answer.text
        return is_begun, is_begun and end not in answer.text

    def _leaves_call_open(self, text: str, has_calls: bool) -> bool:
        visible = text.rpartition(self._thinking_tags[1])[2] if self._thinking_tags else text
        opened = max((visible.rfind(marker) for marker in self._opening), default=-1)
        closed = max((visible.rfind(marker) for marker in self._closing), default=-1)
        return opened >= 0 and (opened > closed or not has_calls)

    def _parsed(self, answer: Answer, has_reasoning: bool) -> tuple[str | None, str | None, tuple[ToolCall, ...]]:
        parser_class = self._with_reasoning if has_reasoning else self._without_reasoning
        if parser_class is None:
            return None, answer.text, ()
        request = _request(answer)
        parser = parser_class(self._tokenizer, request.tools, chat_template_kwargs=dict(answer.template_kwargs))
        reasoning, content, calls = parser.parse(answer.text, request, enable_auto_tools=request.tools is not None)
        return reasoning, content, tuple(_call(call) for call in calls or ())

    def _plain(self, text: str) -> str:
        """Without special tokens: in a later prompt they would be control tokens."""
        for token in self._special:
            text = text.replace(token, "")
        return text


def _parser_class(tokenizer: Any, reasoning_parser: str | None, tool_parser: str | None) -> Any:
    from vllm.parser import ParserManager
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    for key, name, known in (
        ("target.reasoning_parser", reasoning_parser, ReasoningParserManager.list_registered()),
        ("target.tool_parser", tool_parser, ToolParserManager.list_registered()),
    ):
        if name is not None and name not in known:
            raise SpecError(f"{key}: vLLM has no parser {name!r}; it has {', '.join(known)}")
    try:
        return ParserManager.get_parser(
            tool_parser_name=tool_parser,
            reasoning_parser_name=reasoning_parser,
            enable_auto_tools=True,
            tokenizer=tokenizer,
        )
    except TypeError as error:
        raise SpecError(
            f"target.reasoning_parser {reasoning_parser!r} and target.tool_parser {tool_parser!r} cannot read this"
            f" target's answers: {error}. Name others, or none."
        ) from error


def _request(answer: Answer) -> Any:
    """What vLLM's parsers look at of a chat request: which tools there are, and that they may be called."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    tools = None if answer.tools_json is None else json.loads(answer.tools_json)
    return ChatCompletionRequest(
        messages=[{"role": "user", "content": ""}], tools=tools or None, tool_choice="auto" if tools else None
    )


def _call(call: Any) -> ToolCall:
    own_id = call.id if call.id and not call.id.startswith(_INVENTED_ID) else None
    return ToolCall(call.name, call.arguments, own_id)


def _is_prose(content: str | None) -> bool:
    """Whether it cannot be a call in one of the formats that are bare JSON or a list in Python's form."""
    return not (content or "").lstrip().startswith(("{", "["))


def _thinking_tags(reasoning_parser: Any) -> tuple[str, str] | None:
    """(opening, closing) as text; None without a parser, or where its format has other means."""
    if reasoning_parser is None:
        return None
    start, end = reasoning_parser.reasoning_start_str, reasoning_parser.reasoning_end_str
    return (start, end) if start and end else None


def _markers(tool_parser: Any, names: Sequence[str]) -> Iterator[str]:
    """Texts of the tool parser's format, as far as it has them written down under these names."""
    engine = getattr(tool_parser, "_parser_engine", None)
    terminals = engine.parser_engine_config.terminals if engine is not None else {}
    for name in names:
        marker = terminals.get(name) or getattr(tool_parser, name, None) or ()
        yield from (marker,) if isinstance(marker, str) else marker
