"""What a node says of itself."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from regen import __version__
from regen.run.fleet.fit import Questions
from regen.run.fleet.probe import answer


def ask(folders: tuple[str, ...] = (), sources: tuple[str, ...] = (), packages: tuple[str, ...] = ()) -> Questions:
    return Questions(folders, (), sources, packages)


def test_versions_are_those_that_are_installed() -> None:
    said = answer(ask(packages=("regen", "pyyaml", "no-such-package-of-anybody")))
    assert said.python == platform.python_version()
    assert said.packages["regen"] == __version__
    assert said.packages["pyyaml"]
    assert said.packages["no-such-package-of-anybody"] is None


def test_a_folder_is_told_by_names_and_sizes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(b"x" * 100)
        (tmp_path / name / "config.json").write_bytes(b"{}")
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    alike = answer(ask(folders=(one, two))).folders
    assert alike[one] == alike[two]
    assert (whole := alike[one]) is not None
    assert (whole.files, whole.bytes) == (2, 102)
    (tmp_path / "two" / "model.safetensors").write_bytes(b"x" * 99)
    cut = answer(ask(folders=(one, two))).folders
    assert cut[one] != cut[two]


def test_a_folder_that_is_not_there_or_empty_is_none(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    asked = (str(tmp_path / "none"), str(tmp_path / "empty"), str(tmp_path / "file"))
    assert set(answer(ask(folders=asked)).folders.values()) == {None}


def test_a_dead_link_does_not_hide_the_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "gone")
    folder = answer(ask(folders=(str(tmp_path),))).folders[str(tmp_path)]
    assert folder is not None
    assert folder.files == 1


def test_weights_that_an_index_names_are_looked_for(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(
        '{"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}'
    )
    (tmp_path / "1.safetensors").write_bytes(b"x")
    folder = answer(ask(folders=(str(tmp_path),))).folders[str(tmp_path)]
    assert folder is not None
    assert folder.missing == ("2.safetensors",)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": ')
    folder = answer(ask(folders=(str(tmp_path),))).folders[str(tmp_path)]
    assert folder is not None
    assert folder.missing == ("model.safetensors.index.json",)


def test_a_hub_model_is_cached_when_its_weights_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning alone fetches the config and the tokenizer."""
    snapshot = tmp_path / "models--org--model" / "snapshots" / "c0ffee"
    snapshot.mkdir(parents=True)
    (tmp_path / "models--org--model" / "refs").mkdir()
    (tmp_path / "models--org--model" / "refs" / "main").write_text("c0ffee")
    (snapshot / "config.json").write_text("{}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    asked = Questions((), (("org/model", None),), (), ())
    assert answer(asked).cached_models == frozenset()
    (snapshot / "model.safetensors").write_bytes(b"x")
    assert answer(asked).cached_models == {"org/model"}


def test_gpus_are_told_with_their_memory_where_their_driver_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert answer(ask()).gpu_memory_bytes == ()
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 143771\necho 143771\n")
    program.chmod(0o755)
    assert answer(ask()).gpu_memory_bytes == (143771 * 2**20,) * 2
    program.write_text("#!/bin/sh\necho 'Failed to initialize NVML'\nexit 9\n")
    assert answer(ask()).gpu_memory_bytes == ()


@pytest.mark.parametrize("offline", [True, False])
def test_whether_the_hub_may_be_asked_is_told(monkeypatch: pytest.MonkeyPatch, offline: bool) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline)
    assert answer(ask()).is_offline is offline


def test_sources_are_files_folders_or_patterns(tmp_path: Path) -> None:
    (tmp_path / "a-0.jsonl").write_text("{}")
    there, pattern, missing = str(tmp_path / "a-0.jsonl"), str(tmp_path / "a-*.jsonl"), str(tmp_path / "b-*.jsonl")
    assert answer(ask(sources=(there, pattern, missing))).sources_missing == (missing,)
