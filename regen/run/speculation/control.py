"""Speculation during one session: with what engines are started, whether they may work, when one is replaced.

Joins gate, calibration and guard into decisions. Pure: it takes what replicas say and `now`; whoever owns it publishes
the `unwritten` records, obeys `command`, and ends the run on `error`. Made anew from the journal's records it goes on
with what was decided. Where the number of replicas is not fixed, those are compared that are there when the first
engine is up; those that join later run what others run that take no part, and in the end what was decided. Without
`speculation` in the spec every engine is off and nothing here acts.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace

from regen.errors import SpeculationFailed
from regen.records import WORKING_STATES, Acceptance, Command, ReplicaState, ReplicaStats, SpeculationStatus, WorkerId
from regen.run.setup import CONFIGURED, OFF, Assignment, Purpose, RunSetup
from regen.run.speculation.guard_duty import GuardDecision, GuardDuty, Outlook, Watched
from regen.run.speculation.records import measured_of, speculation_of, subject_of, text_of
from regen.run.speculation.windows import window_between
from regen.spec import SPECULATION_POLICY, SpeculationSpec, VllmEngineSpec
from regen.speculative.calibration import Arm, Calibration, Choice, Measured, arms
from regen.speculative.gate import GateResult, GateVerdict, judge
from regen.store.control import ArmMeasured, DecidedBy, Record, SpeculationDecided, Verdict

# So many of the latest decisions are shown.
_SHOWN_DECISIONS = 20
# So often an engine of one setting may fail in one slot before it has worked, until its setting is taken to be why.
_FAILED_STARTS = 2
# So long a comparison has begun before an engine makes way for another setting: whoever waits for room is sent away
# first, by a driver that looks once a second, or it would take that engine's.
_MOVES_AFTER_SECONDS = 5.0
_UP = (ReplicaState.WARMING, ReplicaState.RUNNING)


@dataclass(slots=True)
class _Engine:
    """The living engine of a slot, as far as it has said. `has_worked`: rows were leased to it."""

    worker: WorkerId
    arm: str
    stats: ReplicaStats
    gate: GateResult | None = None
    has_worked: bool = False
    is_replaced: bool = False
    verdict: str = "unknown"


class SpeculationControl:
    """One per coordinator."""

    def __init__(self, setup: RunSetup, records: Iterable[Record]) -> None:
        """`records` are those of the journal that still matter."""
        speculation, engine = setup.spec.speculation, setup.spec.engine
        self._setup = setup
        self._spec = setup.spec
        self._subject = subject_of(setup.spec)
        self._engines: dict[int, _Engine] = {}
        self._lost: set[int] = set()
        self._is_fixed = engine.is_fixed
        self._open = frozenset(range(engine.fewest_replicas))
        self._are_slots_told = self._is_fixed
        self._ever_heard: set[int] = set()
        self._switched_off: set[int] = set()
        self._choice: Assignment | None = None
        self._calibration: Calibration | None = None
        self._is_comparison_due = False
        self._now = self._moves_after = 0.0
        self._measured_before: list[Measured] = []
        self._left_out_before: list[tuple[int, str]] = []
        self._failed_starts: Counter[tuple[int, str]] = Counter()
        self._guard = GuardDuty(speculation, range(engine.most_replicas), OFF) if speculation is not None else None
        self._outlook = Outlook(len(self._open))
        self._error: SpeculationFailed | None = None
        self._unwritten: list[Record] = []
        self._shown: deque[str] = deque(maxlen=_SHOWN_DECISIONS)
        if speculation is not None:
            self._restore(speculation, list(records))

    # --- what others ask ---------------------------------------------------------------------------

    @property
    def is_on(self) -> bool:
        """The spec has speculation, whatever was decided about it."""
        return self._spec.speculation is not None

    @property
    def error(self) -> SpeculationFailed | None:
        """Set when the spec asks to stop."""
        return self._error

    @property
    def is_comparing(self) -> bool:
        """Settings are measured against one another on the engines that there are."""
        return self._calibration is not None

    @property
    def has_what_it_came_for(self) -> bool:
        """`regen calibrate` only: the choice is made."""
        return self._setup.purpose.calibrates and self._choice is not None

    def assignment(self, slot: int) -> Assignment:
        """With what this slot's next engine is started."""
        configured = self._spec.speculation
        if configured is None or slot in self._switched_off:
            return Assignment(OFF, None)
        if self._choice is not None:
            return self._choice
        if self._calibration is not None:
            arm = self._calibration.wanted(slot)
            return Assignment(arm.name, arm.speculation, is_trial=not self._calibration.has_joined(slot))
        return Assignment(CONFIGURED, configured, is_trial=self._is_comparison_due)

    def command(self, worker: WorkerId) -> Command:
        """What this worker is told, as far as speculation has a say in it."""
        engine = self._engines.get(worker.slot)
        if self._error is not None or engine is None or engine.worker != worker:
            return Command.WAIT
        if self._waits_to_move(engine):
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
            cells=self._guard.cells() if self._guard else (),
        )

    # --- events ------------------------------------------------------------------------------------

    def slots_open(self, slots: frozenset[int], now: float) -> None:
        """Where engines are now, or will be soon. Of a fleet that changes nothing is compared before the first call."""
        came, left = slots - self._open, self._open - slots
        self._open, self._are_slots_told = slots, True
        if self._guard is not None:
            for slot in left & self._ever_heard:
                self._guard.left(slot, now)
        if self._calibration is not None:
            # With a fixed number the engine of one that was never heard is bound to come.
            for slot in left & self._ever_heard if self._is_fixed else left:
                self._calibration.slot_left(slot)
            for slot in came:
                self._calibration.slot_joined(slot)

    def hear(self, worker: WorkerId, stats: ReplicaStats, now: float) -> None:
        """One exchange of a worker that is not superseded."""
        self._now = now
        engine = self._engines.get(worker.slot)
        if engine is None or engine.worker != worker:
            # One that drains when it is first heard was told to leave by the coordinator before this one.
            is_replaced = stats.state is ReplicaState.DRAINING
            engine = _Engine(worker, stats.arm, stats, has_worked=is_replaced, is_replaced=is_replaced)
            self._engines[worker.slot] = engine
            self._ever_heard.add(worker.slot)
        before, engine.stats = engine.stats, stats
        self._begin_if_due()
        if stats.warmup is not None and engine.gate is None:
            self._judge(engine, stats)
        if stats.state is ReplicaState.RUNNING and not engine.has_worked:
            self._begin_work(engine, stats, now)
        if stats.state in WORKING_STATES and before.state in WORKING_STATES and self._calibration is not None:
            self._calibration.add(window_between(worker.slot, before, stats))
        if stats.state is ReplicaState.RUNNING and self._guard is not None and not engine.is_replaced:
            counters = stats.counters
            tokens = counters.output_tokens if counters.counted_tokens is None else counters.counted_tokens
            self._guard.counters(worker.slot, now, tokens, counters.acceptance)

    def generation(self, slot: int, source: str, prompt_tokens: int, acceptance: Acceptance | None) -> None:
        """One finished generation of a replica."""
        engine = self._engines.get(slot)
        if self._guard is not None and engine is not None and engine.has_worked:
            self._guard.generation(slot, source, prompt_tokens, acceptance)

    def worker_gone(self, worker: WorkerId, is_to_blame: bool = True) -> None:
        """This engine has ended. One that has never worked may have died of its setting: twice, and it is left out.

        Not `is_to_blame`: it was told to leave, or its node or server went away, and that says nothing of its setting.
        """
        engine = self._engines.get(worker.slot)
        if engine is None or engine.worker != worker:
            return
        del self._engines[worker.slot]
        if not is_to_blame or engine.is_replaced or engine.has_worked:
            return
        if self._is_comparison_due:
            self._begin_to_compare(worker.slot)
        if self._calibration is None or self._calibration.has_joined(worker.slot):
            return  # one that joined may have come to a bad node
        self._failed_starts[worker.slot, engine.arm] += 1
        if self._failed_starts[worker.slot, engine.arm] >= _FAILED_STARTS:
            self._leave_out(engine, f"replica {worker.slot}: its engine failed {_FAILED_STARTS} times before it worked")

    def slot_lost(self, slot: int) -> None:
        """This slot gets no engine any more: its restarts are used up."""
        self._lost.add(slot)
        self._engines.pop(slot, None)
        if self._calibration is not None:
            self._calibration.slot_lost(slot)

    def tick(self, now: float, seconds_left: float | None, row_seconds: float = 0.0) -> None:
        """Decide what is due.

        `seconds_left`: until the run's end at the present rate, None as long as nobody knows; `row_seconds`: how long a
        row takes, and so a drain.
        """
        self._now = now
        self._outlook = Outlook(max(1, len(self._open - self._lost)), seconds_left, row_seconds)
        if self._error is None and self.is_on:
            self._begin_if_due()
            self._calibrate()
            self._obey_guard(now)

    # --- the gate ----------------------------------------------------------------------------------

    def _judge(self, engine: _Engine, stats: ReplicaStats) -> None:
        speculation = self._speculation_of(engine)
        if speculation is None or stats.warmup is None:
            return
        engine.gate = result = judge(stats.warmup, speculation, temperature=self._setup.temperature)
        engine.verdict = result.verdict.value
        reason = f"replica {engine.worker.slot}, warm-up: {result.found}"
        if result.is_bad:
            self._act_on_bad_warmup(engine, result, reason)
        elif result.verdict is GateVerdict.UNDECIDED:
            self._decide(DecidedBy.GATE, engine.worker.slot, self._running(engine), result.verdict, reason)

    def _act_on_bad_warmup(self, engine: _Engine, result: GateResult, reason: str) -> None:
        configured, slot = self._spec.speculation, engine.worker.slot
        assert configured is not None, "only an engine that speculates is warmed up"
        is_compared = self._calibration is not None and not self._calibration.has_joined(slot)
        is_trial = is_compared and engine.arm != CONFIGURED
        if configured.gate == "disable" and not is_compared:
            self._switched_off.add(slot)
        is_off = slot in self._switched_off
        after = Assignment(OFF, None) if is_off else self._running(engine)
        self._decide(DecidedBy.GATE, slot, after, result.verdict, reason)
        if is_trial or (configured.gate == "disable" and not is_off):
            self._leave_out(engine, reason)
        elif configured.gate == "fail":
            causes = "".join(f"\n  - {cause}" for cause in result.causes)
            self._fail(
                f"{reason}\nLikely causes, the likeliest first:{causes}\n"
                "Nothing was generated with it. Mend the draft or its settings; speculation.gate: disable goes on"
                " without speculation, warn goes on with it."
            )

    def _begin_work(self, engine: _Engine, stats: ReplicaStats, now: float) -> None:
        engine.has_worked, slot = True, engine.worker.slot
        warmup_seconds = stats.warmup.seconds if stats.warmup else 0.0
        if self._calibration is not None:
            self._calibration.engine_started(slot, engine.arm, stats.started_seconds + warmup_seconds)
        if self._guard is not None:
            warmup = stats.warmup.acceptance if stats.warmup else None
            self._guard.engine_started(slot, now, self._speculation_of(engine), warmup)

    # --- calibration -------------------------------------------------------------------------------

    def _begin_if_due(self) -> None:
        """Once an engine is up, and it is known which slots there are: a coordinator that takes over is told them."""
        is_up = any(engine.stats.state in (*_UP, *WORKING_STATES) for engine in self._engines.values())
        if self._is_comparison_due and self._are_slots_told and is_up:
            self._begin_to_compare()

    def _begin_to_compare(self, *also: int) -> None:
        """The replicas that are there; those first that were measured before."""
        self._is_comparison_due, self._moves_after = False, self._now + _MOVES_AFTER_SECONDS
        measured = {one.slot for one in self._measured_before}
        there = self._open.union(self._engines, also) - self._lost
        self._calibration = self._new_calibration(sorted(there, key=lambda slot: (slot not in measured, slot)))
        for slot, engine in self._engines.items():
            if engine.has_worked:
                self._calibration.engine_started(slot, engine.arm, engine.stats.started_seconds)

    def _calibrate(self) -> None:
        calibration = self._calibration
        if calibration is None:
            return
        calibration.outlook(self._outlook.seconds_left)
        self._unwritten += [self._measured_record(measured) for measured in calibration.newly_measured()]
        if calibration.choice is not None:
            self._choose(calibration.choice)

    def _choose(self, choice: Choice) -> None:
        configured = self._spec.speculation
        assert configured is not None, "without speculation nothing is compared"
        self._calibration = None
        self._choice = Assignment(choice.arm.name, choice.arm.speculation)
        table = [asdict(result) for result in choice.table]
        if self._guard is not None:
            self._guard.take_evidence(table)
        verdict = Verdict.MEASURED if choice.is_measured else Verdict.UNMEASURED
        self._decide(DecidedBy.CALIBRATION, None, self._choice, verdict, choice.reason, json.dumps(table))
        is_demanded = configured.calibrate == "required" or self._setup.purpose.calibrates
        if is_demanded and not choice.is_measured:
            self._fail(
                f"calibration was asked for and could not be brought to an end: {choice.reason}."
                " `regen run` with speculation.calibrate: auto takes that as the answer."
            )

    def _leave_out(self, engine: _Engine, reason: str) -> None:
        """This setting is compared no more; written down, for a coordinator that comes after this one."""
        assert self._calibration is not None, "settings are left out of a comparison"
        self._calibration.engine_failed(engine.worker.slot, engine.arm)
        told = f"the setting {engine.arm} is left out: {reason}"
        self._decide(DecidedBy.CALIBRATION, engine.worker.slot, self._running(engine), Verdict.LEFT_OUT, told)

    def _measured_record(self, measured: Measured) -> ArmMeasured:
        speculation = next((arm.speculation for arm in self._arms() if arm.name == measured.arm), None)
        return ArmMeasured(self._setup.session, self._subject, speculation=text_of(speculation), **asdict(measured))

    # --- the guard ---------------------------------------------------------------------------------

    def _obey_guard(self, now: float) -> None:
        if self._guard is None:
            return
        speculating = {
            slot: engine
            for slot, engine in self._engines.items()
            if engine.arm != OFF and not engine.is_replaced and engine.has_worked
        }
        watched = {
            slot: Watched(engine.arm, engine.stats.started_seconds, engine.verdict)
            for slot, engine in speculating.items()
        }
        changed = [change for change in self._guard.changes(now) if change.slot in watched]
        for change in changed:
            speculating[change.slot].verdict = change.verdict.value
        for decision in self._guard.decisions(now, changed, watched, self._outlook, self._calibration is not None):
            self._obey(decision)

    def _obey(self, decision: GuardDecision) -> None:
        if decision.switches_off:
            self._switched_off.add(decision.slot)
        after = self.assignment(decision.slot)
        self._decide(DecidedBy.GUARD, decision.slot, after, decision.verdict, decision.reason)
        if decision.is_fatal:
            self._fail(f"{decision.reason}. speculation.guard is fail; disable and warn go on.")

    # --- what was decided before -------------------------------------------------------------------

    def _restore(self, speculation: SpeculationSpec, records: list[Record]) -> None:
        """A measured choice holds for its subject, whatever the session; all else for this session only."""
        decided = [record for record in records if isinstance(record, SpeculationDecided)]
        decided = [record for record in decided if record.subject == self._subject]
        own = [record for record in decided if record.session == self._setup.session]
        for record in decided:
            if record.by is DecidedBy.CALIBRATION and record.slot is None and self._still_holds(record, speculation):
                self._choice = self._chosen(record, speculation)
                if self._guard is not None:
                    self._guard.take_evidence(json.loads(record.evidence))
        self._switched_off.update(record.slot for record in own if record.slot is not None and record.arm == OFF)
        is_wanted = speculation.calibrate != "off" or self._setup.purpose.calibrates
        is_pilot = self._setup.purpose is Purpose.PILOT  # a sample is too short for it
        if self._choice is None and is_wanted and not is_pilot:
            left_out = (record for record in own if record.verdict == Verdict.LEFT_OUT)
            self._left_out_before = [(record.slot, record.arm) for record in left_out if record.slot is not None]
            self._measured_before = self._measured_of(records)
            self._is_comparison_due = not self._is_fixed
            if self._is_fixed:
                self._calibration = self._new_calibration(range(self._spec.engine.most_replicas))

    def _still_holds(self, choice: SpeculationDecided, speculation: SpeculationSpec) -> bool:
        if choice.session == self._setup.session:
            return True
        wants_anew = self._setup.purpose is Purpose.CALIBRATE_AGAIN
        wants_none = not self._setup.purpose.calibrates and speculation.calibrate == "off"
        return choice.verdict == Verdict.MEASURED and not wants_anew and not wants_none

    def _chosen(self, choice: SpeculationDecided, speculation: SpeculationSpec) -> Assignment:
        """How it is judged is the spec's present say; what was chosen stays."""
        if choice.arm == CONFIGURED:
            return Assignment(CONFIGURED, speculation)
        chosen = speculation_of(choice.speculation)
        policy = {name: getattr(speculation, name) for name in SPECULATION_POLICY}
        return Assignment(choice.arm, chosen.model_copy(update=policy) if chosen is not None else None)

    def _measured_of(self, records: list[Record]) -> list[Measured]:
        is_again = self._setup.purpose is Purpose.CALIBRATE_AGAIN
        return [
            measured_of(record)
            for record in records
            if isinstance(record, ArmMeasured)
            and record.subject == self._subject
            and (record.session == self._setup.session or not is_again)
        ]

    def _new_calibration(self, slots: Sequence[int]) -> Calibration:
        speculation = self._spec.speculation
        assert speculation is not None, "without speculation nothing is compared"
        is_required = speculation.calibrate == "required" or self._setup.purpose.calibrates
        made = Calibration(self._arms(), slots, speculation.calibration, is_required, self._measured_before)
        for slot, arm in self._left_out_before:
            made.engine_failed(slot, arm)
        return made

    def _arms(self) -> tuple[Arm, ...]:
        speculation, engine = self._spec.speculation, self._spec.engine
        assert speculation is not None, "without speculation nothing is compared"
        args = engine.args if isinstance(engine, VllmEngineSpec) else {}
        has_schedules = args.get("data_parallel_size", 1) == 1  # vLLM drops a schedule silently with data parallelism
        return arms(speculation, engine.slots, speculation.calibration.arms, has_schedules)

    # --- steps -------------------------------------------------------------------------------------

    def _running(self, engine: _Engine) -> Assignment:
        return Assignment(engine.arm, self._speculation_of(engine))

    def _speculation_of(self, engine: _Engine) -> SpeculationSpec | None:
        """What this engine was started with, by the name of its arm."""
        if engine.arm == OFF:
            return None
        if self._choice is not None and engine.arm == self._choice.arm:
            return self._choice.speculation
        return next((arm.speculation for arm in self._arms() if arm.name == engine.arm), self._spec.speculation)

    def _waits_to_move(self, engine: _Engine) -> bool:
        """It is to make way for another setting, and somebody could take its room."""
        is_early = self._calibration is not None and self._now < self._moves_after
        return is_early and engine.arm != self.assignment(engine.worker.slot).arm

    def _is_to_be_replaced(self, engine: _Engine) -> bool:
        slot = engine.worker.slot
        if engine.stats.state not in _UP or engine.arm == self.assignment(slot).arm:
            return False
        if not engine.has_worked or slot not in self._switched_off:
            return True  # one that has not passed the gate gets no row, and so has nothing to wait for
        return not any(self._is_away(other) for other in self._switched_off if other != slot)

    def _is_away(self, slot: int) -> bool:
        """Engines are switched off one at a time: this one is on its way, until it works again without speculation."""
        if slot in self._lost or slot not in self._open:
            return False
        engine = self._engines.get(slot)
        if engine is None or engine.is_replaced:
            return True
        return engine.arm == OFF and engine.stats.state is not ReplicaState.RUNNING

    def _decide(
        self, by: DecidedBy, slot: int | None, what: Assignment, verdict: str, reason: str, evidence: str = "[]"
    ) -> None:
        self._unwritten.append(
            SpeculationDecided(
                session=self._setup.session,
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

    def _fail(self, message: str) -> None:
        self._error = self._error or SpeculationFailed(message)

    def _phase(self) -> str:
        if not self.is_on:
            return "off"
        return (
            "calibrating"
            if self.is_comparing or self._is_comparison_due
            else "decided"
            if self._choice
            else "configured"
        )
