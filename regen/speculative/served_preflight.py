"""A server as a replica, judged before it gets rows: first by what it tells of itself, then by a warm-up. Pure.

The doctor's own checks and findings, for whoever has read a server already: `told` needs no request at all, `shown`
the answers of a warm-up, of which raw counts alone decide.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from regen.checkpoints import Checkpoint, EngineFacts
from regen.served import Asked, Counters, Phase, Route, ServerFacts
from regen.speculative.doctor.checks import CHECKS
from regen.speculative.doctor.counts import count
from regen.speculative.doctor.diagnosis import Diagnosis, diagnose
from regen.speculative.doctor.draft_files import DraftFiles, read_draft_files
from regen.speculative.doctor.sglang_settings import SETTING_CHECKS
from regen.speculative.doctor.visit import Expected, Visit
from regen.speculative.evidence import Finding, Severity

_TOLD = ("lossy-verification", "draft-unread")
_TOLD_CHECKS = (*(check for check in CHECKS if check.code in _TOLD), *SETTING_CHECKS)
_NOTHING = Counters(is_reported=False)
_UNREAD = "the draft's files were not read"
_UNREAD_FIX = "Name them as speculation.draft: a folder on the replica's node, or the hub's name."
# What refuses here and is in no table of preflight.py.
SERVED_CODES = frozenset({"rank-dead", *(check.code for check in _TOLD_CHECKS if check.severity is Severity.REFUSE)})


def told(facts: ServerFacts, draft: DraftFiles | None = None) -> tuple[Finding, ...]:
    """What settings and files tell, in the order of severity. `draft` is None where its files are out of reach."""
    if facts.speculation is None or facts.speculation.method is None:
        return ()
    visit = _visit(facts, (), draft, None)
    found = [finding for check in _TOLD_CHECKS if (finding := check.finding(visit)) is not None]
    found = [replace(one, fix=_UNREAD_FIX) if one.code == "draft-unread" else one for one in found]
    order = list(Severity)
    files = draft.findings if draft is not None else ()
    return tuple(sorted([*files, *found], key=lambda finding: order.index(finding.severity)))


def shown(
    facts: ServerFacts, answers: Iterable[Asked], draft: DraftFiles | None = None, expected: Expected | None = None
) -> Diagnosis:
    """The verdict over a warm-up whose answers have counts of their own, as SGLang's have."""
    return diagnose(_visit(facts, tuple(answers), draft, expected))


def draft_files(facts: ServerFacts, draft: Checkpoint, target: Checkpoint | None) -> DraftFiles:
    """What the draft's files say under this server's settings; nothing is known of its engine's source."""
    return read_draft_files(facts, draft, target, EngineFacts(facts.kind.value, facts.version))


def _visit(
    facts: ServerFacts, answers: tuple[Asked, ...], draft: DraftFiles | None, expected: Expected | None
) -> Visit:
    temperatures = dict.fromkeys(answer.temperature for answer in answers)
    phases = tuple(
        Phase(value, _NOTHING, _NOTHING, tuple(answer for answer in answers if answer.temperature == value))
        for value in temperatures
    )
    unread = _UNREAD if draft is None and facts.speculation is not None and facts.speculation.draft else None
    return Visit(facts, Route.CHAT, (), phases, count(phases), draft, unread, expected)
