"""What a stand-in server answers: what the fake engine answers to the same ids and sampling, seeds and counters too.

So a run over servers can be compared, row by row, with one over the fake engine in process.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import count

from regen.engines.fake import FakeEngine
from regen.errors import EngineDied, RowFailed, RowRefused
from regen.records import Completion, GenerationRequest, Sampling, TokenScore, WorkerId
from regen.spec import FakeEngineSpec, SpeculationSpec

_SURROGATES = 0xD800


class Refused(Exception):
    """A request that a server answers with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Wanted:
    """One request, whatever API it came by."""

    prompt: tuple[int, ...]
    sampling: Sampling
    seed: int | None
    is_streamed: bool


class Answers:
    """The fake engine, for one server. `spec.slots` requests at a time; its own faults work as well."""

    def __init__(self, spec: FakeEngineSpec | None = None, speculation: SpeculationSpec | None = None) -> None:
        self.spec = spec or FakeEngineSpec(slots=64, max_model_len=4096)
        self.speculation = speculation
        self.engine = FakeEngine(self.spec, speculation, WorkerId(0, 0))
        self._numbers = count()
        self._prompts: set[tuple[int, ...]] = set()

    async def make(self, wanted: Wanted) -> Completion:
        """Raises Refused, also for what the fake engine was told to do wrong."""
        self._prompts.add(wanted.prompt)
        try:
            return await self._made(wanted)
        except RowRefused as error:
            raise Refused(400, str(error)) from error
        except (RowFailed, EngineDied) as error:
            raise Refused(500, str(error)) from error

    async def rate(self, ids: tuple[int, ...]) -> list[TokenScore | None]:
        """One score for each id but the first. A prompt ends where one that was asked before does."""
        asked = [prompt for prompt in self._prompts if ids[: len(prompt)] == prompt and len(prompt) < len(ids)]
        prompt = max(asked, key=len, default=ids[:1])
        inside = [TokenScore(token, 0.0, token, 0.0) for token in prompt[1:]]
        return [None, *inside, *await self.engine.score(prompt, ids[len(prompt) :])]

    async def _made(self, wanted: Wanted) -> Completion:
        name, cap = f"request-{next(self._numbers)}", wanted.sampling.max_tokens
        asked = GenerationRequest(name, wanted.prompt, wanted.sampling, cap=cap, seed=wanted.seed)
        return await self.engine.generate(asked, lambda tokens: None)

    def text(self, ids: tuple[int, ...]) -> str:
        """One character for each id; the closing one has none."""
        return "".join(chr(token) if token < _SURROGATES else "?" for token in ids if token != self.spec.end_token_id)


async def paced(tokens: int, tokens_per_second: float | None) -> None:
    """As long as so many tokens take."""
    if tokens_per_second:
        await asyncio.sleep(tokens / tokens_per_second)
