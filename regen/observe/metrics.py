"""The one table of metrics: every series of regen, what it means, and how it is read from a snapshot. Pure.

Every series is there, zeros included, before the first row; a value that is not known is NaN. Nothing is counted here:
counters are read from what the journal has, so that none falls or counts twice, whatever is restarted. They count what
was *published*: a row that was made again counts with each of its outcomes, and `regen_rows_standing` has the one that
holds. docs/metrics.md is made from this table: `python -m regen.observe.metrics_page > docs/metrics.md`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from regen.observe import readers
from regen.observe.readers import by_maker, by_replica, by_slot, by_source, is_now, one
from regen.records import EtaState, Phase


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Series:
    """One line of the table. `read` gives labels and value of each sample; of a histogram, labels, buckets and sum."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...]
    read: Any

    @property
    def wire_names(self) -> tuple[str, ...]:
        """The names that samples have when they are scraped."""
        if self.kind is Kind.COUNTER:
            return (f"{self.name}_total",)
        if self.kind is Kind.HISTOGRAM:
            return (f"{self.name}_bucket", f"{self.name}_count", f"{self.name}_sum")
        return (self.name,)


@dataclass(frozen=True, slots=True)
class Section:
    """What belongs together, for readers of the page."""

    title: str
    series: tuple[Series, ...]


def _counter(name: str, help: str, read: readers.Reader, *labels: str) -> Series:
    return Series(name, Kind.COUNTER, help, labels, read)


def _gauge(name: str, help: str, read: readers.Reader, *labels: str) -> Series:
    return Series(name, Kind.GAUGE, help, labels, read)


_RUN = Section(
    "The run",
    (
        _gauge("regen_info", "Always 1: what runs.", readers.info, "name", "version", "target", "draft"),
        _gauge("regen_phase", "1 for the phase that the run is in.", is_now(readers.phase, Phase), "phase"),
        _gauge(
            "regen_session_seconds",
            "Since this session's coordinator began; a restarted one begins anew.",
            one(lambda now: now.status.session_seconds),
        ),
    ),
)
_ROWS = Section(
    "Rows and tokens",
    (
        _gauge("regen_rows_planned", "Rows of the frozen plan, refused ones too.", readers.rows_planned, "source"),
        _gauge("regen_rows_remaining", "Planned rows without an outcome yet.", readers.rows_remaining, "source"),
        _gauge(
            "regen_rows_standing",
            "Rows by the outcome that holds now; a row that was made again is here once.",
            readers.rows_standing,
            "source",
            "status",
        ),
        _counter(
            "regen_rows_done",
            "Outcomes committed; a row that was made again counts with each of its outcomes.",
            readers.rows_done,
            "source",
            "status",
        ),
        _gauge("regen_rows_queued", "Rows to be made that nobody has.", one(lambda now: now.status.queued)),
        _gauge("regen_rows_in_flight", "Rows that replicas work on.", one(lambda now: now.status.in_flight)),
        _gauge(
            "regen_rows_uncommitted",
            "Finished rows that are not in the journal yet.",
            one(lambda now: now.status.uncommitted_rows),
        ),
        _gauge("regen_uncommitted_bytes", "Their size in memory.", one(lambda now: now.status.uncommitted_bytes)),
        _gauge(
            "regen_uncommitted_bytes_limit",
            "checkpoint.uncommitted_bytes: with so much of it, no rows are handed out.",
            one(lambda now: now.facts.uncommitted_bytes_limit),
        ),
        _gauge(
            "regen_rows_reopened",
            "Rows that have an outcome and are wanted once more.",
            one(lambda now: now.status.reopened),
        ),
        _gauge(
            "regen_rows_suspected",
            "Rows that run apart because engines died with them.",
            one(lambda now: now.status.suspects),
        ),
        _counter("regen_retries", "Attempts that failed, by reason.", readers.retries, "reason"),
        _counter(
            "regen_generations",
            "Assistant turns in committed rows.",
            by_source(lambda source: source.generations),
            "source",
        ),
        _counter(
            "regen_generations_labelled",
            "Committed assistant turns by what is said of them: cut, looping, empty, out of format.",
            readers.labelled,
            "source",
            "label",
        ),
        _counter(
            "regen_output_tokens",
            "Tokens sampled in committed rows.",
            by_source(lambda source: source.output_tokens),
            "source",
        ),
        _counter(
            "regen_prompt_tokens",
            "Prompt tokens of committed generations.",
            by_source(lambda source: source.prompt_tokens),
            "source",
        ),
        Series(
            "regen_row_tokens",
            Kind.HISTOGRAM,
            "Committed rows by their output tokens, all turns together.",
            ("source",),
            readers.row_tokens,
        ),
        _gauge(
            "regen_useful_tokens_per_second",
            "Output tokens a second of rows, over the last minutes; NaN before there are any.",
            one(lambda now: now.status.useful_tokens_per_second),
        ),
    ),
)
_TIME = Section(
    "Time and money",
    (
        _gauge(
            "regen_eta_seconds",
            "Until the run ends: low, mid and high are the 10th, 50th and 90th percentile; NaN while nothing is known.",
            readers.eta_seconds,
            "bound",
        ),
        _gauge("regen_eta_state", "1 for what the estimate is now.", is_now(readers.eta_state, EtaState), "state"),
        _gauge(
            "regen_deadline_seconds",
            "Until the session drains because of limits.hours; NaN without.",
            one(lambda now: now.deadline_seconds),
        ),
        _counter("regen_gpu_seconds", "GPUs times the seconds that engines held them.", one(readers.gpu_seconds)),
        _gauge(
            "regen_cost_so_far",
            "GPU-hours so far times price.per_gpu_hour, at today's price; NaN without one.",
            readers.cost_so_far,
            "currency",
        ),
        _gauge(
            "regen_cost_to_go",
            "What the mid ETA will cost with the engines that are held now; NaN without a price or an ETA.",
            readers.cost_to_go,
            "currency",
        ),
    ),
)
_SPECULATION = Section(
    "Speculation",
    (
        _gauge(
            "regen_accept_length",
            "Tokens a verification step over committed rows; 1: speculation does nothing, NaN: there was none.",
            one(lambda now: readers.accept_length(now.status.totals.acceptance)),
        ),
        _counter(
            "regen_source_speculation_drafts",
            "Verification steps in committed rows, degenerate ones left out.",
            by_source(lambda source: source.acceptance.drafts),
            "source",
        ),
        _counter(
            "regen_source_speculation_accepted_tokens",
            "Draft tokens accepted in committed rows, degenerate ones left out.",
            by_source(lambda source: source.acceptance.accepted),
            "source",
        ),
        _counter(
            "regen_replica_speculation_drafts",
            "Verification steps in committed rows of this replica.",
            by_maker(lambda made: made.acceptance.drafts),
            "replica",
        ),
        _counter(
            "regen_replica_speculation_drafted_tokens",
            "Draft tokens verified in committed rows of this replica.",
            by_maker(lambda made: made.acceptance.drafted),
            "replica",
        ),
        _counter(
            "regen_replica_speculation_accepted_tokens",
            "Draft tokens accepted in committed rows of this replica.",
            by_maker(lambda made: made.acceptance.accepted),
            "replica",
        ),
        _counter(
            "regen_replica_speculation_accepted_at",
            "Steps in committed rows that accepted the draft token at this position, from 0.",
            readers.accepted_at,
            "replica",
            "position",
        ),
        _gauge(
            "regen_replica_accept_length",
            "The engine's own, since it started; NaN before any step, or without counters.",
            by_replica(lambda stats: readers.accept_length(stats.counters.acceptance)),
            "replica",
        ),
        _gauge(
            "regen_replica_speculation_verdict",
            "1 for the latest verdict on this replica's speculation; warm-up first, then the guard.",
            readers.verdicts,
            "replica",
            "verdict",
        ),
        _gauge(
            "regen_replica_speculating",
            "1 while this replica's engine was started with speculation, 0 while without.",
            readers.speculating,
            "replica",
        ),
        _gauge(
            "regen_calibrating",
            "1 while it is measured whether speculation pays.",
            one(lambda now: float(now.status.speculation.phase == "calibrating")),
        ),
    ),
)
_REPLICAS = Section(
    "Replicas",
    (
        _gauge(
            "regen_replicas_wanted",
            "Replicas that have an engine or are to get one.",
            one(lambda now: len(now.status.open_slots)),
        ),
        _gauge(
            "regen_replicas_pending",
            "Those of them that no node has room for yet.",
            one(lambda now: len(now.status.pending_slots)),
        ),
        _gauge(
            "regen_replica_up",
            "1 while this replica's engine works, 0 while it starts, warms up, is gone or released.",
            by_replica(readers.is_up),
            "replica",
        ),
        _gauge("regen_replica_state", "1 for the state of this replica.", readers.replica_states, "replica", "state"),
        _gauge(
            "regen_replica_slots",
            "Sequences that this replica decodes at once.",
            by_replica(lambda stats: stats.slots),
            "replica",
        ),
        _gauge(
            "regen_replica_running_rows",
            "Rows that this replica works on.",
            by_replica(lambda stats: stats.running_rows),
            "replica",
        ),
        _gauge(
            "regen_replica_waiting_requests",
            "Requests that wait in this replica's engine.",
            by_replica(lambda stats: stats.counters.waiting),
            "replica",
        ),
        _gauge(
            "regen_replica_kv_usage_ratio",
            "Share of the key-value cache in use.",
            by_replica(lambda stats: stats.counters.kv_usage),
            "replica",
        ),
        _gauge(
            "regen_replica_row_limit",
            "Rows that this replica gives its engine at once while the cache is short of room; NaN: there is no limit.",
            by_replica(lambda stats: stats.row_limit),
            "replica",
        ),
        _gauge(
            "regen_replica_loop_lag_seconds",
            "How late this replica's event loop was at its last exchange.",
            by_replica(lambda stats: stats.loop_lag_seconds),
            "replica",
        ),
        _counter(
            "regen_replica_rows_done",
            "Outcomes committed, by the replica that made the row.",
            readers.rows_by_replica,
            "replica",
            "status",
        ),
        _counter(
            "regen_replica_output_tokens",
            "Tokens sampled in committed rows of this replica.",
            by_maker(lambda made: made.output_tokens),
            "replica",
        ),
        _counter(
            "regen_replica_sampled_tokens",
            "Tokens that this replica's engines have sampled: also for rows that were dropped.",
            by_slot(lambda slot: slot.sampled_tokens),
            "replica",
        ),
        _counter(
            "regen_replica_computed_prompt_tokens",
            "Prompt tokens that this replica's engines have computed.",
            by_slot(lambda slot: slot.computed_prompt_tokens),
            "replica",
        ),
        _counter(
            "regen_replica_prefix_hit_tokens",
            "Prompt tokens that were found in this replica's prefix cache.",
            by_slot(lambda slot: slot.prefix_hit_tokens),
            "replica",
        ),
        _counter(
            "regen_replica_preemptions",
            "Sequences that this replica's engines set back because the key-value cache was full.",
            by_slot(lambda slot: slot.preemptions),
            "replica",
        ),
        _counter(
            "regen_replica_starts",
            "Engines that were begun in this replica.",
            by_slot(lambda slot: slot.starts),
            "replica",
        ),
        _counter(
            "regen_replica_restarts",
            "Engines that were not their session's first in this replica.",
            by_slot(lambda slot: slot.restarts),
            "replica",
        ),
        _counter(
            "regen_replica_stalls",
            "Rows and engines that were given up because no token came, or no word.",
            by_slot(lambda slot: slot.stalls),
            "replica",
        ),
        _counter(
            "regen_replica_slot_seconds",
            "Sequences times seconds, by what they did; starved: free while rows wait, no_rows: free and none left.",
            readers.slot_seconds,
            "replica",
            "state",
        ),
        _counter(
            "regen_replica_engine_seconds",
            "Seconds that this replica held an engine, starting or at work.",
            by_slot(lambda slot: slot.engine_seconds),
            "replica",
        ),
    ),
)
_STORE = Section(
    "Store and coordinator",
    (
        _counter("regen_commits", "Files published in the journal.", one(lambda now: now.status.commits)),
        _gauge(
            "regen_last_commit_age_seconds",
            "Since this session last published rows, or began.",
            one(lambda now: now.status.last_commit_age_seconds),
        ),
        _gauge(
            "regen_commit_interval_seconds",
            "checkpoint.interval_seconds: finished rows are published at least so often.",
            one(lambda now: now.facts.commit_interval_seconds),
        ),
        _gauge(
            "regen_store_unavailable",
            "1 while the store does not take or give what it is asked for.",
            one(lambda now: float(now.status.store_error is not None)),
        ),
        _counter(
            "regen_store_errors", "Times that the store was waited for.", one(lambda now: now.status.tally.store_errors)
        ),
        _gauge(
            "regen_store_credentials_seconds",
            "Until the store's keys end; NaN where that is not known, or they do not.",
            one(lambda now: now.status.credentials_seconds_left),
        ),
        _counter(
            "regen_coordinator_restarts",
            "Coordinators that took the place of one that had died.",
            one(lambda now: now.status.tally.coordinator_restarts),
        ),
        _gauge(
            "regen_coordinator_loop_lag_seconds",
            "How late the coordinator's event loop was at its last tick.",
            one(lambda now: now.status.loop_lag_seconds),
        ),
    ),
)
SECTIONS: tuple[Section, ...] = (_RUN, _ROWS, _TIME, _SPECULATION, _REPLICAS, _STORE)
SERIES: tuple[Series, ...] = tuple(series for section in SECTIONS for series in section.series)
