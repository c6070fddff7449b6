"""A server's own totals since an engine began to use it, beside what that engine's own requests have made.

`/metrics` is asked every few seconds, in the background; reading what is known never waits, and what a reading cannot
tell stays what it was. The server's totals hold other people's requests, too: acceptance is taken from our own requests
wherever the server counts each. Either way counters come late, after the tokens that they count: `counted_tokens` says
how many tokens they are of.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from regen.engines.http import Connection
from regen.engines.served import ServedModel
from regen.engines.served_failures import may_pass
from regen.engines.served_gauges import Gauges, gauges
from regen.engines.served_growth import Growth
from regen.errors import ServerUnavailable
from regen.records import Acceptance, EngineCounters
from regen.served import Counters

POLL_SECONDS = 5.0


@dataclass(slots=True)
class OwnCounts:
    """What this engine's requests have made. `acceptance` is None until the server has counted one of them."""

    output_tokens: int = 0
    answers_tokens: int = 0
    prompt_tokens: int = 0
    running: int = 0
    waiting: int = 0
    acceptance: Acceptance | None = None

    def add(self, counted: Acceptance | None, tokens: int) -> None:
        """One answer that is whole: its tokens, and its counters where the server gave them."""
        self.answers_tokens += tokens
        if counted is not None:
            self.acceptance = (self.acceptance or Acceptance()) + counted


class ServerTotals:
    """Of one server. `own` is filled by the engine."""

    def __init__(self) -> None:
        self.own = OwnCounts()
        self.has_counters = False
        self._growth: Growth | None = None
        self._tokens_then = 0
        self._reading = asyncio.Lock()
        self._begun = self._told = 0
        self._polling: asyncio.Task[None] | None = None

    @property
    def acceptance(self) -> Acceptance | None:
        """Of our own requests where the server counts each; else its totals since we began; None: it has none."""
        if self.own.acceptance is not None:
            return self.own.acceptance
        return self._growth.acceptance if self._growth is not None and self.has_counters else None

    @property
    def counted_tokens(self) -> int:
        """So many tokens are such that their drafts are in `acceptance`, if they are anywhere.

        Those of whole answers, or, with its totals alone, what the server says in the same reading that it has made for
        anybody, else what we had when it was asked. Ours may reach us well after it has counted their drafts.
        """
        is_by_totals = self.own.acceptance is None and self._growth is not None and self._growth.last
        return self._tokens_then if is_by_totals else self.own.answers_tokens

    async def begin(self, connection: Connection, served: ServedModel, is_needed: bool = False) -> None:
        """Count from here on; from the first reading on where this one fails.

        Raises ServerUnavailable if it fails and `is_needed`.
        """
        self._growth = None
        try:
            self._take(*await _read(connection, served))
        except ServerUnavailable:
            if is_needed:
                raise

    async def refresh(self, connection: Connection, served: ServedModel) -> None:
        """Totals as they are now, or later: one reading serves all who wait for it. Raises ServerUnavailable."""
        asked_at = self._begun
        async with self._reading:
            if self._told > asked_at:
                return
            self._begun = number = self._begun + 1
            tokens = self.own.output_tokens
            self._take(*await _read(connection, served))
            made = self._growth.output_tokens if self._growth is not None else None
            self._tokens_then = tokens if made is None else made
            self._told = number

    def watch(self, connection: Connection, served: ServedModel) -> None:
        """Ask again and again, until `close`."""
        self._polling = self._polling or asyncio.ensure_future(self._poll(connection, served))

    async def close(self) -> None:
        polling, self._polling = self._polling, None
        if polling is not None:
            polling.cancel()
            await asyncio.gather(polling, return_exceptions=True)

    def engine_counters(self) -> EngineCounters:
        own, growth = self.own, self._growth
        return EngineCounters(
            output_tokens=own.output_tokens,
            prompt_tokens=own.prompt_tokens,
            prefix_hit_tokens=growth.prefix_hit_tokens if growth else 0,
            preemptions=growth.preemptions if growth else 0,
            running=own.running,
            waiting=own.waiting,
            kv_usage=growth.gauges.kv_usage if growth else 0.0,
            acceptance=self.acceptance,
            counted_tokens=self.counted_tokens,
        )

    def _take(self, counters: Counters, now: Gauges) -> None:
        self.has_counters = bool(counters.by_rank)
        if self._growth is None:
            self._growth = Growth(dict(counters.by_rank), now, counters.output_tokens)
        else:
            self._growth.reading(counters.by_rank, now, counters.output_tokens)

    async def _poll(self, connection: Connection, served: ServedModel) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                await self.refresh(connection, served)
            except ServerUnavailable:
                continue  # a server that is gone shows in its requests; its totals stay what they were


async def _read(connection: Connection, served: ServedModel) -> tuple[Counters, Gauges]:
    counters = await served.counters()
    reply = await connection.get("/metrics", POLL_SECONDS * 2)
    if counters.is_refused or may_pass(reply.status):
        raise ServerUnavailable(f"GET {connection.url}/metrics is refused for now: its counters are not known")
    return counters, gauges(reply.text()) if reply.is_ok else Gauges()
