"""What only vLLM can show; the arguments that it is started with need no engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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


def test_several_devices_are_children_of_the_engine_unless_the_spec_says_otherwise() -> None:
    """Left alone, vLLM looks whether it is in a placement group, and that may be one that the driver is in."""
    tensor = engine_arguments("m", None, False, parallel(8, tensor_parallel_size=8, enable_expert_parallel=True), None)
    assert tensor["distributed_executor_backend"] == "mp"
    assert (tensor["tensor_parallel_size"], tensor["enable_expert_parallel"]) == (8, True)
    over_nodes = parallel(2, pipeline_parallel_size=2, distributed_executor_backend="ray")
    assert engine_arguments("m", None, False, over_nodes, None)["distributed_executor_backend"] == "ray"
    assert "distributed_executor_backend" not in engine_arguments("m", None, False, VllmEngineSpec(), None)


def test_slots_are_those_of_all_data_parallel_ranks_together() -> None:
    """vLLM's limit is each rank's: 64 would be 128 with two ranks."""
    assert engine_arguments("m", None, False, parallel(2, data_parallel_size=2), None)["max_num_seqs"] == 32
    uneven = VllmEngineSpec(gpus_per_replica=3, slots=64, args={"data_parallel_size": 3})
    assert engine_arguments("m", None, False, uneven, None)["max_num_seqs"] == 22


@pytest.mark.engine  # it imports vLLM, which takes a while; none is started
@pytest.mark.parametrize(
    ("args", "executor", "world", "ranks"),
    [
        ({"tensor_parallel_size": 3}, "mp", 3, 1),
        ({"data_parallel_size": 2}, "mp", 1, 2),
        ({"pipeline_parallel_size": 2, "distributed_executor_backend": "ray"}, "ray", 2, 1),
    ],
)
def test_vllm_makes_of_it_what_is_reserved(
    smollm2: Path, args: dict[str, Any], executor: str, world: int, ranks: int
) -> None:
    pytest.importorskip("vllm")
    from vllm.engine.arg_utils import AsyncEngineArgs

    spec = parallel(world * ranks, enforce_eager=True, **args)
    given = AsyncEngineArgs(**engine_arguments(str(smollm2), None, False, spec, None))
    parallel_config = given.create_engine_config().parallel_config
    assert parallel_config.distributed_executor_backend == executor
    assert (parallel_config.world_size, parallel_config.data_parallel_size) == (world, ranks)
    assert parallel_config.world_size_across_dp == spec.devices
    assert parallel_config.data_parallel_size_local == ranks, "all ranks are this process's children"


def parallel(gpus: float, **args: Any) -> VllmEngineSpec:
    return VllmEngineSpec(gpus_per_replica=gpus, slots=64, args=args)
