"""docs/metrics.md, made from the table: `python -m regen.observe.metrics_page > docs/metrics.md`. Pure."""

from __future__ import annotations

from regen.observe.metrics import SECTIONS, Kind, Section, Series

_HEAD = """\
# Metrics

The coordinator serves them at `http://127.0.0.1:9464/metrics` (`metrics.host`, `metrics.port` in the spec), in
Prometheus' text format or OpenMetrics, whichever is asked for. There is one endpoint for the whole run, and it has the
sum: nothing is to be added up over processes.

- **Counters neither fall nor count twice**, whatever is killed: they are read from the journal, as it was published.
  After a restart of anything they go on where they stood. What was not committed when a process died was not counted.
- **They count what was published.** A row that is made again (`regen retry`, or because an engine's answers were
  garbage) counts once more in `regen_rows_done_total`, with its new outcome, and so do its tokens.
  `regen_rows_standing` is the other view: each row once, by the outcome that holds.
- **Every series is there before the first row**, zeros included. A gauge whose value is not known is `NaN`: it is
  neither above nor below any threshold.
- **Labels come from closed sets**: the plan's sources, the spec's replica slots and draft positions, and fixed words.
  How many series there are depends on the spec alone. A source's name of more than 87 characters is cut, and gets a
  digest.
- `regen verify --repair` takes nothing back, although rows are made again for it. Only what the newest files alone
  knew, where nothing of them can be read, is lost from counters too: Prometheus takes that for a restart from zero.

Only names of this machine are answered while `metrics.host` is on loopback (against DNS rebinding). There is no
password: whoever reaches the port reads it, so bind it to other addresses only where that is meant.

## At the end

A run that has ended has final numbers, and they are kept for whoever scrapes: engines and GPUs are gone by then, the
run is released, and the coordinator alone stays.

| `metrics.hold_seconds` | |
| --- | --- |
| left out | for everybody who scraped this session: 2.5 of its own intervals at most, and never over 60 s |
| a number | so long at most, also if nobody scraped yet. For runs that end within one interval |
| `0` | no wait |

The terminal says who is waited for. Ctrl-C or SIGTERM ends the wait, and a drain that somebody asked for does not begin
one. Another run on this machine that wants the port gets it at once. The final numbers are in `report.json` too, under
`metrics`: by name, a list of `labels` and `value` (`null`: not known).

## Cost

With `price: {per_gpu_hour: 2.5, currency: EUR}` in the spec, `regen_cost_so_far` is `regen_gpu_seconds_total` / 3600
times the price: all sessions, each with the GPUs that it had, at the price of today's spec. `regen_cost_to_go` is the
mid ETA times all GPUs of the spec, as if each replica worked until the end. Engines without GPUs (the CPU build, the
fake engine) cost 0. Without a price both are `NaN`, with the currency `none`.
"""

_ENGINE = """\
## vLLM's own metrics

`metrics.engine_port: 9500` makes the worker of replica N serve its process' own metrics at port 9500 + N of
`metrics.host`, under `/metrics`, from before its engine loads until it leaves. They are vLLM's (`vllm:*`: batches,
cache, latencies as histograms, `vllm:spec_decode_*`) and those of the Python process. On a cluster the port is on the
node where the replica runs; `metrics.host` must be an address there that Prometheus reaches, for example `0.0.0.0`.

- They are the engine's, not the run's: they begin at zero with each engine, and go with it. What lasts is above.
- vLLM registers them in the process that holds `AsyncLLM`, which is the worker, also with several engine processes or
  data-parallel ranks (label `engine`). `disable_log_stats`, which regen sets, only silences vLLM's log lines.
- A port that is taken is said on the terminal, and the replica works without.
- With `PROMETHEUS_MULTIPROC_DIR` set for the workers, it is the metrics in that folder that are served.
"""


def page() -> str:
    """The whole page, in Markdown."""
    return "\n".join([_HEAD, *(_section(section) for section in SECTIONS), _ENGINE])


def _section(section: Section) -> str:
    rows = [_row(series) for series in section.series]
    return "\n".join([f"## {section.title}", "", "| name | labels | | |", "| --- | --- | --- | --- |", *rows]) + "\n"


def _row(series: Series) -> str:
    name = series.wire_names[0] if series.kind is Kind.COUNTER else series.name
    labels = ", ".join(f"`{label}`" for label in series.labels)
    return f"| `{name}` | {labels} | {series.kind.value} | {series.help} |"


if __name__ == "__main__":
    print(page(), end="")
