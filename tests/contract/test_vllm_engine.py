"""What only vLLM can show; the arguments that it is started with need no engine."""

from __future__ import annotations

import pytest

from regen.engines.vllm import engine_arguments
from regen.spec import SpeculationSpec, VllmEngineSpec

EAGLE3 = SpeculationSpec(method="eagle3", draft="some/folder", num_tokens=3, args={"draft_tensor_parallel_size": 1})


def test_speculation_is_always_passed_explicitly() -> None:
    arguments = engine_arguments("m", "c0ffee", False, VllmEngineSpec(), EAGLE3)
    assert arguments["speculative_config"] == {
        "method": "eagle3",
        "model": "some/folder",
        "num_speculative_tokens": 3,
        "draft_tensor_parallel_size": 1,
    }
    assert arguments["per_request_spec_decode_metrics"] == "summary"
    kept = engine_arguments("m", None, False, VllmEngineSpec(), EAGLE3, keeps_steps=True)
    assert kept["per_request_spec_decode_metrics"] == "detailed"
    assert (arguments["revision"], arguments["tokenizer_revision"]) == ("c0ffee", "c0ffee")


def test_without_speculation_nothing_of_it_is_passed() -> None:
    arguments = engine_arguments("m", None, False, VllmEngineSpec(args={"dtype": "bfloat16"}), None)
    assert "speculative_config" not in arguments
    assert "per_request_spec_decode_metrics" not in arguments  # vLLM refuses it when speculation is off
    assert arguments["dtype"] == "bfloat16"


@pytest.mark.parametrize("name", ["model", "max_num_seqs", "speculative_config"])
def test_the_engine_args_cannot_contradict_the_spec(name: str) -> None:
    with pytest.raises(ValueError, match=f"args.{name} conflicts with"):
        VllmEngineSpec(args={name: 1})
