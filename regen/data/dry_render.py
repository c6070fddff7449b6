"""One row rendered by the target's own template before any engine is started. Pure: it is handed the template.

Guarantees: whatever a row does to the template costs that row; control tokens in what is given, and tools that the
template does not print, follow their policies. Costs one rendering, two for rows with tools, two a turn of native ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from regen.data.adapters.given import Tokens
from regen.data.control_tokens import CONTROL_TOKENS
from regen.data.native import given_turn, native_turns
from regen.data.reasons import Note
from regen.data.template_messages import template_messages
from regen.data.text import DETAIL_CHARS, printable
from regen.errors import RowRefused
from regen.protocols import ChatTemplate
from regen.records import Conversation, Generation, Message, Refusal, Role, Stage
from regen.spec import PoliciesSpec

UNEXPECTED = "unexpected_error"
TOOLS_UNSEEN = "tools_unseen"


@dataclass(frozen=True, slots=True)
class RenderJob:
    """A row to render. `tokens` are set where it came as ids, and then it has no messages."""

    conversation: Conversation
    is_native: bool = False
    is_reasoning_inline: bool = False
    tokens: Tokens | None = None


@dataclass(frozen=True, slots=True)
class Rendered:
    """How long the first prompt is, and the longest sequence with its answer (native rows); or why there is none."""

    prompt_tokens: int
    refusal: Refusal | None = None
    notes: tuple[Note, ...] = ()
    native: tuple[Generation, ...] = ()

    @property
    def longest_tokens(self) -> int:
        turns = (len(turn.prompt_token_ids) + len(turn.completion_token_ids) for turn in self.native)
        return max(turns, default=self.prompt_tokens)


def before_first_slot(conversation: Conversation) -> tuple[Message, ...]:
    """What stands before the target speaks for the first time."""
    messages = conversation.messages
    first_slot = next(number for number, message in enumerate(messages) if message.role is Role.ASSISTANT)
    return messages[:first_slot]


def dry_render(
    template: ChatTemplate, job: RenderJob, policies: PoliciesSpec, eos_token_ids: Sequence[int]
) -> Rendered:
    """Never raises for what a row does."""
    try:
        if job.tokens is not None:
            return _native((given_turn(template, job.tokens),), ())
        notes = tuple(_judged(template, job, policies))
        if job.is_native:
            return _native(native_turns(template, job.conversation, eos_token_ids, job.is_reasoning_inline), notes)
        return _first_prompt(template, job.conversation, policies, notes)
    except RowRefused as error:
        return Rendered(0, Refusal(Stage.RENDER, str(error.reason), printable(error.detail, DETAIL_CHARS)))
    except Exception as error:
        return Rendered(0, Refusal(Stage.RENDER, UNEXPECTED, type(error).__name__))


def _native(turns: tuple[Generation, ...], notes: tuple[Note, ...]) -> Rendered:
    return Rendered(len(turns[0].prompt_token_ids), notes=notes, native=turns)


def _first_prompt(
    template: ChatTemplate, conversation: Conversation, policies: PoliciesSpec, notes: tuple[Note, ...]
) -> Rendered:
    shown, kwargs = template_messages(before_first_slot(conversation)), conversation.template_kwargs_json
    ids = template.render(shown, conversation.tools_json, kwargs)
    if conversation.tools_json is not None and template.render(shown, None, kwargs) == ids:
        if policies.unseen_tools == "reject":
            raise RowRefused(Stage.RENDER, TOOLS_UNSEEN, "the target's template does not print the row's tools")
        notes += (Note.TOOLS_UNSEEN,)
    return Rendered(len(ids), notes=notes)


def _judged(template: ChatTemplate, job: RenderJob, policies: PoliciesSpec) -> Iterator[Note]:
    """Notes on control tokens in what is given, on all turns; answers and tools cannot be written as text."""
    given = [(where, found) for where, found in _control_tokens(template, job) if found]
    if not given:
        return
    policy = policies.control_tokens
    if policy == "text" and not any(where in ("tools", "assistant") for where, _ in given):
        yield Note.CONTROL_TOKENS_AS_TEXT
    elif policy == "allow":
        yield Note.CONTROL_TOKENS_ALLOWED
    else:
        where, found = next(item for item in given if policy == "reject" or item[0] in ("tools", "assistant"))
        raise RowRefused(Stage.RENDER, CONTROL_TOKENS, f"{' '.join(found)} in {where} text")


def _control_tokens(template: ChatTemplate, job: RenderJob) -> Iterator[tuple[str, tuple[str, ...]]]:
    for message in job.conversation.messages:
        is_answer = message.role is Role.ASSISTANT
        for text in filter(None, (message.content, message.reasoning)):
            yield message.role.value, template.control_tokens(text, only_special=is_answer)
    if job.conversation.tools_json is not None:
        yield "tools", template.control_tokens(job.conversation.tools_json)
