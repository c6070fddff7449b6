"""A run as lines for a terminal, as one plain line, as an object for machines: three views of `TerminalFacts`. Pure.

Guarantees: no line of the block is wider than it may be, nothing in it moves a cursor whatever names and errors hold,
and what is not known takes no room. Colour is a tone here; live.py knows what it looks like.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from regen.observe.eta_text import duration, eta_text
from regen.observe.terminal_facts import TerminalFacts
from regen.records import ENDED_PHASES, EtaState, Phase, ReplicaState, Status

MOST_LINES = 12
WIDEST = 100
_LABEL_WIDTH = 9
_LEAST_WIDTH = 20
_BAD_VERDICTS = frozenset({"garbage", "dead", "collapsed", "absent", "off_profile", "decayed"})
_UP = (ReplicaState.RUNNING, ReplicaState.DRAINING)


class Tone(StrEnum):
    PLAIN = "plain"
    QUIET = "quiet"
    GOOD = "good"
    WARN = "warn"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a line."""

    text: str
    tone: Tone = Tone.PLAIN


Line = tuple[Part, ...]

_ENGINE_STATES = (
    (ReplicaState.RUNNING, "up", Tone.GOOD),
    (ReplicaState.WARMING, "warming up", Tone.PLAIN),
    (ReplicaState.STARTING, "starting", Tone.PLAIN),
    (ReplicaState.DRAINING, "draining", Tone.PLAIN),
    (ReplicaState.STOPPED, "gone", Tone.BAD),
    (ReplicaState.RELEASED, "released", Tone.QUIET),
)


def block(facts: TerminalFacts, width: int, is_ascii: bool = False) -> tuple[Line, ...]:
    """At most `MOST_LINES` lines of at most `width` columns (never fewer than 20, never more than `WIDEST`)."""
    width = max(_LEAST_WIDTH, min(width, WIDEST))
    lines: list[Line] = [_title(facts, width, is_ascii)]
    if facts.share is not None:
        lines.append(_bar(facts, width, is_ascii))
    for label, parts in _rows(facts):
        lines.extend(_folded(label, parts, width, is_ascii))
    return tuple(lines[:MOST_LINES])


def plain_line(facts: TerminalFacts) -> str:
    """One line without colour, of whatever length: for logs."""
    parts = [f"{facts.phase}: {_rows_done(facts)}"] if facts.planned is not None else [facts.phase]
    for label, told in _rows(facts):
        if label == "engines":
            parts.append("engines: " + ", ".join(part.text for part in told))
        elif label != "outcomes":
            parts += [part.text for part in told]
    return one_line(" | ".join(parts))


def to_json(facts: TerminalFacts) -> dict[str, Any]:
    """Plain data: every field of docs/terminal.md, null where it is not known."""
    eta = facts.eta
    return {
        "name": facts.name,
        "session": facts.session,
        "phase": facts.phase,
        "planned": facts.planned,
        "done": None if facts.planned is None else facts.done,
        "left": facts.left,
        "outcomes": {status.value: facts.outcomes.get(status, 0) for status in Status},
        "in_flight": facts.in_flight,
        "queued": facts.queued,
        "reopened": facts.reopened,
        "suspects": facts.suspects,
        "uncommitted_rows": facts.uncommitted_rows,
        "uncommitted_bytes": facts.uncommitted_bytes,
        "commits": facts.commits,
        "last_commit_age_seconds": facts.last_commit_age_seconds,
        "session_seconds": facts.session_seconds,
        "eta": None if eta is None else {**asdict(eta), "state": eta.state.value},
        "tokens_per_second": facts.tokens_per_second,
        "output_tokens": facts.output_tokens,
        "accept_length": facts.accept_length,
        "speculation": facts.speculation,
        "verdict": facts.verdict,
        "engines": [{**asdict(engine), "state": engine.state.value} for engine in facts.engines],
        "retries": dict(facts.tally.retries),
        "restarts": facts.restarts,
        "stalls": facts.stalls,
        "coordinator_restarts": facts.tally.coordinator_restarts,
        "store_errors": facts.tally.store_errors,
        "store_error": facts.store_error,
        "cost_so_far": facts.cost_so_far,
        "currency": facts.currency or None,
        "heartbeat_age_seconds": facts.heartbeat_age_seconds,
        "note": facts.note or None,
    }


def one_line(text: str) -> str:
    """Without line breaks, a terminal's control characters, or what turns the direction of writing."""
    return "".join(char if char.isprintable() else " " for char in text)


def size(count: int) -> str:
    """`1234567` -> `1.2 MB`, by thousands."""
    if count < 1000:
        return f"{count} B"
    value = float(count)
    for unit in ("kB", "MB", "GB"):
        value /= 1000
        if value < 999.95:
            return f"{value:.1f} {unit}"
    return f"{value / 1000:.1f} TB"


# --- the rows of the block ---------------------------------------------------------------------------


def _rows(facts: TerminalFacts) -> Iterable[tuple[str, list[Part]]]:
    """(label, parts), without those that have nothing to say."""
    rows = (
        ("", _notes(facts)),
        ("time", _time(facts)),
        ("speed", _speed(facts)),
        ("outcomes", _outcomes(facts)),
        ("engines", _engines(facts)),
        ("rows", _in_work(facts)),
        ("trouble", _trouble(facts)),
        ("store", _store(facts)),
    )
    return ((label, parts) for label, parts in rows if parts)


def _notes(facts: TerminalFacts) -> list[Part]:
    notes = [Part(facts.note, Tone.WARN)] if facts.note else []
    if facts.heartbeat_age_seconds is not None:
        notes.append(Part(f"no heartbeat for {duration(facts.heartbeat_age_seconds)}", Tone.BAD))
    return notes


def _time(facts: TerminalFacts) -> list[Part]:
    if facts.eta is None or facts.eta.state is EtaState.FINISHED:
        parts = []
    else:
        parts = [Part(eta_text(facts.eta), Tone.BAD if facts.eta.state is EtaState.STALLED else Tone.PLAIN)]
    if facts.cost_so_far is not None:
        parts.append(Part(f"{facts.cost_so_far:,.2f} {facts.currency}".rstrip() + " so far"))
    return parts


def _speed(facts: TerminalFacts) -> list[Part]:
    parts = [] if facts.tokens_per_second is None else [Part(f"{facts.tokens_per_second:,.0f} tok/s")]
    if facts.accept_length is not None:
        parts.append(Part(f"accept length {facts.accept_length:.2f}"))
    if facts.speculation == "calibrating" and facts.engines_in(*_UP):
        parts.append(Part("measuring whether speculation pays"))
    elif facts.verdict is not None and facts.verdict != "unknown":
        tone = Tone.BAD if facts.verdict in _BAD_VERDICTS else Tone.GOOD if facts.verdict == "healthy" else Tone.PLAIN
        parts.append(Part(f"speculation {facts.verdict.replace('_', ' ')}", tone))
    return parts


def _outcomes(facts: TerminalFacts) -> list[Part]:
    tones = {Status.OK: Tone.GOOD, Status.FAILED: Tone.BAD, Status.REJECTED: Tone.WARN, Status.DEGENERATE: Tone.WARN}
    shown = ((status, facts.outcomes.get(status, 0)) for status in Status)
    return [Part(f"{status.value} {count:,}", tones.get(status, Tone.PLAIN)) for status, count in shown if count]


def _engines(facts: TerminalFacts) -> list[Part]:
    if facts.phase in ENDED_PHASES:
        return []
    counted = ((name, tone, facts.engines_in(state)) for state, name, tone in _ENGINE_STATES)
    parts = [Part(f"{count} {name}", tone) for name, tone, count in counted if count]
    if pending := sum(engine.is_pending for engine in facts.engines):
        parts.append(Part(f"{pending} waiting for a node", Tone.QUIET))
    up = [engine for engine in facts.engines if engine.state in _UP]
    if slots := sum(engine.slots for engine in up):
        busy = min(slots, sum(engine.running_rows for engine in up))
        parts.append(Part(f"{busy:,} of {slots:,} slots busy"))
    return parts


def _in_work(facts: TerminalFacts) -> list[Part]:
    told = (
        ("in flight", facts.in_flight, Tone.PLAIN),
        ("queued", facts.queued, Tone.PLAIN),
        ("to be made again", facts.reopened, Tone.PLAIN),
        ("suspected of killing engines", facts.suspects, Tone.WARN),
    )
    return [Part(f"{count:,} {name}", tone) for name, count, tone in told if count]


def _trouble(facts: TerminalFacts) -> list[Part]:
    told = (
        (_plural(facts.retries, "failed attempt"), facts.retries),
        (_plural(facts.restarts, "engine restart"), facts.restarts),
        (_plural(facts.stalls, "stall"), facts.stalls),
        (_plural(facts.tally.coordinator_restarts, "coordinator restart"), facts.tally.coordinator_restarts),
        (_plural(len(facts.dismissed), "engine") + " dismissed for garbage", len(facts.dismissed)),
    )
    return [Part(text, Tone.WARN) for text, count in told if count]


def _store(facts: TerminalFacts) -> list[Part]:
    parts = []
    if facts.store_error is not None:
        parts.append(Part(f"waiting for the store: {facts.store_error}", Tone.BAD))
    if facts.uncommitted_rows:
        bytes_told = f" ({size(facts.uncommitted_bytes)})" if facts.uncommitted_bytes else ""
        parts.append(Part(f"{_plural(facts.uncommitted_rows, 'row')}{bytes_told} not committed yet"))
    if facts.last_commit_age_seconds is not None and facts.phase not in ENDED_PHASES:
        parts.append(Part(f"last commit {duration(facts.last_commit_age_seconds)} ago"))
    if facts.tally.store_errors:
        parts.append(Part(_plural(facts.tally.store_errors, "store error"), Tone.WARN))
    return parts


def _plural(count: int, name: str) -> str:
    return f"{count:,} {name}" + ("" if count == 1 else "s")


def _rows_done(facts: TerminalFacts) -> str:
    return f"{facts.done:,} of {facts.planned or 0:,} rows"


# --- how lines are laid out ----------------------------------------------------------------------------


def _title(facts: TerminalFacts, width: int, is_ascii: bool) -> Line:
    tone = {Phase.RUNNING: Tone.GOOD, Phase.FINISHED: Tone.GOOD, Phase.FAILED: Tone.BAD}.get(
        Phase(facts.phase) if facts.phase in set(Phase) else Phase.ADOPTING, Tone.WARN
    )
    state = facts.phase + ("" if facts.session_seconds is None else f" for {duration(facts.session_seconds)}")
    name = cropped(facts.name, max(4, width - len(state) - 2), is_ascii)
    return (Part(name), Part("  "), Part(cropped(state, width - columns(name) - 2, is_ascii), tone))


def _bar(facts: TerminalFacts, width: int, is_ascii: bool) -> Line:
    share = max(0.0, min(1.0, facts.share or 0.0))
    # Rounded down: 100 % is said when every row is there.
    told = f" {int(share * 1000) / 10:.1f} %  {_rows_done(facts)}"
    room = width - len(told)
    if room < 6:
        return (Part(cropped(told.strip(), width, is_ascii)),)
    filled = int(share * room)
    full, empty = ("#", ".") if is_ascii else ("█", "░")
    return (Part(full * filled, Tone.GOOD), Part(empty * (room - filled), Tone.QUIET), Part(told))


def _folded(label: str, parts: Sequence[Part], width: int, is_ascii: bool) -> list[Line]:
    """The parts beside their label, on as many lines as they need; a part that needs more than one is cut."""
    room = width - _LABEL_WIDTH
    lines: list[list[Part]] = []
    used = 0
    for part in parts:
        text = cropped(part.text, room, is_ascii)
        needed = columns(text) + (2 if used else 0)
        if not lines or used + needed > room:
            lines.append([Part((label if not lines else "").ljust(_LABEL_WIDTH), Tone.QUIET)])
            used, needed = 0, columns(text)
        elif used:
            lines[-1].append(Part("  "))
        lines[-1].append(Part(text, part.tone))
        used += needed
    return [tuple(line) for line in lines]


def cropped(text: str, width: int, is_ascii: bool = False) -> str:
    """One line of at most `width` columns; what is cut is marked. In ASCII every other character is a `?`."""
    text = one_line(text)
    if is_ascii:
        text = text.encode("ascii", "replace").decode("ascii")
    if columns(text) <= width:
        return text
    mark = "..." if is_ascii else "…"
    kept, room = "", width - len(mark)
    for char in text:
        room -= columns(char)
        if room < 0:
            break
        kept += char
    return kept + mark


def columns(text: str) -> int:
    """How many columns a terminal needs for it, or more: joined emoji are counted one by one."""
    return sum(map(_columns_of, text))


def _columns_of(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
