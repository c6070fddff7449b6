"""The examples' recipes, planned, preflighted and estimated without a hub: stand-ins of the same shapes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from regen.data.plan_summary import PlanSummary
from regen.data.target import resolve_target
from regen.run.estimate_spec import Assumptions, SpecEstimate, estimate_plan, estimate_spec
from regen.run.preflight import examine
from regen.run.start import dry_plan
from regen.spec import RunSpec, load_spec
from regen.speculative.evidence import Severity
from regen.store.local import LocalStorage
from tests.kimi import AUXILIARY_LAYERS, HIDDEN, build_kimi_target, head_tensors, write_kimi_head
from tests.stand_ins import CHAT_TURNS, ROWS, with_stand_ins
from tests.toy_target import build_toy_target

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
KIMI = EXAMPLES / "kimi-k2.5-eagle3.yaml"
STAND_IN_ROWS = 20


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> RunSpec:
    folder = tmp_path_factory.mktemp("kimi")
    target, draft = build_kimi_target(folder / "target"), write_kimi_head(folder / "head")
    return with_stand_ins(load_spec(KIMI), folder / "data", target, draft, STAND_IN_ROWS)


@pytest.fixture(scope="module")
def planned(recipe: RunSpec, tmp_path_factory: pytest.TempPathFactory) -> PlanSummary:
    import datasets

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("cache")))
        datasets.disable_progress_bars()
        with dry_plan(recipe, resolve_target(recipe.target), processes=1) as plan:
            return plan.summary


def in_full(summary: PlanSummary, spec: RunSpec) -> PlanSummary:
    """The plan if each dataset had as many rows as the recipe takes, of the stand-ins' kind."""
    limits = {source.name: source.limit or 0 for source in spec.sources}
    counts = ("rows", "accepted", "native", "prompt_tokens", "turns")
    sources = [
        replace(one, **{name: getattr(one, name) * limits[one.name] // one.rows for name in counts})
        for one in summary.sources
    ]
    rows, native = sum(one.rows for one in sources), sum(one.native for one in sources)
    return replace(summary, rows=rows, native=native, sources=tuple(sources))


def test_the_kimi_recipe_takes_ten_datasets_and_the_rows_of_the_founding_run() -> None:
    spec = load_spec(KIMI)
    native = sum(source.limit or 0 for source in spec.sources if source.mode == "native")
    regenerated = sum(source.limit or 0 for source in spec.sources if source.mode == "regenerate")
    assert (len(spec.sources), native, regenerated) == (10, 4800, 83_288)
    assert {source.name for source in spec.sources} == set(ROWS)


def test_every_dataset_of_the_kimi_recipe_is_read_whole(planned: PlanSummary) -> None:
    assert {one.name: dict(one.rejected) for one in planned.sources if one.rejected} == {}
    assert {one.rows for one in planned.sources} == {STAND_IN_ROWS}
    assert [one.name for one in planned.sources if one.native] == ["native"]
    turns = {one.name: one.turns / one.rows for one in planned.sources}
    chats = dict.fromkeys(("ultrachat", "sharegpt", "tulu"), CHAT_TURNS)
    assert turns == {**dict.fromkeys(ROWS, 1), **chats, "native": 0}


def test_the_kimi_recipe_passes_preflight(recipe: RunSpec) -> None:
    findings = examine(recipe, resolve_target(recipe.target), LocalStorage(Path(recipe.output)))
    assert [str(finding) for finding in findings if finding.severity is not Severity.NOTE] == []


def narrow() -> dict[str, Any]:
    from tests.heads import weight

    return {**head_tensors(), "fc.weight": weight(HIDDEN, (len(AUXILIARY_LAYERS) - 1) * HIDDEN)}


@pytest.mark.parametrize(
    ("speculation", "head", "code"),
    [
        ({"method": "eagle"}, dict, "method-mismatch"),
        ({}, lambda: {"eagle_aux_hidden_state_layer_ids": [2, 30, 99], "eagle_config": None}, "layer-ids-out-of-range"),
        ({}, lambda: {"tensors": narrow()}, "layer-ids-count"),
    ],
)
def test_the_founding_faults_are_refused(
    recipe: RunSpec, tmp_path: Path, speculation: dict[str, Any], head: Callable[[], dict[str, Any]], code: str
) -> None:
    assert recipe.speculation is not None
    draft = write_kimi_head(tmp_path / "head", **head())
    asked = recipe.speculation.model_copy(update={"draft": str(draft), **speculation})
    spec = recipe.model_copy(update={"speculation": asked})
    findings = examine(spec, resolve_target(spec.target), LocalStorage(Path(spec.output)))
    assert code in {finding.code for finding in findings if finding.severity is Severity.REFUSE}


def estimated(summary: PlanSummary, recipe: RunSpec) -> SpecEstimate:
    """As the recipe's own comment has the command."""
    command = re.search(
        r"regen estimate \S+ --tokens-per-second (\d+) --answer-tokens (\d+)", KIMI.read_text(encoding="utf-8")
    )
    assert command is not None
    return estimate_plan(recipe, Assumptions(float(command[1]), float(command[2])), in_full(summary, recipe))


@pytest.mark.parametrize("name", ["rows", "output tokens", "hours", "GPU hours", "cost"])
def test_the_figures_in_the_recipe_are_what_estimate_says(recipe: RunSpec, planned: PlanSummary, name: str) -> None:
    facts = dict(estimated(planned, recipe).view().facts)
    written = re.search(rf"^#   {name}:? +(.+)$", KIMI.read_text(encoding="utf-8"), re.MULTILINE)
    assert written is not None
    assert written[1] == facts[name]


def test_the_laptop_recipe_needs_no_dataset_and_takes_about_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (EXAMPLES / "laptop.yaml").read_text(encoding="utf-8")
    command = re.search(r"--tokens-per-second (\d+) --answer-tokens (\d+) +# a minute$", text, re.MULTILINE)
    assert command is not None
    monkeypatch.chdir(EXAMPLES.parent)
    spec = load_spec(EXAMPLES / "laptop.yaml")
    target = spec.target.model_copy(update={"model": str(build_toy_target(tmp_path / "target"))})
    spec = spec.model_copy(update={"target": target, "output": str(tmp_path / "run")})
    found = estimate_spec(spec, Assumptions(float(command[1]), float(command[2])), processes=1)
    assert found.found.left == 58
    assert found.found.hours is not None
    assert 30 < found.found.hours.mid * 3600 < 90


def test_the_recipe_for_one_gpu_reads_its_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    target = build_kimi_target(tmp_path / "target")
    (target / "config.json").write_text('{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}')
    template = (target / "chat_template.jinja").read_text().replace("thinking is", "enable_thinking is")
    (target / "chat_template.jinja").write_text(template)
    spec = with_stand_ins(load_spec(EXAMPLES / "qwen3-8b-one-gpu.yaml"), tmp_path / "data", target, tmp_path, 5)
    with dry_plan(spec, resolve_target(spec.target), processes=1) as plan:
        assert {(one.name, one.accepted) for one in plan.summary.sources} == {("ultrachat", 5), ("code", 5)}
