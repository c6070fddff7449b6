"""Preflight's hands: reads target, draft, installed engine and plan, lets the table judge, and refuses.

Reads files only and starts nothing: seconds. What is judged is in speculative/preflight.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from regen.checkpoints import Checkpoint
from regen.data.checkpoint import read_checkpoint
from regen.data.model_files import HubFiles, LocalFiles, model_files
from regen.data.plan import open_plan, read_summary
from regen.data.target import Target
from regen.engines.vllm_facts import vllm_facts
from regen.errors import PreflightRefused, SpecError
from regen.protocols import Storage
from regen.spec import RunSpec, SpeculationSpec, VllmEngineSpec
from regen.speculative.checks.subject import draft_of
from regen.speculative.evidence import Evidence, Finding, Prompts, Severity
from regen.speculative.preflight import CHECKS, preflight
from regen.speculative.served_preflight import SERVED_CODES

_LENGTHS = tuple(check for check in CHECKS if check.code == "draft-positions")
_UNREAD = "It lies with the servers alone: what its files would tell is known of the servers' settings only."


class DraftNotFound(SpecError):
    """The draft is on no disk here, nor on the hub. Over servers alone that refuses nothing."""


def examine(spec: RunSpec, target: Target, storage: Storage) -> list[Finding]:
    """All findings; none when speculation is off. Planned prompts count if the run folder has a plan.

    Raises SpecError if the draft is nowhere to be found, unless servers alone have to.
    """
    if spec.speculation is None:
        return []
    try:
        evidence = _evidence(spec, spec.speculation, target)
    except DraftNotFound as error:
        if spec.engine.own.max:
            raise
        return [Finding("draft-unread", Severity.NOTE, str(error), _UNREAD, "Put a copy of its files here.")]
    return preflight(_with_prompts(evidence, storage))


def examine_lengths(spec: RunSpec, target: Target, storage: Storage) -> list[Finding]:
    """What only the plan can add, once there is one: how many prompts are longer than the draft's positions."""
    if spec.speculation is None or spec.speculation.draft is None:
        return []
    try:
        evidence = _evidence(spec, spec.speculation, target)
    except DraftNotFound:
        if spec.engine.own.max:
            raise
        return []
    return preflight(_with_prompts(evidence, storage), _LENGTHS)


def require_healthy(findings: Iterable[Finding], say: Callable[[str], None]) -> None:
    """Say warnings and notes. Raises PreflightRefused with every finding that refuses."""
    found = list(findings)
    tell(found, say)
    refuse(found)


def tell(findings: Iterable[Finding], say: Callable[[str], None]) -> None:
    """Warnings and notes, a line each."""
    for finding in findings:
        if finding.severity is not Severity.REFUSE:
            say(f"{'warning' if finding.severity is Severity.WARN else 'note'}: {finding}")


def refuse(findings: Iterable[Finding], whom: str = "this run", how_else: Callable[[str], str] | None = None) -> None:
    """Raises PreflightRefused with every finding that refuses, if there is one.

    `how_else` makes of their codes the last line: how to go on all the same.
    """
    if refused := [finding for finding in findings if finding.severity is Severity.REFUSE]:
        lines = [f"preflight refuses {whom}:", *map(str, refused)]
        if how_else is not None:
            lines.append(how_else(", ".join(sorted({finding.code for finding in refused}))))
        raise PreflightRefused("\n".join(lines))


def _evidence(spec: RunSpec, speculation: SpeculationSpec, target: Target) -> Evidence:
    """The fake engine stands in for vLLM, and is judged as if it were it; only settings it takes unread are not."""
    facts = vllm_facts(target.architectures)
    is_vllm = isinstance(spec.engine, VllmEngineSpec)
    return Evidence(
        speculation=speculation,
        sampling=spec.sampling,
        target=_target(target, speculation),
        draft=None if speculation.draft is None else _draft(speculation.draft, speculation),
        engine=facts if is_vllm else replace(facts, speculation_args=frozenset()),
        max_model_len=spec.engine.max_model_len,
        engine_args=spec.engine.args if isinstance(spec.engine, VllmEngineSpec) else {},
        target_path=str(target.folder) if Path(target.model).expanduser().is_dir() else target.model,
        served_codes=SERVED_CODES if spec.engine.endpoints else frozenset(),
    )


def _target(target: Target, speculation: SpeculationSpec) -> Checkpoint:
    """Its headers are of interest only where it is the draft itself (MTP)."""
    is_local, is_draft = Path(target.model).expanduser().is_dir(), speculation.method == "mtp"
    files = LocalFiles(target.folder) if is_local or not is_draft else model_files(target.model, target.commit)
    return read_checkpoint(
        target.model,
        files,
        with_samples=False,
        with_vocabulary=speculation.draft is not None,
        with_headers=is_local and is_draft,
    )


def _draft(name: str, speculation: SpeculationSpec) -> Checkpoint:
    revision = speculation.args.get("revision")
    try:
        files = model_files(name, str(revision) if revision is not None else None)
    except (OSError, ValueError) as error:
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DraftNotFound(
            f"speculation.draft: {name!r} is no folder and was not found on the hub: {first_line}"
        ) from error
    # Samples of weights that are not here would be a hundred requests.
    return read_checkpoint(name, files, with_samples=not isinstance(files, HubFiles), with_vocabulary=True)


def _with_prompts(evidence: Evidence, storage: Storage) -> Evidence:
    draft = draft_of(evidence)
    if draft is None or draft.positions is None or read_summary(storage) is None:
        return evidence
    planned, beyond = open_plan(storage).prompts_longer_than(draft.positions)
    return replace(evidence, prompts=Prompts(planned, beyond))
