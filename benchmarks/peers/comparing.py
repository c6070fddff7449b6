"""Which arms are compared with which, and what is wanted of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.throughput import log_ratio_interval

MEASURES = ("cut", "whole")


@dataclass(frozen=True, slots=True)
class Wanted:
    """`arm` over `base`, pair by pair within a round; `aim` is for the lower bound, None: shown only."""

    arm: str
    base: str
    aim: float | None = None


WANTED = (
    Wanted("regen", "chat", 0.98),
    Wanted("server", "chat"),
    Wanted("speculators", "chat"),
    Wanted("run_batch", "chat"),
    Wanted("ray_data", "chat"),
    Wanted("regen", "run_batch", 1.0),
    Wanted("regen", "speculators", 1.0),
    Wanted("regen", "ray_data", 1.0),
    Wanted("server", "speculators", 1.0),
    Wanted("regen_turns", "chained", 0.98),
    Wanted("lockstep", "chained"),
    Wanted("regen_turns", "lockstep", 1.0),
)

Round = Mapping[str, Mapping[str, Any]]


def comparisons(rounds: Sequence[Round]) -> list[dict[str, Any]]:
    """Every wanted comparison of which there are two pairs or more, by each measure that the rounds have."""
    return [found for wanted in WANTED for measure in MEASURES if (found := _compared(rounds, wanted, measure))]


def _compared(rounds: Sequence[Round], wanted: Wanted, measure: str) -> dict[str, Any] | None:
    pairs = [(one[wanted.arm], one[wanted.base]) for one in rounds if wanted.arm in one and wanted.base in one]
    ratios = [ours[measure] / theirs[measure] for ours, theirs in pairs if ours[measure] and theirs[measure]]
    if len(ratios) < 2:
        return None
    interval = log_ratio_interval(ratios)
    reached = None if wanted.aim is None else interval.low >= wanted.aim
    return {**asdict(wanted), "measure": measure, "pairs": len(ratios), **asdict(interval), "reached": reached}
