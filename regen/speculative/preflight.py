"""What files alone can tell about speculation, before an engine starts. Pure: configs in, findings out.

It began with `EAGLE` asked for an EAGLE-3 draft: no error, every draft token rejected, days lost. vLLM still runs it in
silence when the architecture's name lets it. So the method is compared with what the draft's own config says it is.
Each check is one small function; `CHECKS` is the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from regen.spec import SamplingSpec, SpeculationSpec

_FAMILIES = ("eagle3", "eagle", "dflash", "medusa", "mtp")  # "eagle3" before "eagle": one word is part of the other


class Severity(StrEnum):
    REFUSE = "refuse"
    WARN = "warn"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that files tell. `found` names both values that do not fit."""

    code: str
    severity: Severity
    found: str
    why: str
    fix: str

    def __str__(self) -> str:
        return f"{self.code}: {self.found}. {self.why} {self.fix}"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the checks look at. `draft_config` is the draft's config.json, None where the method takes no draft."""

    speculation: SpeculationSpec
    sampling: SamplingSpec
    generation_config: Mapping[str, Any]
    draft_config: Mapping[str, Any] | None


def draft_family(config: Mapping[str, Any]) -> str:
    """Which method a draft is made for, from its own config and never from its path."""
    named = str(config.get("speculators_model_type") or "").lower()
    words = [named, *(str(name).lower() for name in config.get("architectures") or []), _model_type(config)]
    for word in words:
        for family in _FAMILIES:
            if family in word:
                return family
    return "draft_model"


def check_method(evidence: Evidence) -> Finding | None:
    """The method asked for against the architecture of the draft."""
    config, asked = evidence.draft_config, evidence.speculation.method
    if config is None or (family := draft_family(config)) == asked:
        return None
    architecture = ", ".join(map(str, config.get("architectures") or ["none named"]))
    return Finding(
        "method-mismatch",
        Severity.REFUSE,
        f"speculation.method is {asked!r}, the draft's config.json says {architecture} (made for {family!r})",
        "The engine may start and run so, rejecting every draft token without an error.",
        f"Set speculation.method to {family!r}, or name another draft.",
    )


def check_sampling(evidence: Evidence) -> Finding | None:
    """Sampling that vLLM refuses per request while speculation is on: 83,000 equal failures."""
    min_p = evidence.sampling.min_p
    if min_p is None:
        min_p = float(evidence.generation_config.get("min_p") or 0.0)
    if min_p == 0.0:
        return None
    return Finding(
        "sampling-excludes-speculation",
        Severity.REFUSE,
        f"sampling.min_p is {min_p} and speculation is on ({evidence.speculation.method!r})",
        "vLLM refuses every request with min_p while speculation is on.",
        "Set sampling.min_p to 0, or leave the speculation section out.",
    )


CHECKS: tuple[Callable[[Evidence], Finding | None], ...] = (check_method, check_sampling)


def preflight(evidence: Evidence, checks: Iterable[Callable[[Evidence], Finding | None]] = CHECKS) -> list[Finding]:
    """All findings, in the order of the table."""
    return [finding for check in checks if (finding := check(evidence)) is not None]


def _model_type(config: Mapping[str, Any]) -> str:
    return str(config.get("model_type") or "").lower()
