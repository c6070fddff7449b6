"""What control records are to the page."""

from __future__ import annotations

import pytest

from regen.observe.page.facts import EventKind
from regen.run.page.events import epoch, events
from regen.store.control import (
    Claim,
    DecidedBy,
    DriftAccepted,
    FilesVoided,
    PlanExtended,
    Record,
    Released,
    ReleaseReason,
    RetriesEnded,
    RowAttempts,
    RowsReopened,
    RunClosed,
    SoloKill,
    SpeculationConfigured,
    SpeculationDecided,
    SuspectRows,
)

AT = "2026-11-30T11:20:17.000+00:00"
SECONDS = 1_796_037_617.0
DECIDED = SpeculationDecided("s", DecidedBy.GUARD, "x", 1, "off", None, "collapsed", "accept length 1.0", "{}", AT)


@pytest.mark.parametrize(
    ("record", "kind", "at", "told"),
    [
        (Claim("s", "host", 1, 2, AT), EventKind.SESSION, SECONDS, "session s began on host host"),
        (Released("s", ReleaseReason.DRAINED, AT), EventKind.SESSION, SECONDS, "session s ended: drained"),
        (DECIDED, EventKind.DECISION, SECONDS, "guard, replica 1: collapsed: accept length 1.0"),
        (SpeculationConfigured("s", None), EventKind.DECISION, None, "speculation wanted: off"),
        (DriftAccepted("s", {"a.b": ("1", "2")}, "f", "g"), EventKind.DECISION, None, "drift accepted: a.b"),
        (RowsReopened("s", 2, "x", 9, {}, "{}", AT), EventKind.DECISION, SECONDS, "9 rows opened again, round 2: {}"),
        (RetriesEnded("s", ((1, 1, "failed", "x"),)), EventKind.FAULT, None, "1 retries ended without an answer"),
        (PlanExtended("s", 5, 15, "d", AT), EventKind.DECISION, SECONDS, "the plan got 5 rows more, 15 now"),
        (RunClosed("s", 3, 10, 2, AT), EventKind.DECISION, SECONDS, "the run was closed: only its shards are left"),
        (
            FilesVoided("s", ((3, 4),), ("altered",), AT),
            EventKind.FAULT,
            SECONDS,
            "a repair voided 1 ranges of journal files: altered",
        ),
        (
            SuspectRows("s", (), (SoloKill(7, 0, False, "died"),), ()),
            EventKind.FAULT,
            None,
            "engines died with rows that ran alone: row 7: died",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_records_that_matter_to_people(record: Record, kind, at, told):
    (event,) = events([record])
    assert (event.kind, event.at, event.text) == (kind, at, told)


def test_records_that_are_bookkeeping_are_none():
    assert events([RowAttempts(((1, 0, 1),)), SuspectRows("s", (), (), ())]) == ()


@pytest.mark.parametrize("text", [None, "", "yesterday"])
def test_what_is_no_time_is_none(text):
    assert epoch(text) is None
