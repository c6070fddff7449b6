"""Whoever takes hold of a run: its name and the time; and the commands that hold one for seconds, without engines.

Those are `extend`, `retry`, `clean` and `verify --repair`. They claim the run as a session does, each being its own
driver, and let go as if drained. They beat no heart.
"""

from __future__ import annotations

import os
import socket
import uuid
from datetime import UTC, datetime

from regen.store.control import Claim, Released, ReleaseReason
from regen.store.replay import Replayed


def new_session() -> str:
    """Unique to one start of a command."""
    return uuid.uuid4().hex[:12]


def time_of_day() -> str:
    """Now, as ISO 8601 text with a time zone: for people only."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def keepers_claim(session: str) -> Claim:
    return Claim(session, socket.gethostname(), os.getpid(), os.getpid(), time_of_day())


def keepers_release(session: str) -> Released:
    return Released(session, ReleaseReason.DRAINED, time_of_day())


def is_begun_meanwhile(replayed: Replayed, claim_seen: str | None) -> bool:
    """Whether somebody else than the look `claim_seen` found has claimed the run, and holds it still."""
    claim = replayed.newest_claim
    return claim is not None and replayed.released is None and claim.session != claim_seen
