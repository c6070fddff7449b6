"""A private Ray cluster on ports of its own, of one node or more: started, looked into and ended by pid."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from tests.processes import descendants, end, environment, exists, free_port, titled, wait_until

START_SECONDS = 240.0
_RAY = str(Path(sys.executable).parent / "ray")
COORDINATOR = "ray::CoordinatorActor"
REPLICA = "ray::ReplicaActor"
# Who may talk to the cluster: a token file that some other Ray on this machine has written must not decide. And Ray
# makes its workers nicer by 15, so that on a busy machine a test would wait for them for minutes.
ENVIRONMENT = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}


class RayHead:
    """`ray start --head`; never `ray stop`, which would hit every Ray on the machine.

    Who joins needs `ENVIRONMENT`.
    """

    def __init__(
        self, folder: Path, more: Mapping[str, str] | None = None, dashboard: bool = False, cpus: int = 2
    ) -> None:
        """Blocks until the node answers."""
        # All that is fixed unless said: the second cluster on a machine, by chance or by a test, takes no jobs without.
        named = ("port", "dashboard-port", "dashboard-agent-listen-port", "ray-client-server-port")
        ports = {name: free_port() for name in named}
        self.address = f"127.0.0.1:{ports['port']}"
        self.job_server = f"http://127.0.0.1:{ports['dashboard-port']}"
        # Ports of workers are any: a second cluster beside this one would take them from the same range.
        options = [
            "--head",
            "--block",
            "--node-ip-address=127.0.0.1",
            f"--num-cpus={cpus}",
            "--min-worker-port=0",
            "--max-worker-port=0",
        ]
        options += [
            f"--include-dashboard={str(dashboard).lower()}",
            *(f"--{name}={port}" for name, port in ports.items()),
        ]
        said = folder / f"ray-{ports['port']}.log"
        with said.open("w") as log:
            self.process = subprocess.Popen(
                [_RAY, "start", *options],
                cwd=folder,
                env={**environment(), **ENVIRONMENT, **(more or {})},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            wait_until(lambda: "Ray runtime started" in said.read_text() or not self.lives, seconds=START_SECONDS)
            if not self.lives:  # Ray itself gives a node some 30 s to come up
                raise RuntimeError(f"Ray did not start on this machine: ...{said.read_text()[-400:]}")
        except (TimeoutError, RuntimeError):
            end(self.process)
            raise

    @property
    def lives(self) -> bool:
        return self.process.poll() is None

    @property
    def pids(self) -> list[int]:
        """All that runs below it now. Processes in sessions of their own are among them while their parent lives."""
        return [self.process.pid, *descendants(self.process.pid)]

    def titled(self, title: str) -> list[int]:
        return titled(self.process.pid, title)

    def part(self, program: str) -> list[int]:
        """The node's own processes: `raylet`, `gcs_server`."""
        return [pid for pid in descendants(self.process.pid) if _program(pid) == program]

    def end(self) -> None:
        """kill -9 to all of it."""
        end(self.process)


class RayNode:
    """One more node of a cluster, on this machine. Its GPUs are numbers."""

    def __init__(self, head: RayHead, cpus: int, gpus: int = 0, more: Mapping[str, str] | None = None) -> None:
        """Does not wait until it has joined."""
        self.process = subprocess.Popen(
            [
                _RAY,
                "start",
                f"--address={head.address}",
                "--block",
                "--node-ip-address=127.0.0.1",
                f"--num-cpus={cpus}",
                f"--num-gpus={gpus}",
                "--min-worker-port=0",
                "--max-worker-port=0",
            ],
            env={**environment(), **ENVIRONMENT, **(more or {})},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
        )

    def titled(self, title: str) -> list[int]:
        return titled(self.process.pid, title)

    def end(self) -> None:
        """kill -9 to all of it, as when a machine goes."""
        end(self.process)


def below(pid: int) -> list[int]:
    """A process and what hangs below it, those that live."""
    return [one for one in (pid, *descendants(pid)) if exists(one)]


Identity = tuple[int, str]


def identities(pids: Iterable[int]) -> set[Identity]:
    """Each with its start, in ticks since the boot: ids are used again."""
    found = set()
    for pid in pids:
        with suppress(OSError):
            found.add((pid, _start(pid)))
    return found


def still_there(one: Identity) -> bool:
    """Whether just this process lives."""
    return exists(one[0]) and one in identities([one[0]])


def _start(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def _program(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode("utf-8", "replace").rpartition("/")[2]
    except OSError:
        return ""
