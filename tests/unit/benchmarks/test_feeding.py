"""The arithmetic of the feeding benchmark."""

from __future__ import annotations

import pytest

from benchmarks.feeding import Step, summarise
from regen.records import EngineCounters


def test_shares_are_over_the_time_from_the_first_full_step_to_the_last_lease() -> None:
    steps = [
        Step(4.0, 3, 0, 0.1, -6, 0),  # the ramp
        Step(10.0, 8, 0, 0.5, 0, 0),
        Step(11.0, 8, 2, 0.5, 80, 0),
        Step(13.0, 4, 0, 0.25, 160, 1),  # starved: free places and nobody waits
        Step(14.0, 4, 3, 1.0, 200, 2),  # the cache is full: not starved
        Step(20.0, 1, 0, 0.1, 230, 2),  # the tail
    ]
    found = summarise(steps, 8, 14.5, rows=10, last=EngineCounters(prompt_tokens=200, prefix_hit_tokens=50))
    assert found.fed_seconds == 4.0
    assert found.fed_tokens_per_second == 50.0
    assert found.tokens_per_second == 236 / 16
    assert found.ramp_steps == 1
    assert found.busy_share == pytest.approx((1 * 1.0 + 2 * 0.5 + 1 * 0.5) / 4)
    assert found.starved_step_share == pytest.approx(1 / 3)
    assert found.kv_usage_mean == pytest.approx((0.5 + 0.5 + 1.0) / 4)
    assert found.preemptions_per_row == 0.2
    assert found.prefix_hit_share == 0.25
