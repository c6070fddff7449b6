"""`regen doctor SPEC`: does speculation work in this spec's own engine? Preflight, one engine, its warm-up, a verdict.

Costs one engine start. Nothing of the run is planned or written: the prompts are the doctor's own, rendered by the
target's template, with the spec's sampling, at the spec's concurrency. Whether it pays is `regen calibrate`'s question.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regen.data.target import Target, resolve_target
from regen.data.template import load_template
from regen.errors import EngineStalled, ExitCode
from regen.protocols import Engine
from regen.records import Acceptance, Conversation, EngineInfo, Message, PlannedRow, Role, WarmupReport
from regen.run.commands.doctor import named_causes
from regen.run.commands.doctor_prompts import PROMPTS
from regen.run.commands.engine_start import started
from regen.run.conversations.regenerator import Regenerator
from regen.run.fleet.stall import StallClock
from regen.run.record import make_record
from regen.run.replica import build_engine
from regen.run.setup import WorkerSetup
from regen.run.speculation.draft_folder import checked_config
from regen.run.speculation.preflight import examine
from regen.run.speculation.warmup import Prepare, warm_up
from regen.run.start import aside_setup, own_engine
from regen.spec import RunSpec, SpeculationSpec
from regen.speculative.evidence import Finding, Severity
from regen.speculative.gate import GateResult, GateVerdict, judge
from regen.store.storage import open_storage

_TEXT_THREADS = 2
_CODES = {GateVerdict.HEALTHY: ExitCode.OK, GateVerdict.UNDECIDED: ExitCode.FAILED}


@dataclass(frozen=True, slots=True)
class SpecReport:
    """What files and engine have shown. `shown` and `result` are None where no engine was started."""

    speculation: SpeculationSpec | None
    layers: tuple[int, ...] | None
    findings: tuple[Finding, ...]
    engine: EngineInfo | None = None
    shown: WarmupReport | None = None
    result: GateResult | None = None

    @property
    def verdict(self) -> str:
        """`off`, `refused` from files alone, or what the warm-up came to."""
        if self.speculation is None:
            return "off"
        return "refused" if self.result is None else self.result.verdict.value

    @property
    def exit_code(self) -> ExitCode:
        """0 healthy or off, 1 where nothing can be said, 3 for what should not be run as it is."""
        if self.speculation is None:
            return ExitCode.OK
        return ExitCode.PREFLIGHT if self.result is None else _CODES.get(self.result.verdict, ExitCode.PREFLIGHT)

    def facts(self) -> list[tuple[str, str]]:
        """For people."""
        if self.speculation is None:
            return [("speculation", "off: the spec has no such section")]
        found = [
            ("method", f"{self.speculation.method}, {self.speculation.num_tokens} tokens"),
            ("draft", self.speculation.draft or "none"),
            ("auxiliary layers in effect", ", ".join(map(str, self.layers)) if self.layers else "none"),
        ]
        if self.engine is not None:
            found.append(("engine", f"{self.engine.engine}, {self.engine.slots} slots"))
        if self.shown is not None:
            found.append(("asked", f"{self.shown.answers:,} answers, {self.shown.seconds:.0f} s"))
        return found

    def all_findings(self) -> tuple[Finding, ...]:
        """What preflight has found in files."""
        return self.findings

    def counts(self) -> list[tuple[str, Acceptance]]:
        """Raw counts; empty where there are none."""
        acceptance = self.shown.acceptance if self.shown else None
        return [("warm-up", acceptance)] if acceptance else []

    def conclusion(self) -> list[tuple[str, str]]:
        """The verdict, why, and likely causes."""
        if self.result is None:
            return [(self.verdict, "see the findings" if self.findings else "nothing to look at")]
        return [(self.verdict, self.result.found), *named_causes(self.result.causes)]

    def to_json(self) -> dict[str, Any]:
        """For machines."""
        acceptance = self.shown.acceptance if self.shown else None
        return {
            "verdict": self.verdict,
            "because": self.result.found if self.result else None,
            "causes": list(self.result.causes) if self.result else [],
            "findings": [finding.to_json() for finding in self.findings],
            "layers": list(self.layers) if self.layers else None,
            "engine": self.engine.engine if self.engine else None,
            "accept_length": acceptance.accept_length if acceptance else None,
            "drafts": acceptance.drafts if acceptance else None,
            "accepted_by_position": list(acceptance.accepted_by_position) if acceptance else None,
        }


def examine_spec(spec: RunSpec, seconds: float, say: Callable[[str], None]) -> SpecReport:
    """`seconds` bound the warm-up's answers, not the engine's start; for rating them its stall timeout comes on top.

    Raises SpecError, EngineError.
    """
    speculation = spec.speculation
    if speculation is None:
        return SpecReport(None, None, ())
    target = resolve_target(spec.target)
    findings = tuple(examine(spec, target, open_storage(spec.output, spec.store)))
    if any(finding.severity is Severity.REFUSE for finding in findings):
        return SpecReport(speculation, None, findings)
    warmup = speculation.warmup.model_copy(update={"seconds": min(seconds, speculation.warmup.seconds)})
    speculation = speculation.model_copy(update={"warmup": warmup})
    spec = spec.model_copy(update={"speculation": speculation})
    setup = own_engine(aside_setup(make_record(spec, target), target, spec.output, "doctor"))
    engine, shown = asyncio.run(_visit(setup, speculation, say))
    result = judge(shown, speculation, temperature=setup.run.temperature)
    return SpecReport(speculation, _layers(speculation, target), findings, engine, shown, result)


def _layers(speculation: SpeculationSpec, target: Target) -> tuple[int, ...] | None:
    """The layers that the engine is given, in vLLM's counting."""
    if speculation.draft is None:
        return None
    ids = checked_config(speculation, target.folder).get("eagle_aux_hidden_state_layer_ids")
    return tuple(ids) if ids else None


async def _visit(
    setup: WorkerSetup, speculation: SpeculationSpec, say: Callable[[str], None]
) -> tuple[EngineInfo, WarmupReport]:
    engine, limit_seconds = build_engine(setup), setup.run.spec.engine.start_timeout_seconds
    say("starting the engine")
    try:
        info = await started(engine, limit_seconds)
        say(f"{info.engine} is up and answers the doctor's {len(PROMPTS)} prompts, over and over")
        with ThreadPoolExecutor(_TEXT_THREADS) as executor:
            prepare = _regenerator(setup, executor, info, engine).first_request
            return info, await _warmed_up(setup, speculation, prepare, engine, info.slots)
    finally:
        await engine.close()


async def _warmed_up(
    setup: WorkerSetup, speculation: SpeculationSpec, prepare: Prepare, engine: Engine, slots: int
) -> WarmupReport:
    """A warm-up ends its answers by itself; no bound of its own is on what comes before and after them."""
    limit_seconds = speculation.warmup.seconds + setup.run.spec.engine.stall_timeout_seconds
    work = warm_up(_rows(), speculation, prepare, engine, slots, temperature=setup.run.temperature)
    try:
        return await asyncio.wait_for(work, limit_seconds)
    except TimeoutError:
        raise EngineStalled(
            f"the engine's warm-up did not end within {limit_seconds:g} s: --seconds, and"
            " engine.stall_timeout_seconds for rating its answers"
        ) from None


def _regenerator(setup: WorkerSetup, executor: ThreadPoolExecutor, info: EngineInfo, engine: Engine) -> Regenerator:
    target = setup.run.spec.target
    template = load_template(Path(setup.model_folder), target.trust_remote_code, target.template_kwargs)
    clock = StallClock(setup.run.spec.engine.stall_timeout_seconds)
    return Regenerator(setup, engine, template, None, executor, info.max_model_len, clock)


def _rows() -> list[PlannedRow]:
    """The doctor's prompts as rows of a plan that there is not."""
    return [
        PlannedRow(
            ordinal=number,
            row_id=f"{number:032x}",
            source="doctor",
            location=f"prompt {number}",
            source_id=None,
            conversation=Conversation((Message(Role.USER, text), Message(Role.ASSISTANT, None))),
            prompt_tokens=0,
        )
        for number, text in enumerate(PROMPTS)
    ]
