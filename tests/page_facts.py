"""Made-up facts for the page: a plausible run of two days, and what is unpleasant to show."""

from __future__ import annotations

import math
import random
from dataclasses import replace

from regen import length_buckets
from regen.observe.page.facts import (
    Event,
    EventKind,
    Fact,
    FaultFacts,
    Money,
    PageFacts,
    ProgressFacts,
    ReasonFacts,
    ReplicaFacts,
    SampleFacts,
    Seen,
    SourceFacts,
    TurnFacts,
)
from regen.records import Acceptance, Eta, EtaState, SlotState, Status

NOW = 1_796_000_000.0  # 2026-11-29, in epoch seconds
HOSTILE = "<script>window.ran=1</script><img src=x onerror=window.ran=1>\"'&</pre></main>\u202eevil\x00\x1b[31m\u2028"


def empty(**changes: object) -> PageFacts:
    """A run of which nothing is known but its name."""
    return replace(
        PageFacts(key="k", name="test", url="/runs/test", at=NOW, phase="replaying", progress=ProgressFacts(None, 0)),
        **changes,  # type: ignore[arg-type]
    )


def made_up(sources: int = 3, replicas: int = 2, hostile: str = "", seed: int = 1, is_live: bool = False) -> PageFacts:
    """A run at 60 %. `hostile` is put into every string that can come from outside."""
    chance = random.Random(seed)
    made = tuple(_source(f"source-{number}{hostile}", chance) for number in range(sources))
    done = sum(sum(source.outcomes.values()) for source in made)
    history = tuple(_history(chance, done, sum(source.output_tokens for source in made)))
    return PageFacts(
        key="run 1",
        name=f"kimi-k25-v4{hostile}",
        url=f"s3://draft-data/kimi-k25-v4{hostile}",
        at=NOW,
        phase="running",
        phase_note=f"session 2 on host gpu-17{hostile}.",
        is_live=is_live,
        progress=ProgressFacts(
            planned=sum(source.planned for source in made),
            done=done,
            reopened=12,
            in_flight=512,
            uncommitted=31,
            queued=20_000,
            output_tokens=sum(source.output_tokens for source in made),
            tokens_per_second=3_214.5,
            eta=Eta(EtaState.ESTIMATING, 36_000.0, 41_000.0, 60_000.0, 20_000.0),
            deadline_seconds=50_000.0,
            gpu_seconds=1_234_567.0,
            money=Money("EUR", 857.33, (310.0, 355.5, 520.1)),
        ),
        history=history,
        events=(
            Event(NOW - 170_000, EventKind.DECISION, f"calibration: speculation pays, 1.31 times as fast{hostile}"),
            Event(NOW - 90_000, EventKind.FAULT, f"replica 1 restarted: no token for 600 s{hostile}"),
            Event(None, EventKind.DECISION, f"drift accepted: engine.version{hostile}"),
        ),
        sources=made,
        reasons=(
            ReasonFacts(Status.REJECTED, f"prompt_too_long{hostile}", 431),
            ReasonFacts(Status.FAILED, f"engine_died{hostile}", 7),
        ),
        acceptance=_acceptance(chance, 9_000_000),
        by_length={index: _acceptance(chance, 90_000) for index in range(8, 26, 2)},
        replicas=tuple(_replica(slot, chance, hostile) for slot in range(replicas)),
        faults=FaultFacts(
            {f"timeout{hostile}": 12, "engine_died": 40}, 3, 1, 2, (f"the store is away: 503 SlowDown{hostile}",)
        ),
        samples=tuple(_sample(number, hostile) for number in range(3)),
        samples_note="Rows that were committed lately, one of each source in turn.",
        provenance=(
            Fact("target", f"moonshotai/Kimi-K2.5{hostile}"),
            Fact("draft", f"our-org/kimi-k25-eagle3{hostile}"),
            Fact("fingerprint", "3f" * 16),
        ),
        version="0.6.0",
    )


def not_numbers() -> PageFacts:
    """Every figure that may be unknown is NaN or None."""
    facts = made_up()
    nan = math.nan
    progress = replace(
        facts.progress,
        tokens_per_second=nan,
        eta=Eta(EtaState.ESTIMATING, nan, nan, nan),
        deadline_seconds=nan,
        gpu_seconds=nan,
        money=Money("EUR", nan, (nan, None, nan)),
    )
    replicas = tuple(
        replace(one, tokens_per_second=nan, kv_usage=nan, loop_lag_seconds=None, slot_seconds={})
        for one in facts.replicas
    )
    return replace(facts, progress=progress, replicas=replicas)


def _source(name: str, chance: random.Random) -> SourceFacts:
    planned = chance.randrange(5_000, 40_000)
    rejected, degenerate, truncated = (chance.randrange(planned // 60) for _ in range(3))
    ok = int(planned * 0.6) - rejected - degenerate - truncated
    lengths = [0] * length_buckets.COUNT
    for _ in range(2000):
        lengths[length_buckets.bucket(min(16_384, round(chance.lognormvariate(6.3, 1.1))))] += ok // 2000
    tokens = sum(length_buckets.middle(index) * rows for index, rows in enumerate(lengths))
    outcomes = {
        Status.OK: ok,
        Status.REJECTED: rejected,
        Status.DEGENERATE: degenerate,
        Status.TRUNCATED: truncated,
        Status.FAILED: 3,
    }
    labels = {"cut_in_answer": truncated, "loop": degenerate}
    return SourceFacts(
        name, planned, outcomes, ok * 210, tokens, ok * 2, tuple(lengths), _acceptance(chance, tokens // 2), labels
    )


def _acceptance(chance: random.Random, drafts: int) -> Acceptance:
    shares = [chance.uniform(0.5, 0.7), 0.0, 0.0, 0.0, 0.0]
    for position in range(1, 5):
        shares[position] = shares[position - 1] * chance.uniform(0.4, 0.7)
    by_position = tuple(int(drafts * share) for share in shares)
    return Acceptance(drafts, drafts * 5, sum(by_position), by_position)


def _history(chance: random.Random, done: int, tokens: int):
    """Two sessions with a night between them."""
    parts = [(NOW - 172_800 + step * 300, "s1") for step in range(300)] + [
        (NOW - 50_000 + step * 250, "s2") for step in range(200)
    ]
    speeds = [max(0.05, 1 + chance.gauss(0, 0.08) - (0.6 if 120 < index < 130 else 0)) for index in range(len(parts))]
    whole, sofar, drafts, accepted = sum(speeds), 0.0, 0.0, 0.0
    for (at, session), speed in zip(parts, speeds, strict=True):
        sofar += speed
        step = tokens * speed / whole / 2
        drafts, accepted = drafts + step, accepted + step * chance.gauss(1.1, 0.04)
        yield Seen(
            at, session,  int(tokens * sofar / whole), int(drafts), int(accepted),
            {"restarts": int(sofar // 90), "stalls": int(sofar // 200)},
        )  # fmt: skip


def _replica(slot: int, chance: random.Random, hostile: str) -> ReplicaFacts:
    seconds = {state: chance.uniform(0, 40_000) for state in SlotState}
    seconds[SlotState.BUSY] = 3_000_000.0
    return ReplicaFacts(
        slot, "running", 250, 256, 30, 1_600.0, 0.83, 0.012, 20_000, 14_000_000, _acceptance(chance, 5_000_000),
        _acceptance(chance, 800_000), f"configured{hostile}", f"healthy{hostile}", 3, 2, 1, 57, seconds,
        f"vllm 0.32.0 (server){hostile}",
    )  # fmt: skip


def _sample(number: int, hostile: str) -> SampleFacts:
    turns = (
        TurnFacts("system", f"Be brief.{hostile}"),
        TurnFacts("user", f"What is {number} + 1?\n\nWo ist die Straße?{hostile}"),
        TurnFacts("assistant", f"It is {number + 1}. " * 40 + hostile, 120, f"turn 0, 212 tokens, stop{hostile}", True),
    )
    return SampleFacts(
        f"{number:032x}",
        f"source-{number}{hostile}",
        f"data/a.jsonl:{number}{hostile}",
        "ok",
        hostile,
        212,
        turns,
        number,
    )
