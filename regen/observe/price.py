"""What GPUs cost: one sum for the terminal, the page and the metrics. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from regen.records import Tally


@dataclass(frozen=True, slots=True)
class Price:
    """Of one GPU and one hour that an engine holds it."""

    per_gpu_hour: float
    currency: str

    def so_far(self, tally: Tally) -> float:
        """What the run's engines have cost since it began, as far as that is published."""
        return cost(tally.gpu_seconds, self.per_gpu_hour)


def cost(gpu_seconds: float, per_gpu_hour: float) -> float:
    """Of so many GPUs times the seconds that they are held."""
    return gpu_seconds / 3600 * per_gpu_hour
