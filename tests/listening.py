"""Where processes listen, as Linux tells it: by /proc/PID/fd and /proc/PID/net/tcp."""

from __future__ import annotations

import ipaddress
import os
from contextlib import suppress
from pathlib import Path

from tests.processes import descendants

_LISTENS = "0A"


def listening(root: int) -> set[tuple[str, str]]:
    """(program, address) of each TCP socket that a process or anything below it listens on now."""
    found = set()
    for pid in (root, *descendants(root)):
        with suppress(OSError):  # it has ended
            addresses = _addresses(pid)
            for inode in _sockets(pid) & addresses.keys():
                found.add((_program(pid), addresses[inode]))
    return found


def is_loopback(address: str) -> bool:
    """Also where one for IPv4 is listened on through IPv6."""
    ip = ipaddress.ip_address(address)
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return (mapped or ip).is_loopback


def _program(pid: int) -> str:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    return words[0].strip().rpartition("/")[2]


def _sockets(pid: int) -> set[str]:
    """Inodes."""
    found = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            found.add(os.readlink(descriptor).removeprefix("socket:[").removesuffix("]"))
    return found


def _addresses(pid: int) -> dict[str, str]:
    """Of every listening socket of the process's network, by inode."""
    found = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_ = words = line.split()
            if state == _LISTENS:
                found[words[9]] = _address(local.partition(":")[0])
    return found


def _address(hexadecimal: str) -> str:
    """The kernel writes each four bytes as one number of this machine's order."""
    raw = bytes.fromhex(hexadecimal)
    raw = b"".join(raw[start : start + 4][::-1] for start in range(0, len(raw), 4))
    return str(ipaddress.ip_address(raw))
