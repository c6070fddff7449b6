"""Does speculation work: one verdict over what an engine's warm-up has shown. Pure.

Guarantees: only figures that so few drafts cannot give by chance are held against a draft, so a healthy one is not
refused; an accept length that is just above dead is not called healthy either, it is `undecided` until more drafts
tell. Answers that are wrong (`garbage`) come first: they are worse than slow ones.

What it does not know: whether speculation pays. A draft that works a little is healthy here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from regen.records import Acceptance, CanaryMiss, WarmupReport
from regen.spec import SCHEDULE_ARG, SpeculationSpec
from regen.speculative.drafting import drafts_nothing_at_some_size, drafts_on_matches
from regen.speculative.gate_causes import Trouble, causes_of

DEAD_ACCEPT_LENGTH = 1.05
# How sure a figure must be before it is held against a draft, or for it: standard deviations.
SURE = 3.0
# Accepts come in runs within an answer, so that they vary more than independent ones: measured 1.9 to 2.2, as a
# variance, over answers of 64 tokens of a real head.
CLUSTERING = 2.0
# So many drafts must have been due, at the least, before it means something that none was counted.
DRAFTS_DUE = 50
# A warm-up stops to wait for drafts when it has decoded so many tokens for each draft that it needs.
TOKENS_PER_DRAFT = 20
# Greedy figures do not carry over to sampling: at temperature 1 this share of them is enough.
SAMPLED_SHARE = 0.5
# A draft that preflight refuses and `accept` lets through has to show that it is whole. An EAGLE-3 head run as `eagle`
# was seen to accept 0.02 to 0.15 at position 0, wrong layers 0.09; whole ones 0.32 and more, 0.26 at temperature 1.
DOUBTED_SHARE = 0.25
DOUBTS = frozenset(
    {
        "aux-states-off",
        "d2t-all-zero",
        "d2t-length",
        "d2t-missing",
        "d2t-out-of-range",
        "d2t-t2d-disagree",
        "draft-vocabulary",
        "head-count",
        "hidden-size",
        "layer-count",
        "layer-ids-conflict",
        "layer-ids-count",
        "layer-ids-malformed",
        "layer-ids-out-of-range",
        "method-mismatch",
        "mtp-absent",
        "path-decides-method",
        "tokenizer-mismatch",
        "vocabulary-size",
        "weights-contradict-config",
        "weights-damaged",
        "weights-incomplete",
        "weights-not-finite",
        "weights-shape",
        "weights-zero",
    }
)


class GateVerdict(StrEnum):
    HEALTHY = "healthy"
    DEAD = "dead"
    ABSENT = "absent"  # nothing was counted, although drafts were due: not a zero
    OFF_PROFILE = "off_profile"  # alive, and below what its card promises
    GARBAGE = "garbage"  # the target would not have said what came out
    UNDECIDED = "undecided"


_BAD = (GateVerdict.DEAD, GateVerdict.ABSENT, GateVerdict.OFF_PROFILE, GateVerdict.GARBAGE)


@dataclass(frozen=True, slots=True)
class GateResult:
    """`found` is one sentence with the figures; `causes` are what to look at, most likely first."""

    verdict: GateVerdict
    found: str
    causes: tuple[str, ...]
    accept_length: float | None

    @property
    def is_bad(self) -> bool:
        return self.verdict in _BAD


@dataclass(frozen=True, slots=True)
class _Ruling:
    verdict: GateVerdict
    found: str
    trouble: Trouble | None = None


def judge(
    report: WarmupReport, speculation: SpeculationSpec, is_final: bool = True, temperature: float = 0.0
) -> GateResult:
    """The verdict on one engine's warm-up.

    With `is_final` false the warm-up may go on: whatever more drafts could still turn is `undecided` then.
    `temperature` is what the warm-up sampled at.
    """
    ruling = (
        _garbage(report, speculation)
        or _absent(report, speculation)
        or _too_few(report, speculation)
        or _dead(report, speculation)
        or _off_profile(report, speculation, is_final, temperature)
        or _hardly_alive(report)
        or _Ruling(GateVerdict.HEALTHY, _figures(report) + _unrated(report, speculation))
    )
    causes = causes_of(ruling.trouble, speculation, temperature) if ruling.trouble else ()
    return GateResult(ruling.verdict, ruling.found, causes, _seen(report).accept_length)


def could_tell_more(report: WarmupReport, speculation: SpeculationSpec) -> bool:
    """Whether more warm-up answers are likely to bring a verdict: not where drafts, or good answers, are too rare."""
    settings = speculation.warmup
    tokens = report.output_tokens + report.degenerate * settings.max_tokens
    return tokens < TOKENS_PER_DRAFT * settings.drafts


# --- the rules, in order of weight ---------------------------------------------------------------


def _garbage(report: WarmupReport, speculation: SpeculationSpec) -> _Ruling | None:
    misses = report.canary_misses
    if not misses:
        return None
    worst = max(misses, key=lambda miss: miss.margin)
    return _Ruling(
        GateVerdict.GARBAGE,
        f"{len(misses)} of {report.canary_answers} greedy answers are not the target's: {_miss(worst)};"
        f" speculation.warmup.canary_margin is {speculation.warmup.canary_margin:g}",
        Trouble.GARBAGE,
    )


def _miss(miss: CanaryMiss) -> str:
    return (
        f"row {miss.row_id} says at token {miss.position} what the target itself rates {miss.margin:.1f} nats"
        " below its best"
    )


def _absent(report: WarmupReport, speculation: SpeculationSpec) -> _Ruling | None:
    due = _drafts_due(report, speculation)
    if _seen(report).drafts or due < DRAFTS_DUE or drafts_nothing_at_some_size(speculation):
        return None
    if drafts_on_matches(speculation) and report.acceptance is not None:
        return None
    said = "no speculation counters" if report.acceptance is None else "no drafts"
    return _Ruling(
        GateVerdict.ABSENT,
        f"{said} over {report.output_tokens:,} tokens of {report.answers} warm-up answers, where {due:,} drafts or"
        " more were due",
        Trouble.ABSENT,
    )


def _too_few(report: WarmupReport, speculation: SpeculationSpec) -> _Ruling | None:
    drafts, needed = _seen(report).drafts, speculation.warmup.drafts
    if drafts >= needed:
        return None
    why = ""
    if speculation.num_tokens == 0:
        why = "; speculation.num_tokens is 0"
    elif drafts_nothing_at_some_size(speculation):
        why = f"; {SCHEDULE_ARG} drafts nothing at some batch sizes"
    elif drafts_on_matches(speculation):
        why = f"; {speculation.method} drafts only where earlier text repeats"
    return _Ruling(GateVerdict.UNDECIDED, f"{_figures(report)}: a verdict needs {needed:,} drafts{why}")


def _dead(report: WarmupReport, speculation: SpeculationSpec) -> _Ruling | None:
    length = _seen(report).accept_length
    if length is None or length > DEAD_ACCEPT_LENGTH:
        return None
    return _Ruling(GateVerdict.DEAD, f"speculation does nothing: {_figures(report)}", Trouble.DEAD)


@dataclass(frozen=True, slots=True)
class _Floor:
    """The least share of drafts that must accept more than `position` tokens, and who says so."""

    position: int
    share: float
    because: str


def _off_profile(
    report: WarmupReport, speculation: SpeculationSpec, is_final: bool, temperature: float
) -> _Ruling | None:
    seen = _seen(report)
    positions = _comparable_positions(seen, speculation)
    for floor in _floors(speculation, temperature):
        if floor.position >= positions:
            continue
        accepted = seen.accepted_by_position[floor.position]
        said = (
            f"position {floor.position} accepts {accepted / seen.drafts:.2f}, {floor.because}"
            f" ({floor.share:.2f} at the least" + (f" at temperature {temperature:g})" if temperature else ")")
        )
        if _share_at_most(accepted, seen.drafts) < floor.share:
            trouble = Trouble.OFF_PROFILE_AT_FIRST if floor.position == 0 else Trouble.OFF_PROFILE_LATER
            return _Ruling(GateVerdict.OFF_PROFILE, f"{said}; {_figures(report)}", trouble)
        if accepted / seen.drafts < floor.share and not is_final:
            return _Ruling(GateVerdict.UNDECIDED, f"{said}, which so few drafts do not settle; {_figures(report)}")
    return None


def _floors(speculation: SpeculationSpec, temperature: float) -> Iterator[_Floor]:
    sampled, expected = _share_when_sampled(temperature), speculation.expected
    if expected is not None:
        for position, promised in enumerate(expected.by_position):
            # A position is reached only through those before it, so what each may fall short by is multiplied.
            share = promised * ((1 - expected.tolerance) * sampled) ** (position + 1)
            yield _Floor(position, share, f"expected.by_position says {promised:.2f}")
    if doubts := sorted(DOUBTS.intersection(speculation.accept)):
        yield _Floor(
            0, DOUBTED_SHARE * sampled, f"and speculation.accept lets through what preflight refuses: {doubts[0]}"
        )


def _hardly_alive(report: WarmupReport) -> _Ruling | None:
    seen = _seen(report)
    mean = seen.accepted / seen.drafts
    if mean - SURE * _standard_error(seen) > DEAD_ACCEPT_LENGTH - 1:
        return None
    return _Ruling(
        GateVerdict.UNDECIDED, f"{_figures(report)}: so many drafts do not tell that from {DEAD_ACCEPT_LENGTH}"
    )


# --- figures -------------------------------------------------------------------------------------


def _seen(report: WarmupReport) -> Acceptance:
    return report.acceptance or Acceptance()


def _drafts_due(report: WarmupReport, speculation: SpeculationSpec) -> int:
    """At the least: every token after an answer's first comes from a step that emits `num_tokens + 1` at most."""
    if speculation.num_tokens == 0:
        return 0
    return max(0, report.output_tokens - report.answers) // (speculation.num_tokens + 1)


def _comparable_positions(seen: Acceptance, speculation: SpeculationSpec) -> int:
    """Only the first one where drafts were of different lengths: later positions were not in all of them."""
    is_full = seen.drafted >= 0.98 * seen.drafts * speculation.num_tokens
    return min(len(seen.accepted_by_position), speculation.num_tokens if is_full else 1)


def _share_when_sampled(temperature: float) -> float:
    return 1 - (1 - SAMPLED_SHARE) * min(1.0, temperature)


def _share_at_most(count: int, of: int) -> float:
    """The upper end of Wilson's interval for a share."""
    size = of / CLUSTERING
    share, spread = count / of, SURE**2 / size
    return (share + spread / 2 + SURE * math.sqrt(share * (1 - share) / size + spread / (4 * size))) / (1 + spread)


def _standard_error(seen: Acceptance) -> float:
    """Of the accepted tokens per draft. A sum of (2 i + 1) P(more than i) over positions is the mean square."""
    mean = seen.accepted / seen.drafts
    square = sum((2 * index + 1) * count for index, count in enumerate(seen.accepted_by_position)) / seen.drafts
    return math.sqrt(max(0.0, square - mean**2) * CLUSTERING / seen.drafts)


def _unrated(report: WarmupReport, speculation: SpeculationSpec) -> str:
    """Wrong answers are then not looked for, which is no part of being healthy."""
    is_unrated = speculation.warmup.canary_rows > 0 and report.canary_answers == 0
    return "; no canary answer was rated" if is_unrated else ""


def _figures(report: WarmupReport) -> str:
    seen = _seen(report)
    length = "" if seen.accept_length is None else f"accept length {seen.accept_length:.2f} over "
    left_out = f" ({report.degenerate} degenerate ones left out)" if report.degenerate else ""
    return f"{length}{seen.drafts:,} drafts in {report.answers} warm-up answers{left_out}"
