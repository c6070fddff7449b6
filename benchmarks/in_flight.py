"""`make bench-in-flight`: what limiting the rows in flight is worth, simulated on virtual time.

The very `InFlight` decides. The engine is the fake one's steps and cache, which model vLLM's scheduler: first come,
first served; whole sequences are admitted, the newest is set back and computed again. Four kinds of rows and three
prices of a computed token, against the same rows without a limit, and one kind that has room. Until the last row is
taken: the tail has no share in it. No clock is read: results depend on nothing but the code. Takes minutes of one core.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path

from regen.engines.fake_time import Drafting, StepLoop
from regen.run.fleet.fleet import rows_held_at_most
from regen.run.fleet.in_flight import EngineLoad, InFlight
from regen.spec import FakeCost, FakeKvCache
from tests import virtual_time

RESULTS = Path(__file__).parent / "results" / "in_flight.json"
STEP_SECONDS, LOOK_SECONDS = 0.02, 1.0
# What computing one token of a prompt costs, in steps of the whole batch.
COSTS = (0.005, 0.02, 0.05)


@dataclass(frozen=True, slots=True)
class Rows:
    """Lognormal answers over a cache of so many blocks of 16 tokens."""

    rows: int
    slots: int
    blocks: int
    prompt_tokens: int
    answer_tokens: int
    spread: float

    def lengths(self) -> list[int]:
        draw, most = random.Random(1), self.blocks * 16 - self.prompt_tokens - 20
        drawn = (round(self.answer_tokens * math.exp(self.spread * draw.gauss(0, 1))) for _ in range(self.rows))
        return [max(1, min(length, most)) for length in drawn]


KINDS = {
    "short prompts, 100 tokens": Rows(1200, 64, 100, 16, 100, 0.5),
    "1,000 tokens, widely spread": Rows(600, 64, 1000, 200, 1000, 0.8),
    "prompts of 2,000": Rows(600, 64, 3000, 2000, 600, 0.8),
    "300 tokens": Rows(600, 32, 300, 50, 300, 0.5),
    "room for all": Rows(800, 64, 4000, 50, 300, 0.5),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """Until the last row was taken, but for the preemptions."""

    tokens_per_second: float
    preemptions_per_row: float
    recomputed_share: float


class Replica:
    """A worker as far as it feeds its engine: rows that are held, and rows that the engine is given."""

    def __init__(self, kind: Rows, cost: float, is_limited: bool) -> None:
        cache = FakeKvCache(blocks=kind.blocks, block_tokens=16, prompt_token_cost=cost)
        self._steps = StepLoop(kind.slots, STEP_SECONDS, FakeCost(), Drafting(None), lambda: (), cache)
        self._kind, self._is_limited = kind, is_limited
        self._control = InFlight(kind.slots)
        self._lengths = kind.lengths()
        self._left = deque(range(kind.rows))
        self._waiting: deque[int] = deque()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._tokens: dict[int, int] = {}

    async def run(self) -> Outcome:
        loop = asyncio.get_running_loop()
        began = taken_at = loop.time()
        made = 0
        while self._left or self._tasks or self._waiting:
            self._fill()
            if self._left:
                taken_at, made = loop.time(), self._steps.totals.output_tokens
            await asyncio.sleep(LOOK_SECONDS)
            if self._is_limited:
                self._look()
        assert self._steps.kv_blocks is not None
        totals = self._steps.kv_blocks.totals
        return Outcome(
            made / (taken_at - began),
            totals.preemptions / self._kind.rows,
            totals.recomputed_tokens / sum(self._lengths),
        )

    def _fill(self) -> None:
        limit = self._control.limit
        most = rows_held_at_most(self._kind.slots if limit is None else min(limit, self._kind.slots))
        while self._left and len(self._tasks) + len(self._waiting) < most:
            self._waiting.append(self._left.popleft())
        while self._waiting and (limit is None or len(self._tasks) < limit):
            row = self._waiting.popleft()
            self._tokens[row] = 0
            self._tasks[row] = asyncio.ensure_future(self._make(row))

    async def _make(self, row: int) -> None:
        def said(count: int) -> None:
            self._tokens[row] += count

        await self._steps.decode(self._lengths[row], random.Random(row), said, self._kind.prompt_tokens)
        del self._tasks[row]
        self._fill()

    def _look(self) -> None:
        assert self._steps.kv_blocks is not None
        blocks = self._steps.kv_blocks
        made, preemptions = self._steps.totals.output_tokens, blocks.totals.preemptions
        load = EngineLoad(len(self._steps.running), blocks.usage, made, preemptions)
        held = sum(self._kind.prompt_tokens + self._tokens[row] for row in self._tasks)
        self._control.look(load, len(self._tasks), held, bool(self._waiting))


def measure(kind: Rows, cost: float) -> dict[str, object]:
    limited, unlimited = (virtual_time.run(Replica(kind, cost, is_limited).run()) for is_limited in (True, False))
    ratio = limited.tokens_per_second / unlimited.tokens_per_second
    return {"ratio": ratio, "limited": asdict(limited), "unlimited": asdict(unlimited)}


def main() -> None:
    parser = argparse.ArgumentParser(description="What limiting the rows in flight is worth, simulated.")
    parser.add_argument("--out", default=str(RESULTS), help="results (default: %(default)s)")
    out = Path(parser.parse_args().out)
    found: dict[str, dict[str, object]] = {}
    for name, kind in KINDS.items():
        for cost in COSTS:
            one = measure(kind, cost)
            found[f"{name}, {cost}"] = one
            limited, unlimited = one["limited"], one["unlimited"]
            assert isinstance(limited, dict)
            assert isinstance(unlimited, dict)
            print(
                f"{name:<28} {cost:<6} x {one['ratio']:.3f}  preemptions a row {limited['preemptions_per_row']:.2f}"
                f" for {unlimited['preemptions_per_row']:.2f}  computed again {limited['recomputed_share']:.2f}"
                f" for {unlimited['recomputed_share']:.2f}",
                flush=True,
            )
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
