"""The two seams: what makes tokens (Engine) and what keeps bytes (Storage). Everything above them is the same code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol

from regen.records import (
    Completion,
    EngineCounters,
    EngineInfo,
    GenerationRequest,
    PlannedRow,
    PlanStage,
    Status,
    TokenScore,
)


class Engine(Protocol):
    """One replica's engine: ids in, ids out. Used from one event loop."""

    async def start(self) -> EngineInfo:
        """Load everything; return when the first request could be answered. Called once.

        Raises EngineStartFailed. The time limit is the caller's.
        """
        ...

    async def generate(self, request: GenerationRequest, on_tokens: Callable[[int], None]) -> Completion:
        """Sample one completion.

        `on_tokens(n)` is called with n new tokens from time to time (large steps): it is the only evidence of life.
        Cancelling the call aborts the request in the engine. The completion holds every sampled id, the closing
        end-of-turn id included.

        Raises RowRefused (never send this again), RowFailed (another attempt may succeed), EngineDied, and, for a
        server that somebody else runs, ServerUnavailable.
        """
        ...

    async def score(self, prompt_token_ids: tuple[int, ...], token_ids: tuple[int, ...]) -> tuple[TokenScore, ...]:
        """How the target itself, without speculation, rates `token_ids` after this prompt: one score per token.

        Read from a single pass over the whole text, in which nothing is drafted. Raises as `generate` does.
        """
        ...

    def counters(self) -> EngineCounters:
        """Totals since start; cheap, never blocks."""
        ...

    async def close(self) -> None:
        """End the engine and every process that it started. May be called in any state, more than once."""
        ...


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object in a store. `key` is relative to the storage's root, with forward slashes; `size` in bytes."""

    key: str
    size: int


class Storage(Protocol):
    """Bytes under one run folder. Keys are relative, with forward slashes. Blocking: call it from a thread.

    All methods raise StoreUnavailable (try the same bytes again) or StoreRefused (never will work).
    """

    @property
    def url(self) -> str:
        """The root as the user would write it."""
        ...

    def create(self, key: str, data: bytes) -> bool:
        """Publish `data` under `key` atomically and durably, if and only if nothing is there.

        Returns False when the key exists already (whoever made it): nothing was changed then.
        """
        ...

    def replace(self, key: str, data: bytes | Path) -> None:
        """Write `data` (bytes, or a local file's content) under `key` atomically, whatever was there."""
        ...

    def read(self, key: str) -> bytes:
        """The whole object. Raises KeyError if there is none."""
        ...

    def open(self, key: str) -> BinaryIO:
        """A seekable reader. Raises KeyError if there is none."""
        ...

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """Every object whose key starts with `prefix`, in key order, never a cached answer, never temporaries."""
        ...

    def delete(self, key: str) -> None:
        """Remove an object; no error if there is none."""
        ...

    def sweep(self) -> int:
        """Remove this storage's own abandoned temporaries; how many there were."""
        ...

    def probe(self) -> None:
        """Check that this place can carry a journal: create, refuse a second create, read back, list, delete.

        Raises StoreRefused naming what failed.
        """
        ...


class ChatTemplate(Protocol):
    """The target's own chat template and tokenizer. Thread-safe; rendering raises RowRefused."""

    def render(
        self, messages: tuple[Mapping[str, object], ...], tools_json: str | None, kwargs_json: str | None
    ) -> tuple[int, ...]:
        """Prompt ids for the next assistant turn, exactly as the template yields them.

        `messages` are what `template_messages` makes of a conversation.
        """
        ...

    def render_whole(
        self, messages: tuple[Mapping[str, object], ...], tools_json: str | None, kwargs_json: str | None
    ) -> tuple[int, ...]:
        """Ids of a conversation that ends with an answer, nothing being opened after it."""
        ...

    def control_tokens(self, text: str, only_special: bool = False) -> tuple[str, ...]:
        """The target's control tokens that stand written out in a text, each once."""
        ...

    @property
    def vocabulary_size(self) -> int:
        """Ids are below it."""
        ...

    def decode(self, token_ids: tuple[int, ...]) -> str:
        """Text without special tokens: a view of the ids."""
        ...

    def text_with_special_tokens(self, token_ids: tuple[int, ...]) -> str:
        """Every id as text, end-of-turn and other control tokens too."""
        ...

    def reencoded(self, token_ids: tuple[int, ...]) -> tuple[int, ...]:
        """The ids that the text of these ids (special tokens included) is encoded to: often others than these."""
        ...


@dataclass(frozen=True, slots=True)
class Answer:
    """One whole answer before it is read.

    `text` has the special tokens that were sampled, except the id (or the stop string) that ended it. `prompt_tail` is
    the end of the prompt's text, for tags that the template has opened there. `template_kwargs` are what the template
    was given: some formats depend on them.
    """

    text: str
    prompt_tail: str = ""
    tools_json: str | None = None
    template_kwargs: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as the target made it. `arguments` is its text, of JSON if the target kept to its format.

    `id` is the one that the target itself has written, None where its format has none.
    """

    name: str
    arguments: str
    id: str | None = None


@dataclass(frozen=True, slots=True)
class ParsedAnswer:
    """An answer read. `content` is what its reader would see.

    `is_thinking_open`: reasoning was begun and not closed. `has_open_call`: a tool call was begun and not
    closed, or nothing could be read from it; `calls` may hold what there was of it.
    """

    content: str
    reasoning: str | None = None
    calls: tuple[ToolCall, ...] = ()
    is_thinking_open: bool = False
    has_open_call: bool = False


class AnswerParser(Protocol):
    """Reads whole answers in the target's own format. Thread-safe."""

    def parse(self, answer: Answer) -> ParsedAnswer:
        """Never raises for what the target said: an answer out of format is content, or an open call."""
        ...


class Plan(Protocol):
    """The frozen plan, read from a run folder. Memory does not grow with the plan: rows are read when asked for."""

    @property
    def count(self) -> int:
        """How many ordinals there are, refused rows included."""
        ...

    @property
    def digest(self) -> str:
        """32 hex digits over every row of the plan."""
        ...

    @property
    def stages(self) -> tuple[PlanStage, ...]:
        """What the plan was before each extension, oldest first, and what it is now: the last has `count` rows."""
        ...

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of the sources, in the order of the spec."""
        ...

    def rows(self, ordinals: Sequence[int]) -> list[PlannedRow]:
        """These rows, in the order asked for. Fast when the ordinals lie near one another."""
        ...

    def sources_of(self, ordinals: Sequence[int]) -> list[str]:
        """The source of each row, in the order asked for, without reading the rows."""
        ...

    def scan(self, start: int = 0, stop: int | None = None) -> Iterator[PlannedRow]:
        """Rows `start` to `stop` in order, a bounded number in memory."""
        ...

    def settled(self) -> Iterator[tuple[int, str, Status]]:
        """(ordinal, source, outcome) of every row that is terminal from the start: refused or native. In order.

        Reads only what it needs.
        """
        ...
