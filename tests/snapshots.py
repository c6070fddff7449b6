"""One moment of a run, for what reads it: metrics, pages, dashboards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from urllib.request import Request, urlopen

from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from regen.observe.endpoint import Endpoint
from regen.observe.snapshot import RunFacts, Snapshot
from regen.records import CoordinatorStatus, EngineCounters, Phase, ReplicaState, ReplicaStats, Totals

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]

STATUS = CoordinatorStatus(
    incarnation="one",
    phase=Phase.RUNNING,
    planned=0,
    totals=Totals(),
    in_flight=0,
    uncommitted_rows=0,
    commits=0,
    replicas={slot: ReplicaStats(ReplicaState.STARTING, 4, 0, 0.0, EngineCounters()) for slot in range(2)},
    session_output_tokens=0,
    session_sampled_tokens=0,
    session_paced_tokens=0,
    session_rows=0,
    session_seconds=0.0,
)
FACTS = RunFacts(
    name="test",
    version="0",
    target="target",
    draft="none",
    positions=3,
    replicas=2,
    gpus=4,
    commit_interval_seconds=30,
    uncommitted_bytes_limit=2**29,
)


def snapshot(planned: Mapping[str, int] | None = None, facts: RunFacts = FACTS, **changes: Any) -> Snapshot:
    """`changes` are fields of the status."""
    return Snapshot(replace(STATUS, **changes), {"chat": 3, "code": 2} if planned is None else planned, facts)


@contextmanager
def served(snapshot: Snapshot) -> Iterator[Endpoint]:
    endpoint = Endpoint("127.0.0.1", 0, lambda: snapshot, {})
    try:
        yield endpoint
    finally:
        endpoint.close()


def scraped(endpoint: Endpoint, accept: str = "") -> str:
    request = Request(endpoint.url, headers={"Accept": accept} if accept else {})
    with urlopen(request, timeout=10) as answer:
        return str(answer.read().decode("utf-8"))


def parsed(text: str) -> Samples:
    """As Prometheus' own parsers read it."""
    read = openmetrics_families if text.endswith("# EOF\n") else text_string_to_metric_families
    found: Samples = {}
    for family in read(text):
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in found, f"{key} is there twice"
            found[key] = sample.value
    return found


def samples(snapshot: Snapshot) -> Samples:
    with served(snapshot) as endpoint:
        return parsed(scraped(endpoint))
