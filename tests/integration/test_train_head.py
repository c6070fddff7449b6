"""examples/train_head.py on a small random target: from shards to a head that passes preflight and has learnt."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from regen.data.target import resolve_target
from regen.run.local import LocalCluster
from regen.run.session import seal_run
from regen.run.speculation.preflight import examine
from regen.spec import RunSpec, SpeculationSpec
from regen.speculative.evidence import Severity
from regen.store.local import LocalStorage
from tests import virtual_time
from tests.runs import begin_run, drive, make_spec
from tests.toy_target import CONFIG


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """So small a model gains nothing from a second thread, and waits for it on a busy machine."""
    torch = pytest.importorskip("torch", reason="comes with the engine")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def give_weights(target: Path) -> None:
    """A random model of the toy target's family, deep enough for three different layers."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    config = LlamaConfig(**{**CONFIG, "num_hidden_layers": 8})
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(target)


def finished_run(folder: Path) -> RunSpec:
    """Answers that are one letter again and again: whatever the target's states, a head can learn that."""
    spec = make_spec(folder, rows=12, engine={"vocabulary": [97, 97], "answer_tokens": 40})
    give_weights(folder / "target")
    begun = begin_run(spec)
    virtual_time.run(drive(LocalCluster(), begun))
    seal_run(begun.storage, begun.worker_setup.run)
    return spec


def train(folder: Path, out: str, monkeypatch: pytest.MonkeyPatch, steps: int = 20) -> None:
    from examples import train_head

    options = ["--steps", str(steps), "--draft-vocabulary", "64", "--held-out", "4", "--batch", "2", "--rate", "3e-3"]
    monkeypatch.setattr(sys, "argv", ["train_head.py", str(folder / "run"), str(folder / out), *options])
    train_head.main()


def test_the_head_has_learnt_is_repeatable_and_passes_preflight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = finished_run(tmp_path)

    train(tmp_path, "head", monkeypatch)

    first, second = re.findall(r"accepted: ([\d.]+), ([\d.]+)", capsys.readouterr().out)[-1]
    assert float(first) > 0.9
    assert float(second) > 0.8
    head = SpeculationSpec(method="eagle3", draft=str(tmp_path / "head"), num_tokens=2)
    findings = examine(
        spec.model_copy(update={"speculation": head}), resolve_target(spec.target), LocalStorage(tmp_path / "none")
    )
    assert [str(finding) for finding in findings if finding.severity is not Severity.NOTE] == []
    for name in ("one", "other"):
        train(tmp_path, name, monkeypatch, steps=2)
    one, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "other"))
    assert one == other


def test_nothing_is_overwritten_and_a_run_without_shards_is_said_to_be_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    with pytest.raises(SystemExit, match="regen seal"):
        train(tmp_path, "head", monkeypatch)
    assert not (tmp_path / "head").exists()
    (tmp_path / "head").mkdir()
    with pytest.raises(SystemExit, match="exists"):
        train(tmp_path, "head", monkeypatch)
