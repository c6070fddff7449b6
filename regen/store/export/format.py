"""What a format is: how kept rows become records of one trainer. Pure.

Two kinds: formats of ids have one record a generation and look at no text; formats of text have one record a
conversation, and a record is made only if rendering it as the trainer does gives the ids of the run (`TextCheck`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from regen.records import SampledTurn
from regen.store.export.conversation import NO_TOOLS, ConversationText, Fields, conversation_text
from regen.store.export.selection import Kept, LeftOut
from regen.store.export.tokens import MaskedTokens, masked_tokens


class TextCheck(Protocol):
    """Handed in by whoever has the target's template."""

    def __call__(
        self,
        messages: Sequence[Mapping[str, object]],
        turns: Sequence[SampledTurn],
        tools_json: str | None,
        kwargs_json: str | None,
    ) -> str | None:
        """Why the template does not give these turns' ids for these messages; None: it does."""
        ...


@dataclass(frozen=True, slots=True)
class LengthLimit:
    """Where the trainer cuts a record unless told otherwise: the name of its setting, and its default in tokens.

    `default_tokens` None: it has no default, the recipe must say.
    """

    setting: str
    default_tokens: int | None


@dataclass(frozen=True, slots=True)
class Record:
    """One line or row of the export. `tokens` in all, `context_tokens` of them before the first one trained on."""

    values: dict[str, Any]
    split: str
    tokens: int
    context_tokens: int
    trained_tokens: int
    generations: int


class Format(Protocol):
    """One of `formats.FORMATS`."""

    @property
    def name(self) -> str: ...

    @property
    def suffix(self) -> str:
        """`jsonl` or `parquet`."""
        ...

    @property
    def limit(self) -> LengthLimit | None: ...

    @property
    def guide(self) -> str:
        """For the dataset card: how the trainer is pointed at it. May name `{before}`, `{closing}` and `{behind}`."""
        ...

    @property
    def reads_text(self) -> bool:
        """Whether the trainer tokenizes: then a TextCheck and the Fields are needed."""
        ...

    @property
    def trains_behind_answers(self) -> bool:
        """Whether the trainer's mask also covers what the template writes behind an answer's end."""
        ...

    def features(self, fields: Fields) -> list[dict[str, Any]] | None:
        """The columns as a dataset card declares them, where `datasets` could not tell them from the first rows."""
        ...

    def records(self, kept: Kept, fields: Fields, check: TextCheck | None) -> Iterator[Record | LeftOut]:
        """One for each record that the row should give: the record, or why it cannot be."""
        ...


@dataclass(frozen=True, slots=True)
class TokenFormat:
    """Ids and mask, one record a generation."""

    name: str
    limit: LengthLimit
    guide: str
    suffix: str = "jsonl"
    reads_text: bool = False
    trains_behind_answers: bool = False

    def features(self, fields: Fields) -> list[dict[str, Any]] | None:
        return None

    def records(self, kept: Kept, fields: Fields, check: TextCheck | None) -> Iterator[Record | LeftOut]:
        for generation in kept.generations:
            tokens = masked_tokens(generation)
            yield tokens if isinstance(tokens, LeftOut) else self._record(kept, generation["turn"], tokens)

    def _record(self, kept: Kept, turn: int, tokens: MaskedTokens) -> Record:
        return Record(
            values={
                "id": f"{kept.row['row_id']}-{turn}",
                "source": kept.row["source"],
                "input_ids": tokens.input_ids,
                "loss_mask": tokens.loss_mask,
            },
            split=kept.split,
            tokens=len(tokens.input_ids),
            context_tokens=tokens.loss_mask.index(1),
            trained_tokens=sum(tokens.loss_mask),
            generations=1,
        )


class TextShape(Protocol):
    """How one trainer holds a conversation, and what its reader makes of that."""

    def values(self, conversation: ConversationText, fields: Fields) -> dict[str, Any] | LeftOut:
        """The record."""
        ...

    def rendered_messages(self, conversation: ConversationText, fields: Fields) -> Sequence[Mapping[str, Any]]:
        """The messages as the trainer's reader hands them to the chat template."""
        ...

    def rendered_kwargs(self, conversation: ConversationText, fields: Fields) -> Mapping[str, Any]:
        """The template kwargs as the trainer passes them: none where the format has no place for them."""
        ...


@dataclass(frozen=True, slots=True)
class TextFormat:
    """Messages, one record a conversation."""

    name: str
    shape: TextShape
    guide: str
    limit: LengthLimit | None = None
    trains_behind_answers: bool = False
    suffix: str = "jsonl"
    reads_text: bool = True
    declared: Callable[[Fields], list[dict[str, Any]] | None] | None = None

    def features(self, fields: Fields) -> list[dict[str, Any]] | None:
        return None if self.declared is None else self.declared(fields)

    def records(self, kept: Kept, fields: Fields, check: TextCheck | None) -> Iterator[Record | LeftOut]:
        if check is None:
            raise ValueError(f"{self.name} holds text, which must be checked")
        conversation = conversation_text(kept)
        yield conversation if isinstance(conversation, LeftOut) else self._checked(conversation, fields, check)

    def _checked(self, conversation: ConversationText, fields: Fields, check: TextCheck) -> Record | LeftOut:
        values = self.shape.values(conversation, fields)
        if isinstance(values, LeftOut):
            return values
        mismatch = check_text(self.shape, conversation, fields, check)
        if mismatch is not None:
            return LeftOut(mismatch)
        return Record(
            values=values,
            split=conversation.split,
            tokens=conversation.tokens,
            context_tokens=len(conversation.turns[0].prompt_token_ids),
            trained_tokens=conversation.trained_tokens,
            generations=len(conversation.turns),
        )


def check_text(shape: TextShape, conversation: ConversationText, fields: Fields, check: TextCheck) -> str | None:
    """The check, on what this trainer's reader would render."""
    kwargs = dict(shape.rendered_kwargs(conversation, fields))
    mismatch = check(
        shape.rendered_messages(conversation, fields),
        conversation.turns,
        None if conversation.tools_json == NO_TOOLS else conversation.tools_json,
        json.dumps(kwargs, sort_keys=True) if kwargs else None,
    )
    if mismatch is not None and kwargs != dict(conversation.template_kwargs):
        return f"{mismatch} (the format has no place for its template kwargs)"
    return mismatch
