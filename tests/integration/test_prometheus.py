"""A real Prometheus watches a real run for its whole life, and Grafana's queries are asked of what it has seen.

The run has all that the dashboard is to show: good, rejected and failed rows, attempts that fail, a replica that is
killed and replaced, a coordinator that is killed, a drain, and a second session without speculation. One run of less
than a minute serves all tests.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards.panels import ROWS, Query
from regen.spec import dump_spec
from tests.processes import REGEN, free_port, kill, started, titled, wait_until
from tests.prometheus_server import Programs, Prometheus, Series, prometheus
from tests.promql import VARIABLE, filled, grouped_by, selectors
from tests.runs import conversations, make_spec, with_draft, write_jsonl

pytestmark = pytest.mark.ray

ROOT = Path(__file__).resolve().parents[2]
ALERTS = ROOT / "dashboards" / "alerts.yml"
VARIABLES = ("job", "instance", "source", "replica")
HOSTILE = "chat v1.2 (a|b) $x [\\d]+"
SOURCES = {HOSTILE, "code"}
QUERIES = [(panel.title, query) for row in ROWS for panel in row.panels for query in panel.queries]
# What this run cannot know: it lies in a local folder, and its engines' caches have room for all rows.
NOT_KNOWN_HERE = {"regen_store_credentials_seconds", "regen_replica_row_limit"}


WARMUP = {"rows": 8, "drafts": 30, "canary_rows": 2}
SECONDS = 240  # for what takes a few on a machine with nothing else to do


@dataclass(frozen=True, slots=True)
class Watched:
    """What was seen. `counters` are those that the endpoint declares; times are seconds since the epoch."""

    server: Prometheus
    began: float
    ended: float
    counters: frozenset[str]
    folder: Path

    def values(self, expr: str) -> list[tuple[Series, list[float]]]:
        return self.server.values(expr, self.began, self.ended, step=1)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory, debian_prometheus: Programs) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("watched")
    port = free_port()
    with_speculation, without = specs(folder, port)
    with prometheus(debian_prometheus, folder, port, ALERTS) as server:
        began = time.time()
        counters = first_session(folder, with_speculation, server)
        with started([*REGEN, "run", without], cwd=folder) as process:
            assert process.wait(timeout=SECONDS) == 10, process.communicate()[0]
        phase = 'last_over_time(regen_phase{phase="finished"}[5m]) == 1'
        wait_until(lambda: server.now(phase), seconds=30)
        yield Watched(server, began, time.time(), frozenset(counters), folder)


def specs(folder: Path, port: int) -> tuple[str, str]:
    """Two spec files of one run: with a draft, and without."""
    rows = conversations(320)
    write_jsonl(folder / "chat.jsonl", [*rows[::2], {"messages": []}])
    write_jsonl(folder / "code.jsonl", [*rows[1::2], {"prompt": 7}])
    spec = make_spec(
        folder,
        engine={
            "replicas": 2,
            "slots": 8,
            "step_seconds": 0.03,
            "answer_tokens": 40,
            "restarts": 20,
            "acceptance_by_position": [0.8, 0.6, 0.4],
            "faults": [
                {"kind": "fail", "times": 3, "after_requests": 5, "every": 3},
                {"kind": "refuse", "times": 2, "after_requests": 9},
            ],
        },
        sources=[
            {"name": HOSTILE, "path": str(folder / "chat.jsonl")},
            {"name": "code", "path": str(folder / "code.jsonl")},
        ],
        checkpoint={"interval_seconds": 1.0},
        limits={"hours": 2.0},
        metrics={"port": port},
        price={"per_gpu_hour": 2.5, "currency": "EUR"},
    )
    for name, one in (("without.yaml", spec), ("with.yaml", with_draft(spec, folder, warmup=WARMUP))):
        (folder / name).write_text(dump_spec(one), encoding="utf-8")
    return "with.yaml", "without.yaml"


def first_session(folder: Path, spec: str, server: Prometheus) -> set[str]:
    """A replica killed, then the coordinator, then a drain. The counters that the endpoint declares."""
    with started([*REGEN, "run", spec], cwd=folder) as process:
        wait_until(lambda: done(server) > 20 or process.poll() is not None, SECONDS)
        assert process.poll() is None, process.communicate()[0]
        kill(titled(process.pid, "ray::ReplicaActor")[0])
        wait_until(lambda: sum(server.now("regen_replica_restarts_total").values()) > 0, SECONDS)
        counters = {
            name for name, said in server.asked("metadata").items() if said[0]["type"] in ("counter", "histogram")
        }
        before = done(server)
        kill(titled(process.pid, "ray::CoordinatorActor")[0])
        wait_until(lambda: done(server) > before + 20, SECONDS)
        wait_until(
            lambda: server.now("regen_coordinator_restarts_total") == dict.fromkeys(server.now("up"), 1), SECONDS
        )
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=SECONDS) == 9, process.communicate()[0]
    return counters


def done(server: Prometheus) -> float:
    """Rows that are committed, as the server knows it: reading the run folder over and over would slow the run."""
    return sum(server.now("sum(regen_rows_standing)").values())


# --- the run ---------------------------------------------------------------------------------------------------------


def test_no_counter_ever_falls(watched: Watched) -> None:
    """Over two kills, a drain and a second session."""
    assert len(watched.counters) > 20
    fallen = {}
    for name in sorted(watched.counters):
        seen = samples_of(watched, name)
        assert seen, f"{name} was never scraped"
        for series, samples in seen:
            assert len(samples) > 10
            if any(later < earlier for earlier, later in itertools.pairwise(samples)):
                fallen[str(series)] = samples
    assert fallen == {}


def samples_of(watched: Watched, name: str) -> list[tuple[Series, list[float]]]:
    """Of a counter or a histogram, by its name in the metadata: OpenMetrics leaves `_total` out there."""
    suffixes = ("", "_total") if not name.endswith("_total") else ("",)
    found = [(name + suffix, watched.began, watched.ended) for suffix in (*suffixes, "_bucket", "_count", "_sum")]
    return [one for selector, began, ended in found for one in watched.server.raw(selector, began, ended)]


def test_the_counters_end_where_the_run_does(watched: Watched) -> None:
    """And they did count: what was to happen in this run has happened, and is seen."""
    report = json.loads((watched.folder / "run" / "report.json").read_text())
    last = {
        expr: sum(watched.server.now(f"sum(last_over_time({expr}[5m]))").values())
        for expr in (
            'regen_rows_done_total{status="ok"}',
            'regen_rows_done_total{status="rejected"}',
            "regen_output_tokens_total",
            "regen_retries_total",
            "regen_replica_restarts_total",
            "regen_coordinator_restarts_total",
            "regen_rows_remaining",
        )
    }
    outcomes = report["outcomes"]
    assert last["regen_output_tokens_total"] == report["output_tokens"]
    assert last['regen_rows_done_total{status="ok"}'] == outcomes["ok"] > 300
    assert last['regen_rows_done_total{status="rejected"}'] == outcomes["rejected"] >= 4
    assert last["regen_retries_total"] >= 3
    assert last["regen_replica_restarts_total"] >= 1
    assert last["regen_coordinator_restarts_total"] == 1
    assert last["regen_rows_remaining"] == 0


def test_speculation_was_on_and_then_off(watched: Watched) -> None:
    seen = [value for _, values in watched.values("max(regen_replica_speculating)") for value in values]
    assert {0.0, 1.0} <= set(seen)
    (accept,) = {values[-1] for _, values in watched.values("regen_accept_length")}
    assert accept > 2


# --- the dashboard ---------------------------------------------------------------------------------------------------


def test_the_variables_have_the_values_of_this_run(watched: Watched) -> None:
    found = values_of_variables(watched)
    assert set(found["source"]) == SOURCES
    assert found["replica"] == ["0", "1"]
    assert found["job"] == ["regen"]
    assert len(found["instance"]) == 1


@pytest.mark.parametrize(("title", "query"), QUERIES, ids=[f"{title}: {query.legend}" for title, query in QUERIES])
def test_every_query_returns_data_whatever_is_chosen(watched: Watched, title: str, query: Query) -> None:
    chosen = dict.fromkeys(VARIABLES, ".*")
    used = {found[0] for found in VARIABLE.findall(query.filled)} & set(VARIABLES)
    values = values_of_variables(watched)
    cases: list[dict[str, Any]] = [chosen, dict.fromkeys(VARIABLES, ""), {name: [] for name in VARIABLES}]
    for name in sorted(used):
        cases += [{**chosen, name: [value]} for value in values[name]]
        cases += [{**chosen, name: values[name]}, {**chosen, name: ""}]
    for case in cases:
        expr = filled(query.filled, __rate_interval="5s", **case)
        assert "$" not in expr.replace("$x", "")
        found = watched.values(expr)
        assert found, f"{title}: {expr} gives nothing"
        known = [value for _, samples in found for value in samples if math.isfinite(value)]
        assert known or {one.name for one in selectors(expr)} <= NOT_KNOWN_HERE, f"{title}: {expr} is never a number"
        for series, _ in found:
            assert set(re.findall(r"{{(\w+)}}", query.legend)) <= set(series), f"{title}: {query.legend} {series}"


def test_a_source_that_is_chosen_is_the_only_one_shown(watched: Watched) -> None:
    (query,) = [query for title, query in QUERIES if title == "Output tokens by source"]
    expr = filled(query.filled, **{**dict.fromkeys(VARIABLES, ".*"), "source": [HOSTILE]})
    assert [series["source"] for series, _ in watched.values(expr)] == [HOSTILE]


def test_every_series_and_label_that_is_named_was_scraped(watched: Watched) -> None:
    """Values of labels too, where an expression names one."""
    exprs = [filled(query.filled, __rate_interval="5s", **dict.fromkeys(VARIABLES, ".*")) for _, query in QUERIES]
    rules = [rule["expr"] for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    scraped = watched.server.asked("series", **{"match[]": '{job="regen"}'})
    for expr in [*exprs, *rules]:
        labels = {
            label for one in selectors(expr) for found in scraped if found["__name__"] == one.name for label in found
        }
        if "ALERTS" not in expr:
            assert grouped_by(expr) <= labels, expr
        for selector in selectors(expr):
            if selector.name == "ALERTS":  # there is none while nothing fires
                continue
            series = [found for found in scraped if found["__name__"] == selector.name]
            assert series, selector.name
            for label, sign, value in selector.matchers:
                wanted = value.split("|") if sign == "=~" and "(" not in value and "*" not in value else []
                wanted += [value] if sign == "=" else []
                assert set(wanted) <= {found.get(label) for found in series}, f"{selector.name} {label}"
                assert all(label in found for found in series), f"{selector.name} {label}"


# --- the alerts ------------------------------------------------------------------------------------------------------


def test_the_rules_are_sound(debian_prometheus: Programs) -> None:
    words: list[str | Path] = [debian_prometheus.promtool, "check", "rules", ALERTS]
    said = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert said.returncode == 0, said.stderr


def test_every_alert_fires_and_does_not_fire_as_its_tests_say(debian_prometheus: Programs) -> None:
    words: list[str | Path] = [debian_prometheus.promtool, "test", "rules", ROOT / "dashboards" / "alerts_test.yml"]
    said = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert said.returncode == 0, said.stdout + said.stderr


def test_no_alert_fires_in_this_run_and_no_rule_fails(watched: Watched) -> None:
    assert watched.values('ALERTS{alertstate="firing"}') == []
    rules = [rule for group in watched.server.asked("rules")["groups"] for rule in group["rules"]]
    assert {rule["health"] for rule in rules} == {"ok"}, [rule.get("lastError") for rule in rules]


def values_of_variables(watched: Watched) -> dict[str, list[str]]:
    """As Grafana asks for them, from the queries in the dashboard."""
    found = {}
    board = json.loads((ROOT / "dashboards" / "regen.json").read_text())
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            text = filled(variable["query"]["query"], **dict.fromkeys(VARIABLES, ".*"))
            selector, _, label = text.removeprefix("label_values(").removesuffix(")").rpartition(",")
            found[variable["name"]] = sorted(
                watched.server.asked(f"label/{label.strip()}/values", **{"match[]": selector})
            )
    return found
