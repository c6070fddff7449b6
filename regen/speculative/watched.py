"""One replica's engine as the guard sees it: its counters, its rows against what such rows have shown. Pure."""

from __future__ import annotations

from regen.records import Acceptance
from regen.spec import SpeculationSpec
from regen.speculative.counted import WINDOW_DRAFTS, Absence, Collapse, Windows
from regen.speculative.drafting import depth_varies
from regen.speculative.like_with_like import Compared, Comparison, Expectation, Recent, RowsLike
from regen.speculative.verdicts import GuardVerdict

# A decay worth acting on: accept length 1.8 becomes 1.64. Smaller ones are the payoff's business.
DECAY_LIMIT = 0.8
# Warm-up answers are short, and rows of another kind; kinds of rows alone have made 0.46 of it.
WARMUP_LIMIT = 1 / 3
# A card that promises without any tolerance still means a measurement.
LEAST_TOLERANCE = 0.05


class Watched:
    """From one engine's start to its end. `speculation` is what this engine was started with, None for none; engines
    of one `arm` were started with the same.
    """

    def __init__(self, arm: int, speculation: SpeculationSpec | None, warmup: Acceptance | None) -> None:
        self.arm = arm
        self.speculation = speculation
        self.warmup = warmup
        self.recent: dict[RowsLike, Recent] = {}
        self.output_tokens = 0
        self._windows = Windows()
        self._past = Comparison(DECAY_LIMIT)
        self._fellows = Comparison(DECAY_LIMIT)
        self._begun = Comparison(WARMUP_LIMIT)
        if speculation is not None:
            self._collapse = Collapse(speculation)
            self._absence = Absence(speculation)
            self._promise = _promise(speculation)
            self._promised = Comparison(1.0 - _tolerance(speculation))

    def measured(self, acceptance: Acceptance) -> int:
        """What is compared of a row: accepted tokens; where the depth of drafts varies, accepted first tokens."""
        by_first = self.speculation is not None and depth_varies(self.speculation)
        return _first(acceptance) if by_first and acceptance.accepted_by_position else acceptance.accepted

    def reading(self, output_tokens: int, acceptance: Acceptance | None) -> None:
        """Totals since the engine started."""
        self.output_tokens = output_tokens
        self._absence.reading(output_tokens, None if acceptance is None else acceptance.drafts)
        if acceptance is not None and (window := self._windows.reading(acceptance)) is not None:
            self._collapse.window(window)
            self._absence.window()

    def finished(self, acceptance: Acceptance | None) -> None:
        self._absence.finished()
        if acceptance is not None and acceptance.drafts:
            self._collapse.finished(acceptance.drafts)

    def row(self, acceptance: Acceptance, past: Expectation | None, fellows: Expectation | None) -> None:
        """A finished row with drafts, against what rows like it have shown, where that is known."""
        measured = self.measured(acceptance)
        if past is not None:
            self._past.row(acceptance.drafts, measured, past)
        elif (begun := self._at_warmup()) is not None and acceptance.accepted_by_position:
            self._begun.row(acceptance.drafts, _first(acceptance), begun)
        if fellows is not None:
            # Answers that loop are drafted better than others: one broken replica must not make the rest look decayed.
            self._fellows.row(acceptance.drafts, measured, fellows, is_excused=self._past.is_fine)
        if self._promise is not None and acceptance.accepted_by_position:
            self._promised.row(acceptance.drafts, _first(acceptance), self._promise)

    @property
    def verdict(self) -> GuardVerdict:
        if self.speculation is None:
            return GuardVerdict.UNKNOWN
        if self._absence.is_raised:
            return GuardVerdict.ABSENT
        if self._collapse.is_raised:
            return GuardVerdict.COLLAPSED
        if any(comparison.is_raised for comparison, _ in self._comparisons()):
            return GuardVerdict.DECAYED
        return GuardVerdict.HEALTHY if self._collapse.has_worked else GuardVerdict.UNKNOWN

    @property
    def accept_length(self) -> float | None:
        """Of the last windows; None while nothing is counted: what was counted before says nothing of now."""
        is_absent = self.verdict is GuardVerdict.ABSENT
        return None if is_absent else self._windows.recent.accept_length

    @property
    def reference_length(self) -> float | None:
        """Of the same rows in the past, else of the warm-up."""
        compared = self._past.last or self._fellows.last
        if compared is not None and self.speculation is not None and not depth_varies(self.speculation):
            return 1.0 + compared.expected
        return None if self.warmup is None else self.warmup.accept_length

    @property
    def found(self) -> str:
        """The verdict's figures, as a sentence."""
        if self.speculation is None:
            return "this engine runs without speculation"
        verdict = self.verdict
        if verdict is GuardVerdict.ABSENT:
            return f"{self._absence.tokens:,} tokens were decoded with drafts due, and {self._absence.found}"
        if verdict is GuardVerdict.DECAYED:
            return "; ".join(self._said(*entry) for entry in self._comparisons() if entry[0].is_raised)
        return self._lengths()

    def _lengths(self) -> str:
        recent, reference = self._windows.recent, self.reference_length
        if recent.accept_length is None:
            return f"fewer than {WINDOW_DRAFTS} drafts so far"
        said = f"accept length {recent.accept_length:.2f} over the last {recent.drafts:,} drafts"
        return said if reference is None else f"{said}, to be compared with {reference:.2f}"

    def _comparisons(self) -> tuple[tuple[Comparison, str], ...]:
        return (
            (self._past, "of such rows before"),
            (self._fellows, "by the other replicas on such rows"),
            (self._promised, "as speculation.expected promises"),
            (self._begun, "at warm-up"),
        )

    def _said(self, comparison: Comparison, against: str) -> str:
        compared = comparison.last
        assert compared is not None  # it was raised by a window
        by_first = comparison in (self._promised, self._begun) or (
            self.speculation is not None and depth_varies(self.speculation)
        )
        return _sentence(compared, "first tokens" if by_first else "tokens", against)

    def _at_warmup(self) -> Expectation | None:
        if self.warmup is None or self.warmup.drafts < WINDOW_DRAFTS or not _first(self.warmup):
            return None
        return Expectation.of_share("warm-up", _first(self.warmup) / self.warmup.drafts)


def _sentence(compared: Compared, what: str, against: str) -> str:
    return (
        f"{compared.measured:.2f} accepted {what} a draft, {compared.expected:.2f} {against}"
        f" ({compared.ratio:.0%} over {compared.rows:,} rows and {compared.drafts:,} drafts)"
    )


def _first(acceptance: Acceptance) -> int:
    return acceptance.accepted_by_position[0] if acceptance.accepted_by_position else 0


def _promise(speculation: SpeculationSpec) -> Expectation | None:
    expected = speculation.expected
    return None if expected is None else Expectation.of_share("expected", expected.by_position[0])


def _tolerance(speculation: SpeculationSpec) -> float:
    expected = speculation.expected
    return LEAST_TOLERANCE if expected is None else max(LEAST_TOLERANCE, expected.tolerance)
