"""A Ray cluster that regen starts itself listens on this machine's loopback alone, and does not slow its engines.

By itself every process of a Ray cluster listens on all interfaces, a local one's too. Where Ray takes machines for
unable to join (as it does for macOS and Windows), the node's address is 127.0.0.1 and everything listens there. It
reads that when it is imported: nothing here may import it.

Ray also starts actors 15 steps nicer than its own daemons, so everything else on the machine goes before the engines:
on two cores beside other work an engine made 338 tok/s like that where it makes 509 otherwise.
"""

from __future__ import annotations

import os

LOOPBACK = "127.0.0.1"
# Ray's own name for "may other machines join", whatever this machine is.
_MAY_BE_JOINED = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
# vLLM's for the address of its processes; with its executor `ray` it looks for a node of that address.
_ENGINES_ADDRESS = "VLLM_HOST_IP"
# How much nicer than a node's raylet its actors are.
NICENESS = "RAY_worker_niceness"


def prepare_own_cluster(address: str | None) -> None:
    """Before `run.cluster` is imported. A cluster that is joined is its owner's, and a setting of the user's stays."""
    if (address or os.environ.get("RAY_ADDRESS") or "local") == "local":
        os.environ.setdefault(NICENESS, "0")
        os.environ.setdefault(_MAY_BE_JOINED, "0")
        if os.environ[_MAY_BE_JOINED] == "0":
            os.environ.setdefault(_ENGINES_ADDRESS, LOOPBACK)
