"""An engine's warm-up: real first prompts of the plan, at the run's concurrency, until the gate can tell.

Guarantees: nothing that is made here is kept; a row's failure costs that row only; it ends with a verdict, or when more
answers would hardly bring one, or after `warmup.seconds`; no draft counts twice. Degenerate answers do not count, and
neither do the canary's: greedy answers, made while the other slots are busy, that the target then rates without
speculation.

Costs: some hundred verification steps, and one prefill for each canary row; seconds on most engines.
"""

from __future__ import annotations

import asyncio
import itertools
import time
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from regen.degenerate import looks_degenerate
from regen.errors import EngineError, RowError
from regen.protocols import Engine
from regen.records import (
    Acceptance,
    CanaryMiss,
    Completion,
    FinishReason,
    GenerationRequest,
    PlannedRow,
    Sampling,
    TokenScore,
    WarmupReport,
)
from regen.spec import SpeculationSpec
from regen.speculative.drafting import drafts_on_matches
from regen.speculative.gate import GateVerdict, could_tell_more, judge

# Rating an answer takes log probabilities of everything before it: some engines hold 4 bytes for each token of the
# prompt and each word of the vocabulary at once, 0.6 GB here with 150,000 words.
CANARY_PROMPT_TOKENS = 1024

Prepare = Callable[[PlannedRow], Awaitable[GenerationRequest]]


async def warm_up(
    rows: Sequence[PlannedRow],
    speculation: SpeculationSpec,
    prepare: Prepare,
    engine: Engine,
    slots: int,
    on_tokens: Callable[[int], None] = lambda count: None,
    temperature: float = 0.0,
) -> WarmupReport:
    """What this engine shows with these rows, `slots` at once.

    `prepare` makes a row's first request as the run would (its cap is cut here) and may raise RowError; `on_tokens` is
    called as in `Engine.generate`, for whoever looks for stalls; `temperature` is what the run samples at. Raises
    EngineDied.
    """
    return await _WarmUp(rows, speculation, prepare, engine, slots, on_tokens, temperature).run()


@dataclass(frozen=True, slots=True)
class _Task:
    """One answer to ask for. In every round but the first, a row is asked with another seed.

    `said`: what the row's answer has said so far, where this one goes on with it.
    """

    row: PlannedRow
    round: int
    is_canary: bool
    said: tuple[int, ...] = ()


class _WarmUp:
    def __init__(
        self,
        rows: Sequence[PlannedRow],
        speculation: SpeculationSpec,
        prepare: Prepare,
        engine: Engine,
        slots: int,
        on_tokens: Callable[[int], None],
        temperature: float,
    ) -> None:
        self._rows = rows
        self._speculation = speculation
        self._settings = speculation.warmup
        self._prepare = prepare
        self._engine = engine
        self._slots = slots
        self._on_tokens = on_tokens
        self._temperature = temperature
        self._before = engine.counters()
        self._requests: dict[int, GenerationRequest] = {}
        self._numbers = itertools.count()
        self._cut: deque[_Task] = deque()
        self._canary_ordinals = {row.ordinal for row in _shortest(rows, self._settings.canary_rows)}
        self._canaries_left = len(self._canary_ordinals)
        self._canary_answers: list[tuple[PlannedRow, GenerationRequest, Completion]] = []
        self._answers = self._degenerate = self._output_tokens = 0
        self._failures_in_a_row = 0
        self._left_out = Acceptance()
        self._all_counted_zero = True

    async def run(self) -> WarmupReport:
        started = time.monotonic()
        await self._load()
        report = self._report()  # before the canary is rated: that adds to no counter of speculation
        misses = [await self._rate(*answer) for answer in self._canary_answers]
        rated = [found for found in misses if found is not None]
        return replace(
            report,
            seconds=time.monotonic() - started,
            canary_answers=len(rated),
            canary_misses=tuple(miss for found in rated for miss in found),
        )

    # --- load ------------------------------------------------------------------------------------

    async def _load(self) -> None:
        """Every slot busy until it is decided, or every row was asked; whatever runs when it is decided is dropped."""
        tasks, deadline = self._tasks(), time.monotonic() + self._settings.seconds
        work = {asyncio.ensure_future(self._fill_slot(tasks)) for _ in range(self._slots)}
        pending = work
        try:
            while pending and (left := deadline - time.monotonic()) > 0:
                ended, pending = await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                if any(slot.result() for slot in ended):
                    break
        finally:
            for slot in work:
                slot.cancel()
            await asyncio.gather(*work, return_exceptions=True)

    async def _fill_slot(self, tasks: Iterator[_Task]) -> bool:
        """Answer after answer. True: it is decided, or no row at all can be asked; False: no row is left to ask."""
        while (task := next(tasks, None) or self._next_cut()) is not None:
            try:
                await self._answer(task)
                self._failures_in_a_row = 0
            except RowError:
                self._failures_in_a_row += 1  # the run itself will meet this row again, and write down what is wrong
            except EngineError:
                raise
            except Exception:  # a defect, and no reason to replace the engine: its successor would meet the same row
                traceback.print_exc()
                self._failures_in_a_row += 1
            finally:
                self._canaries_left -= task.is_canary
            if self._is_decided() or self._failures_in_a_row >= len(self._rows):
                return True
        return False

    def _tasks(self) -> Iterator[_Task]:
        """The rows over and over, the canary's among them in the first round.

        Only once with a method that drafts on matches: more of the same rows would show more of the same matches, and a
        short run is not to spend longer on its warm-up than on its rows. Only once, too, where a seed changes nothing:
        there, what was cut is gone on with.
        """
        is_once = drafts_on_matches(self._speculation) or self._temperature == 0
        for turn in range(1) if is_once else itertools.count():
            rows = [row for row in self._rows if not (turn and self._is_greedy(row))]
            if not rows:
                return
            for row in rows:
                yield _Task(row, turn, is_canary=False)
                if turn == 0 and row.ordinal in self._canary_ordinals:
                    yield _Task(row, turn, is_canary=True)

    def _is_greedy(self, row: PlannedRow) -> bool:
        request = self._requests.get(row.ordinal)
        return request is not None and request.sampling.temperature == 0

    def _next_cut(self) -> _Task | None:
        return self._cut.popleft() if self._cut else None

    def _go_on(self, task: _Task, completion: Completion) -> None:
        """A greedy answer that was cut here goes on, up to the row's own cap: more drafts, and none of them twice."""
        said, cap = task.said + completion.token_ids, self._requests[task.row.ordinal].cap
        is_cut = completion.finish_reason is FinishReason.LENGTH and len(said) < cap
        if is_cut and self._is_greedy(task.row) and not drafts_on_matches(self._speculation):
            self._cut.append(replace(task, said=said))

    async def _answer(self, task: _Task) -> None:
        request = await self._request(task)
        if task.round and request.sampling.temperature == 0:
            return  # it was not known yet when this was due that a seed changes nothing here
        completion = await self._engine.generate(request, self._on_tokens)
        if completion.acceptance is None or completion.acceptance.drafts:
            self._all_counted_zero = False
        if task.is_canary:
            self._canary_answers.append((task.row, request, completion))
            self._left_out += completion.acceptance or Acceptance()
        elif _is_degenerate(completion):
            self._degenerate += 1
            self._left_out += completion.acceptance or Acceptance()
        else:
            self._answers += 1
            self._output_tokens += len(completion.token_ids)
            self._go_on(task, completion)

    async def _request(self, task: _Task) -> GenerationRequest:
        ordinal = task.row.ordinal
        if ordinal not in self._requests:
            self._requests[ordinal] = await self._prepare(task.row)
        request = self._requests[ordinal]
        return replace(
            request,
            request_id=f"warmup-{next(self._numbers)}-{request.request_id}",
            sampling=greedy(request.sampling) if task.is_canary else request.sampling,
            prompt_token_ids=request.prompt_token_ids + task.said,
            cap=min(request.cap - len(task.said), self._settings.max_tokens),
            seed=None if request.seed is None else request.seed + task.round,
        )

    def _is_decided(self) -> bool:
        if self._canaries_left:
            return False
        report = self._report()
        result = judge(report, self._speculation, is_final=False, temperature=self._temperature)
        return result.verdict is not GateVerdict.UNDECIDED or not could_tell_more(report, self._speculation)

    # --- what was seen ---------------------------------------------------------------------------

    def _report(self) -> WarmupReport:
        """Of the tokens no more than the counters cover: a server may not have counted the last ones yet."""
        counted, tokens = self._engine.counters().counted_tokens, self._output_tokens
        if counted is not None:
            tokens = min(tokens, counted - (self._before.counted_tokens or 0))
        return WarmupReport(0.0, self._answers, self._degenerate, tokens, self._acceptance())

    def _acceptance(self) -> Acceptance | None:
        """None: not counted. An engine that says of each answer that nothing was drafted does count."""
        now = self._engine.counters().acceptance
        if now is None:
            return Acceptance() if self._answers and self._all_counted_zero else None
        return _less(_less(now, self._before.acceptance or Acceptance()), self._left_out)

    async def _rate(
        self, row: PlannedRow, request: GenerationRequest, completion: Completion
    ) -> tuple[CanaryMiss, ...] | None:
        """The miss of one canary answer, if any; None if the engine could not rate it."""
        try:
            scores = await self._engine.score(request.prompt_token_ids, completion.token_ids)
        except RowError:
            return None
        except EngineError:
            raise
        except Exception:  # as in `_fill_slot`
            traceback.print_exc()
            return None
        self._on_tokens(len(scores))
        return first_miss(row.row_id, scores, self._settings.canary_margin)


def first_miss(row_id: str, scores: Sequence[TokenScore], margin: float) -> tuple[CanaryMiss, ...]:
    """The first token of a greedy answer that lies more than `margin` nats below the target's best; empty if none."""
    for position, score in enumerate(scores):
        if (below := score.best_logprob - score.logprob) > margin:
            return (CanaryMiss(row_id, position, below),)
    return ()


def greedy(sampling: Sampling) -> Sampling:
    """Greedy, and without anything that moves the target's own ranking: only ids that end an answer stay."""
    return replace(
        sampling,
        temperature=0.0,
        top_p=1.0,
        top_k=0,
        min_p=0.0,
        presence_penalty=0.0,
        frequency_penalty=0.0,
        repetition_penalty=1.0,
        stop=(),
    )


def _is_degenerate(completion: Completion) -> bool:
    is_empty = completion.finish_reason is FinishReason.STOP and len(completion.token_ids) <= 1
    return is_empty or completion.finish_reason is FinishReason.REPETITION or looks_degenerate(completion.token_ids)


def _shortest(rows: Sequence[PlannedRow], count: int) -> list[PlannedRow]:
    """So many rows at the most, by first prompt, and none beyond the bound. A length of 0 is one that is not known."""
    fitting = [row for row in rows if row.prompt_tokens <= CANARY_PROMPT_TOKENS]
    return sorted(fitting, key=lambda row: row.prompt_tokens)[:count]


def _less(total: Acceptance, part: Acceptance) -> Acceptance:
    """`total` without `part`, never below zero: an engine may count one draft more or less than its requests do."""
    length = max(len(total.accepted_by_position), len(part.accepted_by_position))
    by_position = [max(0, _at(total, position) - _at(part, position)) for position in range(length)]
    return Acceptance(
        max(0, total.drafts - part.drafts),
        max(0, total.drafted - part.drafted),
        max(0, total.accepted - part.accepted),
        tuple(by_position),
    )


def _at(acceptance: Acceptance, position: int) -> int:
    by_position = acceptance.accepted_by_position
    return by_position[position] if position < len(by_position) else 0
