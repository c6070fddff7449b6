"""Whether somebody runs this folder: asked before anything is written, and again when planning took long."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from regen.data.plan import open_plan, read_summary
from regen.protocols import Storage
from regen.store.control import Record
from regen.store.holder import Holder, Liveness, held, read_holder, watch
from regen.store.machine import machine_identity, process_exists
from regen.store.replay import Replayed, refuse_closed, replay

# Three heartbeats (run/coordinator.py) and a little: a live holder shows itself within that.
WATCH_SECONDS = 7.0
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


def refuse_if_alive(storage: Storage, replayed: Replayed) -> None:
    """Raises RunHeld if somebody runs this folder: seen at once, or by watching it for `WATCH_SECONDS`."""
    if watch(storage, replayed, time.sleep, WATCH_SECONDS, machine_identity()) is Liveness.ALIVE:
        raise held(read_holder(storage), replayed.newest_claim, storage.url, datetime.now(UTC))


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
