"""What one scrape costs: a run of ten sources on eight replicas, after 83,000 rows. `python -m benchmarks.scrape`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median

from prometheus_client import CollectorRegistry, generate_latest

from regen.length_buckets import COUNT
from regen.observe.exposition import TableCollector
from regen.observe.snapshot import Snapshot
from regen.records import Acceptance, ReplicaState, ReplicaStats, ReplicaTotals, SourceTotals, Status, Totals
from tests.snapshots import FACTS, STATUS, scraped, served

SCRAPES = 100


def late_snapshot() -> Snapshot:
    """83,000 rows, all replicas at work."""
    planned = {f"source {number}": 8300 for number in range(10)}
    totals = Totals(
        outcomes={(source, status): 8300 // len(Status) for source in planned for status in Status},
        replicas={(slot, status): 1000 for slot in range(8) for status in Status},
        by_source={source: SourceTotals(10**7, 10**7, 9000, (400,) * COUNT) for source in planned},
        by_replica={slot: ReplicaTotals(10**7, 9000, Acceptance(9, 9, 9, (4,) * 5)) for slot in range(8)},
    )
    stats = ReplicaStats(ReplicaState.RUNNING, 256, 300, 0.0, STATUS.replicas[0].counters)
    status = replace(STATUS, totals=totals, replicas=dict.fromkeys(range(8), stats))
    return Snapshot(status, planned, replace(FACTS, replicas=8, positions=5))


def milliseconds(act: Callable[[], object]) -> float:
    """Of processor time, whatever else this machine does; client and server together."""
    seconds = []
    for _ in range(SCRAPES):
        began = time.process_time()
        act()
        seconds.append(time.process_time() - began)
    return 1000 * median(seconds)


def main() -> None:
    snapshot, registry = late_snapshot(), CollectorRegistry()
    registry.register(TableCollector(lambda: snapshot))
    text = generate_latest(registry)
    print(f"{sum(not line.startswith(b'#') for line in text.splitlines()):,} samples, {len(text):,} bytes")
    print(f"reading and writing: {milliseconds(lambda: generate_latest(registry)):.1f} ms")
    with served(snapshot) as endpoint:
        print(f"over loopback:       {milliseconds(lambda: scraped(endpoint)):.1f} ms")


if __name__ == "__main__":
    main()
