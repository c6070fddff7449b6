"""The draft's folder as the engine gets it: what was checked, where every runner reads it."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from regen.engines.vllm import engine_arguments
from regen.errors import EngineStartFailed
from regen.run.speculation.draft_folder import make_draft_folder
from regen.spec import SpeculationSpec, VllmEngineSpec
from tests.heads import TARGET, Head, eagle, eagle3, whole_model

IDS = "eagle_aux_hidden_state_layer_ids"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return Head(dict(TARGET), {}).write(tmp_path / "target")


def spec(draft: Path, **options: Any) -> SpeculationSpec:
    return SpeculationSpec.model_validate({"method": "eagle3", "num_tokens": 3, "draft": str(draft), **options})


def config_of(folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return config


def ids_of(config: dict[str, Any]) -> tuple[Any, Any]:
    return config.get(IDS), config["eagle_config"].get(IDS)


@pytest.mark.parametrize(
    ("top", "nested", "convention", "expected"),
    [
        ([2, 6, 9], [2, 6, 9], "input", [2, 6, 9]),
        (None, [3, 5, 8], "input", [3, 5, 8]),
        ([3, 5, 8], None, "input", [3, 5, 8]),
        (None, [1, 5, 8], "output", [2, 6, 9]),
        (None, None, "input", [2, 6, 9]),
        ([], [], "output", [2, 6, 9]),
    ],
)
def test_layer_ids_are_written_as_vllm_counts_them_where_both_runners_read(
    target: Path, tmp_path: Path, top: object, nested: object, convention: str, expected: list[int]
) -> None:
    head = eagle3()
    head.config |= {IDS: top, "eagle_config": {IDS: nested}}
    draft = head.write(tmp_path / "draft")
    folder = make_draft_folder(spec(draft, layer_convention=convention), target, tmp_path / "copies")
    config = config_of(folder)
    assert ids_of(config) == (expected, expected)
    assert config["eagle_config"]["use_aux_hidden_state"] is True
    assert {key: value for key, value in config.items() if key not in (IDS, "eagle_config")} == {
        key: value for key, value in head.config.items() if key not in (IDS, "eagle_config")
    }


def test_a_head_without_inner_states_gets_none(target: Path, tmp_path: Path) -> None:
    head = eagle3()
    head.config |= {IDS: [], "eagle_config": {IDS: [], "use_aux_hidden_state": False}}
    del head.tensors["fc.weight"]
    config = config_of(make_draft_folder(spec(head.write(tmp_path / "draft")), target, tmp_path / "copies"))
    assert ids_of(config) == ([], [])
    assert config["eagle_config"]["use_aux_hidden_state"] is False


def test_speculators_keeps_its_form_and_the_layers_code_can_count_them(target: Path, tmp_path: Path) -> None:
    head = eagle3()
    inner = {key: value for key, value in head.config.items() if key != "eagle_config"}
    head.config = {"speculators_model_type": "eagle3", "transformer_layer_config": inner, IDS: [2, 5, 7, 9]}
    folder = make_draft_folder(spec(head.write(tmp_path / "draft")), target, tmp_path / "copies")
    config = config_of(folder)
    assert config["speculators_model_type"] == "eagle3"
    assert config[IDS] == [2, 5, 7, 9]
    assert config["transformer_layer_config"]["eagle_config"][IDS] == [2, 5, 7, 9]


@pytest.mark.parametrize(("method", "head"), [("eagle", eagle), ("draft_model", whole_model), ("eagle", eagle3)])
def test_other_drafts_get_their_own_config(target: Path, tmp_path: Path, method: str, head: Any) -> None:
    draft = head().write(tmp_path / "draft")
    folder = make_draft_folder(spec(draft, method=method), target, tmp_path / "copies")
    assert config_of(folder) == config_of(draft)


def test_everything_else_is_the_drafts_own_and_the_path_says_nothing(target: Path, tmp_path: Path) -> None:
    draft = eagle3().write(tmp_path / "eagle-heads" / "my-eagle3")
    (draft / "code.py").write_text("pass")
    folder = make_draft_folder(spec(draft), target, tmp_path / "copies")
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors", "code.py"}
    assert (folder / "model.safetensors").read_bytes() == (draft / "model.safetensors").read_bytes()
    assert (folder / "model.safetensors").is_symlink()
    assert "eagle" not in str(folder.relative_to(tmp_path))


def test_workers_of_one_machine_make_one_folder(target: Path, tmp_path: Path) -> None:
    draft = eagle3().write(tmp_path / "draft")
    with ThreadPoolExecutor(8) as pool:
        made = set(pool.map(lambda _: make_draft_folder(spec(draft), target, tmp_path / "copies"), range(16)))
    (folder,) = made
    assert [path.name for path in folder.parent.iterdir()] == ["draft"]
    other = make_draft_folder(spec(draft, layer_convention="output"), target, tmp_path / "copies")
    assert other != folder


def test_a_temporary_folder_that_would_change_the_method_is_refused(target: Path, tmp_path: Path) -> None:
    draft = whole_model().write(tmp_path / "draft")
    with pytest.raises(EngineStartFailed, match="TMPDIR"):
        make_draft_folder(spec(draft, method="draft_model"), target, tmp_path / "on-eagle3-disk")


def test_the_engine_is_given_the_copy_and_the_row_the_name() -> None:
    speculation = SpeculationSpec(method="eagle3", draft="an/eagle3-head", num_tokens=3)
    arguments = engine_arguments("m", None, False, VllmEngineSpec(), speculation, "/tmp/x/draft")
    assert arguments["speculative_config"]["model"] == "/tmp/x/draft"
    assert arguments["speculative_config"]["method"] == "eagle3"
    assert speculation.draft_name == "an/eagle3-head"
