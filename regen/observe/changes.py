"""What has happened between two looks at a run, as events: what a person must not miss. Pure.

An event is said once. `Ration` bounds how often one kind of it is said, so that what flaps for days floods no log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from regen.observe.eta_text import duration
from regen.observe.terminal_facts import TerminalFacts
from regen.records import EtaState, ReplicaState


class Level(StrEnum):
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Event:
    """`kind` is from a small closed set (docs/terminal.md); `text` is a sentence for people."""

    kind: str
    text: str
    level: Level = Level.INFO


class Changes:
    """Compares each look with those before. What happens to engines the driver says itself, to whoever hears it."""

    def __init__(self, hears_driver: bool) -> None:
        self._hears_driver = hears_driver
        self._before: TerminalFacts | None = None
        self._counted: TerminalFacts | None = None
        self._told_decisions: set[str] = set()

    def see(self, facts: TerminalFacts) -> tuple[Event, ...]:
        """What is new. The first look has phase, metrics and decisions only: the rest is how the run stands."""
        before, self._before = self._before, facts
        events = [*_phase(before, facts), *self._decided(facts)]
        if before is not None:
            events += [*_store(before, facts), *_moves(before, facts), *_engines(before, facts)]
        if facts.planned is not None:  # a coordinator that replays counts nothing yet
            if self._counted is not None:
                events += _counts(self._counted, facts, self._hears_driver)
            self._counted = facts
        return tuple(events)

    def _decided(self, facts: TerminalFacts) -> Iterator[Event]:
        for decision in facts.decisions:
            if decision not in self._told_decisions:
                self._told_decisions.add(decision)
                yield Event("decision", f"speculation: {decision}")


def _phase(before: TerminalFacts | None, facts: TerminalFacts) -> Iterator[Event]:
    if before is None or before.phase != facts.phase:
        yield Event("phase", f"phase: {facts.phase}")
    if facts.metrics_url is not None and (before is None or before.metrics_url != facts.metrics_url):
        page = facts.metrics_url.removesuffix("metrics")
        yield Event("metrics", f"metrics: {facts.metrics_url} (the run's page: {page})")
    if before is not None and before.coordinator and facts.coordinator not in ("", before.coordinator):
        yield Event("coordinator", "the coordinator was restarted, and reads the journal", Level.WARNING)


def _store(before: TerminalFacts, facts: TerminalFacts) -> Iterator[Event]:
    if facts.store_error is not None and before.store_error is None:
        yield Event("store_away", f"waiting for the store: {facts.store_error}", Level.WARNING)
    elif before.store_error is not None and facts.store_error is None:
        yield Event("store_back", "the store answers again")


def _moves(before: TerminalFacts, facts: TerminalFacts) -> Iterator[Event]:
    """Whether tokens come, and whether the holder is heard."""
    was_stalled, is_stalled = _is_stalled(before), _is_stalled(facts)
    if is_stalled and not was_stalled:
        yield Event("stalled", "stalled: rows are in work, and no token comes", Level.WARNING)
    elif was_stalled and not is_stalled:
        yield Event("moving", "tokens come again" if facts.eta is not None else "not stalled any more")
    if facts.heartbeat_age_seconds is not None and before.heartbeat_age_seconds is None:
        yield Event("silent", f"no heartbeat for {duration(facts.heartbeat_age_seconds)}", Level.WARNING)
    elif before.heartbeat_age_seconds is not None and facts.heartbeat_age_seconds is None:
        yield Event("heard", "the heartbeat is back")


def _is_stalled(facts: TerminalFacts) -> bool:
    return facts.eta is not None and facts.eta.state is EtaState.STALLED


def _counts(before: TerminalFacts, facts: TerminalFacts, hears_driver: bool) -> Iterator[Event]:
    """Counts that stand for trouble, when they have moved."""
    if facts.suspects > before.suspects:
        yield Event("suspects", f"rows suspected of killing engines: {facts.suspects:,}; they run apart", Level.WARNING)
    elif before.suspects and not facts.suspects:
        yield Event("suspects", "no row is under suspicion any more")
    if (more := facts.restarts - before.restarts) > 0 and not hears_driver:
        yield Event("restart", f"engines restarted: {more:,} more, {facts.restarts:,} in all", Level.WARNING)
    for told in facts.dismissed[len(before.dismissed) :]:
        yield Event("dismissed", f"engine dismissed: {told}", Level.WARNING)


def _engines(before: TerminalFacts, facts: TerminalFacts) -> Iterator[Event]:
    """When engines work after a time without any."""
    worked, works = before.engines_in(ReplicaState.RUNNING), facts.engines_in(ReplicaState.RUNNING)
    if works and not worked:
        wanted = sum(engine.state is not ReplicaState.RELEASED for engine in facts.engines)
        yield Event("engines", f"{works} of {wanted} engines up")


class PlainPace:
    """When the next plain line is due: every 10 s at first, slowly fewer, every minute from half an hour on.

    55 hours have some 3,400 lines.
    """

    def __init__(self, shortest_seconds: float = 10.0, longest_seconds: float = 60.0) -> None:
        self._shortest = shortest_seconds
        self._longest = longest_seconds
        self._began_at: float | None = None
        self._next_at = float("-inf")

    def is_due(self, now: float) -> bool:
        """Whether a line is to be printed now; if so, it counts as printed."""
        self._began_at = now if self._began_at is None else self._began_at
        if now < self._next_at:
            return False
        self._next_at = now + min(self._longest, max(self._shortest, (now - self._began_at) / 30))
        return True


class Ration:
    """No more than `most` events of a kind in an hour; what is kept back is counted, and said with the next one."""

    def __init__(self, most: int = 60, per_seconds: float = 3600.0) -> None:
        self._most = most
        self._per_seconds = per_seconds
        self._said: dict[str, deque[float]] = {}
        self._kept_back: dict[str, int] = {}

    def allows(self, event: Event, now: float) -> Event | None:
        """The event as it is to be said, or None."""
        said = self._said.setdefault(event.kind, deque())
        while said and now - said[0] > self._per_seconds:
            said.popleft()
        if len(said) >= self._most:
            self._kept_back[event.kind] = self._kept_back.get(event.kind, 0) + 1
            return None
        said.append(now)
        kept_back = self._kept_back.pop(event.kind, 0)
        more = f" (and {kept_back:,} times before, not shown)" if kept_back else ""
        return Event(event.kind, event.text + more, event.level)
