"""What Ray is asked for: by the spec alone."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from regen.run.fleet.placement import Placement, own_placement, placement_of
from regen.spec import EndpointSpec, FakeEngineSpec, OpenaiEngineSpec, VllmEngineSpec

OVER_NODES = {"distributed_executor_backend": "ray"}
SERVER = EndpointSpec(url="http://10.0.0.1:8000/v1")


def vllm(gpus: float, **args: Any) -> VllmEngineSpec:
    return VllmEngineSpec(gpus_per_replica=gpus, args=args)


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        (VllmEngineSpec(), Placement(1, 0)),
        (vllm(0.5), Placement(1, 0.5)),
        (vllm(8, tensor_parallel_size=8), Placement(1, 8)),
        (vllm(8, tensor_parallel_size=4, data_parallel_size=2, enable_expert_parallel=True), Placement(1, 8)),
        (vllm(8, tensor_parallel_size=4, pipeline_parallel_size=2), Placement(1, 8)),
        (vllm(16, tensor_parallel_size=8, pipeline_parallel_size=2, **OVER_NODES), Placement(1, 0, bundles=16)),
        (vllm(1, **OVER_NODES), Placement(1, 0, bundles=1)),
        (FakeEngineSpec(cpus_per_replica=2), Placement(2, 0)),
    ],
)
def test_an_engine_lies_on_one_node_unless_the_spec_names_rays_executor(engine: Any, expected: Placement) -> None:
    """Sizes alone spread nothing: pipeline stages may be on one node."""
    assert own_placement(engine) == placement_of(engine, 0) == expected


def test_each_bundle_has_one_gpu_and_the_cpus_of_the_spec() -> None:
    """vLLM refuses bundles with more GPUs. The actor's CPUs must be in the first."""
    spread = own_placement(vllm(2, pipeline_parallel_size=2, **OVER_NODES))
    assert spread.bundle == {"GPU": 1, "CPU": 1}
    assert spread.options == {"num_cpus": 1, "num_gpus": 0}
    assert Placement(0, 0, bundles=2).bundle == {"GPU": 1}


def test_a_server_takes_nothing_beside_engines_of_our_own() -> None:
    mixed = VllmEngineSpec(gpus_per_replica=2, args={"tensor_parallel_size": 2}, endpoints=[SERVER])
    assert [placement_of(mixed, slot) for slot in range(2)] == [Placement(0, 0), Placement(1, 2)]
    assert placement_of(OpenaiEngineSpec(endpoints=[SERVER], cpus_per_replica=0.5), 0) == Placement(0.5, 0)


@pytest.mark.parametrize(
    ("gpus", "args", "said"),
    [
        (4, {"tensor_parallel_size": 8}, "tensor_parallel_size 8 = 8 devices, and gpus_per_replica is 4"),
        (0.5, {"tensor_parallel_size": 2}, "Set gpus_per_replica to 2"),
        (8, {"tensor_parallel_size": 4, "data_parallel_size": 4}, "data_parallel_size 4 = 16 devices"),
        (1.5, {}, "whole GPUs"),
        (8, {"tensor_parallel_size": 4, **OVER_NODES}, "ask for 4 devices"),
        (0, {"tensor_parallel_size": 4, **OVER_NODES}, "gpus_per_replica is 0"),
        (4, {"tensor_parallel_size": 2, "data_parallel_size": 2, **OVER_NODES}, "every rank"),
        (4, {"data_parallel_size": 4, "data_parallel_backend": "ray"}, "data_parallel_backend"),
        (8, {"tensor_parallel_size": 8, "nnodes": 2}, "args.nnodes"),
        (1, {"data_parallel_rank": 1}, "args.data_parallel_rank"),
    ],
)
def test_sizes_that_no_placement_serves_are_refused_with_the_spec(gpus: float, args: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        vllm(gpus, **args)


def test_the_cpu_engine_may_be_divided_without_gpus() -> None:
    assert own_placement(vllm(0, tensor_parallel_size=2)) == Placement(1, 0)
