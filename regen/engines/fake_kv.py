"""The fake engine's key-value cache: blocks that sequences hold as they grow, as vLLM's scheduler has it. Pure.

Whoever needs a block when none is free sets back the sequence that was admitted last, itself perhaps: that gives up all
its blocks, waits before all others, and is computed again from its prompt on when it fits. Nobody is admitted in a step
that has set somebody back, and one that waits holds up all behind it. Nothing is shared between sequences.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol, TypeVar

from regen.spec import FakeKvCache


class Sequence(Protocol):
    """What the cache knows of a sequence, and keeps of it: how many blocks it holds."""

    prompt_tokens: int
    emitted: int
    blocks: int


T = TypeVar("T", bound=Sequence)


@dataclass(slots=True)
class KvTotals:
    """Since the engine started: sequences set back, and tokens that were computed again for them."""

    preemptions: int = 0
    recomputed_tokens: int = 0


class KvBlocks:
    """Blocks of one engine. `take` and `grow` are to be called in the order of admission."""

    def __init__(self, spec: FakeKvCache) -> None:
        self.totals = KvTotals()
        self._spec = spec
        self._free = spec.blocks

    @property
    def usage(self) -> float:
        """Share of the blocks that are held."""
        return 1.0 - self._free / self._spec.blocks

    def take(self, one: Sequence) -> float | None:
        """Admit it, if all its tokens so far and the next fit. What computing them costs, in steps; None: no room."""
        tokens = one.prompt_tokens + one.emitted
        needed = self._blocks_of(tokens + 1)
        if needed > self._free:
            return None
        self._free -= needed
        one.blocks = needed
        if one.emitted:
            self.totals.recomputed_tokens += tokens
        return tokens * self._spec.prompt_token_cost

    def grow(self, running: list[T], waiting: deque[T], most: int) -> bool:
        """Room for up to `most` tokens more of each that runs. Whether any were set back for it: to `waiting`."""
        place, is_short = 0, False
        while place < len(running):
            one = running[place]
            wanted = self._blocks_of(one.prompt_tokens + one.emitted + most) - one.blocks
            while wanted > self._free and place < len(running):
                self._set_back(running, waiting)
                is_short = True
            if place < len(running):
                self._free -= max(0, wanted)
                one.blocks += max(0, wanted)
            place += 1
        return is_short

    def release(self, one: Sequence) -> None:
        """It has ended, or goes."""
        self._free += one.blocks
        one.blocks = 0

    def _set_back(self, running: list[T], waiting: deque[T]) -> None:
        last = running.pop()
        self.release(last)
        waiting.appendleft(last)
        self.totals.preemptions += 1

    def _blocks_of(self, tokens: int) -> int:
        return -(-tokens // self._spec.block_tokens)
