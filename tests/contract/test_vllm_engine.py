"""What only vLLM can show; the arguments that it is started with need no engine."""

from __future__ import annotations

import pytest

from regen.engines.vllm import engine_arguments, expand_batch_to_tokens
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
    assert (arguments["revision"], arguments["tokenizer_revision"]) == ("c0ffee", "c0ffee")


def test_without_speculation_nothing_of_it_is_passed() -> None:
    arguments = engine_arguments("m", None, False, VllmEngineSpec(args={"dtype": "bfloat16"}), None)
    assert "speculative_config" not in arguments
    assert "per_request_spec_decode_metrics" not in arguments  # vLLM refuses it when speculation is off
    assert arguments["dtype"] == "bfloat16"


@pytest.mark.engine
def test_sampling_is_expanded_to_draft_tokens_in_its_own_type() -> None:
    import torch

    counts = torch.tensor([2, 2, 5], dtype=torch.int32)  # a request without drafts is in the middle
    temperature = expand_batch_to_tokens(torch.tensor([0.7, 0.3, 0.0]), counts, 5, replace_from=0, replace_to=1)
    assert temperature.tolist() == pytest.approx([0.7, 0.7, 1.0, 1.0, 1.0])
    top_k = expand_batch_to_tokens(torch.tensor([50, 20, 3], dtype=torch.int32), counts, 5)
    assert top_k.tolist() == [50, 50, 3, 3, 3]
    assert top_k.dtype == torch.int32


@pytest.mark.parametrize("name", ["model", "max_num_seqs", "speculative_config"])
def test_the_engine_args_cannot_contradict_the_spec(name: str) -> None:
    with pytest.raises(ValueError, match=f"args.{name} conflicts with"):
        VllmEngineSpec(args={name: 1})
