"""What a person sees in the terminal while a run lives: one line.

On a terminal the line is redrawn in place; elsewhere a plain line is printed now and then. Nothing is decided here.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import AbstractContextManager
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from regen.observe.eta_text import eta_text
from regen.records import CoordinatorStatus, EtaState, Phase, ReplicaState

PLAIN_LINE_SECONDS = 10.0


class TirelessConsole(Console):
    """A console whose reader may go away: from then on it is silent. rich's own ends the program."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter fails at its last flush


class ProgressLine(AbstractContextManager["ProgressLine"]):
    """Call it with each status. Between enter and exit it owns the last line of the console."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None
        self._printed_at = float("-inf")
        self._phase: Phase | None = None
        self._metrics_url: str | None = None
        self._told: set[str] = set()

    def __enter__(self) -> ProgressLine:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, status: CoordinatorStatus) -> None:
        now = time.monotonic()
        line = self._line(status)
        if status.metrics_url is not None and self._metrics_url is None:
            self._metrics_url = status.metrics_url
            self.say(f"metrics: {status.metrics_url}")
        for decision in status.speculation.decisions:
            if decision not in self._told:
                self._told.add(decision)
                self.say(f"speculation: {decision}")
        if self._live is not None:
            self._live.update(Text(line))
        elif now - self._printed_at >= PLAIN_LINE_SECONDS or status.phase is not self._phase:
            self._printed_at = now
            self._console.print(line, highlight=False, soft_wrap=True)
        self._phase = status.phase

    def say(self, text: str) -> None:
        """One line that stays, above the one that lives."""
        self._console.print(text, highlight=False, soft_wrap=True, markup=False)

    def _line(self, status: CoordinatorStatus) -> str:
        parts = [
            f"{status.phase.value}: {status.planned - status.left:,} of {status.planned:,} rows committed",
            f"{status.uncommitted_rows:,} finished",
            f"{status.in_flight:,} in flight",
        ]
        is_working = any(stats.state is ReplicaState.RUNNING for stats in status.replicas.values())
        if status.speculation.phase == "calibrating" and is_working:
            parts.append("measuring whether speculation pays")
        if warming := sum(stats.state is ReplicaState.WARMING for stats in status.replicas.values()):
            parts.append(f"{warming} of {len(status.replicas)} engines warming up")
        if starting := sum(stats.state is ReplicaState.STARTING for stats in status.replicas.values()):
            parts.append(f"{starting} of {len(status.replicas)} engines starting")
        if status.useful_tokens_per_second is not None:
            parts.append(f"{status.useful_tokens_per_second:,.0f} tok/s")
        if (accept_length := accept_length_now(status)) is not None:
            parts.append(f"accept length {accept_length:.2f}")
        if status.store_error is not None:
            parts.append(f"waiting for the store: {status.store_error}")
        elif status.phase is Phase.RUNNING and (status.eta.mid_seconds or status.eta.state is EtaState.STALLED):
            parts.append(eta_text(status.eta))
        return " | ".join(parts)


def accept_length_now(status: CoordinatorStatus) -> float | None:
    """Over all replicas since their engines started; None without speculation or before its first step."""
    drafts = accepted = 0
    for stats in status.replicas.values():
        if (acceptance := stats.counters.acceptance) is not None:
            drafts, accepted = drafts + acceptance.drafts, accepted + acceptance.accepted
    return 1.0 + accepted / drafts if drafts else None
