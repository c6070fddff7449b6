"""The endpoint's table: all of it there before the first row, bounded labels, honest numbers."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from regen.errors import UserError
from regen.observe.metrics import LABEL_LENGTH, SERIES, Endpoint, Snapshot
from regen.records import (
    Acceptance,
    CoordinatorStatus,
    EngineCounters,
    Phase,
    ReplicaState,
    ReplicaStats,
    Status,
    Totals,
)

HOSTILE = 'a "quoted"\nname \\ with everything ' + "x" * 300
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


@contextmanager
def served(snapshot: Snapshot) -> Iterator[Endpoint]:
    endpoint = Endpoint("127.0.0.1", 0, lambda: snapshot)
    try:
        yield endpoint
    finally:
        endpoint.close()


def samples(snapshot: Snapshot) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    with served(snapshot) as endpoint, urlopen(endpoint.url, timeout=10) as answer:
        text = answer.read().decode("utf-8")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def snapshot(**changes: object) -> Snapshot:
    return Snapshot(replace(STATUS, **changes), {"chat": 3, HOSTILE: 2}, 1.5)  # type: ignore[arg-type]


def test_every_series_is_there_before_the_first_row() -> None:
    names = {name.removesuffix("_total") for name, _ in samples(snapshot())}
    assert names == {series.name for series in SERIES}
    with served(snapshot()) as endpoint:
        endpoint.check()


def test_every_outcome_of_every_source_starts_at_zero() -> None:
    found = samples(snapshot())
    for status in Status:
        assert found["regen_rows_done_total", (("source", "chat"), ("status", status.value))] == 0


def test_numbers_are_those_of_the_journal() -> None:
    totals = Totals(
        outcomes={("chat", Status.OK): 2, ("chat", Status.FAILED): 1},
        output_tokens=70,
        acceptance=Acceptance(10, 30, 11, (8, 3)),
    )
    found = samples(snapshot(totals=totals))
    assert found["regen_rows_done_total", (("source", "chat"), ("status", "ok"))] == 2
    assert found["regen_output_tokens_total", ()] == 70
    assert found["regen_accept_length", ()] == pytest.approx(2.1)


def test_a_hostile_source_name_is_escaped_and_bounded() -> None:
    sources = {dict(labels)["source"] for (name, labels) in samples(snapshot()) if name == "regen_rows_planned"}
    (hostile,) = sources - {"chat"}
    assert len(hostile) == LABEL_LENGTH
    assert hostile.startswith('a "quoted"\nname \\')


def test_the_number_of_series_does_not_grow_with_rows() -> None:
    many = Totals(outcomes={("chat", Status.OK): 10**7}, output_tokens=10**10, generations=10**8)
    assert samples(snapshot()).keys() == samples(snapshot(totals=many, in_flight=10**5)).keys()


def test_a_port_that_is_taken_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"127\.0\.0\.1:{port}.*metrics\.port"):
            Endpoint("127.0.0.1", port, snapshot)
