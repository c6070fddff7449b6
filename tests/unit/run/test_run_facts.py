"""What metrics say of a run, from its spec."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from regen.run.progress.run_facts import deadline_seconds, gpus_of, price_of, run_facts
from regen.spec import RunSpec, parse_spec

EAGLE = {"method": "eagle3", "draft": "org/head", "num_tokens": 3}


def spec(**sections: Any) -> RunSpec:
    raw: dict[str, Any] = {
        "name": "x",
        "output": "runs/x",
        "target": {"model": "org/target"},
        "engine": {"kind": "vllm", "replicas": 2, "gpus_per_replica": 8},
        "sampling": {"max_tokens": 10},
        "sources": [{"name": "a", "path": "a.jsonl"}],
    }
    return parse_spec({**raw, **sections}, origin="test")


def test_they_are_the_specs() -> None:
    facts = run_facts(spec(speculation={**EAGLE, "calibrate": "off"}, price={"per_gpu_hour": 2, "currency": "EUR"}))
    assert (facts.name, facts.target, facts.draft) == ("x", "org/target", "org/head")
    assert (facts.replicas, facts.gpus, facts.positions) == (2, 8, 3)
    assert (facts.price_per_gpu_hour, facts.currency) == (2, "EUR")


def test_servers_that_somebody_else_runs_hold_none_of_our_gpus() -> None:
    endpoints = [{"url": "http://h:1"}, {"url": "http://h:2"}]
    mixed = spec(
        engine={"kind": "vllm", "replicas": 1, "gpus_per_replica": 8, "endpoints": endpoints}, price={"per_gpu_hour": 2}
    )
    assert [gpus_of(mixed, slot) for slot in range(3)] == [0, 0, 8]
    assert (run_facts(mixed).replicas, run_facts(mixed).gpus) == (3, 8)
    assert price_of(mixed) is not None
    assert price_of(spec(engine={"kind": "openai", "endpoints": endpoints}, price={"per_gpu_hour": 2})) is None


def test_what_is_not_there_is_said_to_be_none() -> None:
    facts = run_facts(spec(engine={"kind": "fake"}))
    assert (facts.draft, facts.positions, facts.gpus) == ("none", 0, 0)
    assert (facts.price_per_gpu_hour, facts.currency) == (None, "none")


@pytest.mark.parametrize(("tokens", "positions"), [(3, 4), (7, 7)])
def test_calibration_may_choose_more_tokens_than_the_spec(tokens: int, positions: int) -> None:
    """Its n-gram arm drafts four, where it is among the settings that are compared."""
    speculation = {**EAGLE, "num_tokens": tokens, "calibration": {"arms": 6}}
    assert run_facts(spec(speculation=speculation)).positions == positions


def test_the_deadline_is_counted_from_the_drivers_start() -> None:
    now = datetime(2026, 11, 30, 12, 30, tzinfo=UTC)
    started = "2026-11-30T12:00:00+00:00"
    assert deadline_seconds(started, 2, now) == 1.5 * 3600
    assert deadline_seconds(started, 0.25, now) == 0
    assert deadline_seconds("whenever", None, now) is None
