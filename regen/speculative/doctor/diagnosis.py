"""The verdict over a visit, the findings, and the likely causes. Pure.

Decided from raw counts: accept length is 1 + accepted / verifications, and nothing is said of a draft below
`LEAST_DRAFTS` of them. Absent counters are a verdict of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from regen.spec import DRAFTLESS_METHODS
from regen.speculative.doctor.checks import CHECKS, described, is_dead
from regen.speculative.doctor.draft_files import method_of
from regen.speculative.doctor.sglang_settings import SGLANG_CHECKS
from regen.speculative.doctor.visit import LEAST_DRAFTS, Speculating, Visit
from regen.speculative.evidence import Finding, Severity


class Verdict(StrEnum):
    """What a visit comes to."""

    HEALTHY = "healthy"
    OFF = "speculation off"
    DEAD = "dead"
    OFF_PROFILE = "off its expected profile"
    COUNTERS_ABSENT = "counters absent"
    UNDECIDED = "undecided"
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`because` is the verdict's reason in one sentence; `causes` are likely ones, most likely first."""

    verdict: Verdict
    because: str
    findings: tuple[Finding, ...]
    causes: tuple[str, ...]

    @property
    def is_refused(self) -> bool:
        """Whether anything found means that this server should not be used as it is."""
        return any(finding.severity is Severity.REFUSE for finding in self.findings)


def diagnose(visit: Visit) -> Diagnosis:
    """All that is to be said. Findings in the order of severity."""
    verdict, because = _verdict(visit)
    of_server = [finding for check in (*CHECKS, *SGLANG_CHECKS) if (finding := check.finding(visit)) is not None]
    of_files = list(visit.draft.findings) if visit.draft is not None and verdict is not Verdict.OFF else []
    order = list(Severity)
    findings = sorted([*of_files, *of_server], key=lambda finding: order.index(finding.severity))
    return Diagnosis(verdict, because, tuple(findings), tuple(_causes(verdict, visit)))


def _verdict(visit: Visit) -> tuple[Verdict, str]:
    counted, total = visit.counted, visit.counted.total
    if visit.speculating is Speculating.OFF:
        return Verdict.OFF, "the server says, or its counters show, that speculation is not on"
    if visit.speculating is Speculating.UNKNOWN:
        return Verdict.CANNOT_TELL, "the server discloses neither its speculation nor any counters"
    if not counted.answered:
        return Verdict.CANNOT_TELL, "none of our requests was answered"
    if counted.has_restarted:
        return Verdict.CANNOT_TELL, "the server's totals went backwards: it was restarted meanwhile"
    if total is None:
        return Verdict.COUNTERS_ABSENT, "speculation is on, tokens were decoded, and nothing was counted"
    return _verdict_of_counts(visit)


def _verdict_of_counts(visit: Visit) -> tuple[Verdict, str]:
    total = visit.counted.total
    assert total is not None
    dead = [rank for rank, seen in visit.counted.by_rank.items() if is_dead(seen)]
    if is_dead(total):
        return Verdict.DEAD, described(total)
    if dead:
        return Verdict.DEAD, f"rank {dead[0]}: {described(visit.counted.by_rank[dead[0]])}"
    if total.drafts < LEAST_DRAFTS:
        return Verdict.UNDECIDED, f"{described(total)}: fewer than {LEAST_DRAFTS} verifications decide nothing"
    if any(check.code == "acceptance-off-profile" and check.look(visit) for check in CHECKS):
        return Verdict.OFF_PROFILE, described(total)
    return Verdict.HEALTHY, described(total)


def _causes(verdict: Verdict, visit: Visit) -> Iterator[str]:
    if verdict in (Verdict.DEAD, Verdict.OFF_PROFILE):
        yield from _causes_of_rejection(visit)
    elif verdict is Verdict.COUNTERS_ABSENT:
        yield "the engine does not run its drafter, whatever its settings say"
        yield "statistics are switched off (--disable-log-stats), or a gateway keeps them"
        yield "this version of the engine gives no accepted counts"
    elif verdict is Verdict.UNDECIDED:
        yield "too little was asked: give more --seconds or a higher --concurrency"
        if method_of(visit.facts) in (None, *DRAFTLESS_METHODS):
            yield "n-gram and suffix drafts come only where the text repeats itself"
        yield "a schedule by batch size has no draft tokens at this concurrency"


def _causes_of_rejection(visit: Visit) -> Iterator[str]:
    """What files have shown comes first; what they have excluded is left out."""
    shown = (
        [finding for finding in visit.draft.findings if finding.severity is not Severity.NOTE] if visit.draft else []
    )
    for finding in shown:
        yield f"{finding.code}: {finding.found}"
    if method_of(visit.facts) in DRAFTLESS_METHODS:
        yield "these texts do not repeat themselves: n-gram and suffix drafts have nothing to copy"
        return
    if visit.draft is None or visit.facts.speculation is None:
        yield "the method is not the draft's: EAGLE for an EAGLE-3 draft runs in silence and rejects every token"
    if visit.draft is None:
        yield "a reduced draft vocabulary without its table (d2t)"
    yield "auxiliary layers other than those that the draft was trained on"
    yield "a draft of another target, or weights that were never trained or loaded"
