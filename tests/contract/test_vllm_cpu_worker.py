"""What vLLM's CPU workers are mended with, against what the kernel is documented to do."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.engine  # it imports vLLM, which takes a while, and so not to collect it; none is started


@pytest.fixture(scope="module")
def torch() -> Any:
    """PyTorch, with vLLM beside it."""
    pytest.importorskip("vllm")
    return pytest.importorskip("torch")


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_each_value_is_written_for_all_tokens_of_its_request(torch, dtype):
    from regen.engines.vllm_cpu_worker import expand

    dtype = getattr(torch, dtype)
    output = torch.full((6,), -7, dtype=dtype)
    expand(output, torch.tensor([3, 0, 5], dtype=dtype), torch.tensor([2, 5, 6], dtype=torch.int32), 0, 1, 32)
    assert output.tolist() == [3, 3, 1, 1, 1, 5]


def test_temperatures_below_one_are_not_rounded(torch):
    from regen.engines.vllm_cpu_worker import expand

    output = torch.empty(2)
    expand(output, torch.tensor([0.6]), torch.tensor([2], dtype=torch.int32), -1, 1)
    assert output.tolist() == pytest.approx([0.6, 0.6])


def test_vllm_launches_it_in_place_of_its_own(torch):
    from vllm.v1.sample import rejection_sampler

    from regen.engines.vllm_cpu_worker import KERNEL

    temperature = torch.tensor([0.6, 0.9])
    cumulated = torch.tensor([1, 3], dtype=torch.int32)
    assert KERNEL.startswith(rejection_sampler.__name__)
    expanded = rejection_sampler.expand_batch_to_tokens(temperature, cumulated, 3)
    assert expanded.tolist() == pytest.approx([0.6, 0.9, 0.9])


def test_a_step_without_any_drafted_token_passes_top_k(torch):
    from vllm.v1.sample import rejection_sampler

    class Sampling:
        all_greedy = False
        temperature, top_k, top_p = torch.tensor([1.0]), torch.tensor([5], dtype=torch.int32), None

    nothing, none_drafted = torch.empty((0, 16)), torch.tensor([0], dtype=torch.int32)
    assert rejection_sampler.apply_sampling_constraints(nothing, none_drafted, Sampling()).shape == (0, 16)
    one, drafted = torch.arange(16.0).unsqueeze(0), torch.tensor([1], dtype=torch.int32)
    kept = rejection_sampler.apply_sampling_constraints(one, drafted, Sampling())
    assert int(kept.isfinite().sum()) == 5
