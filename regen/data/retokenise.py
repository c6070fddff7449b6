"""Whether text gives back the ids that the target saw and sampled. Pure: the target's template is handed in.

A trainer that takes messages renders and tokenizes them itself. That is only right where this ends in the very ids of
the run: decoding and encoding again may cut a word elsewhere, templates may rewrite earlier turns, and an answer that
was cut gets a closing that was never sampled. `text_mismatch` says so, and why.

Costs one rendering a conversation that is right, and up to three for one that is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Protocol

from regen.errors import RowRefused
from regen.records import Role, SampledTurn

Messages = tuple[Mapping[str, object], ...]
Ids = tuple[int, ...]


class Mismatch(StrEnum):
    """Why text does not stand for its ids."""

    TEMPLATE_REFUSED = "template_refused"  # the template raises on this conversation
    PROMPT_RENDERS_DIFFERENTLY = "prompt_renders_differently"  # already what the target was given does not come back
    RETOKENISES_DIFFERENTLY = "retokenises_differently"  # the answer's text is encoded to other ids
    TEMPLATE_REWRITES_HISTORY = "template_rewrites_history"  # an answer is right alone, and changed by later turns
    CLOSING_NOT_SAMPLED = "closing_not_sampled"  # the template ends an answer that the target did not end
    CLOSING_NOT_RENDERED = "closing_not_rendered"  # the target ended with an id that the template does not write


class WholeTemplate(Protocol):
    """The target's template, as far as it is needed here. Rendering raises RowRefused."""

    def render(self, messages: Messages, tools_json: str | None, kwargs_json: str | None) -> Ids:
        """Prompt ids for the next assistant turn."""
        ...

    def render_whole(self, messages: Messages, tools_json: str | None, kwargs_json: str | None) -> Ids:
        """Ids of a conversation that is over."""
        ...


class Reencoding(Protocol):
    def reencoded(self, token_ids: Ids) -> Ids:
        """The ids that the text of these ids is encoded to."""
        ...


def survives_as_text(template: Reencoding, token_ids: Ids) -> bool:
    """Whether these ids, alone, come back from their own text. For a share to report; a prompt is not looked at."""
    return template.reencoded(token_ids) == token_ids


def text_mismatch(
    template: WholeTemplate,
    messages: Sequence[Mapping[str, object]],
    turns: Sequence[SampledTurn],
    tools_json: str | None = None,
    kwargs_json: str | None = None,
) -> Mismatch | None:
    """Why rendering `messages` does not give the ids of `turns`; None: it does, for every turn.

    `turns` are those of the assistant messages, in order; the last message is the last turn's. What the template writes
    behind an answer (a line break) is not compared, unless it is an id that would have ended the answer.
    """
    case = _Case(template, tuple(messages), tools_json, kwargs_json)
    try:
        whole = case.whole(len(case.messages))
        for turn, place in zip(turns, case.answers(), strict=True):
            if (mismatch := _of_turn(case, whole, turn, place)) is not None:
                return mismatch
    except RowRefused:
        return Mismatch.TEMPLATE_REFUSED
    return None


class _Case:
    """One conversation with the template that renders it."""

    def __init__(
        self, template: WholeTemplate, messages: Messages, tools_json: str | None, kwargs_json: str | None
    ) -> None:
        self.messages = messages
        self._template = template
        self._given = (tools_json, kwargs_json)

    def answers(self) -> list[int]:
        return [place for place, message in enumerate(self.messages) if message["role"] == Role.ASSISTANT]

    def whole(self, stop: int) -> Ids:
        return self._template.render_whole(self.messages[:stop], *self._given)

    def prompt(self, stop: int) -> Ids:
        return self._template.render(self.messages[:stop], *self._given)


def _of_turn(case: _Case, whole: Ids, turn: SampledTurn, place: int) -> Mismatch | None:
    said = turn.prompt_token_ids + turn.completion_token_ids
    if whole[: len(said)] == said:
        follows = whole[len(said) : len(said) + 1]
        return Mismatch.CLOSING_NOT_SAMPLED if set(follows) & set(turn.stop_token_ids) else None
    if case.prompt(place) != turn.prompt_token_ids:
        return Mismatch.PROMPT_RENDERS_DIFFERENTLY
    alone = case.whole(place + 1)
    if alone[: len(said)] == said:
        return Mismatch.TEMPLATE_REWRITES_HISTORY
    if said[-1] in turn.stop_token_ids and alone == said[:-1]:
        return Mismatch.CLOSING_NOT_RENDERED
    return Mismatch.RETOKENISES_DIFFERENTLY
