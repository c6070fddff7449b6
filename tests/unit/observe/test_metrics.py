"""The table: all of it there before the first row, bounded labels, honest numbers."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from regen.length_buckets import COUNT, bucket
from regen.observe.exposition import TableCollector, plain_values
from regen.observe.metrics import SERIES, Kind
from regen.observe.metrics_page import page
from regen.observe.readers import LABEL_LENGTH, VERDICTS, label_of
from regen.observe.snapshot import Snapshot
from regen.records import (
    Acceptance,
    EngineCounters,
    Eta,
    EtaState,
    Label,
    Phase,
    ReplicaState,
    ReplicaStats,
    ReplicaTotals,
    RetryReason,
    SlotState,
    SlotTally,
    SourceTotals,
    Status,
    Tally,
    Totals,
)
from regen.speculative.gate import GateVerdict
from regen.speculative.verdicts import GuardVerdict
from tests.snapshots import FACTS, Samples, parsed, snapshot

HOSTILE = 'a "quoted"\nname \\ with everything ' + "x" * 300
PRICED = replace(FACTS, price_per_gpu_hour=2.5, currency="EUR")


def samples(snapshot: Snapshot) -> Samples:
    registry = CollectorRegistry()
    registry.register(TableCollector(lambda: snapshot))
    return parsed(generate_latest(registry).decode("utf-8"))


def value(found: Samples, name: str, **labels: str) -> float:
    return found[name, tuple(sorted(labels.items()))]


def test_every_series_is_there_before_the_first_row() -> None:
    names = {name for name, _ in samples(snapshot())}
    wanted = {name for series in SERIES for name in series.wire_names}
    assert names == wanted


def test_names_are_unlike_and_say_what_they_are() -> None:
    names = [name for series in SERIES for name in series.wire_names]
    assert len(names) == len(set(names))
    for series in SERIES:
        assert series.name.startswith("regen_")
        assert not series.name.endswith("_total"), "the client library adds that to counters"
        assert series.help.endswith(".")


def test_every_closed_set_starts_at_zero() -> None:
    found = samples(snapshot())
    for status in Status:
        assert value(found, "regen_rows_done_total", source="chat", status=status.value) == 0
        assert value(found, "regen_rows_standing", source="chat", status=status.value) == 0
        assert value(found, "regen_replica_rows_done_total", replica="1", status=status.value) == 0
    for label in Label:
        assert value(found, "regen_generations_labelled_total", source="chat", label=label.value) == 0
    for state in SlotState:
        assert value(found, "regen_replica_slot_seconds_total", replica="1", state=state.value) == 0
    for position in range(FACTS.positions):
        name = "regen_replica_speculation_accepted_at_total"
        assert value(found, name, replica="1", position=str(position)) == 0


def test_what_is_not_known_is_no_number() -> None:
    found = samples(snapshot())
    for name in ("regen_useful_tokens_per_second", "regen_deadline_seconds", "regen_store_credentials_seconds"):
        assert math.isnan(value(found, name)), name
    assert math.isnan(value(found, "regen_accept_length"))
    assert math.isnan(value(found, "regen_replica_accept_length", replica="0"))
    assert all(math.isnan(value(found, "regen_eta_seconds", bound=bound)) for bound in ("low", "mid", "high"))
    assert math.isnan(value(found, "regen_cost_so_far", currency="none"))
    assert math.isnan(value(found, "regen_cost_to_go", currency="none"))


def test_numbers_are_those_of_the_journal() -> None:
    totals = Totals(
        outcomes={("chat", Status.OK): 2, ("chat", Status.FAILED): 1},
        acceptance=Acceptance(10, 30, 11, (8, 3)),
        by_source={"chat": SourceTotals(40, 70, 3, acceptance=Acceptance(9, 27, 10, (7, 3)))},
        by_replica={1: ReplicaTotals(70, 3, Acceptance(10, 30, 11, (8, 3)))},
    )
    found = samples(snapshot(totals=totals))
    assert value(found, "regen_rows_done_total", source="chat", status="ok") == 2
    assert value(found, "regen_rows_remaining", source="chat") == 0
    assert value(found, "regen_rows_remaining", source="code") == 2
    assert value(found, "regen_output_tokens_total", source="chat") == 70
    assert value(found, "regen_prompt_tokens_total", source="chat") == 40
    assert value(found, "regen_generations_total", source="chat") == 3
    assert value(found, "regen_accept_length") == pytest.approx(2.1)
    assert value(found, "regen_source_speculation_drafts_total", source="chat") == 9
    assert value(found, "regen_replica_speculation_accepted_tokens_total", replica="1") == 11
    assert value(found, "regen_replica_speculation_accepted_at_total", replica="1", position="1") == 3
    assert value(found, "regen_replica_speculation_accepted_at_total", replica="1", position="2") == 0


def test_a_replica_that_joins_begins_its_series_and_one_that_leaves_does_not_end_them() -> None:
    joined = ReplicaStats(ReplicaState.RUNNING, 4, 3, 0.0, EngineCounters())
    replicas = {**snapshot().status.replicas, 4: joined}
    found = samples(snapshot(replicas=replicas, open_slots=frozenset({0, 1, 4, 5}), pending_slots=frozenset({5})))
    assert value(found, "regen_replica_up", replica="4") == 1
    assert value(found, "regen_replica_output_tokens_total", replica="4") == 0
    assert value(found, "regen_replicas_wanted") == 4
    assert value(found, "regen_replicas_pending") == 1
    replicas[4] = replace(joined, state=ReplicaState.RELEASED, running_rows=0)
    found = samples(snapshot(replicas=replicas, open_slots=frozenset({0, 1})))
    assert value(found, "regen_replica_up", replica="4") == 0
    assert value(found, "regen_replica_state", replica="4", state="released") == 1
    assert value(found, "regen_replica_state", replica="4", state="stopped") == 0


def test_a_row_that_was_made_again_counts_with_each_outcome_and_stands_once() -> None:
    now = Totals(outcomes={("chat", Status.OK): 3}, by_source={"chat": SourceTotals(output_tokens=50)})
    ever = Totals(
        outcomes={("chat", Status.OK): 3, ("chat", Status.TRUNCATED): 1},
        by_source={"chat": SourceTotals(output_tokens=90)},
    )
    found = samples(snapshot(totals=now, published=ever))
    assert value(found, "regen_rows_done_total", source="chat", status="truncated") == 1
    assert value(found, "regen_rows_standing", source="chat", status="truncated") == 0
    assert value(found, "regen_output_tokens_total", source="chat") == 90
    assert value(found, "regen_rows_remaining", source="chat") == 0


def test_tallies_are_those_that_were_published() -> None:
    spent = SlotTally(engine_seconds=7200, gpu_seconds=7200 * 4, preemptions=3, slot_seconds={SlotState.STARVED: 12.5})
    found = samples(snapshot(tally=Tally(slots={0: spent, 5: spent}, retries={RetryReason.STALLED: 4}, store_errors=2)))
    assert value(found, "regen_replica_preemptions_total", replica="0") == 3
    assert value(found, "regen_replica_slot_seconds_total", replica="0", state="starved") == 12.5
    assert value(found, "regen_retries_total", reason="stalled") == 4
    assert value(found, "regen_store_errors_total") == 2
    assert value(found, "regen_replica_preemptions_total", replica="5") == 3, "a slot that the spec does not keep"
    assert value(found, "regen_replica_preemptions_total", replica="4") == 0
    assert ("regen_replica_preemptions_total", (("replica", "6"),)) not in found, "a slot that was never opened"
    assert value(found, "regen_gpu_seconds_total") == 2 * 7200 * 4, "GPUs of slots that are gone were held all the same"


def test_lengths_are_a_histogram_whose_limits_hold() -> None:
    lengths = [0] * COUNT
    for tokens in (1, 15, 16, 500):
        lengths[bucket(tokens)] += 1
    parts = {"chat": SourceTotals(output_tokens=532, lengths=tuple(lengths))}
    found = samples(snapshot(totals=Totals(by_source=parts)))
    at_most = {
        dict(labels)["le"]: count
        for (name, labels), count in found.items()
        if name == "regen_row_tokens_bucket" and dict(labels)["source"] == "chat"
    }
    assert (at_most["1.0"], at_most["15.0"], at_most["31.0"], at_most["511.0"]) == (1, 2, 3, 4)
    assert at_most["+Inf"] == value(found, "regen_row_tokens_count", source="chat") == 4
    assert value(found, "regen_row_tokens_sum", source="chat") == 532


@given(st.lists(st.integers(0, 2**21), max_size=20))
def test_every_length_is_within_its_limit(tokens: list[int]) -> None:
    lengths = [0] * COUNT
    for length in tokens:
        lengths[bucket(length)] += 1
    (series,) = (series for series in SERIES if series.kind is Kind.HISTOGRAM)
    parts = {"chat": SourceTotals(lengths=tuple(lengths))}
    ((_, buckets, _),) = series.read(snapshot({"chat": 1}, totals=Totals(by_source=parts)))
    for limit, count in buckets:
        assert count == sum(length <= float(limit) for length in tokens)


def test_cost_is_gpu_hours_times_the_price() -> None:
    eta = Eta(EtaState.ESTIMATING, 1800, 3600, 7200)
    tally, held = Tally(slots={0: SlotTally(gpu_seconds=4 * 1800)}), frozenset({1, 2, 3})
    priced = replace(PRICED, servers=1)
    found = samples(
        snapshot(facts=priced, eta=eta, tally=tally, open_slots=held | {0}, pending_slots=frozenset({3})),
    )
    assert value(found, "regen_cost_so_far", currency="EUR") == 0.5 * 4 * 2.5
    assert value(found, "regen_cost_to_go", currency="EUR") == 1 * 8 * 2.5
    without_gpus = samples(
        snapshot(facts=replace(PRICED, gpus=0), tally=Tally(slots={0: SlotTally(engine_seconds=60.0)}))
    )
    assert value(without_gpus, "regen_cost_so_far", currency="EUR") == 0
    assert value(without_gpus, "regen_cost_to_go", currency="EUR") == 0, "whenever it ends"
    ended = samples(snapshot(facts=PRICED, eta=Eta(EtaState.FINISHED)))
    assert value(ended, "regen_cost_to_go", currency="EUR") == 0


def test_one_phase_holds() -> None:
    found = samples(snapshot(phase=Phase.DRAINING))
    assert {phase for phase in Phase if value(found, "regen_phase", phase=phase.value)} == {Phase.DRAINING}


def test_every_verdict_has_its_label() -> None:
    assert {*GateVerdict, *GuardVerdict} == set(VERDICTS)


def test_a_hostile_source_name_is_escaped_and_bounded() -> None:
    sources = {
        dict(labels)["source"]
        for (name, labels) in samples(snapshot({"chat": 3, HOSTILE: 2}))
        if name == "regen_rows_planned"
    }
    (hostile,) = sources - {"chat"}
    assert len(hostile) == LABEL_LENGTH
    assert hostile.startswith('a "quoted"\nname \\')


@given(st.text(max_size=130), st.text(max_size=130))
def test_labels_are_bounded_and_two_names_stay_two(one: str, other: str) -> None:
    assert len(label_of(one)) <= LABEL_LENGTH
    assert (label_of(one) == label_of(other)) == (one == other)


@settings(max_examples=25)
@given(st.text(st.characters(exclude_categories=()), min_size=1, max_size=130))
def test_whatever_a_source_is_called_it_reads_back(name: str) -> None:
    found = samples(snapshot({name: 7}))
    assert value(found, "regen_rows_planned", source=label_of(name)) == 7


def test_long_names_that_begin_alike_stay_two() -> None:
    assert label_of("x" * 300) != label_of("x" * 301)
    assert label_of(label_of("x" * 300)) != label_of("x" * 300)


def test_the_number_of_series_depends_on_the_spec_alone() -> None:
    """83,000 rows of 10 sources on 8 replicas after 50 restarts, and before the first row."""
    facts = replace(FACTS, replicas=8)
    planned = {f"source {number}": 8300 for number in range(10)}
    many = Totals(
        outcomes={(source, status): 8300 // len(Status) for source in planned for status in Status},
        replicas={(slot, status): 1000 for slot in range(8) for status in Status},
        by_source={source: SourceTotals(10**7, 10**7, 9000, (400,) * COUNT) for source in planned},
        by_replica={slot: ReplicaTotals(10**7, 9000, Acceptance(9, 9, 9, (4,) * 9)) for slot in range(8)},
    )
    tally = Tally(slots={slot: SlotTally(restarts=50) for slot in range(8)})
    before = samples(snapshot(planned, facts))
    after = samples(snapshot(planned, facts, totals=many, tally=tally, in_flight=10**5, commits=10**6))
    assert before.keys() == after.keys()
    assert len(after) < 2000


def test_plain_values_are_those_of_a_scrape() -> None:
    now = snapshot(totals=Totals(outcomes={("chat", Status.OK): 2}))
    plain = plain_values(now)
    assert {"labels": {"source": "chat", "status": "ok"}, "value": 2} in plain["regen_rows_done_total"]
    assert plain["regen_deadline_seconds"] == [{"labels": {}, "value": None}]
    flat = {
        (name, tuple(sorted(one["labels"].items()))): one["value"] for name, found in plain.items() for one in found
    }
    assert flat.keys() == samples(now).keys()


def test_the_page_is_made_from_the_table() -> None:
    repository = Path(__file__).parents[3]
    assert (repository / "docs" / "metrics.md").read_text(encoding="utf-8") == page(), (
        "python -m regen.observe.metrics_page > docs/metrics.md"
    )
