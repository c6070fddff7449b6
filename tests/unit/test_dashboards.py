"""The dashboard and the alerts agree with what regen serves and with what the documents say."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards.generate import WRITTEN, generated
from dashboards.panels import MATCHERS, ROWS, Panel, Query
from regen.observe.metrics import SERIES
from regen.spec import RunSpec
from tests.promql import VARIABLE, grouped_by, selectors

ROOT = Path(__file__).resolve().parents[2]
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((ROOT / "dashboards" / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
TESTS: list[dict[str, Any]] = yaml.safe_load((ROOT / "dashboards" / "alerts_test.yml").read_text())["tests"]
PANELS = [panel for row in ROWS for panel in row.panels]
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text()
SCRAPED = {"job", "instance"}  # labels that Prometheus adds
WRITTEN_BY_PROMETHEUS = {"up": SCRAPED, "ALERTS": SCRAPED | {"alertname", "alertstate", "severity"}}


def served() -> dict[str, set[str]]:
    """The labels of every series by the name on the wire."""
    found = {name: set(series.labels) | SCRAPED for series in SERIES for name in series.wire_names}
    for name in found:
        if name.endswith("_bucket"):
            found[name] |= {"le"}
    return {**found, **WRITTEN_BY_PROMETHEUS}


def queries() -> Iterator[tuple[str, Query]]:
    for panel in PANELS:
        for query in panel.queries:
            yield panel.title, query


EXPRS = [*((title, query.filled) for title, query in queries()), *((rule["alert"], rule["expr"]) for rule in RULES)]


def test_the_dashboard_is_what_the_generator_writes() -> None:
    assert WRITTEN.read_text(encoding="utf-8") == generated(), "python -m dashboards.generate"


@pytest.mark.parametrize(("where", "expr"), EXPRS)
def test_every_series_and_label_that_is_named_is_in_the_table(where: str, expr: str) -> None:
    table = served()
    named = selectors(expr)
    assert named, "an expression without a series"
    for selector in named:
        assert selector.name in table, where
        assert {label for label, _, _ in selector.matchers} <= table[selector.name], selector
    assert grouped_by(expr) <= set().union(*(table[selector.name] for selector in named)), where


def test_every_series_of_the_table_is_on_the_dashboard() -> None:
    shown = {selector.name for _, query in queries() for selector in selectors(query.filled)}
    assert {series.name for series in SERIES if not shown & set(series.wire_names)} == set()


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.title)
def test_every_panel_says_what_it_shows_and_in_which_unit(panel: Panel) -> None:
    assert panel.unit
    assert panel.description.endswith(".")
    for query in panel.queries:
        assert {found[0] for found in VARIABLE.findall(query.filled)} <= {
            "job", "instance", "source", "replica", "__rate_interval",
        }  # fmt: skip


def test_every_query_can_be_narrowed_by_run() -> None:
    unbound = [title for title, query in queries() if "%" not in query.expr and "ALERTS" not in query.expr]
    assert unbound == []
    assert all("$instance" in matchers for matchers in MATCHERS.values())


def test_the_file_can_be_imported_anywhere() -> None:
    board = json.loads(WRITTEN.read_text(encoding="utf-8"))
    assert {panel["datasource"]["uid"] for panel in board["panels"] if panel["type"] != "row"} == {"${datasource}"}
    variables = {variable["name"]: variable for variable in board["templating"]["list"]}
    assert list(variables) == ["datasource", "job", "instance", "source", "replica"]
    assert {variables[name]["allValue"] for name in ("job", "instance", "source", "replica")} == {".*"}
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_panels_do_not_overlap_and_stay_within_the_width() -> None:
    cells: set[tuple[int, int]] = set()
    for panel in json.loads(WRITTEN.read_text(encoding="utf-8"))["panels"]:
        at = panel["gridPos"]
        mine = {(at["x"] + right, at["y"] + down) for right in range(at["w"]) for down in range(at["h"])}
        assert not mine & cells, panel["title"]
        assert at["x"] + at["w"] <= 24
        cells |= mine


# --- alerts ----------------------------------------------------------------------------------------------------------


def anchors(page: str) -> set[str]:
    """As GitHub makes them of headings."""
    return {
        re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-")
        for heading in re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    }


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_every_alert_has_a_severity_and_a_paragraph_in_the_runbook(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert page == "docs/runbook.md"
    assert anchor == rule["alert"].lower()
    assert anchor in anchors(RUNBOOK)
    (paragraph,) = re.findall(rf"^## {rule['alert']}\n(.+?)(?=^## |\Z)", RUNBOOK, re.MULTILINE | re.DOTALL)
    assert re.findall(r"^\*\*(\w[\w ]*)\*\*:", paragraph, re.MULTILINE) == ["Means", "Look at", "Do"]


def test_the_runbook_has_no_paragraph_without_an_alert() -> None:
    assert re.findall(r"^## (.+)$", RUNBOOK, re.MULTILINE) == [rule["alert"] for rule in RULES]


def test_the_runbook_names_panels_that_exist() -> None:
    named = {text for text in re.findall(r"\*([A-Z][^*\n]+)\*", RUNBOOK) if text not in ("Means", "Look at", "Do")}
    assert named - {panel.title for panel in PANELS} == {"by replica"} & named


@pytest.mark.parametrize("page", ["runbook.md", "deploy.md"])
def test_keys_of_the_spec_that_pages_name_exist(page: str) -> None:
    dotted = re.findall(r"`([a-z]+(?:\.[a-z_]+)+)[:`]", (ROOT / "docs" / page).read_text())
    keys = {key for key in dotted if key.split(".")[0] in RunSpec.model_fields}
    assert keys
    assert {key for key in keys if not is_key(RunSpec.model_json_schema(), key.split("."))} == set()


def is_key(schema: dict[str, Any], parts: list[str]) -> bool:
    """Whether the path leads somewhere, through references and variants."""
    found = [schema]
    for part in parts:
        found = [one for parent in found for one in _below(parent, part, schema)]
    return bool(found)


def _below(parent: dict[str, Any], part: str, root: dict[str, Any]) -> list[dict[str, Any]]:
    if "$ref" in parent:
        return _below(root["$defs"][parent["$ref"].rpartition("/")[2]], part, root)
    variants = [*parent.get("anyOf", ()), *parent.get("oneOf", ())]
    if variants:
        return [found for variant in variants for found in _below(variant, part, root)]
    return [parent["properties"][part]] if part in parent.get("properties", {}) else []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_every_alert_is_tested_firing_and_silent_in_every_run_in_which_nothing_is_amiss(rule: dict[str, Any]) -> None:
    fires, silent = 0, set()
    for test in TESTS:
        for one in test["alert_rule_test"]:
            if one["alertname"] == rule["alert"]:
                fires += bool(one.get("exp_alerts"))
                silent |= set() if one.get("exp_alerts") else {test["name"].split(",")[0].split(" ")[0]}
    assert fires
    assert {"a", "warm-up", "without"} <= silent, "healthy, finished and drained runs; warm-up; without speculation"
