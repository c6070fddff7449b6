"""Where we run, what time it is there, and whether a process is still there.

Linux in full; elsewhere a host's name stands for its boot.
"""

from __future__ import annotations

import hashlib
import os
import socket
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path


def utc_now() -> str:
    """ISO 8601 text in UTC, to the millisecond, by this machine's clock: it may be put back."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def machine_identity() -> str:
    """8 hex digits for where process ids mean the same: this boot of this machine and this process namespace."""
    parts = [socket.gethostname()]
    with suppress(OSError):  # not Linux: the host's name alone must do
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii"))
        parts.append(os.readlink("/proc/self/ns/pid"))
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=4).hexdigest()


def process_exists(pid: int) -> bool:
    """Whether a process with this id runs on this machine, whoever owns it. A dead one not yet reaped does not."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):  # the latter: no id at all, read from a damaged file
        return False
    except PermissionError:
        pass
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:  # gone meanwhile, hidden from us, or not Linux: the signal's word must do
        return False
    return stat.rpartition(")")[2].split()[:1] in (["Z"], ["X"])
