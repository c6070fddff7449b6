"""What is sent to a server for one generation, by kind of server, and what of it that kind does not take. Pure.

Every sampling field is sent: a server fills what is missing from its own defaults. What a server would drop without a
word is named by `not_taken`, and such a request is never sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from regen.records import GenerationRequest, Sampling
from regen.served import ServerKind

# New tokens per event, as of the engine in this process.
PROGRESS_TOKENS = 64
# vLLM ignores fields that it does not know; this one is known to be read from here on.
_REPETITION_SINCE = (0, 32)
_MOST_STOPS = 4
GENERATE_PATH: Mapping[ServerKind, str] = {
    ServerKind.VLLM: "/v1/completions",
    ServerKind.SGLANG: "/generate",
    ServerKind.OTHER: "/v1/completions",
}


def generation_body(kind: ServerKind, model: str, request: GenerationRequest) -> dict[str, Any]:
    """For `GENERATE_PATH`; the answer comes as a stream of events."""
    bodies: dict[ServerKind, Callable[[str, GenerationRequest], dict[str, Any]]] = {
        ServerKind.VLLM: _vllm,
        ServerKind.SGLANG: _sglang,
        ServerKind.OTHER: _plain,
    }
    return bodies[kind](model, request)


def score_body(kind: ServerKind, model: str, whole: list[int]) -> dict[str, Any]:
    """One pass over these ids, rated; one token is sampled after it, as no server takes none everywhere."""
    if kind is ServerKind.SGLANG:
        sampling = {"max_new_tokens": 1, "temperature": 0.0}
        rated = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 1}
        return {"input_ids": whole, "sampling_params": sampling, "stream": False, **rated}
    return {
        "model": model,
        "prompt": whole,
        "max_tokens": 1,
        "temperature": 0.0,
        "prompt_logprobs": 1,
        "return_token_ids": True,
        "add_special_tokens": False,
    }


def not_taken(kind: ServerKind, version: str | None, speculates: bool, sampling: Sampling) -> tuple[str, ...]:
    """Each field that this server would refuse or drop, and why; empty: it takes them all."""
    found = []
    if sampling.min_p and speculates and kind is not ServerKind.OTHER:
        why = "refuses it" if kind is ServerKind.VLLM else "verifies drafts without it"
        found.append(f"min_p ({kind.value} {why} while speculation is on)")
    if sampling.repetition_max_pattern_tokens and not _detects_repetition(kind, version):
        found.append(f"repetition_detection (read by vLLM from 0.32 on; this is {kind.value} {version or 'unknown'})")
    if kind is ServerKind.SGLANG:
        found.extend(_penalties(speculates, sampling))
    return (*found, *(_beyond_openai(sampling) if kind is ServerKind.OTHER else ()))


def _penalties(speculates: bool, sampling: Sampling) -> Iterator[str]:
    """SGLang's are others than vLLM's, and it takes them all the same."""
    if sampling.repetition_penalty != 1:
        yield (
            f"repetition_penalty ({sampling.repetition_penalty:g}: sglang leaves the prompt's tokens out of it; set"
            " sampling.repetition_penalty: 1 to sample without, also where the target's generation_config.json has it)"
        )
    for name in ("presence_penalty", "frequency_penalty"):
        if speculates and getattr(sampling, name):
            yield f"{name} ({getattr(sampling, name):g}: sglang relaxes it while speculation is on; 0 is off)"


def _beyond_openai(sampling: Sampling) -> list[str]:
    """OpenAI's own interface has no such fields, and a server of unknown kind may drop them."""
    found = []
    if sampling.top_k > 0:
        found.append(f"top_k ({sampling.top_k}; 0 is no limit)")
    if sampling.min_p:
        found.append(f"min_p ({sampling.min_p:g}; 0 is off)")
    if sampling.repetition_penalty != 1:
        found.append(f"repetition_penalty ({sampling.repetition_penalty:g}; 1 is off)")
    if len(sampling.stop) > _MOST_STOPS:
        found.append(f"stop (more than {_MOST_STOPS} strings)")
    return found


def _detects_repetition(kind: ServerKind, version: str | None) -> bool:
    if kind is not ServerKind.VLLM or version is None:
        return False
    parts = version.split(".")[:2]
    return len(parts) == 2 and all(map(str.isdecimal, parts)) and tuple(map(int, parts)) >= _REPETITION_SINCE


def _common(model: str, request: GenerationRequest) -> dict[str, Any]:
    sampling = request.sampling
    return {
        "model": model,
        "prompt": list(request.prompt_token_ids),
        "max_tokens": request.cap,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "stop": list(sampling.stop),
        "seed": request.seed,
        "n": 1,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def _plain(model: str, request: GenerationRequest) -> dict[str, Any]:
    """OpenAI's own fields, and none that has no value: servers differ in how they read null and an empty list.

    The ids are asked for all the same: whoever gives them is taken at its word.
    """
    body = {name: value for name, value in _common(model, request).items() if value not in (None, [])}
    return {**body, "return_token_ids": True}


def _vllm(model: str, request: GenerationRequest) -> dict[str, Any]:
    sampling = request.sampling
    return {
        **_common(model, request),
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "stop_token_ids": list(sampling.stop_token_ids),
        "ignore_eos": False,
        "min_tokens": 0,
        "include_stop_str_in_output": False,
        "skip_special_tokens": True,
        "add_special_tokens": False,
        "repetition_detection": _repetition(sampling),
        "return_token_ids": True,
        "stream_interval": PROGRESS_TOKENS,
        # Unset means on, where the server has one: another distribution.
        "watermarking": False,
    }


def _repetition(sampling: Sampling) -> dict[str, int] | None:
    if not sampling.repetition_max_pattern_tokens:
        return None
    return {
        "max_pattern_size": sampling.repetition_max_pattern_tokens,
        "min_pattern_size": sampling.repetition_min_pattern_tokens,
        "min_count": sampling.repetition_min_count,
    }


def _sglang(model: str, request: GenerationRequest) -> dict[str, Any]:
    """No model is named: an SGLang server has one. It refuses sampling parameters that it does not know."""
    sampling = request.sampling
    parameters: dict[str, Any] = {
        "max_new_tokens": request.cap,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,
        "min_p": sampling.min_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": sampling.repetition_penalty,
        "stop": list(sampling.stop),
        "stop_token_ids": list(sampling.stop_token_ids),
        "ignore_eos": False,
        "min_new_tokens": 0,
        "skip_special_tokens": True,
        "n": 1,
        "stream_interval": PROGRESS_TOKENS,
    }
    if request.seed is not None:
        # A whole number of 32 bits there, as far as its sampler goes.
        parameters["sampling_seed"] = request.seed % 2**31
    return {"input_ids": list(request.prompt_token_ids), "sampling_params": parameters, "stream": True}
