"""Speculation during one session: with what engines are started, whether they may work, when one is replaced.

Joins gate, calibration and guard into decisions. Pure: it takes what replicas say and `now`; whoever owns it publishes
`unwritten` records, obeys `command`, and ends the run on `error`. Made anew from the journal's records it goes on with
what was decided. Without `speculation` in the spec every engine is off and nothing here acts.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from regen.errors import SpeculationFailed
from regen.records import (
    Acceptance,
    Command,
    ReplicaState,
    ReplicaStats,
    SpeculationStatus,
    WorkerId,
)
from regen.run.setup import CONFIGURED, OFF, Assignment, Purpose, RunSetup
from regen.run.speculation_records import measured_of, speculation_of, subject_of, text_of
from regen.run.windows import window_between
from regen.spec import SpeculationSpec, VllmEngineSpec
from regen.speculative.calibration import Arm, Calibration, Choice, Measured, arms
from regen.speculative.gate import GateResult, GateVerdict, judge
from regen.speculative.guard import Guard, GuardVerdict, ReplicaVerdict
from regen.speculative.payoff import disabling_pays
from regen.store.control import ArmMeasured, DecidedBy, Record, SpeculationDecided

# So many of the latest decisions are shown.
_SHOWN_DECISIONS = 20
# An engine that goes on in spite of a bad verdict is looked at again so often.
_ASK_AGAIN_SECONDS = 60.0
# So often an engine may die while settings are compared before its setting is taken to be why.
_DEATHS = 2
_WORKING = (ReplicaState.RUNNING, ReplicaState.DRAINING)
_BAD = tuple(verdict.value for verdict in GuardVerdict if verdict.is_bad)


@dataclass(frozen=True, slots=True)
class _Doubt:
    """A bad verdict on an engine that goes on all the same. `is_told`: it is in the journal."""

    change: ReplicaVerdict
    asked_at: float
    is_told: bool


@dataclass(slots=True)
class _Engine:
    """The living engine of a slot, as far as it has said."""

    worker: WorkerId
    arm: str
    stats: ReplicaStats
    gate: GateResult | None = None
    is_started: bool = False
    is_guarded: bool = False
    is_replaced: bool = False
    verdict: str = "unknown"


class SpeculationControl:
    """One per coordinator."""

    def __init__(self, setup: RunSetup, records: Iterable[Record]) -> None:
        """`records` are those of the journal that still matter."""
        spec = setup.spec
        self._setup = setup
        self._spec = spec
        self._session = setup.session
        self._purpose = setup.purpose
        self._subject = subject_of(spec)
        self._engines: dict[int, _Engine] = {}
        self._switched_off: set[int] = set()
        self._choice: Assignment | None = None
        self._calibration: Calibration | None = None
        self._unwritten: list[Record] = []
        self._shown: deque[str] = deque(maxlen=_SHOWN_DECISIONS)
        self._seconds_left: float | None = None
        self._row_seconds = 0.0
        self._doubtful: dict[int, _Doubt] = {}
        self._deaths: Counter[str] = Counter()
        self._rates: dict[str, float] = {}  # by arm, as calibration has measured them
        self._accept_lengths: dict[str, float] = {}
        self._error: SpeculationFailed | None = None
        self._is_decided = False
        self._guard: Guard | None = None
        if spec.speculation is not None:
            self._guard = Guard(spec.speculation, range(spec.engine.replicas))
            self._restore(spec.speculation, list(records))

    # --- what others ask ---------------------------------------------------------------------------

    @property
    def error(self) -> SpeculationFailed | None:
        """Set when the spec asks to stop."""
        return self._error

    @property
    def has_what_it_came_for(self) -> bool:
        """`regen calibrate` only: the choice is made."""
        return self._purpose.calibrates and self._is_decided

    def assignment(self, slot: int) -> Assignment:
        """With what this slot's next engine is started."""
        configured = self._spec.speculation
        if configured is None or slot in self._switched_off:
            return Assignment(OFF, None)
        if self._choice is not None:
            return self._choice
        if self._calibration is not None:
            arm = self._calibration.wanted(slot)
            return Assignment(arm.name, arm.speculation)
        return Assignment(CONFIGURED, configured)

    def command(self, worker: WorkerId) -> Command:
        """What this worker is told, as far as speculation has a say in it."""
        engine = self._engines.get(worker.slot)
        if self._error is not None or engine is None or engine.worker != worker:
            return Command.WAIT
        if engine.is_replaced or self._is_to_be_replaced(engine):
            engine.is_replaced = True
            return Command.REPLACE
        if engine.stats.state is ReplicaState.WARMING and engine.gate is None:
            return Command.WAIT
        return Command.WORK

    def unwritten(self, at: str) -> list[Record]:
        """Decisions and measurements since the last call, to be published. `at` is the time of day, for people."""
        taken, self._unwritten = self._unwritten, []
        return [replace(record, at=at) if isinstance(record, SpeculationDecided) else record for record in taken]

    def status(self) -> SpeculationStatus:
        """For status, metrics and the progress line."""
        return SpeculationStatus(
            phase=self._phase(),
            arms={slot: engine.arm for slot, engine in self._engines.items()},
            verdicts={slot: engine.verdict for slot, engine in self._engines.items()},
            decisions=tuple(self._shown),
            cells=tuple(asdict(cell) for cell in self._guard.cells()) if self._guard else (),
        )

    # --- events ------------------------------------------------------------------------------------

    def hear(self, worker: WorkerId, stats: ReplicaStats, now: float) -> None:
        """One exchange of a worker that is not superseded."""
        engine = self._engines.get(worker.slot)
        if engine is None or engine.worker != worker:
            engine = self._engines[worker.slot] = _Engine(worker, stats.arm, stats)
            self._doubtful.pop(worker.slot, None)
        before, engine.stats = engine.stats, stats
        if stats.state in (ReplicaState.WARMING, ReplicaState.RUNNING) and not engine.is_started:
            engine.is_started = True
            if self._calibration is not None:
                self._calibration.engine_started(worker.slot, engine.arm, stats.started_seconds)
        if stats.warmup is not None and engine.gate is None:
            self._judge(engine, stats)
        if stats.state in _WORKING:
            self._measure(engine, before, stats)
        if stats.state is ReplicaState.RUNNING and not engine.is_replaced:
            self._look(engine, stats, now)

    def generation(self, slot: int, source: str, prompt_tokens: int, acceptance: Acceptance | None) -> None:
        """One finished generation of a replica."""
        engine = self._engines.get(slot)
        if self._guard is not None and engine is not None and engine.is_guarded:
            self._guard.generation(slot, source, prompt_tokens, acceptance)

    def worker_gone(self, worker: WorkerId) -> None:
        """This engine has ended. One that was not told to leave may have died of its setting."""
        engine = self._engines.get(worker.slot)
        if engine is None or engine.worker != worker:
            return
        del self._engines[worker.slot]
        if self._calibration is None or engine.is_replaced or engine.arm == OFF:
            return
        self._deaths[engine.arm] += 1
        if not engine.is_started or self._deaths[engine.arm] >= _DEATHS:
            self._calibration.engine_failed(worker.slot, engine.arm)
            self._say(f"replica {worker.slot}: an engine with the setting {engine.arm} has died: it is left out")

    def tick(self, now: float, seconds_left: float | None, row_seconds: float = 0.0) -> None:
        """Decide what is due.

        `seconds_left`: until the run's end at the present rate, None as long as nobody knows; `row_seconds`: how long a
        row takes, and so a drain.
        """
        self._seconds_left, self._row_seconds = seconds_left, row_seconds
        if self._error is None and self._spec.speculation is not None:
            self._calibrate()
            self._guard_replicas(now)

    # --- the gate ----------------------------------------------------------------------------------

    def _judge(self, engine: _Engine, stats: ReplicaStats) -> None:
        speculation = self._speculation_of(engine)
        if speculation is None or stats.warmup is None:
            return
        engine.gate = result = judge(stats.warmup, speculation, temperature=self._setup.temperature)
        engine.verdict = result.verdict.value
        slot = engine.worker.slot
        told = f"replica {slot}, warm-up: {result.found}"
        if result.is_bad:
            self._act_on_bad_warmup(engine, result, told)
        elif result.verdict is GateVerdict.UNDECIDED:
            self._say(told)

    def _act_on_bad_warmup(self, engine: _Engine, result: GateResult, told: str) -> None:
        configured = self._spec.speculation
        assert configured is not None, "only an engine that speculates is warmed up"
        causes = "".join(f"\n  - {cause}" for cause in result.causes)
        if self._calibration is not None and engine.arm != CONFIGURED:
            self._calibration.engine_failed(engine.worker.slot, engine.arm)
            self._say(f"{told}; the setting {engine.arm} is left out")
            return
        self._decide(
            DecidedBy.GATE, engine.worker.slot, _after(configured.gate, engine, configured), result.verdict, told
        )
        if configured.gate == "fail":
            self._fail(
                f"{told}\nLikely causes, the likeliest first:{causes}\n"
                "Nothing was generated with it. Mend the draft or its settings; speculation.gate: disable goes on"
                " without speculation, warn goes on with it."
            )
        elif configured.gate == "disable":
            self._leave_out(engine)

    def _leave_out(self, engine: _Engine) -> None:
        if self._calibration is not None:
            self._calibration.engine_failed(engine.worker.slot, engine.arm)
        else:
            self._switched_off.add(engine.worker.slot)

    # --- calibration -------------------------------------------------------------------------------

    def _measure(self, engine: _Engine, before: ReplicaStats, stats: ReplicaStats) -> None:
        if self._calibration is not None and before.state in _WORKING:
            self._calibration.add(window_between(engine.worker.slot, before, stats))

    def _calibrate(self) -> None:
        calibration = self._calibration
        if calibration is None:
            return
        calibration.outlook(self._seconds_left)
        self._unwritten += [self._measured_record(measured) for measured in calibration.newly_measured()]
        if calibration.choice is not None:
            self._choose(calibration.choice)

    def _choose(self, choice: Choice) -> None:
        configured = self._spec.speculation
        assert configured is not None, "without speculation nothing is compared"
        self._calibration = None
        self._is_decided = True
        is_demanded = configured.calibrate == "required" or self._purpose.calibrates
        if not choice.is_measured and is_demanded:
            self._fail(
                f"calibration: {choice.reason}. It was asked for; speculation.calibrate: auto goes on without it."
            )
            return
        self._choice = Assignment(choice.arm.name, choice.arm.speculation)
        if not choice.is_measured:
            self._say(f"calibration: {choice.reason}")
            return
        evidence = json.dumps([asdict(result) for result in choice.table])
        self._take_evidence(json.loads(evidence))
        self._decide(DecidedBy.CALIBRATION, None, self._choice, "measured", choice.reason, evidence)

    def _take_evidence(self, table: list[dict[str, Any]]) -> None:
        self._rates = {row["arm"]: row["tokens_per_second"] for row in table}
        self._accept_lengths = {row["arm"]: row["accept_length"] for row in table if row["accept_length"]}

    def _measured_record(self, measured: Measured) -> ArmMeasured:
        speculation = next((arm.speculation for arm in self._arms() if arm.name == measured.arm), None)
        return ArmMeasured(self._session, self._subject, speculation=text_of(speculation), **asdict(measured))

    # --- the guard ---------------------------------------------------------------------------------

    def _look(self, engine: _Engine, stats: ReplicaStats, now: float) -> None:
        if self._guard is None:
            return
        slot = engine.worker.slot
        if not engine.is_guarded:
            engine.is_guarded = True
            warmup = stats.warmup.acceptance if stats.warmup else None
            speculation = self._speculation_of(engine)
            self._guard.engine_started(slot, now, speculation is not None, warmup, speculation)
        self._guard.counters(slot, now, stats.counters.output_tokens, stats.counters.acceptance)

    def _guard_replicas(self, now: float) -> None:
        """What has changed is acted on; what stays bad is asked again now and then whether it has come to pay."""
        if self._guard is None:
            return
        for change in self._guard.changes(now):
            self._doubtful.pop(change.slot, None)
            engine = self._engines.get(change.slot)
            if engine is not None and engine.arm != OFF and not engine.is_replaced:
                self._act_on(change, engine, now)
        for slot, doubt in list(self._doubtful.items()):
            if self._calibration is None and (engine := self._engines.get(slot)) is not None:
                self._look_again(doubt, engine, now)

    def _look_again(self, doubt: _Doubt, engine: _Engine, now: float) -> None:
        if not doubt.is_told:
            self._act_on(doubt.change, engine, now)
        elif now - doubt.asked_at >= _ASK_AGAIN_SECONDS:
            self._switch_off_if_it_pays(doubt.change, now, is_asked_again=True)

    def _act_on(self, change: ReplicaVerdict, engine: _Engine, now: float) -> None:
        configured = self._spec.speculation
        assert configured is not None, "without speculation there is no guard"
        self._doubtful.pop(change.slot, None)
        was_bad, engine.verdict = engine.verdict in _BAD, change.verdict.value
        if not change.verdict.is_bad:
            if was_bad:
                self._decide_on(change, _told(change))
        elif self._calibration is not None:  # what is compared is judged by its speed; and then by this
            self._doubtful[change.slot] = _Doubt(change, now, is_told=False)
        elif configured.guard == "disable":
            self._switch_off_if_it_pays(change, now)
        else:
            self._decide_on(change, _told(change))
            if configured.guard == "fail":
                self._fail(f"{_told(change)}. speculation.guard is fail; disable and warn go on.")

    def _switch_off_if_it_pays(self, change: ReplicaVerdict, now: float, is_asked_again: bool = False) -> None:
        """A decision is written down the first time, and when it changes."""
        engine = self._engines.get(change.slot)
        if engine is None or engine.is_replaced:
            self._doubtful.pop(change.slot, None)
            return
        payoff = disabling_pays(
            seconds_left=self._seconds_left,
            replicas=self._spec.engine.replicas,
            start_seconds=engine.stats.started_seconds,
            drain_seconds=self._row_seconds,
            rate_on=self._rates.get(engine.arm),
            rate_off=self._rates.get(OFF),
            accept_length_now=change.accept_length,
            accept_length_then=self._accept_lengths.get(engine.arm) or change.reference_length,
        )
        if payoff.pays:
            self._switched_off.add(change.slot)
            self._doubtful.pop(change.slot, None)
        else:
            self._doubtful[change.slot] = _Doubt(change, now, is_told=True)
        if payoff.pays or not is_asked_again:
            self._decide_on(change, f"{_told(change)}; {payoff.reason}")

    def _decide_on(self, change: ReplicaVerdict, reason: str) -> None:
        self._decide(DecidedBy.GUARD, change.slot, self.assignment(change.slot), change.verdict, reason)

    # --- what was decided before -------------------------------------------------------------------

    def _restore(self, speculation: SpeculationSpec, records: list[Record]) -> None:
        """A choice holds for its subject, whatever the session; what gate and guard switched off, for this session."""
        decided = [record for record in records if isinstance(record, SpeculationDecided)]
        decided = [record for record in decided if record.subject == self._subject]
        for record in decided:
            if record.by is DecidedBy.CALIBRATION and self._purpose is not Purpose.CALIBRATE_AGAIN:
                self._choice = Assignment(record.arm, speculation_of(record.speculation))
                self._take_evidence(json.loads(record.evidence))
                self._is_decided = True
            elif record.session == self._session and record.slot is not None and record.arm == OFF:
                self._switched_off.add(record.slot)
        is_wanted = speculation.calibrate != "off" or self._purpose.calibrates
        if self._choice is None and is_wanted and self._purpose is not Purpose.PILOT:  # a sample is too short for it
            self._calibration = self._new_calibration(speculation, records)

    def _new_calibration(self, speculation: SpeculationSpec, records: list[Record]) -> Calibration:
        is_again = self._purpose is Purpose.CALIBRATE_AGAIN
        measured = [
            measured_of(record)
            for record in records
            if isinstance(record, ArmMeasured)
            and record.subject == self._subject
            and (record.session == self._session or not is_again)
        ]
        is_required = speculation.calibrate == "required" or self._purpose.calibrates
        return Calibration(self._arms(), self._spec.engine.replicas, speculation.calibration, is_required, measured)

    def _arms(self) -> tuple[Arm, ...]:
        speculation, engine = self._spec.speculation, self._spec.engine
        assert speculation is not None, "without speculation nothing is compared"
        args = engine.args if isinstance(engine, VllmEngineSpec) else {}
        has_schedules = args.get("data_parallel_size", 1) == 1  # vLLM drops a schedule silently with data parallelism
        return arms(speculation, engine.slots, speculation.calibration.arms, has_schedules)

    # --- steps -------------------------------------------------------------------------------------

    def _speculation_of(self, engine: _Engine) -> SpeculationSpec | None:
        """What this engine was started with, by the name of its arm."""
        if engine.arm == OFF:
            return None
        if self._choice is not None and engine.arm == self._choice.arm:
            return self._choice.speculation
        return next((arm.speculation for arm in self._arms() if arm.name == engine.arm), self._spec.speculation)

    def _is_to_be_replaced(self, engine: _Engine) -> bool:
        slot = engine.worker.slot
        is_up = engine.stats.state in (ReplicaState.WARMING, ReplicaState.RUNNING)
        if not is_up or engine.arm == self.assignment(slot).arm:
            return False
        return slot not in self._switched_off or not self._is_another_away(slot)

    def _is_another_away(self, slot: int) -> bool:
        """Switched off one at a time: the fleet goes on meanwhile."""
        return any(
            other != slot and (engine.is_replaced or engine.stats.state is ReplicaState.STARTING)
            for other, engine in self._engines.items()
            if other in self._switched_off
        )

    def _decide(
        self, by: DecidedBy, slot: int | None, what: Assignment, verdict: str, reason: str, evidence: str = "{}"
    ) -> None:
        self._unwritten.append(
            SpeculationDecided(
                session=self._session,
                by=by,
                subject=self._subject,
                slot=slot,
                arm=what.arm,
                speculation=text_of(what.speculation),
                verdict=str(verdict),
                reason=reason,
                evidence=evidence,
                at="",
            )
        )
        self._shown.append(f"{by.value}: {reason}")

    def _say(self, text: str) -> None:
        self._shown.append(text)

    def _fail(self, message: str) -> None:
        self._error = self._error or SpeculationFailed(message)

    def _phase(self) -> str:
        if self._spec.speculation is None:
            return "off"
        return "calibrating" if self._calibration is not None else "decided" if self._choice else "configured"


def _told(change: ReplicaVerdict) -> str:
    return f"replica {change.slot}: {change.found}"


def _after(policy: str, engine: _Engine, configured: SpeculationSpec) -> Assignment:
    """What a bad warm-up makes of this engine's slot."""
    return Assignment(OFF, None) if policy == "disable" else Assignment(engine.arm, configured)
