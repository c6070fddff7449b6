"""First prompts rendered by the target's own template, in order, on every core that may be used.

Guarantees: results come in the order asked for and do not depend on the number of processes; whatever a row does to the
template costs that row. Memory: a bounded number of chunks in flight. Each worker process loads the tokenizer once
(about 1 s and 140 MB); short work is done in this process and starts none. Workers end with their parent.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from types import TracebackType
from typing import TypeVar, cast

from regen.data.template import load_template
from regen.data.text import DETAIL_CHARS, printable
from regen.errors import RegenError, RowRefused
from regen.protocols import ChatTemplate
from regen.records import Conversation, Message, Refusal, Role, Stage

CHUNK_ROWS = 64
_WORK_BEFORE_POOL = 4_000_000
_WORK_PER_ROW = 1_000
_CHUNKS_IN_FLIGHT_PER_PROCESS = 4
UNEXPECTED = "unexpected_error"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RenderJob:
    """A first prompt to render: the messages before the first slot."""

    messages: tuple[Message, ...]
    tools_json: str | None
    template_kwargs_json: str | None


@dataclass(frozen=True, slots=True)
class Rendered:
    """How long the prompt is, or why there is none."""

    prompt_tokens: int
    refusal: Refusal | None = None


def first_prompt(conversation: Conversation) -> RenderJob:
    """What is rendered before the target speaks for the first time."""
    messages = conversation.messages
    first_slot = next(number for number, message in enumerate(messages) if message.role is Role.ASSISTANT)
    return RenderJob(messages[:first_slot], conversation.tools_json, conversation.template_kwargs_json)


def render_jobs(template: ChatTemplate, jobs: Sequence[RenderJob]) -> list[Rendered]:
    """One result a job; never raises for what a row does."""
    return [_render(template, job) for job in jobs]


class Renderer:
    """Renders chunks of jobs with `processes` worker processes (1: all in this process). A context manager."""

    def __init__(
        self, folder: Path, trust_remote_code: bool, template_kwargs: Mapping[str, object], processes: int
    ) -> None:
        self._arguments = (folder, trust_remote_code, dict(template_kwargs))
        self._processes = processes
        self._template: ChatTemplate | None = None
        self._pool: ProcessPoolExecutor | None = None
        self._work = 0

    def __enter__(self) -> Renderer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def map(self, chunks: Iterable[tuple[T, Sequence[RenderJob]]]) -> Iterator[tuple[T, list[Rendered]]]:
        """Each chunk's label with its results, in order. Raises RegenError when a worker process dies."""
        flying: deque[tuple[T, Future[list[Rendered]]]] = deque()
        for label, jobs in chunks:
            flying.append((label, self._submit(jobs)))
            while len(flying) > self._processes * _CHUNKS_IN_FLIGHT_PER_PROCESS or flying[0][1].done():
                yield _landed(*flying.popleft())
                if not flying:
                    break
        while flying:
            yield _landed(*flying.popleft())

    def _submit(self, jobs: Sequence[RenderJob]) -> Future[list[Rendered]]:
        self._work += sum(_work(job) for job in jobs)
        if self._processes > 1 and self._work > _WORK_BEFORE_POOL:
            if self._pool is None:
                self._pool = self._started_pool()
            return self._pool.submit(_render_in_worker, jobs)
        if self._template is None:
            self._template = load_template(*self._arguments)
        done: Future[list[Rendered]] = Future()
        done.set_result(render_jobs(self._template, jobs))
        return done

    def _started_pool(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(
            self._processes, mp_context=get_context("spawn"), initializer=_start_worker, initargs=self._arguments
        )


def _work(job: RenderJob) -> int:
    """In characters; starting the pool costs about as much as four million of them."""
    return _WORK_PER_ROW + sum(len(message.content or "") for message in job.messages)


def _landed(label: T, future: Future[list[Rendered]]) -> tuple[T, list[Rendered]]:
    try:
        return label, future.result()
    except BrokenProcessPool as error:
        raise RegenError(
            "a process that renders prompts died (killed, or out of memory): plan again, perhaps with fewer processes"
        ) from error


def _render(template: ChatTemplate, job: RenderJob) -> Rendered:
    messages = tuple({"role": message.role.value, "content": message.content} for message in job.messages)
    try:
        return Rendered(len(template.render(messages, job.tools_json, job.template_kwargs_json)))
    except RowRefused as error:
        return Rendered(0, Refusal(Stage.RENDER, error.reason, printable(error.detail, DETAIL_CHARS)))
    except Exception as error:
        return Rendered(0, Refusal(Stage.RENDER, UNEXPECTED, type(error).__name__))


# --- in a worker process -------------------------------------------------------------------------

_worker_template: ChatTemplate | None = None


def _start_worker(folder: Path, trust_remote_code: bool, template_kwargs: Mapping[str, object]) -> None:
    global _worker_template
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"
    if not trust_remote_code:
        # A tokenizer does not need torch, and transformers does without: 1.0 s and 139 MB instead of 3.3 s and 481 MB.
        sys.modules["torch"] = None  # type: ignore[assignment]
    _worker_template = load_template(folder, trust_remote_code, template_kwargs)


def _end_with_parent() -> None:
    """A pool's workers wait on a pipe that they hold open themselves: a parent killed -9 would leave them for ever."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _render_in_worker(jobs: Sequence[RenderJob]) -> list[Rendered]:
    return render_jobs(cast(ChatTemplate, _worker_template), jobs)
