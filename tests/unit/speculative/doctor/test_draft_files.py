"""A running server's draft, by its files: method, layers in effect, and preflight's checks in the server's words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from regen.checkpoints import Checkpoint, EngineFacts
from regen.data.checkpoint import read_checkpoint
from regen.data.model_files import model_files
from regen.served import ServerFacts, ServerKind, Speculation
from regen.speculative.doctor.draft_files import DraftFiles, method_of, read_draft_files
from tests.heads import LAYERS, TARGET, Head, eagle, eagle3, weight, whole_model


def facts(kind: ServerKind, method: str | None, context_tokens: int = 2048) -> ServerFacts:
    said = None if method is None else Speculation(method, "draft", 3)
    return ServerFacts("http://h:1", kind, "target", context_tokens=context_tokens, speculation=said)


def looked(head: Head, folder: Path, server: ServerFacts, target: dict[str, Any] | None = None) -> DraftFiles:
    path = str(head.write(folder / "draft"))
    return read_draft_files(
        server,
        read_checkpoint(path, model_files(path)),
        Checkpoint("target", config=TARGET | (target or {})),
        EngineFacts(server.kind.value),
    )


def codes(files: DraftFiles) -> set[str]:
    return {finding.code for finding in files.findings}


@pytest.mark.parametrize(
    ("kind", "said", "method"),
    [
        (ServerKind.SGLANG, "EAGLE3", "eagle3"),
        (ServerKind.SGLANG, "STANDALONE", "draft_model"),
        (ServerKind.SGLANG, "SOMETHING_NEW", None),
        (ServerKind.VLLM, "deepseek_mtp", "mtp"),
        (ServerKind.VLLM, "ngram", "ngram"),
        (ServerKind.VLLM, None, None),
    ],
)
def test_methods_in_the_servers_words(kind: ServerKind, said: str | None, method: str | None) -> None:
    assert method_of(facts(kind, said)) == method


@pytest.mark.parametrize(("kind", "method"), [(ServerKind.SGLANG, "EAGLE3"), (ServerKind.VLLM, "eagle3")])
def test_a_whole_head_under_its_own_method_has_no_finding(kind: ServerKind, method: str, tmp_path: Path) -> None:
    assert codes(looked(eagle3(), tmp_path, facts(kind, method))) == set()


@pytest.mark.parametrize(
    ("kind", "method", "head", "fix"),
    [
        (ServerKind.SGLANG, "EAGLE", eagle3(), "--speculative-algorithm EAGLE3."),
        (ServerKind.SGLANG, "STANDALONE", eagle3(), "--speculative-algorithm EAGLE3."),
        (ServerKind.SGLANG, "EAGLE3", whole_model(), "--speculative-algorithm STANDALONE."),
        (ServerKind.VLLM, "eagle", eagle3(), '"method": "eagle3" in --speculative-config.'),
        (ServerKind.VLLM, "eagle3", eagle(), '"method": "eagle" in --speculative-config.'),
    ],
)
def test_a_method_that_is_not_the_drafts(kind: ServerKind, method: str, head: Head, fix: str, tmp_path: Path) -> None:
    files = looked(head, tmp_path, facts(kind, method))
    (mismatch,) = [finding for finding in files.findings if finding.code == "method-mismatch"]
    assert mismatch.fix.endswith(fix)
    assert repr(method) in mismatch.found


def test_sglang_runs_prediction_layers_as_eagle(tmp_path: Path) -> None:
    head = whole_model(1)
    head.config |= {"architectures": ["DeepseekV3ForCausalLMNextN"], "num_nextn_predict_layers": 1}
    head.tensors["model.layers.0.eh_proj.weight"] = weight(32, 64)
    assert "method-mismatch" not in codes(looked(head, tmp_path, facts(ServerKind.SGLANG, "EAGLE")))


def test_without_a_method_the_files_are_judged_as_if_it_were_right(tmp_path: Path) -> None:
    head = eagle3()
    head.config["eagle_config"] = {"use_aux_hidden_state": False}
    files = looked(head, tmp_path, facts(ServerKind.VLLM, None))
    assert codes(files) >= {"aux-states-off"}
    assert "method-mismatch" not in codes(files)


def test_findings_speak_of_the_server_and_not_of_a_spec(tmp_path: Path) -> None:
    head = eagle3()
    head.config |= {"max_position_embeddings": 512, "eagle_aux_hidden_state_layer_ids": [2, 6, 40]}
    head.config["eagle_config"] = {}
    files = looked(head, tmp_path, facts(ServerKind.VLLM, "eagle3"))
    assert codes(files) == {"draft-positions", "layer-ids-out-of-range"}
    assert not [finding for finding in files.findings if "engine.max_model_len" in str(finding)]


@pytest.mark.parametrize(
    ("kind", "architecture", "ids", "layers"),
    [
        (ServerKind.VLLM, "LlamaForCausalLM", [2, 6, 9], "[2, 6, 9], by what enters them"),
        (ServerKind.VLLM, "LlamaForCausalLM", None, f"[2, {LAYERS // 2}, {LAYERS - 3}], vLLM's default"),
        (ServerKind.SGLANG, "LlamaForCausalLM", [1, 5, 8], "[2, 6, 9] by what enters them: SGLang adds 1"),
        (ServerKind.SGLANG, "DeepseekV3ForCausalLM", [1, 5, 8], "[2, 6, 9] by what enters them: SGLang adds 1"),
        (ServerKind.SGLANG, "DeepseekV3ForCausalLM", [2, 6, 9], "[2, 6, 9], as its config names them"),
        (ServerKind.SGLANG, "OtherForCausalLM", [2, 6, 9], "[2, 6, 9] in its config; how SGLang counts them"),
    ],
)
def test_the_layers_in_effect(
    kind: ServerKind, architecture: str, ids: list[int] | None, layers: str, tmp_path: Path
) -> None:
    head = eagle3()
    head.config["eagle_config"] = {}
    head.config["eagle_aux_hidden_state_layer_ids"] = ids
    method = "EAGLE3" if kind is ServerKind.SGLANG else "eagle3"
    files = looked(head, tmp_path, facts(kind, method), {"architectures": [architecture]})
    assert files.layers is not None
    assert files.layers.startswith(layers)


def test_no_layers_under_another_method(tmp_path: Path) -> None:
    files = looked(eagle3(), tmp_path, facts(ServerKind.SGLANG, "EAGLE"))
    assert files.layers is not None
    assert files.layers.startswith("none")


def test_layer_ids_that_vllms_gpu_runner_does_not_read(tmp_path: Path) -> None:
    head = eagle3()
    del head.config["eagle_aux_hidden_state_layer_ids"]
    assert codes(looked(head, tmp_path, facts(ServerKind.VLLM, "eagle3"))) == {"layer-ids-unread"}
    assert codes(looked(head, tmp_path / "sglang", facts(ServerKind.SGLANG, "EAGLE3"))) == set()


def test_layer_ids_counted_as_specforge_does(tmp_path: Path) -> None:
    head = eagle3()
    head.config["eagle_config"] = {}
    head.config["eagle_aux_hidden_state_layer_ids"] = [1, LAYERS // 2 - 1, LAYERS - 4]
    assert codes(looked(head, tmp_path, facts(ServerKind.VLLM, "eagle3"))) == {"layer-convention"}


def test_a_target_out_of_reach_is_not_guessed(tmp_path: Path) -> None:
    path = str(eagle3().write(tmp_path / "draft"))
    draft = read_checkpoint(path, model_files(path))
    files = read_draft_files(facts(ServerKind.SGLANG, "EAGLE3"), draft, None, EngineFacts("sglang"))
    assert files.findings == ()


def test_an_unknown_context_is_not_a_short_one(tmp_path: Path) -> None:
    server = facts(ServerKind.VLLM, "eagle3", context_tokens=0)
    assert codes(looked(eagle3(), tmp_path, server)) == set()
