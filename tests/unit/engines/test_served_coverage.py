"""Of which tokens a server's totals are, by what it says in the same reading that it has made."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from regen.engines import served_totals
from regen.engines.served_gauges import Gauges
from regen.engines.served_totals import ServerTotals
from regen.records import Acceptance
from regen.served import Counters


def counted(readings: Sequence[tuple[int, int, int | None]], monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """`counted_tokens` after each reading: (tokens that have reached us, drafts, tokens that the server has made)."""
    totals, told = ServerTotals(), iter(readings)

    async def read(*asked: Any) -> tuple[Counters, Gauges]:
        _, drafts, made = next(told)
        return Counters(True, {"0": Acceptance(drafts, 3 * drafts, drafts, (drafts, 0, 0))}, made), Gauges()

    monkeypatch.setattr(served_totals, "_read", read)
    nobody: Any = None

    async def story() -> list[int | None]:
        await totals.begin(nobody, nobody)
        found = []
        for tokens, _, _ in readings[1:]:
            totals.own.output_tokens = tokens
            await totals.refresh(nobody, nobody)
            found.append(totals.engine_counters().counted_tokens)
        return found

    return asyncio.run(story())


def test_tokens_that_reach_us_after_their_drafts_were_counted_are_not_counted_as_undrafted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    readings = [(0, 50, 1000), (10, 1050, 3000), (2000, 1050, 3000)]
    assert counted(readings, monkeypatch) == [2000, 2000]


def test_a_server_that_was_started_anew_counts_on(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = [(0, 50, 1000), (900, 500, 1900), (1000, 60, 100), (1100, 120, 200)]
    assert counted(readings, monkeypatch) == [900, 1000, 1100]


def test_of_a_server_that_does_not_tell_what_it_has_made_our_own_count(monkeypatch: pytest.MonkeyPatch) -> None:
    assert counted([(0, 50, None), (10, 100, None), (2000, 1000, None)], monkeypatch) == [10, 2000]
