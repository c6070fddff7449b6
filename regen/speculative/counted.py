"""One engine's counters, watched: have its drafts collapsed, are its counters absent. Pure; costs a few numbers.

Everything is measured in drafts and tokens, never in seconds: an idle engine shows nothing, and nothing is held against
it.
"""

from __future__ import annotations

from collections import deque

from regen.records import Acceptance
from regen.spec import SpeculationSpec
from regen.speculative.alarm import Alarm
from regen.speculative.drafting import drafts_every_step, drafts_on_matches
from regen.speculative.gate import DEAD_ACCEPT_LENGTH

# At the collapse line the accept length of 500 drafts is known to 0.01.
WINDOW_DRAFTS = 500
# 1.0 is a dead draft, 1.04 was the founding fault; the weakest head that was any use had 1.37.
COLLAPSED_LENGTH = DEAD_ACCEPT_LENGTH
# What lifts a collapse lies well above, so that an engine at the line does not go to and fro.
RECOVERED_LENGTH = 1.10
RAISE_WINDOWS = 3
LIFT_WINDOWS = 6
# Drafts of one row are not independent: one row that the draft cannot follow is not a collapse. So many rows, weighted
# by their drafts, must have finished while it lasted. Prompt lookup is far more uneven from row to row.
COLLAPSE_ROWS = 8
COLLAPSE_ROWS_ON_MATCHES = 32
# Or so many drafts: more than one row of the usual cap of 16,384 tokens can account for.
COLLAPSE_DRAFTS = 20_000
# Tokens decoded with drafts due and none counted. A healthy engine counts a draft for every token or two.
ABSENT_TOKENS = 2_000


class Windows:
    """Cuts totals since the engine started into windows of at least `WINDOW_DRAFTS`."""

    def __init__(self) -> None:
        self._last = Acceptance()
        self._open = Acceptance()
        self.closed = 0
        self._recent: deque[Acceptance] = deque(maxlen=RAISE_WINDOWS)

    def reading(self, total: Acceptance) -> Acceptance | None:
        """The window that this reading closes, if it does. Totals that fell are a new beginning: nothing is added."""
        new = _since(self._last, total)
        self._last = total
        if new is None:
            return None
        self._open += new
        if self._open.drafts < WINDOW_DRAFTS:
            return None
        closed, self._open = self._open, Acceptance()
        self._recent.append(closed)
        self.closed += 1
        return closed

    @property
    def recent(self) -> Acceptance:
        """The last windows together; without drafts before the first one is full."""
        return sum(self._recent, Acceptance())


class Collapse:
    """Accept length at or below `COLLAPSED_LENGTH`, for several windows and enough rows."""

    def __init__(self, speculation: SpeculationSpec) -> None:
        self._rows_needed = COLLAPSE_ROWS_ON_MATCHES if drafts_on_matches(speculation) else COLLAPSE_ROWS
        self._good_windows = 0
        self._begin()
        self.is_raised = False
        self.has_worked = False

    def window(self, window: Acceptance) -> None:
        length = 1.0 + window.accepted / window.drafts
        if length > COLLAPSED_LENGTH:
            self._passed(length)
            return
        self._good_windows = 0
        self._bad_windows += 1
        self._drafts += window.drafts
        if self._bad_windows >= RAISE_WINDOWS and self._has_enough_rows():
            self.is_raised = True

    def finished(self, drafts: int) -> None:
        """A row has finished, with so many drafts of its own."""
        if self._bad_windows:
            self._row_drafts += drafts
            self._row_drafts_squared += drafts * drafts

    def _passed(self, length: float) -> None:
        self.has_worked = True
        self._begin()
        self._good_windows = self._good_windows + 1 if length >= RECOVERED_LENGTH else 0
        if self._good_windows >= LIFT_WINDOWS:
            self.is_raised = False

    def _has_enough_rows(self) -> bool:
        rows = self._row_drafts**2 / self._row_drafts_squared if self._row_drafts_squared else 0.0
        return rows >= self._rows_needed or self._drafts >= COLLAPSE_DRAFTS

    def _begin(self) -> None:
        self._bad_windows = 0
        self._drafts = 0
        self._row_drafts = 0
        self._row_drafts_squared = 0


class Absence:
    """Tokens decoded with drafts due, while the drafts counter is missing, stands still, or lies below where it was."""

    def __init__(self, speculation: SpeculationSpec) -> None:
        self._every_step = drafts_every_step(speculation)
        self._alarm = Alarm(1, LIFT_WINDOWS)
        self._highest = 0
        self._tokens_then = 0
        self._answers_since = 0
        self._tokens = 0
        self._now: int | None = None

    @property
    def is_raised(self) -> bool:
        return self._alarm.is_raised

    @property
    def tokens(self) -> int:
        """Tokens decoded with drafts due since the counter last rose. An answer's first token comes without one."""
        return max(0, self._tokens - self._tokens_then - self._answers_since)

    @property
    def found(self) -> str:
        if self._now is None:
            return "the drafts counter is missing" + (f" (it stood at {self._highest:,})" if self._highest else "")
        if self._now < self._highest:
            return f"the drafts counter fell from {self._highest:,} to {self._now:,}"
        return f"the drafts counter stands still at {self._now:,}"

    def reading(self, output_tokens: int, drafts: int | None) -> None:
        self._tokens, self._now = output_tokens, drafts
        if drafts is not None and drafts > self._highest:
            self._highest, self._tokens_then, self._answers_since = drafts, output_tokens, 0
        if self._is_absent():
            self._alarm.window(bad=True, good=False)

    def window(self) -> None:
        """A window of drafts was counted: what lifts the alarm."""
        if not self._is_absent():
            self._alarm.window(bad=False, good=True)

    def finished(self) -> None:
        """An answer has finished."""
        self._answers_since += 1

    def _is_absent(self) -> bool:
        vanished = self._highest > (self._now or 0)
        return self.tokens >= ABSENT_TOKENS and (self._every_step or vanished)


def _since(before: Acceptance, now: Acceptance) -> Acceptance | None:
    """What was counted in between; None where a total fell."""
    length = max(len(before.accepted_by_position), len(now.accepted_by_position))
    earlier, later = (_padded(total.accepted_by_position, length) for total in (before, now))
    new = Acceptance(
        now.drafts - before.drafts,
        now.drafted - before.drafted,
        now.accepted - before.accepted,
        tuple(b - a for a, b in zip(earlier, later, strict=True)),
    )
    return None if min(new.drafts, new.accepted, *new.accepted_by_position, 0) < 0 else new


def _padded(counts: tuple[int, ...], length: int) -> tuple[int, ...]:
    return counts + (0,) * (length - len(counts))
