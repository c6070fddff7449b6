"""What a stand-in server answers: what the fake engine answers to the same ids and sampling, seeds and counters too.

So a run over servers can be compared, row by row, with one over the fake engine in process.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import count

from regen.engines.fake import FakeEngine
from regen.records import Completion, GenerationRequest, Sampling, WorkerId
from regen.spec import FakeEngineSpec, SpeculationSpec

_SURROGATES = 0xD800


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

    async def make(self, wanted: Wanted) -> Completion:
        """Raises what the fake engine raises."""
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
