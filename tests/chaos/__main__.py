"""`make chaos`: runs under random kills, freezes, rivals and store faults; every promise is checked at the end.

    python -m tests.chaos --minutes 5 --seed 1 --store local

A round is one run folder; rounds follow one another until the minutes are over. Exit code 1: a promise was broken; the
folder is kept then, and named. Linux, two cores and 3 GB are enough.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa

from regen.run.local import LocalCluster
from regen.run.session import seal_run
from regen.spec import RunSpec
from tests.chaos.promises import Verdict, check_made_twice, check_processes, check_rows, check_verify, sealed_rows
from tests.chaos.round import Round
from tests.chaos.stores import LocalStore, Store
from tests.runs import begin_run, drive, make_spec

STEP_SECONDS = 0.04
ROWS_PER_SHARD = 500
_UNLIMITED_RESTARTS = 100_000


def main() -> int:
    options = _options()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # or what was started would stay
    folder = Path(tempfile.mkdtemp(prefix="regen-chaos-", dir=options.folder))
    print(f"in {folder}", flush=True)
    reference = _undisturbed(folder, options.rows)
    stores = ("local", "s3") if options.store == "both" else (options.store,)
    is_kept = True
    for number, kind in enumerate(stores):
        until = time.monotonic() + options.minutes * 60 / len(stores)
        draw = random.Random(f"{options.seed}|{kind}")
        while time.monotonic() < until:
            is_kept &= _round(folder / f"{kind}-{number}", kind, reference, options.rows, draw, until)
            number += len(stores)
    if is_kept:
        shutil.rmtree(folder)
    return 0 if is_kept else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long trouble is made, all rounds together")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10_000))
    parser.add_argument("--store", choices=("local", "s3", "both"), default="local")
    parser.add_argument("--rows", type=int, default=3000, help="of one round")
    parser.add_argument("--folder", type=Path, default=None, help="where the run folders are made")
    options = parser.parse_args()
    print(f"chaos: seed {options.seed}, {options.minutes:g} minutes, store {options.store}", flush=True)
    return options


def _undisturbed(folder: Path, rows: int) -> pa.Table:
    """What the run gives when nothing happens to it, on one event loop."""
    output = folder / "undisturbed"
    begun = begin_run(make_spec(folder, rows, output=str(output), checkpoint={"rows_per_shard": ROWS_PER_SHARD}))
    asyncio.run(drive(LocalCluster(), begun))
    seal_run(begun.storage, begun.worker_setup.run)
    return sealed_rows(begun.storage)


def _round(folder: Path, kind: str, reference: pa.Table, rows: int, draw: random.Random, until: float) -> bool:
    folder.mkdir()
    began_at = time.monotonic()
    store = _store(kind, folder)
    try:

        def spec(replicas: int, interval_seconds: float) -> RunSpec:
            return make_spec(
                folder.parent,
                rows,
                output=store.url,
                engine={
                    "replicas": replicas,
                    "slots": 8,
                    "step_seconds": STEP_SECONDS,
                    "answer_tokens": 12,
                    "restarts": _UNLIMITED_RESTARTS,
                    "device": str(folder / "device"),
                    "made_log": str(folder / "made.jsonl"),
                },
                checkpoint={"interval_seconds": interval_seconds, "rows_per_shard": ROWS_PER_SHARD},
                **store.spec_sections,
            )

        disturbed = Round(folder, store, spec, draw, lambda text: _say(began_at, text))
        disturbed.run(until)
        verdict = _judged(disturbed, reference)
    finally:
        store.close()
    verdict.facts["seconds"] = f"{time.monotonic() - began_at:.0f}"
    _print(kind, verdict)
    return not verdict.broken


def _store(kind: str, folder: Path) -> Store:
    if kind == "local":
        return LocalStore(folder / "run")
    from tests.chaos.s3_store import S3Store

    return S3Store(folder)


def _judged(disturbed: Round, reference: pa.Table) -> Verdict:
    verdict, store = Verdict(), disturbed.store
    verdict.facts["troubles"] = ", ".join(f"{count} {kind}" for kind, count in sorted(disturbed.counts.items()))
    verdict.broken += disturbed.unexpected
    check_processes(verdict, disturbed.seen)
    check_verify(verdict, store.url, disturbed.folder, store.environment)
    turns = check_rows(verdict, store.storage(), reference)
    check_made_twice(verdict, disturbed.folder / "made.jsonl", turns, disturbed.losses, disturbed.outages)
    left = store.leftovers(before=disturbed.last_start_at)
    verdict.facts["unfinished writes"] = f"{len(left)} left"
    verdict.expect(not left, f"no unfinished write is left: {left[:5]}")
    return verdict


def _say(began_at: float, text: str) -> None:
    print(f"{time.monotonic() - began_at:7.1f} s  {text}", flush=True)


def _print(kind: str, verdict: Verdict) -> None:
    print(f"\n{kind}")
    for name, fact in verdict.facts.items():
        print(f"  {name:18} {fact}")
    for promise in verdict.broken:
        print(f"  BROKEN             {promise}")
    print(flush=True)


if __name__ == "__main__":
    sys.exit(main())
