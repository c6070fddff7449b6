"""Which rows make no progress, and whether the whole replica makes none: a state machine over tokens and `now`. Pure.

Only tokens count: neither liveness nor log text is evidence. A row that waits for a slot is not stalled; its clock
starts with its own first token, or when a row that was submitted later got one (engines serve in order). A replica is
stalled when it has rows and none of them got a token for `limit_seconds`. Idle is not stalled.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class _Row:
    submission: int
    clock_started_at: float | None = None


class StallClock:
    """Give it every submission, token and end of a row; ask it with `now`. Times in seconds on one clock."""

    def __init__(self, limit_seconds: float) -> None:
        self._limit_seconds = limit_seconds
        self._rows: dict[int, _Row] = {}
        self._submissions = 0
        self._latest_served = -1
        self._progress_at = 0.0

    def submitted(self, ordinal: int, now: float) -> None:
        """A row, or its next turn, went to the engine."""
        if not self._rows:
            self._progress_at = now  # from idle to busy: the replica's clock starts here
        self._rows[ordinal] = _Row(self._submissions)
        self._submissions += 1

    def tokens(self, ordinal: int, now: float) -> None:
        """A row got new tokens."""
        self._progress_at = now
        if (row := self._rows.get(ordinal)) is None:
            return
        row.clock_started_at = now
        if row.submission > self._latest_served:
            self._latest_served = row.submission
            self._overtake(now)

    def ended(self, ordinal: int) -> None:
        """A row finished, failed or was dropped: no evidence of progress in itself."""
        self._rows.pop(ordinal, None)

    def stalled_rows(self, now: float) -> tuple[int, ...]:
        """Rows without a token for the limit, while others may well go on."""
        return tuple(
            ordinal
            for ordinal, row in self._rows.items()
            if row.clock_started_at is not None and now - row.clock_started_at > self._limit_seconds
        )

    def is_stalled(self, now: float) -> bool:
        """The replica has rows and none got a token for the limit."""
        return bool(self._rows) and now - self._progress_at > self._limit_seconds

    def _overtake(self, now: float) -> None:
        for row in self._rows.values():
            if row.clock_started_at is None and row.submission < self._latest_served:
                row.clock_started_at = now
