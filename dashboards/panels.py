"""What the dashboard shows, as data: rows of panels with their queries. `generate.py` makes Grafana's JSON of it.

In an expression `%run%` stands for matchers by job and instance, `%source%` and `%replica%` for these and one more.
Names of series and labels are those of the table in regen/observe/metrics.py; tests hold every one of them to it, and
run every expression against a real run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from regen.observe.readers import VERDICTS
from regen.records import EtaState, Phase, ReplicaState, SlotState

GREEN, ORANGE, RED, BLUE, GREY = "green", "orange", "red", "blue", "gray"
Kind = Literal["stat", "gauge", "lines", "stack", "timeline", "table"]


def _chosen(variable: str) -> str:
    """A matcher by a variable. Empty, it matches everything: after a value that is not empty, ^ cannot match."""
    return f'{variable}=~"${variable}(|^.*)"'


RUN = f"{_chosen('job')},{_chosen('instance')}"
MATCHERS = {"%run%": RUN, "%source%": f"{RUN},{_chosen('source')}", "%replica%": f"{RUN},{_chosen('replica')}"}


@dataclass(frozen=True, slots=True)
class Query:
    """`legend` is Grafana's template for the name of a series."""

    expr: str
    legend: str = "__auto"

    @property
    def filled(self) -> str:
        """With the matchers that stand for the variables."""
        expr = " ".join(self.expr.split())
        for short, matchers in MATCHERS.items():
            expr = expr.replace(short, matchers)
        return expr


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. `steps` are thresholds: the color from each value on, None being everything below the first.

    `codes` are texts and colors for values, `colors` those of series by name; `shows_name` shows a series' name, not
    its value. `renamed` are the columns of a table by query.
    """

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    kind: Kind = "lines"
    steps: tuple[tuple[float | None, str], ...] = ()
    width: int = 8
    height: int = 8
    low: float | None = 0
    high: float | None = None
    codes: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    colors: Mapping[str, str] = field(default_factory=dict)
    shows_name: bool = False
    no_value: str | None = None


@dataclass(frozen=True, slots=True)
class Row:
    title: str
    panels: tuple[Panel, ...]


def coded(series: str, label: str, values: Iterable[Enum | str], by: str) -> str:
    """A set of 0-or-1 series as one number: 1 for the first value that is set, 2 for the second; 0 for none."""
    terms = " or ".join(f'{series[:-1]},{label}="{value}"}} * {code}' for code, value in enumerate(values, start=1))
    return f"max by ({by}) ({terms})"


def codes(values: Iterable[Enum | str], colors: Mapping[str, str], none: str = "none") -> dict[int, tuple[str, str]]:
    """Texts and colors for what `coded` gives."""
    named = {code: (str(value), colors.get(str(value), GREY)) for code, value in enumerate(values, start=1)}
    return {0: (none, GREY), **named}


PHASE_COLORS = {"running": GREEN, "finished": GREEN, "failed": RED, "draining": ORANGE, "drained": ORANGE}
ETA_COLORS = {"estimating": GREEN, "finished": GREEN, "stalled": RED}
STATE_COLORS = {"running": GREEN, "starting": BLUE, "warming": BLUE, "draining": ORANGE, "stopped": ORANGE}
SLOT_COLORS = {
    "busy": GREEN, "starved": RED, "held_back": "purple", "no_rows": GREY, "starting": BLUE, "gone": ORANGE,
    "released": GREY,
}  # fmt: skip
VERDICT_COLORS = {"healthy": GREEN, "undecided": BLUE, **dict.fromkeys(("off_profile", "decayed"), ORANGE)}
VERDICT_COLORS |= dict.fromkeys(("dead", "absent", "garbage", "collapsed"), RED)

BAD = 'status=~"failed|degenerate|partial|rejected"'
GOOD_FROM = ((None, RED), (1.0, ORANGE), (1.2, GREEN))  # accept length: 1 is none, and somewhere above it begins to pay
SHARE_OF_BAD = ((None, GREEN), (0.02, ORANGE), (0.1, RED))
ANY_IS_RED = ((None, GREEN), (1.0, RED))

RUN_ROW = Row(
    "Run: is it alive, is it fast, does speculation pay, what fails, when is it done",
    (
        Panel(
            "Alive",
            "The phase of the run, and what the estimate of its end says: stalled means that no token comes. Nothing"
            " here: no run listens at this address.",
            "none",
            (
                Query("regen_phase{%run%} == 1", "{{phase}}"),
                Query("regen_eta_state{%run%} == 1", "{{state}}"),
            ),
            kind="stat",
            width=4,
            height=5,
            colors={**PHASE_COLORS, **ETA_COLORS},
            shows_name=True,
            no_value="no run listens",
        ),
        Panel(
            "Done",
            "Share of the plan's rows that have an outcome and are not wanted once more.",
            "percentunit",
            (
                Query(
                    "1 - sum by (instance) (regen_rows_remaining{%source%})"
                    " / sum by (instance) (regen_rows_planned{%source%})",
                    "{{instance}}",
                ),
            ),
            kind="gauge",
            steps=((None, BLUE), (1.0, GREEN)),
            width=4,
            height=5,
            high=1,
        ),
        Panel(
            "Ends at",
            "Now and the median of the time that is left: half of the runs like this one have ended by then.",
            "dateTimeAsLocal",
            (Query('1000 * (time() + regen_eta_seconds{%run%,bound="mid"})', "{{instance}}"),),
            kind="stat",
            steps=((None, BLUE),),
            width=5,
            height=5,
            low=None,
        ),
        Panel(
            "Time left",
            "From now to the end: 10th, 50th and 90th percentile, from the tokens that are left; and the time until"
            " limits.hours, where the spec has one.",
            "s",
            (
                Query('regen_eta_seconds{%run%,bound="low"}', "low"),
                Query('regen_eta_seconds{%run%,bound="mid"}', "mid"),
                Query('regen_eta_seconds{%run%,bound="high"}', "high"),
                Query("regen_deadline_seconds{%run%}", "until the limit"),
            ),
            kind="stat",
            steps=((None, BLUE),),
            width=6,
            height=5,
        ),
        Panel(
            "Alerts that fire",
            "How many of regen's alerts fire now (dashboards/alerts.yml; what to do: docs/runbook.md). 0 also where"
            " Prometheus has not loaded the rules.",
            "none",
            (Query('count(ALERTS{alertname=~"Regen.*",alertstate="firing"}) or vector(0)', "firing"),),
            kind="stat",
            steps=ANY_IS_RED,
            width=5,
            height=5,
        ),
        Panel(
            "Useful tokens per second",
            "Output tokens of the last minutes that rows keep: what was sampled twice or thrown away is not in it.",
            "none",
            (Query("regen_useful_tokens_per_second{%run%}", "{{instance}}"),),
            kind="stat",
            steps=((None, RED), (0.001, GREEN)),
            width=4,
            height=5,
        ),
        Panel(
            "Engines up",
            "Replicas whose engine answers, of all that are wanted now; pending ones wait for a node.",
            "none",
            (
                Query("sum by (instance) (regen_replica_up{%replica%})", "up"),
                Query("regen_replicas_wanted{%run%}", "wanted"),
                Query("regen_replicas_pending{%run%}", "pending"),
            ),
            kind="stat",
            steps=((None, RED), (1.0, GREEN)),
            width=4,
            height=5,
        ),
        Panel(
            "Accept length",
            "Tokens per verification step: over all committed rows, and over those of the last ten minutes. 1 is what"
            " there is without speculation.",
            "none",
            (
                Query("regen_accept_length{%run%}", "committed rows"),
                Query(
                    "1 + sum by (instance) (rate(regen_replica_speculation_accepted_tokens_total{%replica%}[10m]))"
                    " / sum by (instance) (rate(regen_replica_speculation_drafts_total{%replica%}[10m]))",
                    "last ten minutes",
                ),
            ),
            kind="stat",
            steps=GOOD_FROM,
            width=5,
            height=5,
            low=None,
        ),
        Panel(
            "Verdicts on speculation",
            "How many replicas have which verdict now: of the warm-up first, then of the guard.",
            "none",
            (Query("count by (instance, verdict) (regen_replica_speculation_verdict{%replica%} == 1)", "{{verdict}}"),),
            kind="stat",
            width=5,
            height=5,
            colors=VERDICT_COLORS,
        ),
        Panel(
            "Bad rows",
            "Share of rows without a good answer (failed, degenerate, partial, rejected): of all that are done, and of"
            " those of the last half hour.",
            "percentunit",
            (
                Query(
                    f"sum by (instance) (regen_rows_standing{{%source%,{BAD}}})"
                    " / clamp_min(sum by (instance) (regen_rows_standing{%source%}), 1)",
                    "of all",
                ),
                Query(
                    f"sum by (instance) (increase(regen_rows_done_total{{%source%,{BAD}}}[30m]))"
                    " / clamp_min(sum by (instance) (increase(regen_rows_done_total{%source%}[30m])), 1)",
                    "last half hour",
                ),
            ),
            kind="stat",
            steps=SHARE_OF_BAD,
            width=6,
            height=5,
        ),
        Panel(
            "Rows by outcome",
            "Rows by the outcome that holds now, and those that are still to be made.",
            "short",
            (
                Query("sum by (status) (regen_rows_standing{%source%})", "{{status}}"),
                Query("sum(regen_rows_remaining{%source%})", "remaining"),
            ),
            kind="stack",
        ),
        Panel(
            "Time left, over time",
            "The range as it was said at each moment. Where it does not fall, the run gets no nearer to its end.",
            "s",
            (
                Query("regen_eta_seconds{%run%}", "{{bound}}"),
                Query("regen_deadline_seconds{%run%}", "until the limit"),
            ),
        ),
        Panel(
            "Phase",
            "replaying: reading the journal; adopting: hearing what the workers hold after a restart.",
            "none",
            (Query(coded("regen_phase{%run%}", "phase", Phase, "instance"), "{{instance}}"),),
            kind="timeline",
            codes=codes(Phase, PHASE_COLORS),
        ),
        Panel(
            "Where the rows are",
            "Rows with engines, with nobody yet, finished and not in the journal, wanted once more, and those that run"
            " apart because engines died with them.",
            "short",
            (
                Query("regen_rows_in_flight{%run%}", "in flight"),
                Query("regen_rows_queued{%run%}", "queued"),
                Query("regen_rows_uncommitted{%run%}", "not committed"),
                Query("regen_rows_reopened{%run%}", "reopened"),
                Query("regen_rows_suspected{%run%}", "suspects"),
            ),
        ),
        Panel(
            "Cost",
            "Money for the GPUs that engines have held, and for the rest by the estimate. Not a number without a"
            " price in the spec.",
            "none",
            (
                Query("regen_cost_so_far{%run%}", "so far ({{currency}})"),
                Query("regen_cost_to_go{%run%}", "to go ({{currency}})"),
            ),
        ),
        Panel(
            "GPU time and session",
            "Seconds of GPUs held since the run began, and seconds of this session.",
            "s",
            (
                Query("regen_gpu_seconds_total{%run%}", "GPU seconds"),
                Query("regen_session_seconds{%run%}", "this session"),
            ),
        ),
        Panel(
            "What runs",
            "Name, version, target and draft of each run.",
            "none",
            (Query("regen_info{%run%}", "{{name}}: {{target}}, draft {{draft}}, regen {{version}}"),),
            kind="stat",
            width=16,
            height=4,
            shows_name=True,
        ),
        Panel(
            "Endpoint",
            "1: the last scrape of this address was answered; 0 also for a day after a run has ended.",
            "none",
            (Query("up{%run%} and on (job, instance) last_over_time(regen_info[1d])", "{{instance}}"),),
            kind="stat",
            steps=((None, RED), (1, GREEN)),
            width=8,
            height=4,
        ),
    ),
)

THROUGHPUT_ROW = Row(
    "Throughput",
    (
        Panel(
            "Tokens per second",
            "Sampled by the engines, and in rows that were committed: committed ones come in steps, one an interval.",
            "none",
            (
                Query("sum(rate(regen_replica_sampled_tokens_total{%replica%}[$__rate_interval]))", "sampled"),
                Query("sum(rate(regen_output_tokens_total{%source%}[$__rate_interval]))", "committed"),
                Query("regen_useful_tokens_per_second{%run%}", "useful, last minutes"),
            ),
        ),
        Panel(
            "Sampled tokens per second by replica",
            "One that lies far below the others is slow, starved or restarting.",
            "none",
            (
                Query(
                    "sum by (replica) (rate(regen_replica_sampled_tokens_total{%replica%}[$__rate_interval]))",
                    "{{replica}}",
                ),
            ),
        ),
        Panel(
            "What the slots do",
            "Share of time, over all sequences of all engines. starved: free although rows wait, so the feeder is too"
            " slow; held_back: the store is away or uncommitted bytes are at their cap; no_rows: nothing is left.",
            "percentunit",
            (
                Query(
                    "sum by (state) (rate(regen_replica_slot_seconds_total{%replica%}[$__rate_interval]))"
                    " / ignoring(state) group_left"
                    " sum(rate(regen_replica_slot_seconds_total{%replica%}[$__rate_interval]))",
                    "{{state}}",
                ),
            ),
            kind="stack",
            high=1,
            colors={str(state): SLOT_COLORS[state] for state in SlotState},
        ),
        Panel(
            "Rows per minute",
            "Committed rows by outcome.",
            "none",
            (
                Query(
                    "60 * sum by (status) (rate(regen_rows_done_total{%source%}[$__rate_interval]))",
                    "{{status}}",
                ),
            ),
            kind="stack",
        ),
        Panel(
            "Length of rows",
            "Output tokens of rows: median, 90th and 99th percentile of all that are committed. Long rows end last.",
            "none",
            tuple(
                Query(
                    f"histogram_quantile({share}, sum by (le) (regen_row_tokens_bucket{{%source%}}))",
                    f"{share:.0%}",
                )
                for share in (0.5, 0.9, 0.99)
            ),
        ),
        Panel(
            "Prompt tokens per second",
            "Computed by the engines, and those that the prefix cache gave for nothing.",
            "none",
            (
                Query("sum(rate(regen_replica_computed_prompt_tokens_total{%replica%}[$__rate_interval]))", "computed"),
                Query(
                    "sum(rate(regen_replica_prefix_hit_tokens_total{%replica%}[$__rate_interval]))", "from the cache"
                ),
            ),
            kind="stack",
        ),
    ),
)

SPECULATION_ROW = Row(
    "Speculation",
    (
        Panel(
            "Accept length by replica",
            "Over the rows that were committed in the window of the graph. 1 is what there is without speculation.",
            "none",
            (
                Query(
                    "1 + sum by (replica) (rate(regen_replica_speculation_accepted_tokens_total{%replica%}"
                    "[$__rate_interval])) / sum by (replica)"
                    " (rate(regen_replica_speculation_drafts_total{%replica%}[$__rate_interval]))",
                    "{{replica}}",
                ),
            ),
            steps=GOOD_FROM,
            low=1,
        ),
        Panel(
            "Accept length by source",
            "Over committed rows, degenerate ones left out: a loop is easy to draft. A source far below the others is"
            " one that the draft was not trained for.",
            "none",
            (
                Query(
                    "1 + sum by (source) (regen_source_speculation_accepted_tokens_total{%source%})"
                    " / sum by (source) (regen_source_speculation_drafts_total{%source%})",
                    "{{source}}",
                ),
            ),
            steps=GOOD_FROM,
            low=1,
        ),
        Panel(
            "Accepted by position",
            "Share of verification steps that accepted the draft's token at least up to this position (0 is the first)."
            " A draft whose first position is low is wrong; one that falls steeply is drafted too far.",
            "percentunit",
            (
                Query(
                    "sum by (position) (regen_replica_speculation_accepted_at_total{%replica%})"
                    " / ignoring(position) group_left sum(regen_replica_speculation_drafts_total{%replica%})",
                    "{{position}}",
                ),
            ),
            high=1,
        ),
        Panel(
            "Accept length since the engine started",
            "What each engine has counted by itself: it begins anew with every engine.",
            "none",
            (Query("regen_replica_accept_length{%replica%}", "{{replica}}"),),
            steps=GOOD_FROM,
            low=1,
        ),
        Panel(
            "Verdicts",
            "By replica. dead: next to nothing is accepted; absent: the engine counts nothing; collapsed: it was good"
            " and is not; decayed: it has become worse; off_profile: not as expected; garbage: answers are no answers.",
            "none",
            (
                Query(
                    coded("regen_replica_speculation_verdict{%replica%}", "verdict", VERDICTS, "instance, replica"),
                    "{{replica}}",
                ),
            ),
            kind="timeline",
            codes=codes(VERDICTS, VERDICT_COLORS),
        ),
        Panel(
            "Which replicas speculate",
            "1: the engine was started with speculation. While calibration measures whether it pays, some are without.",
            "none",
            (
                Query("regen_replica_speculating{%replica%}", "replica {{replica}}"),
                Query("regen_calibrating{%run%}", "calibrating"),
            ),
            high=1,
        ),
        Panel(
            "Draft tokens per second",
            "Verified and accepted: what lies between the two was drafted for nothing.",
            "none",
            (
                Query(
                    "sum(rate(regen_replica_speculation_drafted_tokens_total{%replica%}[$__rate_interval]))", "drafted"
                ),
                Query(
                    "sum(rate(regen_replica_speculation_accepted_tokens_total{%replica%}[$__rate_interval]))",
                    "accepted",
                ),
            ),
            width=24,
        ),
    ),
)

SOURCES_ROW = Row(
    "Sources",
    (
        Panel(
            "Sources",
            "Rows planned, remaining and good, tokens and tokens per generation of each source.",
            "short",
            (
                Query("sum by (source) (regen_rows_planned{%source%})", "planned"),
                Query("sum by (source) (regen_rows_remaining{%source%})", "remaining"),
                Query('sum by (source) (regen_rows_standing{%source%,status=~"ok|native"})', "good"),
                Query("sum by (source) (regen_output_tokens_total{%source%})", "output tokens"),
                Query(
                    "sum by (source) (regen_output_tokens_total{%source%})"
                    " / sum by (source) (regen_generations_total{%source%})",
                    "tokens per generation",
                ),
            ),
            kind="table",
            width=24,
        ),
        Panel(
            "Done by source",
            "Share of each source's rows that have an outcome. Sources are interleaved: they rise together.",
            "percentunit",
            (
                Query(
                    "1 - sum by (source) (regen_rows_remaining{%source%})"
                    " / sum by (source) (regen_rows_planned{%source%})",
                    "{{source}}",
                ),
            ),
            high=1,
        ),
        Panel(
            "Bad rows by source",
            "Share of done rows that are failed, degenerate, partial or rejected. One source alone: look at its data.",
            "percentunit",
            (
                Query(
                    f"sum by (source) (regen_rows_standing{{%source%,{BAD}}})"
                    " / clamp_min(sum by (source) (regen_rows_standing{%source%}), 1)",
                    "{{source}}",
                ),
            ),
            steps=SHARE_OF_BAD,
        ),
        Panel(
            "Labels of generations",
            "Committed assistant turns by what is said of them: cut, looping, empty, out of format.",
            "short",
            (Query("sum by (label) (regen_generations_labelled_total{%source%})", "{{label}}"),),
        ),
        Panel(
            "Output tokens by source",
            "Tokens sampled in committed rows.",
            "short",
            (Query("sum by (source) (regen_output_tokens_total{%source%})", "{{source}}"),),
            kind="stack",
            width=12,
        ),
        Panel(
            "Prompt tokens by source",
            "Prompt tokens of committed generations: each turn counts its whole prompt.",
            "short",
            (Query("sum by (source) (regen_prompt_tokens_total{%source%})", "{{source}}"),),
            kind="stack",
            width=12,
        ),
    ),
)

ENGINES_ROW = Row(
    "Engines",
    (
        Panel(
            "State of replicas",
            "warming: the engine is up and shows whether its speculation works; no row is leased to it yet.",
            "none",
            (
                Query(
                    coded("regen_replica_state{%replica%}", "state", ReplicaState, "instance, replica"), "{{replica}}"
                ),
            ),
            kind="timeline",
            codes=codes(ReplicaState, STATE_COLORS, none="gone"),
        ),
        Panel(
            "Rows and slots",
            "Rows that replicas work on, sequences that they can decode at once, requests that wait in the engine."
            " While caches are short of room: how many rows the replica with the fewest gives its engine at once.",
            "short",
            (
                Query("sum(regen_replica_running_rows{%replica%})", "running rows"),
                Query("sum(regen_replica_slots{%replica%})", "slots"),
                Query("sum(regen_replica_waiting_requests{%replica%})", "waiting in engines"),
                Query("min(regen_replica_row_limit{%replica%})", "lowest row limit"),
            ),
        ),
        Panel(
            "KV cache in use",
            "Share by replica. Near 1, sequences are preempted and computed again.",
            "percentunit",
            (Query("regen_replica_kv_usage_ratio{%replica%}", "{{replica}}"),),
            steps=((None, GREEN), (0.9, ORANGE), (0.98, RED)),
            high=1,
        ),
        Panel(
            "Preemptions per minute",
            "Sequences that lost their place in the KV cache. Many: fewer slots, or a smaller max_model_len.",
            "none",
            (
                Query(
                    "60 * sum by (replica) (rate(regen_replica_preemptions_total{%replica%}[$__rate_interval]))",
                    "{{replica}}",
                ),
            ),
            steps=((None, GREEN), (10, ORANGE)),
        ),
        Panel(
            "Prefix cache",
            "Share of prompt tokens that the engines did not have to compute.",
            "percentunit",
            (
                Query(
                    "sum by (replica) (regen_replica_prefix_hit_tokens_total{%replica%})"
                    " / clamp_min(sum by (replica) (regen_replica_prefix_hit_tokens_total{%replica%})"
                    " + sum by (replica) (regen_replica_computed_prompt_tokens_total{%replica%}), 1)",
                    "{{replica}}",
                ),
            ),
            high=1,
        ),
        Panel(
            "Event loops: how late",
            "Of the coordinator and of each worker. Seconds here are seconds in which nothing was handed out.",
            "s",
            (
                Query("regen_replica_loop_lag_seconds{%replica%}", "replica {{replica}}"),
                Query("regen_coordinator_loop_lag_seconds{%run%}", "coordinator"),
            ),
            steps=((None, GREEN), (1, ORANGE), (5, RED)),
        ),
        Panel(
            "Output tokens by replica",
            "In committed rows.",
            "short",
            (Query("sum by (replica) (regen_replica_output_tokens_total{%replica%})", "{{replica}}"),),
            width=12,
        ),
        Panel(
            "Time that engines were held",
            "Seconds by replica slot since the run began, starts included: what is paid for.",
            "s",
            (Query("sum by (replica) (regen_replica_engine_seconds_total{%replica%})", "{{replica}}"),),
            width=12,
        ),
    ),
)

FAULTS_ROW = Row(
    "Faults",
    (
        Panel(
            "Failed attempts by reason",
            "Attempts since the run began that gave no row: most of them are made once more.",
            "short",
            (Query("sum by (reason) (regen_retries_total{%run%})", "{{reason}}"),),
        ),
        Panel(
            "Engines: starts, restarts, stalls",
            "Since the run began. A restart is a start that replaces an engine which died; a stall is a busy engine"
            " that gave no token any more.",
            "short",
            (
                Query("sum(regen_replica_starts_total{%replica%})", "starts"),
                Query("sum(regen_replica_restarts_total{%replica%})", "restarts"),
                Query("sum(regen_replica_stalls_total{%replica%})", "stalls"),
                Query("regen_coordinator_restarts_total{%run%}", "restarts of the coordinator"),
            ),
        ),
        Panel(
            "Restarts in the last hour, by replica",
            "One replica alone: its node or GPU. All of them: the engine, its arguments, or a row that kills engines.",
            "none",
            (
                Query(
                    "sum by (replica) (increase(regen_replica_restarts_total{%replica%}[1h]))",
                    "{{replica}}",
                ),
            ),
            steps=((None, GREEN), (1, ORANGE), (3, RED)),
        ),
        Panel(
            "Bad rows by replica",
            "Share of a replica's committed rows that are failed, degenerate or partial. One alone: its engine is ill.",
            "percentunit",
            (
                Query(
                    'sum by (replica) (regen_replica_rows_done_total{%replica%,status=~"failed|degenerate|partial"})'
                    " / clamp_min(sum by (replica) (regen_replica_rows_done_total{%replica%}), 1)",
                    "{{replica}}",
                ),
            ),
            steps=SHARE_OF_BAD,
            width=12,
        ),
        Panel(
            "Suspects",
            "Rows that run apart because engines died with them, until it is known which of them kill engines.",
            "short",
            (Query("regen_rows_suspected{%run%}", "{{instance}}"),),
            steps=((None, GREEN), (1, ORANGE)),
            width=12,
        ),
    ),
)

STORE_ROW = Row(
    "Store",
    (
        Panel(
            "Age of the last commit",
            "Seconds since rows were published last, and the interval that the spec asks for. No rows finished, no"
            " commit: see it beside the rows that wait.",
            "s",
            (
                Query("regen_last_commit_age_seconds{%run%}", "age"),
                Query("regen_commit_interval_seconds{%run%}", "interval"),
            ),
        ),
        Panel(
            "Bytes that are not committed",
            "Finished rows that wait for the store, and the cap at which nothing more is handed out.",
            "bytes",
            (
                Query("regen_uncommitted_bytes{%run%}", "waiting"),
                Query("regen_uncommitted_bytes_limit{%run%}", "cap"),
            ),
        ),
        Panel(
            "Commits",
            "Files in the journal since the run began.",
            "short",
            (Query("regen_commits_total{%run%}", "{{instance}}"),),
        ),
        Panel(
            "Store away",
            "1 while the store does not take or give what it is asked for.",
            "none",
            (Query("regen_store_unavailable{%run%}", "{{instance}}"),),
            steps=ANY_IS_RED,
            high=1,
        ),
        Panel(
            "Errors of the store",
            "Calls that failed since the run began, those that went well at a later try among them.",
            "short",
            (Query("regen_store_errors_total{%run%}", "{{instance}}"),),
        ),
        Panel(
            "Credentials",
            "Seconds until the store's keys end. Not a number where that is not known, or where they renew themselves.",
            "s",
            (Query("regen_store_credentials_seconds{%run%}", "{{instance}}"),),
            steps=((None, RED), (1800, ORANGE), (7200, GREEN)),
        ),
    ),
)

assert set(EtaState) >= {"estimating", "stalled", "finished"}  # what ETA_COLORS names
ROWS = (RUN_ROW, THROUGHPUT_ROW, SPECULATION_ROW, SOURCES_ROW, ENGINES_ROW, FAULTS_ROW, STORE_ROW)
