"""What the journal's control records tell of a run, as events for its page. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from regen.observe.page.facts import Event, EventKind
from regen.store.control import (
    Claim,
    DriftAccepted,
    FilesVoided,
    PlanExtended,
    Record,
    Released,
    RetriesEnded,
    RowsReopened,
    RunClosed,
    SpeculationConfigured,
    SpeculationDecided,
    SuspectRows,
)


def events(records: Iterable[Record]) -> tuple[Event, ...]:
    """In the order of the records; those that say nothing to people are left out."""
    return tuple(event for record in records if (event := _event(record)) is not None)


def epoch(at: str | None) -> float | None:
    """Epoch seconds of an ISO 8601 text; None for anything else, since a text for people decides nothing."""
    try:
        return None if at is None else datetime.fromisoformat(at).timestamp()
    except ValueError:
        return None


def _event(record: Record) -> Event | None:
    match record:
        case Claim():
            told = f"session {record.session} began"
            return Event(epoch(record.started_at), EventKind.SESSION, f"{told} on host {record.host}")
        case Released():
            return Event(epoch(record.at), EventKind.SESSION, f"session {record.session} ended: {record.reason.value}")
        case SpeculationDecided():
            where = "" if record.slot is None else f", replica {record.slot}"
            told = f"{record.by.value}{where}: {record.verdict}: {record.reason}"
            return Event(epoch(record.at), EventKind.DECISION, told)
        case SpeculationConfigured():
            return Event(None, EventKind.DECISION, f"speculation wanted: {record.speculation or 'off'}")
        case DriftAccepted():
            return Event(None, EventKind.DECISION, f"drift accepted: {', '.join(record.fields)}")
        case RowsReopened():
            told = f"{record.count:,} rows opened again, round {record.round}: {record.asked}"
            return Event(epoch(record.at), EventKind.DECISION, told)
        case RetriesEnded():
            return Event(None, EventKind.FAULT, f"{len(record.rows):,} retries ended without an answer")
        case PlanExtended():
            told = f"the plan got {record.rows:,} rows more, {record.plan_rows:,} now"
            return Event(epoch(record.at), EventKind.DECISION, told)
        case RunClosed():
            return Event(epoch(record.at), EventKind.DECISION, "the run was closed: only its shards are left")
        case FilesVoided():
            told = f"a repair voided {len(record.numbers):,} ranges of journal files: {'; '.join(record.reasons)}"
            return Event(epoch(record.at), EventKind.FAULT, told)
        case SuspectRows():
            return _suspects(record)
        case _:
            return None


def _suspects(record: SuspectRows) -> Event | None:
    told = "; ".join(f"row {kill.ordinal}: {kill.told}" for kill in record.kills)
    return Event(None, EventKind.FAULT, f"engines died with rows that ran alone: {told}") if told else None
