"""Finished rows and a plan in memory, for tests of what stores and reads them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

from regen.records import (
    Acceptance,
    Conversation,
    FinishReason,
    Generation,
    Message,
    Observed,
    ObservedGeneration,
    Origin,
    OutputRow,
    PlannedRow,
    PlanStage,
    Refusal,
    Role,
    Sampling,
    Split,
    Stage,
    Status,
)

SAMPLING = Sampling(
    max_tokens=64,
    temperature=0.6,
    top_p=1.0,
    top_k=0,
    min_p=0.0,
    presence_penalty=0.0,
    frequency_penalty=0.0,
    repetition_penalty=1.0,
    stop=(),
    stop_token_ids=(2,),
)


def row_id(ordinal: int) -> str:
    """32 hex digits, different for every ordinal."""
    return hashlib.blake2b(str(ordinal).encode(), digest_size=16).hexdigest()


def source_of(ordinal: int) -> str:
    """Three sources, interleaved."""
    return ("chat", "math", "code")[ordinal % 3]


def generation(turn: int = 0, tokens: int = 5, text: str = "an answer") -> Generation:
    return Generation(
        turn=turn,
        origin=Origin.TARGET,
        prompt_token_ids=tuple(range(turn + 3)),
        completion_token_ids=tuple(range(100, 100 + tokens)),
        text=text,
        content=text,
        finish_reason=FinishReason.STOP,
        stop_reason=None,
        sampling=SAMPLING,
        cap=64,
        seed=7,
    )


def observed_generation(turn: int = 0, acceptance: Acceptance | None = None) -> ObservedGeneration:
    return ObservedGeneration(turn, acceptance, 0.1, 0.2, 0.3)


def observed(
    generations: tuple[ObservedGeneration, ...] = (observed_generation(acceptance=Acceptance(4, 12, 6, (3, 2, 1))),),
    session: str = "s1",
    replica: int = 0,
) -> Observed:
    return Observed(
        replica=replica,
        session=session,
        attempts=1,
        engine="fake 1",
        draft=None,
        fingerprint="f" * 32,
        generations=generations,
    )


def output_row(
    ordinal: int,
    *,
    status: Status = Status.OK,
    round_: int = 0,
    tokens: int = 5,
    turns: int = 1,
    text: str = "an answer",
    seen: Observed | None = None,
) -> OutputRow:
    """One finished row. Every part that counts in totals can be chosen; the rest follows from the ordinal."""
    return OutputRow(
        ordinal=ordinal,
        row_id=row_id(ordinal),
        source=source_of(ordinal),
        location=f"data.jsonl:{ordinal + 1}",
        source_id=None,
        status=status,
        round=round_,
        messages=(Message(Role.USER, f"question {ordinal}"), Message(Role.ASSISTANT, text)),
        generations=tuple(generation(turn, tokens, text) for turn in range(turns)),
        observed=seen if seen is not None else observed(),
    )


def planned_row(ordinal: int, refusal: Refusal | None = None) -> PlannedRow:
    """What `output_row` of this ordinal is the result of."""
    return PlannedRow(
        ordinal=ordinal,
        row_id=row_id(ordinal),
        source=source_of(ordinal),
        location=f"data.jsonl:{ordinal + 1}",
        source_id=None,
        conversation=Conversation((Message(Role.USER, f"question {ordinal}"), Message(Role.ASSISTANT, None))),
        prompt_tokens=3,
        refusal=refusal,
    )


def native_row(ordinal: int) -> PlannedRow:
    """A row that passes through, with two turns of which nobody knows how they were sampled."""
    turns = tuple(
        replace(generation(turn), origin=Origin.NATIVE, finish_reason=None, sampling=None, cap=None, seed=None)
        for turn in range(2)
    )
    answers = tuple(Message(Role.ASSISTANT, turn.content) for turn in turns)
    conversation = Conversation((Message(Role.USER, f"question {ordinal}"), *answers))
    return replace(planned_row(ordinal), conversation=conversation, native=turns, split=Split.EVAL)


class MemoryPlan:
    """A `Plan` of `planned_row`s: `refused_ordinals` are refused, with a reason that their parity decides."""

    def __init__(self, count: int, refused_ordinals: Sequence[int] = (), native_ordinals: Sequence[int] = ()) -> None:
        self._rows = [
            planned_row(ordinal, _refusal(ordinal) if ordinal in refused_ordinals else None) for ordinal in range(count)
        ]
        for ordinal in native_ordinals:
            self._rows[ordinal] = native_row(ordinal)
        self.before: tuple[PlanStage, ...] = ()

    @property
    def count(self) -> int:
        return len(self._rows)

    @property
    def digest(self) -> str:
        whole = hashlib.blake2b(digest_size=16)
        for row in self._rows:
            whole.update(f"{row.row_id} {row.refusal}\n".encode())
        return whole.hexdigest()

    @property
    def stages(self) -> tuple[PlanStage, ...]:
        return (*self.before, PlanStage(self.count, self.digest))

    @property
    def sources(self) -> tuple[str, ...]:
        return ("chat", "math", "code")

    def extended(self, count: int) -> MemoryPlan:
        """The same plan with further rows, up to `count`; all of them are to be made."""
        made = MemoryPlan(count)
        made._rows[: self.count] = self._rows
        made.before = self.stages
        return made

    def rows(self, ordinals: Sequence[int]) -> list[PlannedRow]:
        return [self._rows[ordinal] for ordinal in ordinals]

    def sources_of(self, ordinals: Sequence[int]) -> list[str]:
        return [self._rows[ordinal].source for ordinal in ordinals]

    def scan(self, start: int = 0, stop: int | None = None) -> Iterator[PlannedRow]:
        return iter(self._rows[start:stop])

    def settled(self) -> Iterator[tuple[int, str, Status]]:
        return ((row.ordinal, row.source, row.settled) for row in self._rows if row.settled is not None)


def _refusal(ordinal: int) -> Refusal:
    if ordinal % 2:
        return Refusal(Stage.LENGTH, "prompt_too_long", f"{ordinal} tokens")
    return Refusal(Stage.NORMALIZE, "empty")
