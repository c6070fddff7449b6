"""A server's preflight: what it tells of its speculation, against the draft's files, before it gets a request.

Looked at whenever a replica begins with its server: after an outage it may have been started with other settings.
Reads files only, in a second or so. What is judged is in speculative/served_preflight.py; `speculation.accept` holds
here, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from regen.checkpoints import Checkpoint
from regen.data.checkpoint import read_checkpoint
from regen.data.model_files import LocalFiles, model_files
from regen.run.speculation.preflight import refuse, tell
from regen.served import Asked, ServerFacts
from regen.spec import SpeculationSpec
from regen.speculative.evidence import Finding, Severity
from regen.speculative.preflight import ALL_CHECKS, with_accepted
from regen.speculative.served_preflight import draft_files, shown, told

# The method that the server runs is not the one that was compared then.
_OF_FILES = frozenset(check.code for check in ALL_CHECKS) - {"method-mismatch"}
# Of a warm-up's answers; the gate looks at their sum.
_OF_ANSWERS = ("rank-dead", "rank-undecided", "counts-contradict", "said-length-differs")
_UNDECIDED_FIX = "Raise speculation.warmup.drafts to know of each."
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def examine_served(facts: ServerFacts, speculation: SpeculationSpec | None, target_folder: Path) -> tuple[Finding, ...]:
    """All findings; none where the server tells nothing, or that it does not speculate."""
    if facts.speculation is None or facts.speculation.method is None:
        return ()
    draft = _draft(facts, speculation)
    files = draft_files(facts, draft, _target(target_folder)) if draft is not None else None
    return tuple(with_accepted(told(facts, files), speculation.accept if speculation is not None else ()))


def approve(
    facts: ServerFacts, speculation: SpeculationSpec | None, target_folder: Path, say: Callable[[str], None]
) -> None:
    """Says warnings and notes. Raises PreflightRefused with every finding that refuses.

    What the files of the spec's own draft tell was said before any server was asked: it is not said again for each.
    """
    found = examine_served(facts, speculation, target_folder)
    said_before = _OF_FILES if speculation is not None and speculation.draft is not None else frozenset()
    _tell([finding for finding in found if finding.code not in said_before], facts, say)
    _refuse(found, facts)


def approve_answers(
    facts: ServerFacts, answers: Iterable[Asked], speculation: SpeculationSpec, say: Callable[[str], None]
) -> None:
    """After a warm-up: what its counts show by rank, and against the server's settings. Raises PreflightRefused.

    Whether the sum of them is healthy is the gate's to say; where that only warns, nothing is refused here.
    """
    found = [finding for finding in shown(facts, answers).findings if finding.code in _OF_ANSWERS]
    found = [replace(one, fix=_UNDECIDED_FIX) if one.code == "rank-undecided" else one for one in found]
    judged = with_accepted(found, speculation.accept)
    if speculation.gate == "warn":
        judged = [replace(one, severity=Severity.WARN) if one.severity is Severity.REFUSE else one for one in judged]
    _tell(judged, facts, say)
    _refuse(judged, facts)


def _tell(findings: Iterable[Finding], facts: ServerFacts, say: Callable[[str], None]) -> None:
    tell(findings, lambda line: say(f"{facts.url}: {line}"))


def _refuse(findings: Iterable[Finding], facts: ServerFacts) -> None:
    refuse(findings, f"the server at {facts.url}", _how_else)


def _how_else(codes: str) -> str:
    return f"(To go on all the same: a speculation section with accept: [{codes}].)"


def is_here(facts: ServerFacts, path: str) -> bool:
    """A server's own path means a folder here only if the server is here."""
    return urlsplit(facts.url).hostname in _LOOPBACK and Path(path).is_dir()


def _draft(facts: ServerFacts, speculation: SpeculationSpec | None) -> Checkpoint | None:
    """The spec's draft, else the one that the server names, where that is on this machine."""
    disclosed = facts.speculation.draft if facts.speculation is not None else None
    name = speculation.draft if speculation is not None else None
    if name is None:
        name = disclosed if disclosed is not None and is_here(facts, disclosed) else None
    if name is None:
        return None
    try:
        files = model_files(name)
    except (OSError, ValueError):
        return None  # not on this node, nor on the hub: `draft-unread` says so
    return read_checkpoint(name, files, with_samples=isinstance(files, LocalFiles))


def _target(folder: Path) -> Checkpoint:
    """By its configs: the weights are the server's."""
    return read_checkpoint(str(folder), LocalFiles(folder), with_samples=False, with_headers=False)
