"""The table as Prometheus' client library has it, and as plain values for report.json."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from regen.observe.metrics import SERIES, Kind, Series
from regen.observe.snapshot import Snapshot

_FAMILIES = {
    Kind.COUNTER: CounterMetricFamily,
    Kind.GAUGE: GaugeMetricFamily,
    Kind.HISTOGRAM: HistogramMetricFamily,
}


class TableCollector(Collector):
    """Every series of the table, read from a new snapshot with each scrape."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._snapshot = snapshot

    def describe(self) -> Iterable[Metric]:
        return [_family(series) for series in SERIES]

    def collect(self) -> Iterator[Metric]:
        return families(self._snapshot())


def families(snapshot: Snapshot) -> Iterator[Metric]:
    """The whole table at one moment."""
    for series in SERIES:
        family = _family(series)
        for labels, *value in series.read(snapshot):
            family.add_metric(list(labels), *value)
        yield family


def plain_values(snapshot: Snapshot) -> dict[str, list[dict[str, Any]]]:
    """By the name on the wire: labels and value of every sample, NaN as None. Plain data for JSON."""
    found: dict[str, list[dict[str, Any]]] = {}
    for family in families(snapshot):
        for sample in family.samples:
            value = None if math.isnan(sample.value) else sample.value
            found.setdefault(sample.name, []).append({"labels": dict(sample.labels), "value": value})
    return found


def _family(series: Series) -> Any:
    return _FAMILIES[series.kind](series.name, series.help, labels=list(series.labels))
