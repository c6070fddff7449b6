"""All that one visit to a server saw, as the doctor's checks take it: frozen values. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from regen.served import Phase, Probe, Route, ServerFacts, ServerKind
from regen.speculative.doctor.counts import Counted
from regen.speculative.doctor.draft_files import DraftFiles

# A draft is judged over so many verifications or more.
LEAST_DRAFTS = 500


class Speculating(StrEnum):
    """Whether speculation is on at the server, by whatever shows it."""

    ON = "on"
    OFF = "off"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Expected:
    """From the draft's card: shares of verifications that accept at least 1, 2, ... tokens; a relative tolerance."""

    by_position: tuple[float, ...]
    tolerance: float = 0.3


@dataclass(frozen=True, slots=True)
class Visit:
    """`draft` is what the draft's files say; where there is one and they were not read, `unread_draft` says why."""

    facts: ServerFacts
    route: Route
    probes: tuple[Probe, ...]
    phases: tuple[Phase, ...]
    counted: Counted
    draft: DraftFiles | None = None
    unread_draft: str | None = None
    expected: Expected | None = None

    @property
    def speculating(self) -> Speculating:
        """Counters win over what is disclosed. vLLM has the series from its start, at zero, if speculation is on."""
        if self.counted.total is not None or any(phase.after.by_rank for phase in self.phases):
            return Speculating.ON
        if any(probe.blames_speculation for probe in self.probes):
            return Speculating.ON
        if (said := self.facts.speculation) is not None:
            return Speculating.OFF if said.method is None else Speculating.ON
        has_statistics = bool(self.phases) and all(phase.after.is_reported for phase in self.phases)
        is_vllm = self.facts.kind is ServerKind.VLLM
        return Speculating.OFF if is_vllm and has_statistics else Speculating.UNKNOWN
