"""vLLM in this process (`AsyncLLM`): ids in, ids out.

Guarantees: the prompt ids go to the engine as given; every sampled id comes back, the closing one included; method and
draft of speculation are always passed explicitly; acceptance is recorded per request where vLLM gives it. Text is made
elsewhere: the engine detokenises only when stop strings need it.

Costs: 17 to 40 s to start on a CPU, three processes. `start` runs in a thread, so that the event loop stays alive.
Built on vLLM 0.32: its stat logger interface is not stable, see `_Totals`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from regen.errors import EngineDied, EngineStartFailed, RowFailed, RowRefused
from regen.records import (
    Acceptance,
    Completion,
    EngineCounters,
    EngineInfo,
    FinishReason,
    GenerationRequest,
    Sampling,
    Stage,
    StepTrace,
    TokenScore,
)
from regen.spec import SpeculationSpec, VllmEngineSpec

# New tokens per streamed output: evidence of life without a flood (one output per token costs the event loop dearly).
PROGRESS_TOKENS = 64
# Engines that were shut down are kept until the process ends. vLLM 0.32 leaves their ZeroMQ context to the garbage
# collector, which warns, and may block while it ends the context. A worker's process has one engine in its life.
_ENDED: list[Any] = []
_CPU_WORKER = "regen.engines.vllm_cpu_worker.WorkerExtension"


def import_vllm() -> None:
    """What `VllmEngine.start` imports: seconds, and none the second time. Starts nothing. Raises EngineStartFailed."""
    try:
        import vllm.v1.engine.async_llm  # noqa: F401
    except Exception as error:  # a library of the wrong CUDA, say: whatever it raises
        raise EngineStartFailed(f"vLLM cannot be imported on this node: {type(error).__name__}: {error}") from error


class VllmEngine:
    """`protocols.Engine` over one `AsyncLLM`."""

    def __init__(
        self,
        model: str,
        revision: str | None,
        trust_remote_code: bool,
        spec: VllmEngineSpec,
        speculation: SpeculationSpec | None,
        draft_folder: Callable[[], Path] | None = None,
        keeps_steps: bool = False,
    ) -> None:
        """`model` is what vLLM loads: a local folder, or a hub name with the commit that the run has recorded.

        `draft_folder` is called while the engine starts, in a thread: it makes the draft's folder that vLLM is given in
        place of `speculation.draft`. `keeps_steps`: completions hold their verification steps.
        """
        self._keeps_steps = keeps_steps
        self._model = model
        self._revision = revision
        self._trust_remote_code = trust_remote_code
        self._spec = spec
        self._speculation = speculation
        self._draft_folder = draft_folder
        self._totals = _Totals()
        self._llm: Any = None

    async def start(self) -> EngineInfo:
        try:
            self._llm = await asyncio.to_thread(self._load)
        except Exception as error:
            raise EngineStartFailed(
                f"vLLM did not start with model {self._model!r}: {type(error).__name__}: {error}."
                " Its own log, above or in the Ray session's logs, has the root cause."
            ) from error
        return self._info()

    async def generate(self, request: GenerationRequest, on_tokens: Callable[[int], None]) -> Completion:
        token_ids: list[int] = []

        def take(new: Sequence[int]) -> None:
            token_ids.extend(new)
            on_tokens(len(new))

        last = await self._last_output(
            list(request.prompt_token_ids), _sampling_params(request), request.request_id, take
        )
        return _completion(last, token_ids, self._keeps_steps)

    async def _last_output(
        self, prompt: list[int], parameters: Any, request_id: str, take: Callable[[Sequence[int]], None]
    ) -> Any:
        """One request to its end; `take` gets new ids as they come. vLLM's errors become ours."""
        from vllm.exceptions import VLLMClientError
        from vllm.inputs.engine import tokens_input
        from vllm.v1.engine.exceptions import EngineDeadError

        last: Any = None
        try:
            async for last in self._llm.generate(tokens_input(prompt), parameters, request_id):
                take(last.outputs[0].token_ids)
        except EngineDeadError as error:
            raise EngineDied(f"vLLM's engine process is gone: {error}") from error
        except VLLMClientError as error:
            raise RowRefused(Stage.GENERATE, "engine_refused", str(error)) from error
        except Exception as error:
            raise RowFailed("engine_error", f"{type(error).__name__}: {error}") from error
        return last

    async def score(self, prompt_token_ids: tuple[int, ...], token_ids: tuple[int, ...]) -> tuple[TokenScore, ...]:
        """From one prefill over prompt and tokens, whose log probabilities vLLM gives; nothing is drafted in it."""
        from vllm import SamplingParams

        whole = [*prompt_token_ids, *token_ids]
        parameters = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=1, detokenize=False)
        last = await self._last_output(whole, parameters, f"score-{time.monotonic_ns()}", lambda count: None)
        places = last.prompt_logprobs[len(prompt_token_ids) :]
        return tuple(_token_score(token_id, rated) for token_id, rated in zip(token_ids, places, strict=True))

    def counters(self) -> EngineCounters:
        counters = self._totals.counters
        # Counters that never came are not a zero: a dead draft and a missing counter are different failures.
        return counters if self._speculation else replace(counters, acceptance=None)

    async def close(self) -> None:
        llm, self._llm = self._llm, None
        if llm is not None:
            await asyncio.to_thread(llm.shutdown)
            # AsyncLLM's __del__ shuts down once more, and at the interpreter's exit it fails at that, aloud.
            llm.shutdown = _nothing
            _ENDED.append(llm)

    def _load(self) -> Any:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.platforms import current_platform
        from vllm.usage.usage_lib import UsageContext
        from vllm.v1.engine.async_llm import AsyncLLM

        draft = None if self._draft_folder is None else str(self._draft_folder())
        arguments = AsyncEngineArgs(
            **engine_arguments(
                self._model,
                self._revision,
                self._trust_remote_code,
                self._spec,
                self._speculation,
                draft,
                is_cpu=current_platform.is_cpu(),
                keeps_steps=self._keeps_steps,
            )
        )
        # vLLM sizes its batches by how it is used: as an offline `LLM` (16k tokens a step on large GPUs), or as a
        # server that minds latency (half of that or less). A batch run is the former.
        return AsyncLLM.from_engine_args(
            arguments, usage_context=UsageContext.LLM_CLASS, stat_loggers=[self._totals.logger_factory()]
        )

    def _info(self) -> EngineInfo:
        import vllm
        from vllm.platforms import current_platform

        return EngineInfo(
            engine=f"vllm {vllm.__version__} ({current_platform.device_type})",
            draft=self._speculation.draft_name if self._speculation else None,
            max_model_len=int(self._llm.model_config.max_model_len),
            slots=min(self._spec.slots, int(self._llm.vllm_config.scheduler_config.max_num_seqs) * _ranks(self._spec)),
        )


def engine_arguments(
    model: str,
    revision: str | None,
    trust_remote_code: bool,
    spec: VllmEngineSpec,
    speculation: SpeculationSpec | None,
    draft: str | None = None,
    is_cpu: bool = False,
    keeps_steps: bool = False,
) -> dict[str, Any]:
    """What `AsyncEngineArgs` is made with. The spec's own fields win; `spec.args` may not name them (spec.py).

    `draft`, if given, is loaded in place of `speculation.draft`. On a CPU, workers that speculate are mended. Raises
    ValueError where the spec has a worker extension of its own then: vLLM takes one.

    Several devices are vLLM's own child processes (`mp`) unless the spec says `ray`: left alone, vLLM decides by
    whether it finds itself in a placement group. `engine.slots` are divided among data-parallel ranks: vLLM's limit is
    each rank's.
    """
    arguments: dict[str, Any] = {
        "disable_log_stats": True,  # vLLM's periodic log lines; regen's own stat logger is installed all the same
        "enable_log_requests": False,
        **({"distributed_executor_backend": "mp"} if spec.devices > 1 else {}),
        **spec.args,
        "model": model,
        "revision": revision,
        "tokenizer_revision": revision,
        "trust_remote_code": trust_remote_code,
        "max_model_len": spec.max_model_len,
        "max_num_seqs": math.ceil(spec.slots / _ranks(spec)),
    }
    if speculation is not None:
        arguments["speculative_config"] = speculative_config(speculation, draft)
        arguments["per_request_spec_decode_metrics"] = "detailed" if keeps_steps else "summary"
        if is_cpu:
            if "worker_extension_cls" in spec.args:
                raise ValueError(f"engine.args.worker_extension_cls: on a CPU, speculation needs {_CPU_WORKER} there")
            arguments["worker_extension_cls"] = _CPU_WORKER
    return arguments


def _ranks(spec: VllmEngineSpec) -> int:
    """Data-parallel ranks: whole engines behind one front, each with its own batch."""
    return spec.parallel.get("data_parallel_size", 1)


def speculative_config(speculation: SpeculationSpec, draft: str | None = None) -> dict[str, Any]:
    """vLLM's own form. The method is always explicit: with none, vLLM guesses it from words in the draft's path."""
    config = {**speculation.args, "method": speculation.method, "num_speculative_tokens": speculation.num_tokens}
    if speculation.draft is not None:
        config["model"] = draft or speculation.draft
    return config


class _Totals:
    """Sums what vLLM reports per step, over all data-parallel ranks.

    vLLM calls `record` on the event loop after each step, `spec_decoding_stats` being absent in steps without drafts.
    """

    def __init__(self) -> None:
        self.counters = EngineCounters()
        self._running: dict[int, tuple[int, int, float]] = {}

    def logger_factory(self) -> Callable[..., Any]:
        from vllm.v1.metrics.loggers import StatLoggerBase

        totals = self

        class TotalsLogger(StatLoggerBase):  # type: ignore[misc, unused-ignore]
            def __init__(self, vllm_config: Any, engine_index: int = 0) -> None: ...

            def record(
                self,
                scheduler_stats: Any,
                iteration_stats: Any,
                mm_cache_stats: Any = None,
                engine_idx: int = 0,
            ) -> None:
                if iteration_stats is not None:
                    totals.add_iteration(iteration_stats)
                if scheduler_stats is not None:
                    totals.add_step(scheduler_stats, engine_idx)

            def log_engine_initialized(self) -> None: ...

        return TotalsLogger

    def add_iteration(self, stats: Any) -> None:
        self.counters = replace(
            self.counters,
            output_tokens=self.counters.output_tokens + stats.num_generation_tokens,
            prompt_tokens=self.counters.prompt_tokens + stats.num_prompt_tokens,
            preemptions=self.counters.preemptions + stats.num_preempted_reqs,
        )

    def add_step(self, stats: Any, engine_index: int) -> None:
        self._running[engine_index] = (stats.num_running_reqs, stats.num_waiting_reqs, stats.kv_cache_usage)
        states = self._running.values()
        self.counters = replace(
            self.counters,
            prefix_hit_tokens=self.counters.prefix_hit_tokens + stats.prefix_cache_stats.hits,
            running=sum(running for running, _, _ in states),
            waiting=sum(waiting for _, waiting, _ in states),
            kv_usage=max(usage for _, _, usage in states),
        )
        if (step := stats.spec_decoding_stats) is not None:
            seen = Acceptance(
                step.num_drafts,
                step.num_draft_tokens,
                step.num_accepted_tokens,
                tuple(step.num_accepted_tokens_per_pos),
            )
            self.counters = replace(self.counters, acceptance=(self.counters.acceptance or Acceptance()) + seen)


def _nothing(timeout: float | None = None) -> None: ...


def _sampling_params(request: GenerationRequest) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    sampling = request.sampling
    return SamplingParams(
        max_tokens=request.cap,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        stop=list(sampling.stop),
        stop_token_ids=list(sampling.stop_token_ids),
        seed=request.seed,
        detokenize=bool(sampling.stop),
        output_kind=RequestOutputKind.DELTA,
        stream_interval=PROGRESS_TOKENS,
        skip_clone=True,
        repetition_detection=_repetition_detection(sampling),
    )


def _repetition_detection(sampling: Sampling) -> Any:
    """None: vLLM does not look for repeated patterns."""
    from vllm.sampling_params import RepetitionDetectionParams

    if not sampling.repetition_max_pattern_tokens:
        return None
    return RepetitionDetectionParams(
        max_pattern_size=sampling.repetition_max_pattern_tokens,
        min_pattern_size=sampling.repetition_min_pattern_tokens,
        min_count=sampling.repetition_min_count,
    )


def _completion(last: Any, token_ids: list[int], keeps_steps: bool = False) -> Completion:
    """From the last output of a stream. vLLM ends a stream with a finished output or an exception."""
    output = last.outputs[0]
    if output.finish_reason not in set(FinishReason):
        raise RowFailed(f"finished_{output.finish_reason}", f"after {len(token_ids)} tokens")
    times = last.metrics
    return Completion(
        token_ids=tuple(token_ids),
        finish_reason=FinishReason(output.finish_reason),
        stop_reason=None if output.stop_reason is None else str(output.stop_reason),
        acceptance=_acceptance(output.spec_decode_metrics),
        queue_seconds=max(0.0, times.scheduled_ts - times.queued_ts),
        first_token_seconds=max(0.0, times.first_token_ts - times.scheduled_ts),
        decode_seconds=max(0.0, times.last_token_ts - times.first_token_ts),
        steps=_steps(output.spec_decode_metrics) if keeps_steps else None,
    )


def _steps(metrics: Any) -> StepTrace | None:
    """Not from what is streamed: vLLM merges deltas that wait for their reader, whatever the stream interval."""
    if metrics is None:
        return None
    return StepTrace(tuple(metrics.per_step_drafted), tuple(metrics.per_step_accepted))


def _token_score(token_id: int, rated: Any) -> TokenScore:
    """From vLLM's answer for one prompt position: the token that stands there and the likeliest one, by id."""
    best_id = max(rated, key=lambda candidate: rated[candidate].logprob)
    return TokenScore(token_id, rated[token_id].logprob, best_id, rated[best_id].logprob)


def _acceptance(metrics: Any) -> Acceptance | None:
    """From vLLM's histogram of accepted tokens per verification step (index = accepted draft tokens)."""
    if metrics is None:
        return None
    histogram = list(metrics.histogram)
    return Acceptance(
        drafts=sum(histogram),
        drafted=metrics.num_draft_tokens,
        accepted=sum(accepted * steps for accepted, steps in enumerate(histogram)),
        accepted_by_position=tuple(sum(histogram[position + 1 :]) for position in range(len(histogram) - 1)),
    )
