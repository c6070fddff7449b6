"""Which engine runs which arm, stage by stage, so that neither slow replicas nor drift decide. Pure.

One replica goes forth and back (A B C C B A). Several run the arms side by side and change places, each arm on two of
them at least. An arm that stays where it is costs no engine start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Stage = Mapping[int, str]  # slot -> arm


@dataclass(frozen=True, slots=True)
class Cost:
    """What is still to come: engine starts, the last move to any arm included, and stages."""

    starts: int
    stages: int


def next_stage(history: Sequence[Stage], arms: Sequence[str], slots: Sequence[int]) -> dict[int, str]:
    """What each of `slots` measures next: what it has measured least, then what all have measured least.

    At least one arm.
    """
    stage: dict[int, str] = {}
    for slot in slots:
        own = [past[slot] for past in history if slot in past]
        if len(slots) == 1:
            stage[slot] = min(arms, key=lambda arm: (own.count(arm), _since(own, arm), arms.index(arm)))
        else:
            shared = [arm for past in (*history, stage) for arm in past.values()]
            stage[slot] = min(
                arms, key=lambda arm: (own.count(arm), shared.count(arm), _steps(arms, own[-1] if own else None, arm))
            )
    return stage


def is_balanced(history: Sequence[Stage], arms: Sequence[str], slots: Sequence[int]) -> bool:
    """Was every arm measured twice, on two replicas if there are two."""
    return all(
        sum(arm in past.values() for past in history) >= 2 if len(slots) == 1 else _replicas(history, arm) >= 2
        for arm in arms
    )


def cost(history: Sequence[Stage], arms: Sequence[str], slots: Sequence[int], bystanders: int, default: str) -> Cost:
    """What it takes from here until all is balanced. `bystanders` are replicas that run `default` meanwhile."""
    past, starts, stages = list(history), 0, 0
    while not is_balanced(past, arms, slots):
        stage = next_stage(past, arms, slots)
        starts += moves(past, stage)
        past.append(stage)
        stages += 1
    return Cost(starts + last_moves(past[-1] if past else {}, arms, bystanders, default), stages)


def moves(history: Sequence[Stage], stage: Stage) -> int:
    """Engine starts from what ran last to `stage`; a replica's first engine is due anyway."""
    last = {slot: arm for past in history for slot, arm in past.items()}
    return sum(slot in last and last[slot] != arm for slot, arm in stage.items())


def last_moves(stage: Stage, arms: Sequence[str], bystanders: int, default: str) -> int:
    """Engine starts until all replicas run the same arm, whichever of `arms` costs most."""
    return max(sum(runs != arm for runs in stage.values()) + (bystanders if arm != default else 0) for arm in arms)


def _replicas(history: Sequence[Stage], arm: str) -> int:
    return len({slot for past in history for slot, runs in past.items() if runs == arm})


def _since(own: Sequence[str], arm: str) -> int:
    """How many stages ago this replica ran it; 0: never."""
    return own[::-1].index(arm) + 1 if arm in own else 0


def _steps(arms: Sequence[str], last: str | None, arm: str) -> int:
    """How far from what it ran last, going round; none to stay."""
    start = arms.index(last) if last in arms else 0
    return (arms.index(arm) - start) % len(arms)
