"""A server's own totals since an engine began to use it, beside what that engine's own requests have made.

`/metrics` is asked every few seconds, in the background; reading what is known never waits. The server's totals hold
other people's requests, too: acceptance is taken from our own requests wherever the server counts each.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from regen.engines.http import Connection
from regen.engines.served import ServedModel
from regen.engines.served_gauges import Gauges, gauges
from regen.errors import ServerUnavailable
from regen.records import Acceptance, EngineCounters
from regen.served import Counters

POLL_SECONDS = 5.0


@dataclass(slots=True)
class OwnCounts:
    """What this engine's requests have made. `acceptance` is None until the server has counted one of them."""

    output_tokens: int = 0
    prompt_tokens: int = 0
    running: int = 0
    waiting: int = 0
    acceptance: Acceptance | None = None

    def add(self, counted: Acceptance | None) -> None:
        """The counters of one answer, where the server gave them."""
        if counted is not None:
            self.acceptance = (self.acceptance or Acceptance()) + counted


@dataclass(frozen=True, slots=True)
class _Totals:
    counters: Counters = field(default_factory=lambda: Counters(is_reported=False))
    gauges: Gauges = field(default_factory=Gauges)


class ServerTotals:
    """Of one server. `own` is filled by the engine."""

    def __init__(self) -> None:
        self.own = OwnCounts()
        self._first = self._latest = _Totals()
        self._polling: asyncio.Task[None] | None = None

    @property
    def has_counters(self) -> bool:
        """Whether the server gives totals of speculation: from its start, where it speculates."""
        return bool(self._latest.counters.by_rank)

    @property
    def acceptance(self) -> Acceptance | None:
        """Of our own requests where the server counts each; else its totals since we began; None: it has none."""
        if self.own.acceptance is not None:
            return self.own.acceptance
        return _since(self._first.counters, self._latest.counters) if self.has_counters else None

    async def begin(self, connection: Connection, served: ServedModel) -> None:
        """Count from here on. Raises ServerUnavailable."""
        self._first = self._latest = await _read(connection, served)

    def watch(self, connection: Connection, served: ServedModel) -> None:
        """Ask again and again, until `close`."""
        self._polling = self._polling or asyncio.ensure_future(self._poll(connection, served))

    async def close(self) -> None:
        polling, self._polling = self._polling, None
        if polling is not None:
            polling.cancel()
            await asyncio.gather(polling, return_exceptions=True)

    def engine_counters(self) -> EngineCounters:
        first, latest, own = self._first.gauges, self._latest.gauges, self.own
        return EngineCounters(
            output_tokens=own.output_tokens,
            prompt_tokens=own.prompt_tokens,
            prefix_hit_tokens=max(0, latest.prefix_hit_tokens - first.prefix_hit_tokens),
            preemptions=max(0, latest.preemptions - first.preemptions),
            running=own.running,
            waiting=own.waiting,
            kv_usage=latest.kv_usage,
            acceptance=self.acceptance,
        )

    async def _poll(self, connection: Connection, served: ServedModel) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                self._latest = await _read(connection, served)
            except ServerUnavailable:
                continue  # a server that is gone shows in its requests; its totals stay what they were


async def _read(connection: Connection, served: ServedModel) -> _Totals:
    counters = await served.counters()
    reply = await connection.get("/metrics", POLL_SECONDS * 2)
    return _Totals(counters, gauges(reply.text()) if reply.is_ok else Gauges())


def _since(first: Counters, latest: Counters) -> Acceptance:
    """Over all ranks; a server that was restarted counts from zero again."""
    now = sum(latest.by_rank.values(), Acceptance())
    before = sum(first.by_rank.values(), Acceptance())
    if now.drafts < before.drafts:
        return now
    positions = (*before.accepted_by_position, *[0] * len(now.accepted_by_position))
    return Acceptance(
        now.drafts - before.drafts,
        now.drafted - before.drafted,
        now.accepted - before.accepted,
        tuple(count - past for count, past in zip(now.accepted_by_position, positions, strict=False)),
    )
