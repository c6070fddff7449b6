"""The target's own chat template and tokenizer, as `protocols.ChatTemplate`.

Guarantees: prompt ids are exactly what the template yields, tokenized once and without a second BOS; whatever a
template or tokenizer raises for a row refuses that row only. Safe to use from many threads: fast tokenizers are, as
long as nobody sets padding or truncation, which is cleared once at load and never touched again; others get a lock.
Costs about 0.2 ms a row of 1,000 characters, and some seconds to load (imports).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from regen.data.call_form import CALL_FORMS, PROBE, CallForm
from regen.data.control_tokens import CONTROL_TOKENS, ControlTokens, Masked
from regen.data.text import DETAIL_CHARS, printable
from regen.data.without_torch import auto_tokenizer
from regen.errors import RowRefused, SpecError
from regen.records import Stage

TEMPLATE_REFUSED = "template_refused"
_OWN_ARGUMENTS = frozenset(
    {
        "conversation",
        "messages",
        "tools",
        "chat_template",
        "add_generation_prompt",
        "continue_final_message",
        "tokenize",
        "padding",
        "truncation",
        "max_length",
        "return_tensors",
        "return_dict",
        "return_assistant_tokens_mask",
        "tokenizer_kwargs",
    }
)
_NO_LENGTH_WARNING = 10**30


class TokenizerTemplate:
    """A loaded tokenizer with its template; made by `load_template`.

    `control_as_text`: control tokens that stand written out in given messages are tokenized as the letters they are.
    `calls_as_given`: calls reach the template as they are, in whatever form; else in the one that it takes.
    """

    def __init__(
        self,
        tokenizer: Any,
        template_kwargs: Mapping[str, object],
        control_as_text: bool = False,
        calls_as_given: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._kwargs = dict(template_kwargs)
        self._turn: AbstractContextManager[object] = nullcontext() if tokenizer.is_fast else threading.Lock()
        added = tokenizer.added_tokens_decoder.values()
        self._control = ControlTokens(((token.content, token.special) for token in added), self.source)
        self._control_as_text = control_as_text
        self._call_form = None if calls_as_given else self._probed_call_form()

    @property
    def source(self) -> str:
        """The template's text as it is in use; several named templates as one JSON text."""
        template = self._tokenizer.chat_template
        return template if isinstance(template, str) else json.dumps(template, sort_keys=True)

    @property
    def eos_token_id(self) -> int | None:
        found = self._tokenizer.eos_token_id
        return found if isinstance(found, int) else None

    @property
    def vocabulary_size(self) -> int:
        return len(self._tokenizer)

    def render(
        self, messages: tuple[Mapping[str, object], ...], tools_json: str | None, kwargs_json: str | None
    ) -> tuple[int, ...]:
        """Prompt ids for the next assistant turn. The row's kwargs win over the spec's. Raises RowRefused."""
        return self._rendered(messages, tools_json, kwargs_json, opens_answer=True)

    def render_whole(
        self, messages: tuple[Mapping[str, object], ...], tools_json: str | None, kwargs_json: str | None
    ) -> tuple[int, ...]:
        """Ids of a conversation that ends with an answer, no prompt for another turn behind it. Raises RowRefused."""
        return self._rendered(messages, tools_json, kwargs_json, opens_answer=False)

    def control_tokens(self, text: str, only_special: bool = False) -> tuple[str, ...]:
        """The target's control tokens that stand in a text, each once."""
        return self._control.found(text, only_special)

    def _rendered(
        self,
        messages: tuple[Mapping[str, object], ...],
        tools_json: str | None,
        kwargs_json: str | None,
        opens_answer: bool,
    ) -> tuple[int, ...]:
        _check_content(messages)
        messages = tuple(self._as_taken(message) for message in messages)
        arguments = {
            "tools": None if tools_json is None else json.loads(tools_json),
            "add_generation_prompt": opens_answer,
            **self._kwargs,
            **_row_kwargs(kwargs_json),
        }
        masked = self._control.masked(messages, tools_json or "") if self._control_as_text else None
        try:
            with self._turn:
                ids = self._ids(messages, arguments) if masked is None else self._ids_of_pieces(masked, arguments)
        except (KeyboardInterrupt, SystemExit, RowRefused):
            raise
        except BaseException as error:  # a panic inside the tokenizer's Rust code is not an Exception
            raise RowRefused(Stage.RENDER, TEMPLATE_REFUSED, _detail(error)) from error
        if not ids:
            raise RowRefused(Stage.RENDER, TEMPLATE_REFUSED, "the template yields an empty prompt")
        return ids

    def _as_taken(self, message: Mapping[str, object]) -> Mapping[str, object]:
        """Calls as the template takes them, however they are given."""
        calls, form = message.get("tool_calls"), self._call_form
        if form is None or not isinstance(calls, list):
            return message
        content = message["content"] or (None if form.without_content else "")
        return {**message, "content": content, "tool_calls": [form.of(call) for call in calls]}

    def _probed_call_form(self) -> CallForm:
        """The first form in which the template writes a call's name and arguments, the latter not quoted once more.

        Text comes first: those are the target's own words. Others take objects: of text they make a quoted string, or
        raise. Some leave out the calls of an answer that has any content, be it empty.
        """
        for form in CALL_FORMS:
            message = {"role": "assistant", "content": None if form.without_content else "", "tool_calls": [PROBE]}
            try:
                made = self._tokenizer.apply_chat_template(
                    [{"role": "user", "content": "?"}, {**message, "tool_calls": [form.of(PROBE)]}],
                    tokenize=False,
                    **self._kwargs,
                )
            except Exception:  # templates raise what they like; one that does not take this may take another
                continue
            if form.is_written(made):
                return form
        return CallForm()

    def _ids(self, messages: tuple[Mapping[str, object], ...], arguments: Mapping[str, object]) -> tuple[int, ...]:
        made = self._tokenizer.apply_chat_template(
            [dict(message) for message in messages], tokenize=True, return_dict=True, **arguments
        )
        return tuple(made["input_ids"])

    def _ids_of_pieces(self, masked: Masked, arguments: Mapping[str, object]) -> tuple[int, ...]:
        """Rendered as text, then tokenized piece by piece. Refused where the tokenizer does not give the text back."""
        made = self._tokenizer.apply_chat_template(
            [dict(message) for message in masked.messages], tokenize=False, **arguments
        )
        pieces = masked.pieces(made)
        ids = [id_ for text, is_literal in pieces for id_ in self._piece_ids(text, is_literal)]
        again = self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        if again != "".join(text for text, _ in pieces):
            detail = f"this tokenizer cannot write {masked.literals[0]} as text"
            raise RowRefused(Stage.RENDER, CONTROL_TOKENS, detail)
        return tuple(ids)

    def _piece_ids(self, text: str, is_literal: bool) -> list[int]:
        """A literal is cut until no part of it is a control token."""
        if is_literal and len(text) > 1 and self._control.found(text, only_special=False):
            cut = len(text) // 2
            return self._piece_ids(text[:cut], True) + self._piece_ids(text[cut:], True)
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def decode(self, token_ids: tuple[int, ...]) -> str:
        """Text without special tokens: a view of the ids."""
        with self._turn:
            text = self._tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return str(text)

    def text_with_special_tokens(self, token_ids: tuple[int, ...]) -> str:
        """Every id as text, end-of-turn and other control tokens too."""
        with self._turn:
            return str(self._tokenizer.decode(list(token_ids), clean_up_tokenization_spaces=False))

    def reencoded(self, token_ids: tuple[int, ...]) -> tuple[int, ...]:
        """The ids that the text of these ids (special tokens included) is encoded to: often others than these."""
        text = self.text_with_special_tokens(token_ids)
        with self._turn:
            return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    def ids_of_text(self, text: str) -> tuple[int, ...] | None:
        """The ids of a text that holds no special token, where they give just this text back; else None."""
        with self._turn:
            ids = tuple(self._tokenizer.encode(text, add_special_tokens=False))
        return ids if self.decode(ids) == text else None

    @property
    def tokenizer(self) -> Any:
        """The tokenizer itself, for what reads answers with it. It must not be changed."""
        return self._tokenizer


def load_template(
    folder: Path,
    trust_remote_code: bool,
    template_kwargs: Mapping[str, object],
    control_as_text: bool = False,
    calls_as_given: bool = False,
) -> TokenizerTemplate:
    """Load tokenizer and template from a local folder; no weights, no network. The last two: `TokenizerTemplate`.

    Raises SpecError: the tokenizer cannot be loaded, there is no chat template, it is no template or wants what the
    sandbox that it runs in forbids, or a template kwarg is regen's own.
    """
    if taken := sorted(_OWN_ARGUMENTS & template_kwargs.keys()):
        raise SpecError(f"target.template_kwargs.{taken[0]}: regen sets this itself; take it out")
    tokenizer = _load_tokenizer(folder, trust_remote_code)
    if not tokenizer.chat_template:
        raise SpecError(
            f"target.model: {folder} has no chat template, so no prompt can be made."
            " Use the instruct version of the model, or put a chat_template.jinja into a local copy."
        )
    if tokenizer.is_fast:
        tokenizer.backend_tokenizer.no_truncation()
        tokenizer.backend_tokenizer.no_padding()
    tokenizer.model_max_length = _NO_LENGTH_WARNING
    _require_harmless(tokenizer, folder, template_kwargs)
    return TokenizerTemplate(tokenizer, template_kwargs, control_as_text, calls_as_given)


def _load_tokenizer(folder: Path, trust_remote_code: bool) -> Any:
    tokenizer = auto_tokenizer(trust_remote_code)
    try:
        return tokenizer.from_pretrained(str(folder), trust_remote_code=trust_remote_code, local_files_only=True)
    except Exception as error:
        raise SpecError(
            f"target.model: no tokenizer can be loaded from {folder}: {_detail(error)}."
            " A target needs its tokenizer files beside config.json"
            " (and target.trust_remote_code where the tokenizer brings its own Python code)."
        ) from error


def _require_harmless(tokenizer: Any, folder: Path, template_kwargs: Mapping[str, object]) -> None:
    """Templates come with models and run in jinja2's sandbox, by transformers. One that leaves it, or is none, is said
    at once instead of once a row. What else it raises, of a conversation as short as this, is no fault yet."""
    from jinja2.exceptions import SecurityError, TemplateSyntaxError

    try:
        tokenizer.apply_chat_template([{"role": "user", "content": "?"}], tokenize=False, **template_kwargs)
    except (SecurityError, TemplateSyntaxError, OverflowError) as error:  # the last: the sandbox bounds `range`
        raise SpecError(
            f"target.model: the chat template of {folder} cannot be used: {_detail(error)}."
            " It runs in a sandbox, without access to Python: take another copy of the model, or mend the template."
        ) from error
    except Exception:
        return


def _check_content(messages: tuple[Mapping[str, object], ...]) -> None:
    """A template given anything but text either raises or prints the Python value into the prompt."""
    for message in messages:
        if not isinstance(message.get("content"), str):
            found = type(message.get("content")).__name__
            raise RowRefused(Stage.RENDER, "content_not_text", f"a {message.get('role')} message holds {found}")


def _row_kwargs(kwargs_json: str | None) -> dict[str, Any]:
    kwargs = {} if kwargs_json is None else json.loads(kwargs_json)
    if not isinstance(kwargs, dict):
        raise RowRefused(Stage.RENDER, "bad_template_kwargs", f"found {type(kwargs).__name__}, not an object")
    if taken := sorted(_OWN_ARGUMENTS & kwargs.keys()):
        raise RowRefused(Stage.RENDER, "bad_template_kwargs", f"{taken[0]} is set by regen itself")
    return kwargs


def _detail(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return printable(f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__, DETAIL_CHARS)
