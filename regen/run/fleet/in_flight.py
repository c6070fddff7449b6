"""How many rows a replica gives its engine at once when the key-value cache is short of room. Pure.

An engine whose cache is full sets back the sequence that it admitted last and computes it again later. A little of that
keeps the cache full and costs nearly nothing; much of it is work for nothing. So there is no limit until it shows, and
then as many rows as keep it at `TOLERATED_WASTE`: the limit falls at once below what had room, and rises slowly, since
rows that are added now need their room later. Time is counted in tokens made: it does not matter how fast they come.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean

# Tokens that are computed again, for each output token: an upper estimate, since who is set back has fewer tokens than
# the mean row. In simulation throughput is flat from 0.4 to 0.8 where computing again is cheap, and best about here
# where it costs a third of decoding (docs/feeding.md).
TOLERATED_WASTE = 0.6
# How far the limit moves at a look, at most; and how much faster it rises where the cache has room to spare.
_FALL, _RISE = 0.1, 0.05
_ROOM_KV_USAGE, _FASTER_WITH_ROOM = 0.8, 3.0
# It is looked at again when so many tokens were made, as a share of those that the rows in work hold.
_WINDOW = 0.5


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """Sequences decoded now and the cache's share in use; tokens made and sequences set back since the engine began."""

    running: int
    kv_usage: float
    output_tokens: int
    preemptions: int


class InFlight:
    """Tell it at each exchange what the engine has counted. `limit` is in rows, None while there is none."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._rows: float | None = None
        self._since: EngineLoad | None = None
        self._running: list[int] = []  # at each look since then: one may come just when a wave has ended

    @property
    def limit(self) -> int | None:
        return None if self._rows is None else max(1, round(self._rows))

    def look(self, load: EngineLoad, given: int, tokens_held: int, has_more: bool) -> None:
        """`given` rows are with the engine, and hold so many tokens, prompts included; `has_more` would be given it."""
        since = self._since
        if since is None or load.output_tokens < since.output_tokens:
            self._since, self._running = load, []
            return
        self._running.append(load.running)
        made = load.output_tokens - since.output_tokens
        if not given or made < max(1.0, _WINDOW * tokens_held):
            return
        self._since = load
        waste = (load.preemptions - since.preemptions) * tokens_held / given / made
        excess = (waste - TOLERATED_WASTE) / TOLERATED_WASTE
        if excess > 0:
            self._fall(given, min(1.0, excess))
        elif has_more and self._rows is not None:
            self._rise(load, self._rows, -excess)
        self._running = []

    def _fall(self, given: int, share: float) -> None:
        """Not while rows that were given before the last fall are still there: it has yet to show."""
        if self.limit is None or given <= self.limit:
            had_room = mean(self._running) if self._rows is None else self._rows
            self._rows = max(1.0, had_room * (1 - _FALL * share))

    def _rise(self, load: EngineLoad, rows: float, share: float) -> None:
        faster = _FASTER_WITH_ROOM if load.kv_usage < _ROOM_KV_USAGE else 1.0
        rows *= 1 + _RISE * share * faster
        self._rows = None if rows >= self._slots else rows
