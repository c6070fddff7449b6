"""What preflight looks at and what it says: frozen values. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from regen.checkpoints import Checkpoint, EngineFacts
from regen.spec import SamplingSpec, SpeculationSpec


class Severity(StrEnum):
    """REFUSE: it cannot work, or nobody could tell that it does not. WARN: likely wrong. NOTE: good to know."""

    REFUSE = "refuse"
    WARN = "warn"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that files tell. `found` names both values that do not fit."""

    code: str
    severity: Severity
    found: str
    why: str
    fix: str

    def to_json(self) -> dict[str, str]:
        """For machines; the keys and codes do not change."""
        return {
            "code": self.code,
            "severity": self.severity.value,
            "found": self.found,
            "why": self.why,
            "fix": self.fix,
        }

    def __str__(self) -> str:
        return f"{self.code}: {self.found}. {self.why} {self.fix}".rstrip()


@dataclass(frozen=True, slots=True)
class Fault:
    """What one check saw, and what to do about it."""

    found: str
    fix: str


@dataclass(frozen=True, slots=True)
class Prompts:
    """The planned prompts: how many, and how many of them are longer than the draft's positions."""

    planned: int
    beyond: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the checks look at. `draft` is None where the method takes none; `prompts` where nothing is planned yet.

    `engine_args` are the engine's own (`engine.args`), `max_model_len` is the run's context in tokens. `target_path` is
    what the engine is given as the target's model: vLLM looks for words in it. `served_codes` are those of findings on
    servers, where the run has any: `speculation.accept` may name them, too.
    """

    speculation: SpeculationSpec
    sampling: SamplingSpec
    target: Checkpoint
    draft: Checkpoint | None
    engine: EngineFacts
    max_model_len: int
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    prompts: Prompts | None = None
    target_path: str = ""
    served_codes: frozenset[str] = frozenset()

    @property
    def method(self) -> str:
        """What was asked for."""
        return self.speculation.method
