"""holder.json: who runs this folder, for people and for whoever wants to start. It is not the fence: the journal is.

Guarantees: a run is taken for free only if it was let go, if its processes are known to be gone, or if neither its
heartbeat nor its journal moved while we watched on our own clock. Clocks of different hosts are never compared, except
in a text for people.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum

from pydantic import TypeAdapter, ValidationError

from regen.errors import RunHeld, StoreError
from regen.protocols import Storage
from regen.records import Eta, Phase
from regen.store.control import Claim
from regen.store.files import JournalFiles
from regen.store.layout import HOLDER
from regen.store.machine import process_exists
from regen.store.parquet import damaged
from regen.store.replay import Replayed

_LOOK_EVERY_SECONDS = 0.5


class HolderState(StrEnum):
    RUNNING = "running"
    FINISHED = "finished"
    DRAINED = "drained"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class HolderProgress:
    """How far the run is, as its coordinator saw it `at` (ISO 8601, by its own clock): what the journal cannot tell."""

    at: str
    phase: Phase
    eta: Eta
    useful_tokens_per_second: float | None
    in_flight: int
    queued: int
    accept_length: float | None


@dataclass(frozen=True, slots=True)
class Holder:
    """`boot_id` is `machine.machine_identity()`: process ids mean something only where it is the same.

    `beat` counts up; `started_at` and `beat_at` are ISO 8601 texts with a time zone, by the writer's clock. `progress`
    is for people; readers from before it was there pass over it.
    """

    session: str
    host: str
    boot_id: str
    coordinator_pid: int
    driver_pid: int
    started_at: str
    beat: int
    beat_at: str
    state: HolderState
    progress: HolderProgress | None = None


class Liveness(StrEnum):
    """What a starter makes of the run folder."""

    FREE = "free"  # nobody has ever run it
    ENDED = "ended"  # its last session let go
    DEAD = "dead"  # its last session is gone without letting go
    ALIVE = "alive"


@dataclass(frozen=True, slots=True)
class Sighting:
    """One look at the folder. `has_grown`: the journal has a file that replay had not seen yet."""

    holder: Holder | None
    has_grown: bool


_ADAPTER = TypeAdapter(Holder)


def write_holder(storage: Storage, holder: Holder) -> None:
    """Raises StoreUnavailable, StoreRefused."""
    storage.replace(HOLDER, (json.dumps(asdict(holder), indent=2) + "\n").encode("utf-8"))


def read_holder(storage: Storage) -> Holder | None:
    """None before the first session. Raises JournalDamaged when the file is there and makes no sense."""
    try:
        data = storage.read(HOLDER)
    except KeyError:
        return None
    try:
        return _ADAPTER.validate_json(data)
    except ValidationError as error:
        raise damaged(f"{storage.url}/{HOLDER}", "it is not regen's; if nobody runs this folder, delete it") from error


def watch(
    storage: Storage,
    replayed: Replayed,
    wait: Callable[[float], None],
    seconds: float,
    boot_id: str,
) -> Liveness:
    """Whether somebody runs this folder. Returns at once where that is certain, else within about `seconds`.

    `wait` sleeps so many seconds; `boot_id` is where we are. Raises StoreUnavailable, StoreRefused, JournalDamaged.
    """
    first = _look(storage, replayed)
    is_gone = _is_gone(first.holder, boot_id)
    verdict = judge(replayed, first, None, is_gone)
    if verdict is not None:
        return verdict
    for _ in range(math.ceil(seconds / _LOOK_EVERY_SECONDS)):
        wait(_LOOK_EVERY_SECONDS)
        verdict = judge(replayed, first, _look(storage, replayed), is_gone)
        if verdict is not Liveness.DEAD and verdict is not None:
            return verdict
    return Liveness.DEAD


def judge(replayed: Replayed, first: Sighting, second: Sighting | None, is_gone: bool) -> Liveness | None:
    """The decision, pure. None: not certain without a second look.

    `is_gone`: the holder's processes would be on this machine, and are not there. A claim of a session that has not
    written the holder file yet is watched like a holder: its starter may just be at it.
    """
    claim = replayed.newest_claim
    latest = second or first
    if _has_moved(first, latest):
        return Liveness.ALIVE
    if claim is None and latest.holder is None:
        return Liveness.FREE
    is_holders_claim = latest.holder is not None and (claim is None or claim.session == latest.holder.session)
    if replayed.released is not None or (is_holders_claim and _says_ended(latest.holder)):
        return Liveness.ENDED
    if is_holders_claim and is_gone:
        return Liveness.DEAD
    return None if second is None else Liveness.DEAD


def held(holder: Holder | None, claim: Claim | None, url: str, now: datetime) -> RunHeld:
    """The error for a starter that found the run alive. `now` has a time zone."""
    if holder is not None:
        who = (
            f"session {holder.session} on host {holder.host} (coordinator pid {holder.coordinator_pid},"
            f" driver pid {holder.driver_pid}), last heartbeat {_age(holder, now)}"
        )
    elif claim is not None:
        who = (
            f"session {claim.session} on host {claim.host} (coordinator pid {claim.pid},"
            f" driver pid {claim.driver_pid}), which has just started and has no heartbeat yet"
        )
    else:
        who = "a session that has just started"
    return RunHeld(
        f"{url}: is being run by {who}. Stop that one first; if you know that it is gone for good,"
        " start with --take-over"
    )


def heartbeat(storage: Storage, but_of: str, now: datetime) -> str:
    """For whoever lost the run: who is seen running it, other than session `but_of`. `now` has a time zone."""
    try:
        holder = read_holder(storage)
    except StoreError as error:
        return f"{HOLDER} cannot be read ({error})"
    if holder is None or holder.session == but_of:
        return "it has no heartbeat yet"
    return (
        f"session {holder.session} on host {holder.host} (coordinator pid {holder.coordinator_pid}, driver pid"
        f" {holder.driver_pid}) is {holder.state.value}, last heartbeat {_age(holder, now)}"
    )


def _look(storage: Storage, replayed: Replayed) -> Sighting:
    return Sighting(read_holder(storage), JournalFiles(storage).exists(replayed.next_number))


def _is_gone(holder: Holder | None, boot_id: str) -> bool:
    if holder is None or holder.boot_id != boot_id:
        return False
    return not process_exists(holder.coordinator_pid) and not process_exists(holder.driver_pid)


def _has_moved(first: Sighting, latest: Sighting) -> bool:
    if latest.has_grown:
        return True
    return latest.holder is not None and latest.holder != first.holder and not _says_ended(latest.holder)


def _says_ended(holder: Holder | None) -> bool:
    return holder is not None and holder.state is not HolderState.RUNNING


def _age(holder: Holder, now: datetime) -> str:
    try:
        seconds = (now - datetime.fromisoformat(holder.beat_at)).total_seconds()
    except (ValueError, TypeError):  # a text for people decides nothing, however it came to be so
        return f"at {holder.beat_at!r} by its own clock"
    return f"{max(0.0, seconds):.0f} s ago by its own clock ({holder.beat_at})"
