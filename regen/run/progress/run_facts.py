"""What metrics say of a run that does not change within a session, from its spec. Pure."""

from __future__ import annotations

from datetime import datetime

from regen import __version__
from regen.observe.price import Price
from regen.observe.snapshot import NO_CURRENCY, RunFacts
from regen.spec import RunSpec, SpeculationSpec, VllmEngineSpec
from regen.speculative.arms import arms


def run_facts(spec: RunSpec) -> RunFacts:
    """Everything but what only a running coordinator knows."""
    engine, speculation, price = spec.engine, spec.speculation, spec.price
    return RunFacts(
        name=spec.name,
        version=__version__,
        target=spec.target.model,
        draft=speculation.draft_name if speculation is not None else "none",
        positions=_positions(speculation, engine.slots),
        replicas=engine.fewest_replicas,
        servers=len(engine.endpoints),
        gpus=gpus_per_replica(spec),
        commit_interval_seconds=spec.checkpoint.interval_seconds,
        uncommitted_bytes_limit=spec.checkpoint.uncommitted_bytes,
        price_per_gpu_hour=None if price is None else price.per_gpu_hour,
        currency=NO_CURRENCY if price is None else price.currency,
    )


def gpus_per_replica(spec: RunSpec) -> float:
    """Of an engine of our own. 0 for those that need none: the CPU build, the fake engine."""
    return spec.engine.gpus_per_replica if isinstance(spec.engine, VllmEngineSpec) else 0.0


def gpus_of(spec: RunSpec, slot: int) -> float:
    """Those that the replica of this slot holds; none where it is a server that somebody else runs."""
    return gpus_per_replica(spec) if spec.engine.endpoint_of(slot) is None else 0.0


def most_gpus(spec: RunSpec) -> float:
    """Those of all engines of our own together, at most."""
    return gpus_per_replica(spec) * spec.engine.own.max


def price_of(spec: RunSpec) -> Price | None:
    """What the terminal counts the cost with; None where nobody has said a price, or no GPU is held."""
    if spec.price is None or not most_gpus(spec):
        return None
    return Price(spec.price.per_gpu_hour, spec.price.currency)


def deadline_seconds(started_at: str, hours: float | None, now: datetime) -> float | None:
    """Until the session drains by itself: `started_at` is the driver's own word, so a restart moves nothing."""
    if hours is None:
        return None
    return max(0.0, hours * 3600 - (now - datetime.fromisoformat(started_at)).total_seconds())


def _positions(speculation: SpeculationSpec | None, slots: int) -> int:
    """Also those of every setting that calibration may choose."""
    if speculation is None:
        return 0
    if speculation.calibrate == "off":
        return speculation.num_tokens
    tried = arms(speculation, slots, speculation.calibration.arms, has_schedules=False)
    return max(arm.speculation.num_tokens for arm in tried if arm.speculation is not None)
