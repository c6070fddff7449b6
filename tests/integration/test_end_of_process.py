"""What a process has beside its own thread when a command is done: nothing that could ask for the interpreter's lock
while the interpreter ends (see regen/own_thread.py).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from regen.run.local import LocalCluster
from regen.run.session import seal_run
from tests import virtual_time
from tests.processes import environment
from tests.runs import begin_run, drive, make_spec

# Arrow starts its threads with their first work, and keeps them. What it opens by its path may start some too: making a
# plan and files of sources, which is why a run is made in another process.
COMMANDS = '''
import os
import time
from pathlib import Path

import numpy, pyarrow.parquet

from regen.rows import from_bytes, to_bytes
from regen.store import totals
from regen.store.files import JournalFiles
from regen.store.history import read_history
from regen.store.local import LocalStorage
from tests.processes import regen_here

def threads():
    return len(os.listdir("/proc/self/task"))

def left():
    """A thread of Python's that was joined may be there for a moment yet."""
    until = time.monotonic() + 5
    while threads() > idle and time.monotonic() < until:
        time.sleep(0.01)
    return threads() - idle

idle = threads()
for command in ("status --json", "verify", "report", "clean --dry-run --journal"):
    name, *options = command.split()
    done = regen_here(name, "run", *options, cwd=Path.cwd())
    assert done.returncode == 0, (command, done)
    print(command, left())
storage = LocalStorage(Path("run"))
print("history", len(read_history(storage)) and left())
files = JournalFiles(storage)
received = [from_bytes(to_bytes(files.read_table(file.number))) for file in files.files()]
print("count", sum(totals.count(table).generations for table in received) and left())
'''


def test_no_thread_of_arrows_works_on_what_python_owns(tmp_path: Path) -> None:
    begun = begin_run(make_spec(tmp_path, rows=20))
    virtual_time.run(drive(LocalCluster(), begun))
    seal_run(begun.storage, begun.worker_setup.run)
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS], cwd=tmp_path, env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "status --json 0",
        "verify 0",
        "report 0",
        "clean --dry-run --journal 0",
        "history 0",
        "count 0",
    ]
