"""What the engine has sampled -> one turn: text, reasoning, content, calls of tools, and what is to be said of it.

Ids stay as they are; all else is a view of them. Blocking, some milliseconds for a long answer: call it from a thread.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace

from regen.data.retokenise import survives_as_text
from regen.data.text import DETAIL_CHARS, printable
from regen.errors import RowRefused
from regen.protocols import Answer, AnswerParser, ChatTemplate, ParsedAnswer, ToolCall
from regen.records import (
    Completion,
    Conversation,
    FinishReason,
    Generation,
    GenerationRequest,
    Label,
    Message,
    Origin,
    Role,
    Sampling,
    Stage,
)
from regen.run.conversations.labels import Made, labels_of
from regen.run.conversations.tool_results import calls_json, ids_of
from regen.run.setup import RunSetup, WorkerSetup

# Where a template opens a thought, it is the last thing in the prompt.
PROMPT_TAIL_TOKENS = 32
ANSWER_UNREADABLE = "answer_unreadable"
_SURROGATE = re.compile("[\ud800-\udfff]")


class Reader:
    """Reads the answers of one target. Without a `parser` the whole text of an answer is its content. Thread-safe."""

    def __init__(self, setup: WorkerSetup, template: ChatTemplate, parser: AnswerParser | None) -> None:
        self._setup = setup
        self._template = template
        self._parser = parser

    def turn(
        self,
        turn: int,
        request: GenerationRequest,
        completion: Completion,
        conversation: Conversation,
        history: Sequence[Message],
    ) -> Generation:
        """`history` is what stood before this answer. Calls are kept of a good turn only.

        Raises RowRefused when the answer cannot be read: the same one would come again, and so would the error.
        """
        try:
            return self._turn(turn, request, completion, conversation, history)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic inside a tokenizer's or parser's Rust code is not an Exception
            detail = printable(f"turn {turn}: {type(error).__name__}: {error}", DETAIL_CHARS)
            raise RowRefused(Stage.PARSE, ANSWER_UNREADABLE, detail) from error

    def _turn(
        self,
        turn: int,
        request: GenerationRequest,
        completion: Completion,
        conversation: Conversation,
        history: Sequence[Message],
    ) -> Generation:
        text = self._template.decode(completion.token_ids)
        parsed = self._parsed(text, request, completion, conversation)
        labels = self._labels(completion, parsed, history)
        is_good = all(label.is_note for label in labels)
        return Generation(
            turn=turn,
            origin=Origin.TARGET,
            prompt_token_ids=request.prompt_token_ids,
            completion_token_ids=completion.token_ids,
            text=text,
            content=parsed.content,
            finish_reason=completion.finish_reason,
            stop_reason=completion.stop_reason,
            sampling=request.sampling,
            cap=request.cap,
            seed=request.seed,
            reasoning=parsed.reasoning,
            tool_calls_json=self._calls(parsed, history) if parsed.calls and is_good else None,
            labels=labels,
        )

    def _parsed(
        self, text: str, request: GenerationRequest, completion: Completion, conversation: Conversation
    ) -> ParsedAnswer:
        if self._parser is None:
            return ParsedAnswer(_without_stop_string(text, completion, request.sampling))
        whole = self._template.text_with_special_tokens(_without_closing_id(completion, request.sampling))
        parsed = self._parser.parse(
            Answer(
                text=_without_stop_string(whole, completion, request.sampling),
                prompt_tail=self._template.text_with_special_tokens(request.prompt_token_ids[-PROMPT_TAIL_TOKENS:]),
                tools_json=conversation.tools_json,
                template_kwargs=json.loads(effective_template_kwargs(self._setup.run, conversation) or "{}"),
            )
        )
        return replace(parsed, calls=tuple(_storable(call) for call in parsed.calls))

    def _labels(self, completion: Completion, parsed: ParsedAnswer, history: Sequence[Message]) -> tuple[Label, ...]:
        asked = next((message.content or "" for message in reversed(history) if message.role is Role.USER), "")
        ids = completion.token_ids
        made = Made(ids, completion.finish_reason, parsed, has_parser=self._parser is not None, request=asked)
        labels = labels_of(made, self._template.decode)
        return labels if survives_as_text(self._template, ids) else (*labels, Label.RETOKENISES_DIFFERENTLY)

    def _calls(self, parsed: ParsedAnswer, history: Sequence[Message]) -> str:
        earlier = [id_ for message in history for id_ in ids_of(message.tool_calls_json)]
        return calls_json(parsed.calls, self._setup.answers.tool_call_id, earlier)


def effective_template_kwargs(run: RunSetup, conversation: Conversation) -> str | None:
    """What the template was given besides the messages, as JSON text: the spec's, the row's own winning."""
    own = json.loads(conversation.template_kwargs_json) if conversation.template_kwargs_json else {}
    kwargs = {**run.spec.target.template_kwargs, **own}
    return json.dumps(kwargs, sort_keys=True) if kwargs else None


def _without_closing_id(completion: Completion, sampling: Sampling) -> tuple[int, ...]:
    ids = completion.token_ids
    is_closed = completion.finish_reason is FinishReason.STOP and ids and ids[-1] in sampling.stop_token_ids
    return ids[:-1] if is_closed else ids


def _without_stop_string(text: str, completion: Completion, sampling: Sampling) -> str:
    """The engine samples a stop string before it stops at it: it is in the ids, and no part of the answer."""
    if completion.stop_reason not in sampling.stop:
        return text
    at = text.rfind(completion.stop_reason)
    return text if at < 0 else text[:at]  # one that decodes to nothing, a special token, is not in the text


def _storable(call: ToolCall) -> ToolCall:
    """A parser may unfold an escape like \\ud83d into half a character, which no file takes: folded again."""
    return replace(call, name=_SURROGATE.sub(_escaped, call.name), arguments=_SURROGATE.sub(_escaped, call.arguments))


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"
