"""Whether somebody runs this folder: asked before anything is written, and again when planning took long."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime

from regen.data.plan import open_plan, read_summary
from regen.errors import RunHeld
from regen.protocols import Storage
from regen.store.control import Record
from regen.store.holder import Holder, Liveness, held, read_holder, watch
from regen.store.machine import machine_identity, process_exists
from regen.store.replay import Replayed, refuse_closed, replay

# Three heartbeats (run/coordinator.py) and a little: a live holder shows itself within that.
WATCH_SECONDS = 7.0
# The driver lives on this machine, and Ray may be restarting its coordinator: replaying a large journal takes a while.
# Not for ever: the process with that id may be another one by now.
RESTART_SECONDS = 60.0
# Ray was seen to end an actor 2 to 3 s after the process that created it.
ORPHAN_SECONDS = 15.0


def refuse_if_held(storage: Storage, take_over: bool) -> str | None:
    """The session of the newest claim, if it is over (or `take_over`); None if nobody has ever run this folder.

    Raises RunHeld if somebody does: seen at once, or by watching the folder for `WATCH_SECONDS`. Raises UserError if it
    is closed.
    """
    _await_orphan(read_holder(storage))
    replayed = replayed_run(storage)
    if replayed is None:
        return None
    refuse_closed(replayed.records, storage.url)
    if not take_over:
        refuse_if_alive(storage, replayed)
    return replayed.newest_claim.session if replayed.newest_claim else None


def refuse_newcomer(replayed: Replayed, claim_seen: str | None, url: str) -> None:
    """Raises RunHeld if anybody has claimed the run since the look that found `claim_seen`: it is theirs then.

    Also with `--take-over`, which is about whom that look has found: of two starts at once the second must not put out
    the first. And also when the other has ended by now: a coordinator that lost the run and was restarted by Ray stands
    just here, and must not take it back.
    """
    claim = replayed.newest_claim
    if claim is not None and claim.session != claim_seen:
        raise RunHeld(
            f"{url}: session {claim.session} (host {claim.host}, coordinator pid {claim.pid}, driver pid"
            f" {claim.driver_pid}) has begun this run meanwhile. Let it go on, or start again with --take-over if you"
            " know that it is gone."
        )


def refuse_if_alive(storage: Storage, replayed: Replayed) -> None:
    """Raises RunHeld if somebody runs this folder: seen at once, or by watching it for `WATCH_SECONDS`.

    For `RESTART_SECONDS`, if the driver that it names lives here.
    """
    seconds = RESTART_SECONDS if _driver_lives(read_holder(storage)) else WATCH_SECONDS
    if watch(storage, replayed, time.sleep, seconds, machine_identity()) is Liveness.ALIVE:
        raise held(read_holder(storage), replayed.newest_claim, storage.url, datetime.now(UTC))


def _driver_lives(holder: Holder | None) -> bool:
    if holder is None or holder.boot_id != machine_identity() or holder.driver_pid == os.getpid():
        return False
    return process_exists(holder.driver_pid)


def replayed_run(storage: Storage) -> Replayed | None:
    """What the journal says; None as long as there is no plan, and so no journal."""
    if read_summary(storage) is None:
        return None
    plan = open_plan(storage)
    return replay(storage, plan.count, plan.settled())


def control_records(storage: Storage) -> tuple[Record, ...]:
    """The journal's control records that still matter, in order; none as long as there is no plan."""
    replayed = replayed_run(storage)
    return replayed.records if replayed is not None else ()


def _await_orphan(holder: Holder | None) -> None:
    """A coordinator whose driver was killed ends by itself within seconds: a restart right after the kill waits."""
    if holder is None or holder.boot_id != machine_identity() or process_exists(holder.driver_pid):
        return
    deadline = time.monotonic() + ORPHAN_SECONDS
    while process_exists(holder.coordinator_pid) and time.monotonic() < deadline:
        time.sleep(0.1)
