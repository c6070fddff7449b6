"""Whose cores are whose, and that real processes are bound to them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from regen.engines.cpu_cores import cores_left

CORES = frozenset(range(4))
# A process with a child that binds itself to one core, as a worker does, and one that does not.
PARENT = """
import os, subprocess, sys
from regen.engines.cpu_cores import leave_workers_cores
CHILD = "import os, sys; len(sys.argv) > 1 and os.sched_setaffinity(0, {int(sys.argv[1])}); print(flush=True); input()"
own = sorted(os.sched_getaffinity(0))
children = [
    subprocess.Popen([sys.executable, "-c", CHILD, *more], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    for more in ([str(own[0])], [])
]
for child in children:
    child.stdout.readline()
leave_workers_cores()
print(*(sorted(os.sched_getaffinity(each)) == own[1:] for each in (0, children[1].pid)))
print(sorted(os.sched_getaffinity(children[0].pid)) == own[:1])
for child in children:
    child.communicate(b"\\n")
"""


def test_what_workers_are_bound_to_is_theirs() -> None:
    assert cores_left(CORES, [frozenset({0}), frozenset({1})]) == {2, 3}


def test_a_process_that_nobody_has_bound_takes_none() -> None:
    assert cores_left(CORES, [CORES, frozenset({0})]) == {1, 2, 3}
    assert cores_left(CORES, []) == CORES


def test_where_workers_have_all_of_them_nothing_changes() -> None:
    assert cores_left(CORES, [frozenset({0, 1}), frozenset({2, 3})]) == CORES


def test_where_they_leave_next_to_nothing_nothing_changes() -> None:
    many = frozenset(range(16))
    assert cores_left(many, [many - {15}]) == many


@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="needs Linux and two cores"
)
def test_processes_that_feed_a_worker_keep_off_its_core() -> None:
    done = subprocess.run([sys.executable, "-c", PARENT], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["True"] * 3
