"""The Prometheus endpoint: one table of series, one owner (the coordinator), absolute numbers only.

Every number is read from a snapshot at scrape time, and totals come from the journal: no counter falls or counts twice,
whatever was restarted. Every series is there, zeros included, before the first row. Labels come from small closed sets:
sources of the spec, statuses, replica slots.
"""

from __future__ import annotations

import hashlib
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from regen.errors import UserError
from regen.records import CoordinatorStatus, Label, Phase, ReplicaState, Status

LABEL_LENGTH = 100


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that the endpoint shows. `planned` is by source; ages and times in seconds."""

    status: CoordinatorStatus
    planned: Mapping[str, int]
    last_commit_age_seconds: float


Sample = tuple[tuple[str, ...], float]


@dataclass(frozen=True, slots=True)
class Series:
    """One line of the table: a name, what it is, and how to read it from a snapshot."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...]
    read: Callable[[Snapshot], Iterable[Sample]]


def _one(value: Callable[[Snapshot], float]) -> Callable[[Snapshot], Iterable[Sample]]:
    return lambda snapshot: [((), value(snapshot))]


def _by_replica(value: Callable[[Any], float]) -> Callable[[Snapshot], Iterable[Sample]]:
    return lambda snapshot: [((str(slot),), value(stats)) for slot, stats in sorted(snapshot.status.replicas.items())]


def _rows_done(snapshot: Snapshot) -> Iterator[Sample]:
    outcomes = snapshot.status.totals.outcomes
    for source in snapshot.planned:
        for status in Status:
            yield (_label(source), status.value), outcomes.get((source, status), 0)


def _rows_by_replica(snapshot: Snapshot) -> Iterator[Sample]:
    for slot in sorted(snapshot.status.replicas):
        for status in Status:
            yield (str(slot), status.value), snapshot.status.totals.replicas.get((slot, status), 0)


def _labelled(snapshot: Snapshot) -> Iterator[Sample]:
    for source in snapshot.planned:
        for label in Label:
            yield (_label(source), label.value), snapshot.status.totals.labels.get((source, label), 0)


def _replica_accept_length(stats: Any) -> float:
    acceptance = stats.counters.acceptance
    return (acceptance.accept_length or 0.0) if acceptance else 0.0


# Of the gate and of the guard.
VERDICTS = ("unknown", "healthy", "undecided", "dead", "absent", "off_profile", "garbage", "collapsed", "decayed")


def _verdicts(snapshot: Snapshot) -> Iterator[Sample]:
    known = snapshot.status.speculation.verdicts
    for slot in sorted(snapshot.status.replicas):
        for verdict in VERDICTS:
            yield (str(slot), verdict), float(known.get(slot, "unknown") == verdict)


SERIES: tuple[Series, ...] = (
    Series(
        "regen_rows_planned",
        Kind.GAUGE,
        "Rows of the frozen plan, refused ones included.",
        ("source",),
        lambda snapshot: [((_label(source),), count) for source, count in snapshot.planned.items()],
    ),
    Series("regen_rows_done", Kind.COUNTER, "Committed rows by outcome.", ("source", "status"), _rows_done),
    Series(
        "regen_replica_rows_done",
        Kind.COUNTER,
        "Committed rows by the replica that made them and outcome.",
        ("replica", "status"),
        _rows_by_replica,
    ),
    Series(
        "regen_generations_labelled",
        Kind.COUNTER,
        "Committed assistant turns by what is said of them: cut, looping, empty, out of format.",
        ("source", "label"),
        _labelled,
    ),
    Series(
        "regen_rows_in_flight",
        Kind.GAUGE,
        "Rows that replicas are working on.",
        (),
        _one(lambda snapshot: snapshot.status.in_flight),
    ),
    Series(
        "regen_rows_uncommitted",
        Kind.GAUGE,
        "Finished rows that are not in the journal yet.",
        (),
        _one(lambda snapshot: snapshot.status.uncommitted_rows),
    ),
    Series(
        "regen_output_tokens",
        Kind.COUNTER,
        "Tokens sampled in committed rows.",
        (),
        _one(lambda snapshot: snapshot.status.totals.output_tokens),
    ),
    Series(
        "regen_prompt_tokens",
        Kind.COUNTER,
        "Prompt tokens of committed generations.",
        (),
        _one(lambda snapshot: snapshot.status.totals.prompt_tokens),
    ),
    Series(
        "regen_generations",
        Kind.COUNTER,
        "Assistant turns in committed rows.",
        (),
        _one(lambda snapshot: snapshot.status.totals.generations),
    ),
    Series(
        "regen_speculation_drafts",
        Kind.COUNTER,
        "Verification steps in committed rows.",
        (),
        _one(lambda snapshot: snapshot.status.totals.acceptance.drafts),
    ),
    Series(
        "regen_speculation_drafted_tokens",
        Kind.COUNTER,
        "Draft tokens verified in committed rows.",
        (),
        _one(lambda snapshot: snapshot.status.totals.acceptance.drafted),
    ),
    Series(
        "regen_speculation_accepted_tokens",
        Kind.COUNTER,
        "Draft tokens accepted in committed rows.",
        (),
        _one(lambda snapshot: snapshot.status.totals.acceptance.accepted),
    ),
    Series(
        "regen_accept_length",
        Kind.GAUGE,
        "Tokens per verification step over committed rows; 1 means that speculation does nothing, 0 that none ran.",
        (),
        _one(lambda snapshot: snapshot.status.totals.acceptance.accept_length or 0.0),
    ),
    Series(
        "regen_commits",
        Kind.COUNTER,
        "Files published in the journal.",
        (),
        _one(lambda snapshot: snapshot.status.commits),
    ),
    Series(
        "regen_last_commit_age_seconds",
        Kind.GAUGE,
        "Seconds since this session last published rows.",
        (),
        _one(lambda snapshot: snapshot.last_commit_age_seconds),
    ),
    Series(
        "regen_phase",
        Kind.GAUGE,
        "1 for the phase that the run is in, 0 for the others.",
        ("phase",),
        lambda snapshot: [((phase.value,), float(phase is snapshot.status.phase)) for phase in Phase],
    ),
    Series(
        "regen_store_unavailable",
        Kind.GAUGE,
        "1 while the store does not take or give what it is asked for.",
        (),
        _one(lambda snapshot: float(snapshot.status.store_error is not None)),
    ),
    Series(
        "regen_replica_up",
        Kind.GAUGE,
        "1 while this replica's engine runs, 0 while it starts or is gone.",
        ("replica",),
        _by_replica(lambda stats: float(stats.state in (ReplicaState.RUNNING, ReplicaState.DRAINING))),
    ),
    Series(
        "regen_replica_running_rows",
        Kind.GAUGE,
        "Rows that this replica works on.",
        ("replica",),
        _by_replica(lambda stats: stats.running_rows),
    ),
    Series(
        "regen_replica_accept_length",
        Kind.GAUGE,
        "Accept length since this engine started; 0 before any step, or without counters.",
        ("replica",),
        _by_replica(_replica_accept_length),
    ),
    Series(
        "regen_replica_speculation_verdict",
        Kind.GAUGE,
        "1 for the latest verdict on this replica's speculation, 0 for the others; warm-up first, then the guard.",
        ("replica", "verdict"),
        _verdicts,
    ),
    Series(
        "regen_replica_speculating",
        Kind.GAUGE,
        "1 while this replica's engine was started with speculation, 0 while without.",
        ("replica",),
        lambda snapshot: [
            ((str(slot),), float(snapshot.status.speculation.arms.get(slot, "off") != "off"))
            for slot in sorted(snapshot.status.replicas)
        ],
    ),
    Series(
        "regen_calibrating",
        Kind.GAUGE,
        "1 while it is measured whether speculation pays.",
        (),
        _one(lambda snapshot: float(snapshot.status.speculation.phase == "calibrating")),
    ),
    Series(
        "regen_replica_kv_usage_ratio",
        Kind.GAUGE,
        "Share of the key-value cache in use.",
        ("replica",),
        _by_replica(lambda stats: stats.counters.kv_usage),
    ),
    Series(
        "regen_replica_loop_lag_seconds",
        Kind.GAUGE,
        "How late the replica's event loop was at its last exchange.",
        ("replica",),
        _by_replica(lambda stats: stats.loop_lag_seconds),
    ),
)


class Endpoint:
    """The HTTP endpoint. Raises UserError when it cannot listen."""

    def __init__(self, host: str, port: int, snapshot: Callable[[], Snapshot]) -> None:
        registry = CollectorRegistry()
        registry.register(_TableCollector(snapshot))
        try:
            self._server, self._thread = start_http_server(port, addr=host, registry=registry)
        except OSError as error:
            raise UserError(
                f"metrics: cannot listen on {host}:{port}: {error.strerror}."
                " Set metrics.port to a free port, to 0 for any, or to null for none."
            ) from error
        self.url = f"http://{host}:{self._server.server_port}/metrics"

    def check(self) -> None:
        """Scrape ourselves once: every series of the table must be there before the first row."""
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with direct.open(self.url, timeout=10) as answer:
                text = answer.read().decode("utf-8")
        except OSError as error:
            raise UserError(f"metrics: {self.url} does not answer to a scrape of our own: {error}") from error
        missing = [series.name for series in SERIES if f"# HELP {series.name}" not in text]
        if missing:
            raise UserError(f"metrics: {self.url} does not show {', '.join(missing)}")

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _TableCollector(Collector):
    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._snapshot = snapshot

    def describe(self) -> Iterable[Metric]:
        return [_family(series) for series in SERIES]

    def collect(self) -> Iterator[Metric]:
        snapshot = self._snapshot()
        for series in SERIES:
            family = _family(series)
            for labels, value in series.read(snapshot):
                family.add_metric(list(labels), value)
            yield family


def _family(series: Series) -> CounterMetricFamily | GaugeMetricFamily:
    kind = CounterMetricFamily if series.kind is Kind.COUNTER else GaugeMetricFamily
    return kind(series.name, series.help, labels=list(series.labels))


def _label(source: str) -> str:
    """A source's name as a label: bounded. The client library escapes quotes and newlines."""
    if len(source) <= LABEL_LENGTH:
        return source
    return f"{source[: LABEL_LENGTH - 9]}-{hashlib.blake2b(source.encode(), digest_size=4).hexdigest()}"
