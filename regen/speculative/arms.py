"""The settings that calibration compares: nothing, what the spec says, and a small grid around it. Pure.

Every arm is one that preflight lets through where it let the configured one through: the same draft with fewer tokens,
or a method that needs no draft. None of them changes what is sampled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from regen.spec import SCHEDULE_ARG, SPECULATION_POLICY, SpeculationSpec
from regen.speculative.gate import DOUBTS

OFF, CONFIGURED = "off", "configured"
# Draft tokens of the n-gram arm, and the matches that it looks for. vLLM's own default, a match of 5, is rare in prose.
NGRAM_TOKENS = 4
_NGRAM_ARGS: dict[str, Any] = {"prompt_lookup_min": 2, "prompt_lookup_max": 4}
_KEPT = (*SPECULATION_POLICY, "accept")


@dataclass(frozen=True, slots=True)
class Arm:
    """One setting. `speculation` None: without."""

    name: str
    speculation: SpeculationSpec | None


def arms(speculation: SpeculationSpec, slots: int, at_most: int, has_schedules: bool) -> tuple[Arm, ...]:
    """Off, configured, then the grid in order of promise; `at_most` of them, and never fewer than two.

    `slots` is the run's concurrency on one engine. `has_schedules`: the engine goes by a schedule of tokens by batch
    size (vLLM does, and drops it with data parallelism).
    """
    found = [Arm(OFF, None), Arm(CONFIGURED, speculation), *_grid(speculation, slots, has_schedules)]
    return tuple(found[: max(2, at_most)])


def _grid(speculation: SpeculationSpec, slots: int, has_schedules: bool) -> Iterator[Arm]:
    fewer = _fewer_tokens(speculation)
    for count in fewer:
        yield Arm(f"tokens-{count}", _with_tokens(speculation, count))
    if speculation.method != "ngram":
        yield Arm(f"ngram-{NGRAM_TOKENS}", _ngram(speculation))
    if has_schedules and fewer and slots > 1 and speculation.draft and SCHEDULE_ARG not in speculation.args:
        yield _scheduled(speculation, slots)


def _fewer_tokens(speculation: SpeculationSpec) -> tuple[int, ...]:
    """Half, then one. MTP and Medusa take multiples of their layers, which are not known here; one fits always."""
    configured = speculation.num_tokens
    wanted = (1,) if speculation.method in ("mtp", "medusa") else (configured // 2, 1)
    return tuple(dict.fromkeys(count for count in wanted if 0 < count < configured))


def _with_tokens(speculation: SpeculationSpec, count: int) -> SpeculationSpec:
    """What is expected is a profile by position: it may name no position that is not drafted."""
    expected = speculation.expected
    if expected is not None:
        expected = expected.model_copy(update={"by_position": expected.by_position[:count]})
    return speculation.model_copy(update={"num_tokens": count, "expected": expected})


def _ngram(speculation: SpeculationSpec) -> SpeculationSpec:
    """Made anew: the draft, its arguments, its layers, its profile and doubts about it belong to another method."""
    policy = {name: getattr(speculation, name) for name in _KEPT}
    policy["accept"] = [code for code in speculation.accept if code not in DOUBTS]
    return SpeculationSpec(method="ngram", num_tokens=NGRAM_TOKENS, args=dict(_NGRAM_ARGS), **policy)


def _scheduled(speculation: SpeculationSpec, slots: int) -> Arm:
    """All tokens while at most half of the slots decode, one beyond: full slots get the cheap step, the tail the deep.

    Never zero tokens beyond: with full slots that would be `off`, which is an arm already. An expected profile does not
    hold where the number of tokens changes.
    """
    half = slots // 2
    schedule = [[1, half, speculation.num_tokens], [half + 1, slots, 1]]
    args = {**speculation.args, SCHEDULE_ARG: schedule}
    return Arm(f"schedule-{half}", speculation.model_copy(update={"args": args, "expected": None}))
