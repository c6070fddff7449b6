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
from dataclasses import dataclass, field
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from types import TracebackType
from typing import TypeVar, cast

from regen.data.dry_render import Rendered, RenderJob, dry_render
from regen.data.template import load_template
from regen.errors import RegenError
from regen.protocols import ChatTemplate
from regen.spec import PoliciesSpec

CHUNK_ROWS = 64
_WORK_BEFORE_POOL = 4_000_000
_WORK_PER_ROW = 1_000
_CHUNKS_IN_FLIGHT_PER_PROCESS = 4

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RenderSetup:
    """The target's folder, and what rendering goes by. Picklable."""

    folder: Path
    trust_remote_code: bool = False
    template_kwargs: Mapping[str, object] = field(default_factory=dict)
    policies: PoliciesSpec = field(default_factory=PoliciesSpec)
    eos_token_ids: tuple[int, ...] = ()

    def load(self) -> ChatTemplate:
        """The template. Raises SpecError."""
        as_text = self.policies.control_tokens == "text"
        return load_template(self.folder, self.trust_remote_code, self.template_kwargs, as_text)


def render_jobs(template: ChatTemplate, setup: RenderSetup, jobs: Sequence[RenderJob]) -> list[Rendered]:
    """One result a job; never raises for what a row does."""
    return [dry_render(template, job, setup.policies, setup.eos_token_ids) for job in jobs]


class Renderer:
    """Renders chunks of jobs with `processes` worker processes (1: all in this process). A context manager."""

    def __init__(self, setup: RenderSetup, processes: int) -> None:
        self._setup = setup
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
            self._template = self._setup.load()
        done: Future[list[Rendered]] = Future()
        done.set_result(render_jobs(self._template, self._setup, jobs))
        return done

    def _started_pool(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(
            self._processes, mp_context=get_context("spawn"), initializer=_start_worker, initargs=(self._setup,)
        )


def _work(job: RenderJob) -> int:
    """In characters; starting the pool costs about as much as four million of them."""
    return _WORK_PER_ROW + sum(len(message.content or "") for message in job.conversation.messages)


def _landed(label: T, future: Future[list[Rendered]]) -> tuple[T, list[Rendered]]:
    try:
        return label, future.result()
    except BrokenProcessPool as error:
        raise RegenError(
            "a process that renders prompts died (killed, or out of memory): plan again, perhaps with fewer processes"
        ) from error


# --- in a worker process -------------------------------------------------------------------------

_worker: tuple[ChatTemplate, RenderSetup] | None = None


def _start_worker(setup: RenderSetup) -> None:
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"
    if not setup.trust_remote_code:
        # A tokenizer does not need torch, and transformers does without: 1.0 s and 139 MB instead of 3.3 s and 481 MB.
        sys.modules["torch"] = None  # type: ignore[assignment]
    _worker = (setup.load(), setup)


def _end_with_parent() -> None:
    """A pool's workers wait on a pipe that they hold open themselves: a parent killed -9 would leave them for ever."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _render_in_worker(jobs: Sequence[RenderJob]) -> list[Rendered]:
    template, setup = cast(tuple[ChatTemplate, RenderSetup], _worker)
    return render_jobs(template, setup, jobs)
