"""The examples' recipes, planned, preflighted and estimated without a hub: stand-ins of the same shapes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import typer

from regen.cli import app
from regen.data.plan_summary import PlanSummary
from regen.data.target import resolve_target
from regen.run.commands.estimate_spec import Assumptions, SpecEstimate, estimate_plan, estimate_spec
from regen.run.speculation.preflight import examine
from regen.run.start import dry_plan
from regen.spec import RunSpec, load_spec
from regen.speculative.evidence import Severity
from regen.store.local import LocalStorage
from tests import kimi, qwen3
from tests.heads import Values
from tests.sparse_heads import head_tensors, write_sparse_head
from tests.stand_ins import CHAT_TURNS, ROWS, with_stand_ins
from tests.toy_target import build_toy_target

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
KIMI, QWEN3 = EXAMPLES / "kimi-k2.5-eagle3.yaml", EXAMPLES / "qwen3-8b-one-gpu.yaml"
STAND_IN_ROWS = 20


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> RunSpec:
    folder = tmp_path_factory.mktemp("kimi")
    target = kimi.build_kimi_target(folder / "target")
    draft = write_sparse_head(folder / "head", kimi.HEAD_CONFIG)
    return with_stand_ins(load_spec(KIMI), folder / "data", target, draft, STAND_IN_ROWS)


@dataclass(frozen=True)
class Heads:
    """The recipes with an EAGLE-3 head, over stand-ins, and how many layers their targets have."""

    specs: dict[str, RunSpec]
    layers: dict[str, int]


@dataclass(frozen=True)
class Fault:
    """A head that is not right; `tensors` None: those that its config asks for."""

    code: str
    head: dict[str, Any]
    tensors: dict[str, Values] | None = None
    speculation: dict[str, Any] = field(default_factory=dict)
    is_refused: bool = True


HEADS = {"kimi": kimi.HEAD_CONFIG, "qwen3": qwen3.HEAD_CONFIG}


@pytest.fixture(scope="module")
def heads(recipe: RunSpec, tmp_path_factory: pytest.TempPathFactory) -> Heads:
    folder = tmp_path_factory.mktemp("qwen3")
    target = qwen3.build_qwen3_target(folder / "target")
    draft = write_sparse_head(folder / "head", qwen3.HEAD_CONFIG)
    spec = with_stand_ins(load_spec(QWEN3), folder / "data", target, draft, STAND_IN_ROWS)
    return Heads({"kimi": recipe, "qwen3": spec}, {"kimi": kimi.LAYERS, "qwen3": qwen3.LAYERS})


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


def refused(spec: RunSpec) -> dict[str, Severity]:
    """What preflight says, notes left out."""
    findings = examine(spec, resolve_target(spec.target), LocalStorage(Path(spec.output)))
    return {finding.code: finding.severity for finding in findings if finding.severity is not Severity.NOTE}


@pytest.mark.parametrize("name", HEADS)
def test_the_recipes_with_a_head_pass_preflight(heads: Heads, name: str) -> None:
    assert refused(heads.specs[name]) == {}


def with_layers(name: str, *layers: int) -> dict[str, Any]:
    both = {"eagle_aux_hidden_state_layer_ids": layers, "use_aux_hidden_state": True}
    return {**HEADS[name], "eagle_aux_hidden_state_layer_ids": layers, "eagle_config": both}


def other(name: str) -> str:
    return next(one for one in HEADS if one != name)


# What is wrong -> the head's config and tensors, what the spec says, and the code that says so. `last` is the target's
# number of layers: ids count what enters a layer, so that is one too far.
FAULTS: dict[str, Callable[[str, int], Fault]] = {
    "the founding fault": lambda name, last: Fault("method-mismatch", HEADS[name], speculation={"method": "eagle"}),
    "a layer too far": lambda name, last: Fault("layer-ids-out-of-range", with_layers(name, 2, last // 2, last + 1)),
    "a layer twice": lambda name, last: Fault("layer-ids-out-of-range", with_layers(name, 2, last // 2, last // 2)),
    "one layer too many": lambda name, last: Fault("layer-ids-count", with_layers(name, 2, 9, last // 2, last - 3)),
    "one layer too few": lambda name, last: Fault(
        "layer-ids-count", with_layers(name, 2, last // 2, last - 3), head_tensors(HEADS[name], fused_layers=2)
    ),
    "the first layers": lambda name, last: Fault("layer-ids-unusual", with_layers(name, 1, 2, 3), is_refused=False),
    "counted as what leaves": lambda name, last: Fault(
        "layer-convention", with_layers(name, 1, last // 2 - 1, last - 4), is_refused=False
    ),
    "states switched off": lambda name, last: Fault(
        "aux-states-off", {**HEADS[name], "eagle_config": {"use_aux_hidden_state": False}}
    ),
    "another target's head": lambda name, last: Fault("hidden-size", HEADS[other(name)]),
    "another vocabulary": lambda name, last: Fault(
        "vocabulary-size", {**HEADS[name], "vocab_size": HEADS[other(name)]["vocab_size"]}, head_tensors(HEADS[name])
    ),
    "another draft vocabulary": lambda name, last: Fault(
        "draft-vocabulary", {**HEADS[name], "draft_vocab_size": 16_000}, head_tensors(HEADS[name])
    ),
}


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("what", FAULTS)
def test_faults_of_a_head_are_found(heads: Heads, tmp_path: Path, name: str, what: str) -> None:
    spec = heads.specs[name]
    assert spec.speculation is not None
    fault = FAULTS[what](name, heads.layers[name])
    draft = write_sparse_head(tmp_path / "draft", fault.head, fault.tensors)
    asked = spec.speculation.model_copy(update={"draft": str(draft), **fault.speculation})
    found = refused(spec.model_copy(update={"speculation": asked}))
    assert found[fault.code] is (Severity.REFUSE if fault.is_refused else Severity.WARN)


RECIPES = sorted(path.name for path in EXAMPLES.glob("*.yaml") if "#   regen" in path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", RECIPES)
def test_the_commands_that_a_recipe_shows_are_commands(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsed as the command line parses them, their flags and files too; nothing is run."""
    monkeypatch.chdir(EXAMPLES.parent)
    shown = re.findall(r"^#   regen ([^#\n]+)", (EXAMPLES / name).read_text(encoding="utf-8"), re.MULTILINE)
    assert shown
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    for line in shown:
        command, *words = shlex.split(line)
        parsed = group.commands[command].make_context(command, words)
        assert parsed.params["spec"] == Path("examples", name)


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


def test_a_fleet_that_takes_what_comes_is_priced_for_its_fewest_and_its_most(
    recipe: RunSpec, planned: PlanSummary
) -> None:
    elastic = recipe.model_copy(update={"engine": recipe.engine.model_copy(update={"replicas": "auto"})})
    facts = dict(estimate_plan(elastic, Assumptions(830, 800), in_full(planned, recipe)).view().facts)
    one = dict(estimated(planned, recipe).view().facts)
    assert facts["GPU hours, 1 replica"] == one["GPU hours"]
    assert facts["cost, 1 replica"] == one["cost"]
    assert facts["GPU hours, 64 replicas"].endswith("on 512 GPUs")


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


def test_the_recipe_for_one_gpu_reads_its_datasets(
    heads: Heads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    spec = heads.specs["qwen3"]
    with dry_plan(spec, resolve_target(spec.target), processes=1) as plan:
        found = {(one.name, one.accepted) for one in plan.summary.sources}
    assert found == {("ultrachat", STAND_IN_ROWS), ("code", STAND_IN_ROWS)}
