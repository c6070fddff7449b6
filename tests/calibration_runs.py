"""Runs for calibration to decide about, simulated: replicas with engines that start, ramp up, decode and drain.

The clock is a number. Rates follow the cost model of a scripted engine: tokens per step over the step's cost, times the
replica's own speed, times drift, times what tokens in bursts do to a window.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from regen.spec import CalibrationSpec, SpeculationSpec
from regen.speculative.calibration import Arm, Calibration, Measured, Window, arms

WINDOW = 4.0
EAGLE = SpeculationSpec(method="eagle3", draft="draft", num_tokens=3)


def accept_length(arm: Arm) -> float:
    """2.1 with three tokens: 0.7, 0.3 and 0.1 by position."""
    if arm.speculation is None:
        return 1.0
    return 1.0 + sum((0.7, 0.3, 0.1)[: arm.speculation.num_tokens])


def step_cost(arm: Arm, slots: int) -> float:
    """1.0 without; 1.1 with one sequence rising to 2.6 with 64."""
    return 1.0 if arm.speculation is None else 1.1 + 1.5 * (slots - 1) / 63


def cost_model(slots: int) -> Callable[[Arm], float]:
    """Output tokens per second of one replica, a step without speculation taking 0.02 s."""
    return lambda arm: slots * accept_length(arm) / step_cost(arm, slots) / 0.02


@dataclass
class _Replica:
    arm: str | None = None
    starting_until: float = 0.0
    ramp_until: float = 0.0
    draining_until: float | None = None
    noise: float = 0.0
    owed: float = 0.0


@dataclass
class SimulatedRun:
    """One run. `rate` gives a replica's tokens per second by arm; `drift` a factor by time; `fails` what dies."""

    slots: int = 16
    replicas: int = 1
    seed: int = 0
    rate: Callable[[Arm], float] | None = None
    spec: CalibrationSpec = field(default_factory=CalibrationSpec)
    speculation: SpeculationSpec = EAGLE
    is_required: bool = False
    speeds: Sequence[float] | None = None
    drift: Callable[[float], float] = lambda now: 1.0
    burst: float = 0.02
    start_seconds: float = 40.0
    drain_seconds: float = 20.0
    ramp_seconds: float = 6.0
    seconds_left: Callable[[float], float | None] = lambda now: None
    fails: Mapping[str, int] = field(default_factory=dict)  # arm -> slot
    is_full: bool = True
    has_schedules: bool = False

    def __post_init__(self) -> None:
        self.now = 0.0
        self.starts = 0
        self.journal: list[Measured] = []
        self.draw = random.Random(self.seed)
        self.arms = arms(self.speculation, self.slots, self.spec.arms, self.has_schedules)
        speeds = self.speeds or [1.0] * self.replicas
        self._speeds = [speeds[slot % len(speeds)] for slot in range(self.replicas)]
        self.true_rate = self.rate or cost_model(self.slots)
        self._engines = [_Replica() for _ in range(self.replicas)]
        self._lost: set[int] = set()
        self.calibration = self._calibration()

    def _calibration(self) -> Calibration:
        return Calibration(self.arms, range(self.replicas), self.spec, self.is_required, tuple(self.journal))

    def restart(self, *, with_engines: bool) -> None:
        """The coordinator's memory is gone, or the whole session is; the journal stays."""
        self.calibration = self._calibration()
        if with_engines:
            self._engines = [_Replica() for _ in range(self.replicas)]

    def lose(self, slot: int, *, is_said: bool = True) -> None:
        """This replica has used up its restarts."""
        self._lost.add(slot)
        if is_said:
            self.calibration.slot_lost(slot)

    def until_settled(self, limit_seconds: float = 50_000) -> Calibration:
        """Until a choice was made and every engine runs it."""
        while not self._is_settled():
            self.step()
            assert self.now < limit_seconds, "calibration does not end"
        return self.calibration

    def step(self) -> None:
        """One window of all replicas."""
        self.now += WINDOW
        for slot, engine in enumerate(self._engines):
            if slot not in self._lost:
                self._advance(slot, engine)
        self.calibration.outlook(self.seconds_left(self.now))
        self.journal += self.calibration.newly_measured()

    def loss(self) -> float:
        """How much slower the choice is than the best arm, as a share."""
        assert self.calibration.choice is not None
        best = max(self.true_rate(arm) for arm in self.arms)
        return 1.0 - self.true_rate(self.calibration.choice.arm) / best

    def _is_settled(self) -> bool:
        choice = self.calibration.choice
        return choice is not None and all(
            engine.arm == choice.arm.name and self.now >= engine.starting_until
            for slot, engine in enumerate(self._engines)
            if slot not in self._lost
        )

    def _advance(self, slot: int, engine: _Replica) -> None:
        wanted = self.calibration.wanted(slot).name
        if engine.arm is None:
            self._start(engine, wanted)
        elif self.now < engine.starting_until:
            return
        elif self.now - WINDOW < engine.starting_until:
            self._started(slot, engine)
        elif engine.draining_until is not None and self.now >= engine.draining_until:
            self.starts += 1
            self._start(engine, wanted)
        else:
            if wanted != engine.arm and engine.draining_until is None:
                engine.draining_until = self.now + self.drain_seconds
            self.calibration.add(self._window(slot, engine))

    def _start(self, engine: _Replica, arm: str) -> None:
        engine.arm, engine.draining_until = arm, None
        engine.starting_until = self.now + self.start_seconds * self.draw.uniform(0.9, 1.1)
        engine.ramp_until = engine.starting_until + self.ramp_seconds

    def _started(self, slot: int, engine: _Replica) -> None:
        assert engine.arm is not None
        if self.fails.get(engine.arm) == slot:
            arm, engine.arm = engine.arm, None
            self.starts += 1
            self.calibration.engine_failed(slot, arm)
        else:
            self.calibration.engine_started(slot, engine.arm, self.start_seconds)

    def _window(self, slot: int, engine: _Replica) -> Window:
        """Bursts: one part goes on from window to window, another is made up for by the next."""
        arm = next(arm for arm in self.arms if arm.name == engine.arm)
        is_full = self.is_full and self.now > engine.ramp_until and engine.draining_until is None
        engine.noise = 0.5 * engine.noise + self.draw.gauss(0, self.burst)
        exact = self.true_rate(arm) * self._speeds[slot] * self.drift(self.now) * (1.0 if is_full else 0.6)
        due = exact * WINDOW * max(0.0, 1.0 + engine.noise) + engine.owed
        tokens = max(0, round(due * self.draw.uniform(1 - 5 * self.burst, 1 + 5 * self.burst)))
        engine.owed = due - tokens
        drafts = round(tokens / accept_length(arm)) if arm.speculation else 0
        return Window(
            slot=slot,
            arm=arm.name,
            seconds=WINDOW,
            output_tokens=tokens,
            is_full=is_full,
            drafts=drafts,
            accepted=tokens - drafts if drafts else 0,
            prompt_tokens=tokens // 2,
            prefix_hit_tokens=tokens // 4,
            preemptions=0,
        )


def wave(share: float, period_seconds: float, phase: float = 0.0) -> Callable[[float], float]:
    """Drift that comes and goes."""
    return lambda now: 1.0 + share * math.sin(2 * math.pi * now / period_seconds + phase)


def slope(share_per_hour: float) -> Callable[[float], float]:
    """Drift that only goes on."""
    return lambda now: math.exp(share_per_hour * now / 3600)
