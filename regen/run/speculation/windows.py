"""What one engine did between two of its exchanges, for calibration. Pure."""

from __future__ import annotations

import math

from regen.records import Acceptance, EngineCounters, ReplicaStats
from regen.speculative.calibration import Window

# An engine's slots count as full from this share on: between two steps one sequence may have gone.
_FULL_SHARE = 0.95


def window_between(slot: int, before: ReplicaStats, stats: ReplicaStats) -> Window:
    """Both are of the same engine; `before` came first."""
    then, now = before.counters, stats.counters
    was, has = then.acceptance or Acceptance(), now.acceptance or Acceptance()
    return Window(
        slot=slot,
        arm=stats.arm,
        seconds=stats.counted_at - before.counted_at,
        output_tokens=now.output_tokens - then.output_tokens,
        is_full=_is_full(then, before.slots) and _is_full(now, stats.slots),
        drafts=has.drafts - was.drafts,
        accepted=has.accepted - was.accepted,
        prompt_tokens=now.prompt_tokens - then.prompt_tokens,
        prefix_hit_tokens=now.prefix_hit_tokens - then.prefix_hit_tokens,
        preemptions=now.preemptions - then.preemptions,
    )


def _is_full(counters: EngineCounters, slots: int) -> bool:
    """Every slot decodes; or the engine has no room for those that wait."""
    return counters.waiting > 0 or counters.running >= math.ceil(slots * _FULL_SHARE)
