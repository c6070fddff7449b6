"""What is said of the installed vLLM, against its own source."""

from __future__ import annotations

import ast
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from regen.engines.vllm_facts import LAYER_ID_KEYS, REFUSED_SAMPLING, vllm_facts

FOUND = find_spec("vllm")
IDS = "eagle_aux_hidden_state_layer_ids"
pytestmark = pytest.mark.skipif(FOUND is None, reason="vLLM is not installed")


def function(file: str, name: str) -> ast.FunctionDef:
    assert FOUND is not None
    assert FOUND.origin is not None
    tree = ast.parse((Path(FOUND.origin).parent / file).read_text(encoding="utf-8"))
    (found,) = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name]
    return found


def looked_up(node: ast.FunctionDef, of: str) -> set[str]:
    """Keys that `of.get(key)` asks for."""
    return {
        call.args[0].value
        for call in ast.walk(node)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "get"
        and isinstance(call.func.value, ast.Name)
        and call.func.value.id == of
        and isinstance(call.args[0], ast.Constant)
        and isinstance(call.args[0].value, str)
    }


@pytest.mark.parametrize(
    ("architecture", "feeds"),
    [
        ("LlamaForCausalLM", True),
        ("DeepseekV3ForCausalLM", True),  # through its base class
        ("KimiK25ForConditionalGeneration", True),
        ("KimiK3ForConditionalGeneration", True),  # in a package of its own
        ("GPT2LMHeadModel", False),
        ("MixtralForCausalLM", False),
        ("NobodysForCausalLM", None),
    ],
)
def test_which_targets_hand_over_inner_states(architecture: str, feeds: bool | None) -> None:
    assert vllm_facts((architecture,)).target_feeds_eagle3 is feeds


def test_its_version_and_its_tables_are_read_without_importing_it() -> None:
    was_imported = "vllm" in sys.modules
    facts = vllm_facts(("LlamaForCausalLM",))
    assert facts.version is not None
    assert facts.version.startswith("0.32")
    assert {"LlamaForCausalLMEagle3", "EagleLlamaForCausalLM"} <= facts.draft_architectures
    assert {"draft_tensor_parallel_size", "rejection_sample_method"} <= facts.speculation_args
    assert ("vllm" in sys.modules) is was_imported


def test_runner_v1_reads_layer_ids_from_both_keys_and_v2_from_one() -> None:
    v1 = function("v1/worker/gpu_model_runner.py", "_get_eagle3_aux_layers_from_config")
    v2 = function("v1/worker/gpu/spec_decode/eagle/eagle3_utils.py", "get_eagle3_aux_layers_from_config")
    for node in (v1, v2):
        assert IDS in {item.value for item in ast.walk(node) if isinstance(item, ast.Constant)}
    assert IDS in looked_up(v1, "eagle_config")
    assert looked_up(v2, "drafter_config") == {"layer_ids"}
    assert {"V1": (IDS, f"eagle_config.{IDS}"), "V2": (IDS,)} == LAYER_ID_KEYS


def test_the_sampling_that_is_refused_is_what_vllm_refuses() -> None:
    check = function("sampling_params.py", "_validate_spec_decode")
    refused = {
        node.attr
        for node in ast.walk(check)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    }
    assert refused == set(REFUSED_SAMPLING)
