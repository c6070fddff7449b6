"""The spec file: strict data, checked in full before anything is started.

Every field is explained beside it; `regen init` prints these explanations. Unknown keys are refused, conflicts name
both fields, an error names the path of the key.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from regen.errors import SpecError

_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB|kB|MB|GB)?\s*$")
_UNITS = {None: 1, "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def parse_size_bytes(value: object) -> object:
    """`64MiB` -> 67108864. Anything else is passed on for pydantic to judge."""
    if isinstance(value, str) and (found := _SIZE.match(value)):
        return int(float(found[1]) * _UNITS[found[2]])
    return value


# Each multiplies the devices that one vLLM engine drives; vLLM's names.
PARALLEL_ARGS = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "prefill_context_parallel_size",
)
# They divide one engine among processes that somebody starts one by one; a replica is one process that starts its own.
_PROCESS_ARGS = (
    "data_parallel_external_lb",
    "data_parallel_hybrid_lb",
    "data_parallel_rank",
    "data_parallel_size_local",
    "data_parallel_start_rank",
    "nnodes",
    "node_rank",
)

# What of vLLM's own settings may change between sessions: where and how fast it computes, not what. Anything else is
# taken to shape answers.
_FREE_VLLM_ARGS = frozenset(
    {
        "async_scheduling",
        "block_size",
        "compilation_config",
        "cudagraph_capture_sizes",
        "data_parallel_backend",
        "data_parallel_size",
        "disable_custom_all_reduce",
        "disable_log_stats",
        "distributed_executor_backend",
        "download_dir",
        "enable_chunked_prefill",
        "enable_expert_parallel",
        "enable_prefix_caching",
        "enforce_eager",
        "gpu_memory_utilization",
        "kv_cache_memory_bytes",
        "load_format",
        "max_num_batched_tokens",
        "max_parallel_loading_workers",
        "num_gpu_blocks_override",
        "pipeline_parallel_size",
        "stream_interval",
        "tensor_parallel_size",
    }
)
_SHAPING_FAKE_FIELDS = ("answer_tokens", "answer_spread", "vocabulary", "end_token_id", "answers")

# vLLM's name for how many tokens are drafted by batch size: a list of [first size, last size, tokens].
SCHEDULE_ARG = "num_speculative_tokens_per_batch_size"

Method = Literal["ngram", "eagle", "eagle3", "mtp", "draft_model", "dflash", "medusa", "suffix"]
# They copy from text that repeats itself: no draft is loaded, and a step may draft nothing.
DRAFTLESS_METHODS = ("ngram", "suffix")
# What of the speculation section says how it is watched, and not how it drafts.
SPECULATION_POLICY = ("gate", "guard", "calibrate", "warmup", "calibration")

# What of the engine section is about servers alone.
SERVER_FIELDS = ("endpoints", "ids", "token_timeout_seconds", "outage_seconds", "request_attempts")

# `store.endpoint` for AWS itself.
AWS_ENDPOINT = "aws"
_ENDPOINT = re.compile(r"^https?://[^/\s@]+(?:/[^\s@]*)?$")

_SERVER = re.compile(r"^\s*https?://[^/\s@?#]+(?:/[^\s@?#]*)?\s*$")
_VARIABLE = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")

# Settings of engines' speculation that change what is sampled, and the values of them that do not. vLLM's names, of
# this and of earlier versions, and SGLang's.
LOSSY_SPECULATION_ARGS: dict[str, tuple[object, ...]] = {
    "rejection_sample_method": (None, "standard", "block"),
    "synthetic_acceptance_rates": (None,),
    "synthetic_acceptance_length": (None,),
    "acceptance_method": (None, "rejection_sampler"),
    "spec_decoding_acceptance_method": (None, "rejection_sampler"),
    "posterior_threshold": (None,),
    "posterior_alpha": (None,),
    "typical_acceptance_sampler_posterior_threshold": (None,),
    "typical_acceptance_sampler_posterior_alpha": (None,),
    "speculative_accept_threshold_single": (None, 1, 1.0),
    "speculative_accept_threshold_acc": (None, 1, 1.0),
}

SizeBytes = Annotated[int, BeforeValidator(parse_size_bytes), Field(gt=0)]  # B, kB, MB, GB, KiB, MiB, GiB
Share = Annotated[float, Field(ge=0, le=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class TemplateKwargsShare(_Strict):
    """One part of a mix of template kwargs."""

    value: dict[str, Any] = Field(description="Given to the chat template, over target.template_kwargs.")
    share: Share = Field(description="Share of rows, by row id. Shares add up to 1.")


class ReasoningShare(_Strict):
    """Reasoning in a part of the rows."""

    share: Share = Field(description="Share of rows that reason, by row id.")


def _on_or_off(value: object) -> object:
    """YAML reads a bare `on` as true."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


class TargetSpec(_Strict):
    """The model whose answers are wanted."""

    model: str = Field(description="A local folder, or a model on the Hugging Face hub.")
    revision: str | None = Field(None, description="Hub only: branch, tag or commit. Resolved and recorded.")
    profile: Literal["auto", "none", "kimi-k2", "qwen3", "deepseek", "llama3", "smollm2"] = Field(
        "auto", description="A family's quirks, as data. auto: by config.json and template."
    )
    reasoning: Annotated[Literal["on", "off"] | ReasoningShare | None, BeforeValidator(_on_or_off)] = Field(
        None, description="on, off, or {share: 0.3} of the rows; null: as the template has it. Recorded per row."
    )
    reasoning_parser: str = Field("auto", description="vLLM's name for it, none, or auto: the profile's.")
    tool_parser: str = Field("auto", description="vLLM's name for it, none, or auto: the profile's.")
    trust_remote_code: bool = Field(
        False, description="Run Python code that comes with target and draft. Off unless named."
    )
    template_kwargs: dict[str, Any] = Field(
        default_factory=dict, description="Given to the chat template, for example {thinking: true}. Recorded per row."
    )
    template_kwargs_mix: list[TemplateKwargsShare] = Field(
        default_factory=list,
        description="Drawn per row: [{value: {thinking: true}, share: 0.7}, {value: {thinking: false}, share: 0.3}].",
    )

    @model_validator(mode="after")
    def _checked(self) -> TargetSpec:
        mix = self.template_kwargs_mix
        if mix and abs(sum(part.share for part in mix) - 1) > 1e-6:
            raise ValueError("template_kwargs_mix: the shares of a mix must add up to 1")
        if mix and self.reasoning is not None:
            raise ValueError("reasoning conflicts with template_kwargs_mix: each draws template kwargs per row")
        return self


class ReplicaRange(_Strict):
    """A fleet that takes what the cluster offers."""

    min: int = Field(1, ge=0, description="So many are kept to the end.")
    max: int = Field(ge=0, description="Never more.")

    @model_validator(mode="after")
    def _rises(self) -> ReplicaRange:
        if self.min > self.max:
            raise ValueError(f"replicas: min ({self.min}) is above max ({self.max})")
        return self


NO_ENGINES = ReplicaRange(min=0, max=0)
# `engine.replicas: auto`.
AUTO_REPLICAS = ReplicaRange(min=1, max=64)


class EndpointSpec(_Strict):
    """One server that somebody else runs: one replica."""

    url: str = Field(description="http://HOST:PORT, with or without /v1. No name, password or query in it.")
    api_key_env: str | None = Field(
        None, description="The environment variable with the server's key, on every node. The key stands nowhere else."
    )
    model: str | None = Field(None, description="The name it serves the target under. null: target.model, or its path.")
    slots: int | None = Field(None, ge=1, description="Requests sent to it at once. null: engine.slots.")
    server: Literal["auto", "vllm", "sglang", "other"] = Field("auto", description="Whose it is. auto: by its answers.")
    version: str | None = Field(None, description="Its version, or how that begins. null: any, recorded per row.")

    @model_validator(mode="before")
    @classmethod
    def _holds_no_secret(cls, data: Any) -> Any:
        """Before the fields' own checks: those print what they found."""
        if not isinstance(data, dict):
            return data
        if isinstance(url := data.get("url"), str) and not _SERVER.match(url):
            raise ValueError("url: http://HOST:PORT is wanted, without a name, password or query in it")
        if isinstance(name := data.get("api_key_env"), str) and not _VARIABLE.match(name):
            raise ValueError("api_key_env: it is the name of an environment variable (letters, digits, _), not the key")
        return data


class _EngineCommon(_Strict):
    """What engines and servers have in common.

    Replica slots are numbered: first the servers, in the order of `endpoints`, then engines of our own.
    """

    replicas: Annotated[int, Field(ge=1)] | ReplicaRange | Literal["auto"] = Field(
        1,
        description="Engines that run side by side; {min: 1, max: 8}: what the cluster offers, as it comes and goes;"
        " auto: {min: 1, max: 64}.",
    )
    slots: int = Field(64, ge=1, description="Sequences that one replica decodes at once.")
    max_model_len: int = Field(4096, ge=1, description="Prompt and answer together, in tokens.")
    start_timeout_seconds: float = Field(3600, gt=0, description="An engine not ready by then is replaced.")
    stall_timeout_seconds: float = Field(
        600, gt=0, description="Work assigned and no new token for so long: the row is given up, then the replica."
    )
    restarts: int = Field(
        3,
        ge=0,
        description="How often each replica may be replaced, good work apart. The last one's loss ends the run.",
    )
    endpoints: list[EndpointSpec] = Field(
        default_factory=list, description="Servers that somebody else runs: each is one replica more."
    )
    ids: Literal["exact", "retokenised"] = Field(
        "exact",
        description="exact: only servers that give the sampled ids. retokenised: of others, the text's ids, where they"
        " give the text back and are as many as the server counted; other answers fail.",
    )
    token_timeout_seconds: float = Field(300, gt=0, description="No new token for so long: the request is sent again.")
    outage_seconds: float = Field(
        120, gt=0, description="No answer and no token from a server for so long while it fails: it counts as gone."
    )
    request_attempts: int = Field(5, ge=1, description="How often one request is sent before its row's attempt fails.")

    @model_validator(mode="after")
    def _gives_up_on_the_request_first(self) -> _EngineCommon:
        if self.endpoints and self.token_timeout_seconds >= self.stall_timeout_seconds:
            raise ValueError(
                f"token_timeout_seconds ({self.token_timeout_seconds:g}) must be below stall_timeout_seconds"
                f" ({self.stall_timeout_seconds:g}): the request is sent again before the replica is given up"
            )
        if self.endpoints and self.outage_seconds >= self.stall_timeout_seconds:
            raise ValueError(
                f"outage_seconds ({self.outage_seconds:g}) must be below stall_timeout_seconds"
                f" ({self.stall_timeout_seconds:g}): a stall makes rows suspects, an outage does not"
            )
        return self

    @model_validator(mode="after")
    def _has_engines_of_its_kind(self) -> _EngineCommon:
        if isinstance(self.replicas, ReplicaRange) and not self.replicas.max:
            raise ValueError("replicas: max is 0, and a run with nothing but servers is kind: openai")
        return self

    @model_validator(mode="after")
    def _names_each_server_once(self) -> _EngineCommon:
        urls = [endpoint.url.strip().rstrip("/").removesuffix("/v1").rstrip("/") for endpoint in self.endpoints]
        for url in urls:
            if urls.count(url) > 1:
                raise ValueError(f"endpoints: {url} stands twice: name it once, with as many slots as it can take")
        return self

    @property
    def own(self) -> ReplicaRange:
        """How many engines of our own there may be."""
        if isinstance(self.replicas, int):
            return ReplicaRange(min=self.replicas, max=self.replicas)
        return AUTO_REPLICAS if self.replicas == "auto" else self.replicas

    @property
    def is_fixed(self) -> bool:
        """Every replica is there from the first moment to the last."""
        return self.own.min == self.own.max

    @property
    def fewest_replicas(self) -> int:
        """Servers, and the engines that are kept to the end."""
        return len(self.endpoints) + self.own.min

    @property
    def most_replicas(self) -> int:
        """Servers, and the most engines that there may be at once: slots are `range` of it."""
        return len(self.endpoints) + self.own.max

    def endpoint_of(self, slot: int) -> EndpointSpec | None:
        """The server of a slot; None: an engine of our own is there."""
        return self.endpoints[slot] if slot < len(self.endpoints) else None

    def slots_of(self, slot: int) -> int:
        """Sequences that the replica of this slot decodes at once."""
        endpoint = self.endpoint_of(slot)
        return self.slots if endpoint is None or endpoint.slots is None else endpoint.slots

    def slots_with(self, engines: int) -> int:
        """Sequences of the whole fleet with so many engines of our own."""
        return sum(map(self.slots_of, range(len(self.endpoints) + engines)))

    @property
    def most_slots(self) -> int:
        """Sequences of the whole fleet, at its largest."""
        return self.slots_with(self.own.max)


class VllmEngineSpec(_EngineCommon):
    """vLLM inside a Ray actor, one per replica."""

    kind: Literal["vllm"] = Field("vllm", description="vllm; openai: servers; fake: without a model.")
    gpus_per_replica: float = Field(0, ge=0, description="GPUs that Ray reserves for each replica. 0: the CPU engine.")
    cpus_per_replica: float = Field(
        1, ge=0, description="CPUs that Ray reserves for each replica; over several nodes, beside each of its GPUs."
    )
    args: dict[str, Any] = Field(
        default_factory=dict,
        description="Anything else AsyncEngineArgs takes, for example tensor_parallel_size. With"
        " distributed_executor_backend: ray, an engine may lie over several nodes.",
    )

    @property
    def parallel(self) -> dict[str, int]:
        """The parallel sizes above 1, by vLLM's names."""
        return {name: size for name in PARALLEL_ARGS if isinstance(size := self.args.get(name), int) and size > 1}

    @property
    def devices(self) -> int:
        """How many devices one engine drives."""
        return math.prod(self.parallel.values())

    @property
    def spans_nodes(self) -> bool:
        """Whether one engine may lie over several nodes: only where the spec says so, never guessed from sizes."""
        return self.args.get("distributed_executor_backend") == "ray"

    @model_validator(mode="after")
    def _devices_are_reserved(self) -> VllmEngineSpec:
        gpus = self.gpus_per_replica
        if gpus > 1 and gpus != int(gpus):
            raise ValueError(f"gpus_per_replica ({gpus:g}): above 1, Ray reserves whole GPUs only")
        if gpus and self.devices > max(gpus, 1):
            sizes = " x ".join(f"{name} {size}" for name, size in self.parallel.items())
            raise ValueError(
                f"args ask for {sizes} = {self.devices} devices, and gpus_per_replica is {gpus:g}: the engine gets"
                f" only the GPUs that are reserved for it. Set gpus_per_replica to {self.devices}, or lower the sizes"
            )
        return self

    @model_validator(mode="after")
    def _is_one_process(self) -> VllmEngineSpec:
        for name in (name for name in _PROCESS_ARGS if name in self.args):
            raise ValueError(
                f"args.{name}: it is for processes of one engine that are started one by one, and a replica starts its"
                " own. Leave it out; for an engine over several nodes set args.distributed_executor_backend to ray"
            )
        if self.args.get("data_parallel_backend", "mp") != "mp":
            raise ValueError(
                "args.data_parallel_backend: with ray, vLLM would take GPUs beside those that are reserved for the"
                " replica. Leave it out, or set engine.replicas instead of data_parallel_size"
            )
        return self

    @model_validator(mode="after")
    def _can_span_nodes(self) -> VllmEngineSpec:
        if not self.spans_nodes:
            return self
        if self.gpus_per_replica != self.devices:
            raise ValueError(
                f"args.distributed_executor_backend is ray, gpus_per_replica is {self.gpus_per_replica:g}, and the"
                f" parallel sizes ask for {self.devices} devices: over several nodes each device is one reserved GPU."
                " Make the two equal, or leave the executor out"
            )
        if "data_parallel_size" in self.parallel:
            raise ValueError(
                "args.data_parallel_size with distributed_executor_backend ray: every rank of vLLM would take the same"
                " GPUs. Set engine.replicas instead, or leave the executor out to keep the ranks on one node"
            )
        return self

    @model_validator(mode="after")
    def _no_second_truth(self) -> VllmEngineSpec:
        owners = {
            "model": "target.model",
            "tokenizer": "target.model",
            "revision": "target.revision",
            "trust_remote_code": "target.trust_remote_code",
            "max_model_len": "engine.max_model_len",
            "max_num_seqs": "engine.slots",
            "speculative_config": "speculation",
            "tokenizer_revision": "target.revision",
            "per_request_spec_decode_metrics": "speculation",
            "hf_token": "the environment variable HF_TOKEN (a spec is stored as it is)",
        }
        for name in sorted(owners.keys() & self.args.keys()):
            raise ValueError(f"args.{name} conflicts with {owners[name]}: set it there only")
        return self


class FakeFault(_Strict):
    """One scripted fault of the fake engine."""

    kind: Literal[
        "die",
        "hang",
        "freeze",
        "fail",
        "garbage",
        "refuse",
        "die_at_start",
        "hang_at_start",
        "salad",
        "counters_absent",
        "reject_drafts",
    ] = Field(
        description="die: every request fails from then on. hang: no more tokens. freeze: none"
        " for any request, from then on. fail: this attempt. refuse: for good."
        " Only with speculation on: salad, an answer's tokens shuffled; and from then on for good, counters_absent and"
        " reject_drafts."
    )
    prompt_ids: list[int] = Field(
        default_factory=list,
        description="Only at prompts in which these ids stand in a row; not with faults that last.",
    )
    replica: int | None = Field(None, ge=0, description="Only in this replica slot.")
    after_requests: int = Field(0, ge=0, description="Not before the engine has had so many requests.")
    times: int = Field(1, ge=1, description="How often it strikes in one engine's life.")
    every: int = Field(1, ge=1, description="It strikes at each so-many-th request that it could strike at.")
    lives: int = Field(1, ge=1, description="In how many engines of a slot, one replacing the other.")


class FakeAnswer(_Strict):
    """One scripted answer of the fake engine."""

    prompt_ids: list[int] = Field(min_length=1, description="Given where these ids stand in a row in the prompt.")
    ids: list[int] = Field(min_length=1, description="The answer; cut at the cap, else closed by end_token_id.")


class FakeCost(_Strict):
    """What one decoding step of the whole batch costs, in units of `step_seconds`: speculation's is a line."""

    without: float = Field(1.0, gt=0, description="A step in which nothing is drafted.")
    with_speculation: list[tuple[int, float]] = Field(
        default_factory=lambda: [(1, 1.1), (64, 2.6)],
        min_length=1,
        description="A step that verifies drafts: [running sequences, cost], with straight lines between them.",
    )

    @model_validator(mode="after")
    def _checked(self) -> FakeCost:
        sizes = [size for size, _ in self.with_speculation]
        if sizes != sorted(set(sizes)) or sizes[0] < 1 or min(cost for _, cost in self.with_speculation) <= 0:
            raise ValueError("with_speculation: batch sizes must rise, from 1 on, and costs be above 0")
        return self

    def of(self, batch: int, drafted: int) -> float:
        """The cost of a step of `batch` sequences for each of which so many tokens are drafted."""
        if not drafted:
            return self.without
        before = [point for point in self.with_speculation if point[0] <= batch]
        after = [point for point in self.with_speculation if point[0] > batch]
        if not before or not after:
            return (before[-1:] or after)[0][1]
        (low, cheap), (high, dear) = before[-1], after[0]
        return cheap + (dear - cheap) * (batch - low) / (high - low)


class FakeKvCache(_Strict):
    """The fake engine's key-value cache. Sequences that do not fit are set back and computed again."""

    blocks: int = Field(ge=1, description="Blocks for all sequences together.")
    block_tokens: int = Field(16, ge=1, description="Tokens in a block.")
    prompt_token_cost: float = Field(
        0.0, ge=0, description="What computing a token of a prompt costs, at first and again, in units of step_seconds."
    )


class FakeEngineSpec(_EngineCommon):
    """An ordinary engine without a model: answers seeded by prompt and seed, and everything else scripted."""

    kind: Literal["fake"] = Field("fake", description="The fake engine.")
    cpus_per_replica: float = Field(0, ge=0, description="CPUs that Ray reserves for each replica.")
    answer_tokens: int = Field(40, ge=1, description="Median length of an answer, in tokens.")
    answer_spread: float = Field(0.5, ge=0, description="Sigma of the lognormal length distribution; 0: all alike.")
    step_seconds: float = Field(0.0, ge=0, description="Time of one decoding step of the whole batch.")
    start_seconds: float = Field(0.0, ge=0, description="Time to load.")
    device: str | None = Field(
        None,
        description="Each engine has a process that holds the lock of the file `device`.SLOT and ignores SIGTERM, as an"
        " engine's process holds a GPU. Whoever ends that process ends the engine.",
    )
    made_log: str | None = Field(
        None, description="A file to which each generation made adds a line of JSON: time, process, slot, request."
    )
    acceptance_by_position: list[Share] = Field(
        default_factory=lambda: [0.7, 0.4, 0.2],
        description="With speculation on: share of steps that accept at least so many draft tokens.",
    )
    acceptance_by_method: dict[str, list[Share]] = Field(
        default_factory=dict, description="The same for single methods, for example {ngram: [0.2, 0.1]}."
    )
    cost: FakeCost | None = Field(
        None, description="Steps of one batch for all sequences, and what they cost. Unset: each has its own steps."
    )
    kv_cache: FakeKvCache | None = Field(
        None, description="A cache that may be short of blocks; only with `cost`. Unset: there is room for all."
    )
    counters_absent: bool = Field(False, description="Speculation is on and its counters are not to be had.")
    vocabulary: tuple[int, int] = Field((97, 122), description="Answers use ids from this range, both ends included.")
    end_token_id: int = Field(1, ge=0, description="Closes each answer that is not cut.")
    answers: list[FakeAnswer] = Field(
        default_factory=list, description="Scripted answers; the first whose prompt fits is taken."
    )
    faults: list[FakeFault] = Field(default_factory=list, description="Scripted faults.")

    @model_validator(mode="after")
    def _checked(self) -> FakeEngineSpec:
        if self.vocabulary[0] > self.vocabulary[1]:
            raise ValueError(f"vocabulary: {self.vocabulary} ends before it begins")
        if self.cost is not None and not self.step_seconds:
            raise ValueError("cost: it multiplies step_seconds, which is 0")
        if self.kv_cache is not None:
            self._check_cache(self.kv_cache)
        return self

    def _check_cache(self, cache: FakeKvCache) -> None:
        if self.cost is None:
            raise ValueError("kv_cache: sequences share blocks where they share steps: set cost")
        if cache.blocks * cache.block_tokens <= self.max_model_len:
            raise ValueError(
                f"kv_cache: {cache.blocks} blocks of {cache.block_tokens} tokens do not hold one sequence of"
                f" max_model_len ({self.max_model_len})"
            )


class OpenaiEngineSpec(_EngineCommon):
    """Servers that somebody else runs: each endpoint is one replica."""

    kind: Literal["openai"] = Field("openai", description="Servers with OpenAI's interface.")
    replicas: Literal[0] = Field(0, description="No engine of our own: leave it out.")
    cpus_per_replica: float = Field(0, ge=0, description="CPUs that Ray reserves for each replica.")
    endpoints: list[EndpointSpec] = Field(min_length=1, description="The servers.")

    @property
    def own(self) -> ReplicaRange:
        """None."""
        return NO_ENGINES


EngineSpec = Annotated[VllmEngineSpec | FakeEngineSpec | OpenaiEngineSpec, Field(discriminator="kind")]


class ExpectedAcceptance(_Strict):
    """What the draft's card promises."""

    by_position: list[Share] = Field(min_length=1, description="Share of steps that accept at least so many tokens.")
    tolerance: Share = Field(
        0.3, description="How far below is still as promised, as a share; each position builds on the one before."
    )


class WarmupSpec(_Strict):
    """How an engine shows that its speculation works, before rows are leased to it."""

    rows: int = Field(
        64, ge=1, description="Rows of the plan to warm up with, spread over it. Nothing of them is kept."
    )
    max_tokens: int = Field(64, ge=1, description="Cap per warm-up answer.")
    drafts: int = Field(500, ge=1, description="Verification steps that a verdict needs.")
    seconds: float = Field(180, gt=0, description="Without a verdict by then the engine goes on as undecided.")
    canary_rows: int = Field(
        32, ge=0, description="Greedy answers compared with what the target says without speculation."
    )
    canary_margin: float = Field(
        2.0, gt=0, description="How far below the target's best a token may be, in nats: kernels round differently."
    )


class CalibrationSpec(_Strict):
    """How it is measured whether speculation pays."""

    max_engine_starts: int = Field(6, ge=1, description="Engine starts that deciding may cost, over all replicas.")
    window_seconds: float = Field(60, gt=0, description="How long an engine is measured before it swaps.")
    arms: int = Field(
        4, ge=2, description="How many settings are compared: off, the configured one, then a small grid."
    )
    min_gain: float = Field(
        0.02, ge=0, le=1, description="A setting must be so much faster than off; else it is a tie."
    )


class SpeculationSpec(_Strict):
    """Speculative decoding. Leave the whole section out to run without: a first-class way to run."""

    method: Method = Field(description="Always passed to the engine as given; never guessed from a path.")
    draft: str | None = Field(None, description="The draft's folder or hub name. None for ngram and suffix.")
    num_tokens: int = Field(
        0, ge=0, description="Draft tokens per verification step. Mandatory: preflight refuses without."
    )
    args: dict[str, Any] = Field(
        default_factory=dict, description="More of the engine's speculative config, for example prompt_lookup_max."
    )
    layer_convention: Literal["input", "output"] = Field(
        "input", description="Does the draft count layers by what enters or by what leaves them."
    )
    expected: ExpectedAcceptance | None = Field(None, description="From the draft's card, to compare with.")
    gate: Literal["fail", "disable", "warn"] = Field("fail", description="When speculation does not work at warm-up.")
    guard: Literal["fail", "disable", "warn"] = Field("disable", description="When it stops working during the run.")
    calibrate: Literal["auto", "off", "required"] = Field("auto", description="Measure whether it pays.")
    accept: list[str] = Field(
        default_factory=list, description="Codes of preflight findings to go on with, although they refuse."
    )
    warmup: WarmupSpec = Field(WarmupSpec(), description="How the gate measures.")
    calibration: CalibrationSpec = Field(CalibrationSpec(), description="How calibration measures.")

    @property
    def draft_name(self) -> str:
        """What a row records as its draft: the draft's name, or the method where there is none."""
        return self.draft or self.method

    @model_validator(mode="after")
    def _draft_matches_method(self) -> SpeculationSpec:
        needs_no_draft = self.method in (*DRAFTLESS_METHODS, "mtp")
        if self.draft is None and not needs_no_draft:
            raise ValueError(f"draft is missing: method {self.method!r} needs one")
        if self.draft is not None and self.method in DRAFTLESS_METHODS:
            raise ValueError(f"draft {self.draft!r} conflicts with method {self.method!r}, which takes none")
        for name in sorted({"method", "model", "num_speculative_tokens"} & self.args.keys()):
            raise ValueError(f"args.{name} conflicts with the field of this section that says the same")
        return self


class TemperatureShare(_Strict):
    """One part of a temperature mix."""

    value: float = Field(ge=0, le=2, description="The temperature.")
    share: Share = Field(description="Share of rows, by row id. Shares add up to 1.")


class RepetitionDetectionSpec(_Strict):
    """When the engine ends an answer that repeats itself; vLLM's own detector."""

    max_pattern_tokens: int = Field(ge=1, description="Longest pattern that is looked for, in tokens.")
    min_pattern_tokens: int = Field(1, ge=1, description="Shortest one.")
    min_count: int = Field(ge=2, description="How often it must stand in a row.")

    @model_validator(mode="after")
    def _checked(self) -> RepetitionDetectionSpec:
        if self.min_pattern_tokens > self.max_pattern_tokens:
            raise ValueError("min_pattern_tokens is larger than max_pattern_tokens")
        return self


class SamplingSpec(_Strict):
    """Sampling. Fields left unset come from the target's generation_config.json, else from the neutral value."""

    max_tokens: int = Field(ge=1, description="Cap per answer, in tokens. Mandatory: never inherited.")
    temperature: float | list[TemperatureShare] | None = Field(
        None, description="A number, or a mix: [{value: 0.6, share: 0.7}, {value: 1.0, share: 0.3}]."
    )
    top_p: float | None = Field(None, gt=0, le=1, description="Nucleus sampling.")
    top_k: int | None = Field(None, ge=0, description="0: all tokens.")
    min_p: float | None = Field(None, ge=0, le=1, description="Refused by vLLM while speculation is on.")
    presence_penalty: float | None = Field(None, ge=-2, le=2, description="Penalty on tokens seen.")
    frequency_penalty: float | None = Field(None, ge=-2, le=2, description="Penalty by how often a token was seen.")
    repetition_penalty: float | None = Field(None, gt=0, description="Multiplicative penalty, 1: none.")
    stop: list[str] = Field(default_factory=list, description="Strings that end an answer.")
    stop_token_ids: list[int] = Field(default_factory=list, description="Ids that end an answer, besides the target's.")
    repetition_detection: RepetitionDetectionSpec | None = Field(
        None, description="{max_pattern_tokens: 64, min_count: 20}: the engine ends such answers; null: it does not."
    )
    seed: int | None = Field(0, description="Seed of the run, mixed with each row's id; null: unseeded sampling.")

    @model_validator(mode="after")
    def _checked(self) -> SamplingSpec:
        given = self.temperature
        if isinstance(given, list) and (not given or abs(sum(part.share for part in given) - 1) > 1e-6):
            raise ValueError("temperature: the shares of a mix must add up to 1")
        values = [part.value for part in given] if isinstance(given, list) else [given or 0.0]
        for value in values:
            _check_temperature(value)
        return self


def _check_temperature(value: float) -> None:
    if not (value == 0 or 0.01 <= value <= 2):
        raise ValueError(f"temperature: {value} is neither 0 (greedy) nor in 0.01..2; vLLM would change it silently")


class SourceSamplingSpec(_Strict):
    """What one source's rows are sampled with, over `sampling`; the names are the same."""

    max_tokens: int | None = Field(None, ge=1, description="Cap per answer, in tokens.")
    temperature: float | None = Field(None, ge=0, le=2, description="One number; a mix is for the whole run.")
    top_p: float | None = Field(None, gt=0, le=1, description="Nucleus sampling.")
    top_k: int | None = Field(None, ge=0, description="0: all tokens.")
    min_p: float | None = Field(None, ge=0, le=1, description="Refused by vLLM while speculation is on.")
    presence_penalty: float | None = Field(None, ge=-2, le=2, description="Penalty on tokens seen.")
    frequency_penalty: float | None = Field(None, ge=-2, le=2, description="Penalty by how often a token was seen.")
    repetition_penalty: float | None = Field(None, gt=0, description="Multiplicative penalty, 1: none.")

    @model_validator(mode="after")
    def _checked(self) -> SourceSamplingSpec:
        if self.temperature is not None:
            _check_temperature(self.temperature)
        return self

    def given(self) -> dict[str, float | int]:
        """The fields that were set."""
        return self.model_dump(exclude_none=True)


class ColumnRange(_Strict):
    """What a number in a column may be, both ends included."""

    min: float | None = Field(None, allow_inf_nan=False, description="At least.")
    max: float | None = Field(None, allow_inf_nan=False, description="At most.")


Scalar = bool | int | Annotated[float, Field(allow_inf_nan=False)] | str
# fmt: off
Shape = Literal[
    "auto", "messages", "sharegpt", "alpaca", "prompt", "question", "turns", "preference", "batch", "bfcl", "tokens"
]
# fmt: on
# What `fields` may name: the keys that the adapters read, of a row and of one message in it.
ROW_FIELDS = frozenset(
    {
        *("messages", "conversations", "turns", "prompt", "question", "instruction", "input", "output", "response"),
        *("chosen", "rejected", "body", "function", "tools", "system", "id", "input_ids", "loss_mask"),
    }
)
MESSAGE_FIELDS = frozenset({"role", "content", "reasoning", "tool_calls", "tool_call_id", "name"})


class SourceSpec(_Strict):
    """One dataset."""

    name: str = Field(min_length=1, max_length=200, description="Part of every row's identity: renaming changes ids.")
    path: str = Field(min_length=1, description="A file, a glob (data/*.jsonl.gz), or a Hugging Face dataset.")
    kind: Literal["auto", "files", "dataset"] = Field(
        "auto", description="auto: files if the path has a known ending or exists as a file, else a dataset."
    )
    config: str | None = Field(None, description="Dataset only: its configuration.")
    split: str | None = Field(None, description="Dataset only: the split, for example train.")
    revision: str | None = Field(None, description="Dataset only: branch, tag or commit.")
    format: Shape = Field("auto", description="The rows' shape. auto looks at each row's keys.")
    fields: dict[str, str] = Field(
        default_factory=dict,
        description="Where a key is under another name: {messages: dialog, role: speaker}; dots go into objects.",
    )
    filter: dict[str, Scalar | list[Scalar] | ColumnRange] = Field(
        default_factory=dict,
        description="Take only rows with such columns: {language: English, tag: [a, b], score: {min: 4}}.",
    )
    limit: int | None = Field(None, ge=1, description="Take so many source rows (counted before rows are rejected).")
    weight: float = Field(
        1.0,
        gt=0,
        le=1000,
        description="How often a row is taken: 0.5 takes half of them, drawn by content, 2 each one twice.",
    )
    prompt_token_quota: int | None = Field(
        None, ge=1, description="Take no more rows once their first prompts would have more tokens than this together."
    )
    shuffle_seed: int | None = Field(None, description="Take rows in an order drawn from this seed and their content.")
    system_prompt: str | None = Field(None, description="Put before conversations that have no system message.")
    sampling: SourceSamplingSpec = Field(
        SourceSamplingSpec(), description="For this source only, over `sampling`: {temperature: 1.0, max_tokens: 8192}."
    )
    mode: Literal["regenerate", "native"] = Field(
        "regenerate",
        description="regenerate: the target answers anew. native: the answers are the target's own and pass through.",
    )

    @model_validator(mode="after")
    def _checked(self) -> SourceSpec:
        for name, column in self.fields.items():
            if not column:
                raise ValueError(f"fields.{name}: is empty; it names the key that the source has")
            if name not in ROW_FIELDS | MESSAGE_FIELDS:
                known = ", ".join(sorted(ROW_FIELDS | MESSAGE_FIELDS))
                raise ValueError(f"fields.{name}: is no key that regen reads; it reads {known}")
        if self.format == "tokens" and self.mode != "native":
            raise ValueError("format: tokens conflicts with mode: regenerate; token ids can only pass through (native)")
        if self.mode == "native" and self.sampling.given():
            raise ValueError("sampling conflicts with mode: native, where nothing is sampled")
        return self


class PoliciesSpec(_Strict):
    """What is done with rows of an odd shape; each is counted in the plan, per source."""

    assistant_first: Literal["drop", "reject"] = Field(
        "drop", description="Answers before the first user turn. drop: those messages, with what tools said to them."
    )
    consecutive_users: Literal["keep", "merge", "reject"] = Field(
        "keep", description="User turns in a row. keep: the target's template judges. merge: joined by a blank line."
    )
    consecutive_assistants: Literal["merge", "reject"] = Field(
        "merge", description="Answers in a row. merge: the target speaks once there."
    )
    several_systems: Literal["keep", "merge", "reject"] = Field(
        "keep", description="merge: all of them into the first message, joined by blank lines."
    )
    empty_turns: Literal["reject", "drop"] = Field("reject", description="Blank user turns. drop: only the turn.")
    orphan_tool_results: Literal["reject", "drop"] = Field(
        "reject", description="Results of tools that answer no call just before them."
    )
    unparsable_arguments: Literal["reject", "keep"] = Field(
        "reject",
        description="Recorded calls whose arguments are no JSON object. keep: they match no call of the target.",
    )
    non_text_parts: Literal["reject", "drop"] = Field(
        "reject", description="Images and other parts of a message that are not text. drop: only the part."
    )
    control_tokens: Literal["reject", "text", "allow"] = Field(
        "reject",
        description="The target's control tokens written out in given text. text: tokenized as the letters they are.",
    )
    unpaired_surrogates: Literal["reject", "replace"] = Field(
        "reject", description="Text that UTF-8 cannot carry. replace: by U+FFFD."
    )
    huge_integers: Literal["keep", "reject"] = Field(
        "keep", description="Integers beyond 64 bits in tools and arguments. keep: exactly as they are."
    )
    unseen_tools: Literal["keep", "reject"] = Field(
        "keep", description="Rows with tools that the target's template does not print: the target never sees them."
    )
    tool_results: Literal["name_and_arguments", "name", "order"] = Field(
        "name_and_arguments",
        description="Which call of the target a recorded result answers: the same call, one of that tool, or by place.",
    )
    request_sampling: Literal["ignore", "use"] = Field(
        "ignore", description="Sampling fields of OpenAI Batch requests. use: over those of spec and source."
    )


class DecontaminateSpec(_Strict):
    """One benchmark whose questions must not be in the data."""

    path: str = Field(min_length=1, description="A file or glob of rows, in any format that sources have.")
    match: Literal["exact", "ngram"] = Field(
        "exact", description="exact: a user turn equals one there, but for case, space and punctuation."
    )
    ngram_words: int = Field(13, ge=3, description="ngram: a user turn shares so many words in a row with one there.")


class RowsSpec(_Strict):
    """Which rows are taken, and how they are split."""

    max_prompt_tokens: int | None = Field(None, ge=1, description="Longer first prompts are rejected at planning.")
    dedupe: bool = Field(False, description="Reject a row equal to an earlier one, within and across sources.")
    eval_share: Share = Field(0.0, description="Share of conversations whose column `split` says eval, not train.")
    decontaminate: list[DecontaminateSpec] = Field(
        default_factory=list, description="Reject rows that ask what a benchmark asks: [{path: gsm8k_test.jsonl}]."
    )


class CheckpointSpec(_Strict):
    """How often finished work is committed, and how it is sealed."""

    interval_seconds: float = Field(30, gt=0, description="Finished rows are published at least so often.")
    max_bytes: SizeBytes = Field(64 * 2**20, description="Or when so much has come together.")
    uncommitted_bytes: SizeBytes = Field(
        512 * 2**20, description="With so much finished and not committed, no more rows are handed out."
    )
    rows_per_shard: int = Field(2000, ge=1, description="Fixed when the run begins.")


class LimitsSpec(_Strict):
    """Where a run stops by itself."""

    hours: float | None = Field(None, gt=0, description="Drain after so many hours; the run can be continued.")
    failed_share: Share | None = Field(
        0.02, description="Stop early when more than this share of finished rows failed (after the first 200)."
    )
    degenerate_share: Share | None = Field(
        0.5, description="Stop early when more than this share of the latest rows is garbage (1000, at least 200)."
    )
    attempts: int = Field(3, ge=1, description="How often a row is tried before it is failed.")


class MetricsSpec(_Strict):
    """The Prometheus endpoint."""

    host: str = Field("127.0.0.1", description="Loopback unless you say otherwise.")
    port: int | None = Field(9464, ge=0, le=65535, description="0: any free port, printed at start. null: off.")
    samples: bool = Field(
        False, description="Show prompts and answers of some rows on the live page, to whoever reaches the port."
    )
    hold_seconds: float | None = Field(
        None,
        ge=0,
        description="At the end wait so long for a scrape of the final numbers. null: only for who has scraped.",
    )
    engine_port: int | None = Field(
        None, ge=1, le=65535, description="vLLM's own metrics: replica N serves them at this port + N. null: off."
    )


class PriceSpec(_Strict):
    """What a GPU costs, for the metrics and the report. Leave it out: no cost is shown."""

    per_gpu_hour: float = Field(ge=0, description="For one GPU and one hour that an engine holds it.")
    currency: str = Field("USD", pattern=r"^[A-Za-z]{1,10}$", description="As it is to be shown.")


class StoreSpec(_Strict):
    """How S3 is reached, where `output` lies there. Keys never stand here: boto3 finds them.

    What is left out is taken from the environment and the AWS configuration.
    """

    endpoint: str | None = Field(
        None, description="http(s)://HOST:PORT of another store than AWS; aws: AWS, whatever AWS_ENDPOINT_URL says."
    )
    region: str | None = Field(None, min_length=1, description="For signing. By default AWS_DEFAULT_REGION.")
    addressing: Literal["auto", "path", "virtual"] = Field(
        "auto", description="Where the bucket's name stands. auto: in the path, except at AWS."
    )
    checksum: Literal["auto", "when_required", "when_supported"] = Field(
        "auto", description="Whether checksums are sent that nobody has asked for. auto: only to AWS."
    )
    profile: str | None = Field(None, min_length=1, description="A profile of the AWS configuration, by its name.")

    @model_validator(mode="after")
    def _has_scheme(self) -> StoreSpec:
        endpoint = str(self.endpoint)
        if "@" in endpoint:  # never repeated: what stands before it is a secret, as a rule
            raise ValueError(
                "the endpoint has a user's name in it (an @): write http(s)://HOST:PORT; boto3 finds keys elsewhere"
            )
        if self.endpoint not in (None, AWS_ENDPOINT) and not _ENDPOINT.match(endpoint):
            raise ValueError(
                f"endpoint {endpoint!r} does not begin with http:// or https://, and only you know which it speaks:"
                " write one"
            )
        return self


class RunSpec(_Strict):
    """One run."""

    name: str = Field(min_length=1, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="Letters, digits, . _ -")
    output: str = Field(min_length=1, description="The run folder: a local one, or s3://bucket/prefix.")
    target: TargetSpec
    engine: EngineSpec
    speculation: SpeculationSpec | None = None
    sampling: SamplingSpec
    sources: list[SourceSpec] = Field(min_length=1)
    rows: RowsSpec = RowsSpec()
    policies: PoliciesSpec = PoliciesSpec()
    checkpoint: CheckpointSpec = CheckpointSpec()
    limits: LimitsSpec = LimitsSpec()
    metrics: MetricsSpec = MetricsSpec()
    price: PriceSpec | None = None
    store: StoreSpec | None = None

    @model_validator(mode="after")
    def _checked(self) -> RunSpec:
        names = [source.name for source in self.sources]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"sources: the name {name!r} is used twice; ids of rows are built from it")
        if self.checkpoint.max_bytes > self.checkpoint.uncommitted_bytes:
            raise ValueError("checkpoint.max_bytes is larger than checkpoint.uncommitted_bytes")
        if self.sampling.max_tokens >= self.engine.max_model_len:
            raise ValueError(
                f"sampling.max_tokens ({self.sampling.max_tokens}) leaves no room for a prompt"
                f" within engine.max_model_len ({self.engine.max_model_len})"
            )
        for source in self.sources:
            if (source.sampling.max_tokens or 0) >= self.engine.max_model_len:
                raise ValueError(
                    f"sources: {source.name}: sampling.max_tokens ({source.sampling.max_tokens}) leaves no room for a"
                    f" prompt within engine.max_model_len ({self.engine.max_model_len})"
                )
        _check_ports(self.metrics, self.engine.most_replicas)
        if self.engine.endpoints:
            _check_of_servers(self.speculation)
        if self.store is not None and not self.output.startswith("s3://"):
            raise ValueError(f"store: it says how S3 is reached, and output is {self.output!r}; leave it out")
        return self


def _check_of_servers(speculation: SpeculationSpec | None) -> None:
    """A server's speculation is its own: it is watched, and cannot be switched from here."""
    if speculation is None:
        return
    if speculation.calibrate != "off":
        raise ValueError("speculation.calibrate must be off with engine.endpoints: a server keeps its own setting")
    for name in ("gate", "guard"):
        if getattr(speculation, name) == "disable":
            raise ValueError(
                f"speculation.{name} cannot be `disable` with engine.endpoints: a server's speculation cannot be"
                " switched off from here. Set it to fail or warn"
            )


def _check_ports(metrics: MetricsSpec, replicas: int) -> None:
    if metrics.engine_port is None:
        return
    last = metrics.engine_port + replicas - 1
    if last > 65535:
        raise ValueError(f"metrics.engine_port ({metrics.engine_port}) leaves no ports for {replicas} replicas")
    if metrics.port is not None and metrics.engine_port <= metrics.port <= last:
        raise ValueError(
            f"metrics.port ({metrics.port}) is among the ports of the engines: metrics.engine_port"
            f" ({metrics.engine_port}) to {last}"
        )


class _UniqueKeys(yaml.SafeLoader):
    """YAML where a key that stands twice is an error: the standard loader takes the last one without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<"]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} stands twice in one mapping", node.start_mark
                )
        return super().construct_mapping(node, deep)


def load_spec(path: Path) -> RunSpec:
    """Read and check a spec file. Relative paths in it are relative to the current directory, as in a shell.

    Raises SpecError naming the file and, for each bad key, its path and what is wrong.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SpecError(f"{path}: is not UTF-8 text (byte {error.start})") from error
    try:
        raw = yaml.load(text, Loader=_UniqueKeys)
    except yaml.YAMLError as error:
        raise SpecError(f"{path}: is not YAML: {error}") from error
    if not isinstance(raw, dict):
        raise SpecError(f"{path}: a spec is a mapping of keys, found {type(raw).__name__}")
    return parse_spec(raw, origin=str(path))


def parse_spec(raw: dict[str, Any], origin: str) -> RunSpec:
    """Check a spec given as plain data. Raises SpecError as `load_spec` does; `origin` names where it came from."""
    try:
        return RunSpec.model_validate(raw)
    except ValidationError as error:
        lines = [f"{origin}: {_dotted(item['loc'])}: {_reason(item)}" for item in error.errors(include_url=False)]
        raise SpecError("\n".join(lines)) from None


def dump_spec(spec: RunSpec) -> str:
    """The spec as YAML, as far as its fields were given. `parse_spec` of it is equal to `spec`."""
    return yaml.safe_dump(spec.model_dump(mode="json", exclude_unset=True), sort_keys=False, allow_unicode=True)


def with_absolute_paths(spec: RunSpec) -> RunSpec:
    """Relative paths made absolute, from the current directory: output, and whatever names something that exists."""

    def absolute(path: str) -> str:
        return str(Path(path).expanduser().resolve())

    def existing(path: str) -> str:
        return absolute(path) if Path(path).expanduser().exists() else path

    def source_path(source: SourceSpec) -> str:
        is_pattern = source.kind != "dataset" and any(character in source.path for character in "*?[")
        return absolute(source.path) if is_pattern else existing(source.path)

    speculation = spec.speculation
    if speculation is not None and speculation.draft is not None:
        speculation = speculation.model_copy(update={"draft": existing(speculation.draft)})
    rows = spec.rows
    if rows.decontaminate:
        benchmarks = [part.model_copy(update={"path": absolute(part.path)}) for part in rows.decontaminate]
        rows = rows.model_copy(update={"decontaminate": benchmarks})
    return spec.model_copy(
        update={
            "output": spec.output if "://" in spec.output else absolute(spec.output),
            "target": spec.target.model_copy(update={"model": existing(spec.target.model)}),
            "speculation": speculation,
            "sources": [source.model_copy(update={"path": source_path(source)}) for source in spec.sources],
            "rows": rows,
        }
    )


def output_shaping(spec: RunSpec) -> dict[str, Any]:
    """The part of the spec that decides what is written, as plain data with dotted keys.

    Speculation, replicas, slots, intervals, limits, metrics and price are not in it: they may change between sessions.
    Only settings of speculation that change what is sampled are.
    """
    data = spec.model_dump(mode="json")
    engine = data["engine"]
    target = {key: value for key, value in data["target"].items() if key not in ("model", "revision")}
    kept = {
        "target": target,  # which model it is, says its commit (data/target.py): a moved folder is the same model
        "sampling": data["sampling"],
        # Where a source lies is not what it is: its files are compared by content (data/changes.py).
        "sources": {
            source["name"]: {key: value for key, value in source.items() if key != "path"} for source in data["sources"]
        },
        "rows": data["rows"],
        "policies": data["policies"],
        "rows_per_shard": data["checkpoint"]["rows_per_shard"],
        "engine": {"kind": engine["kind"], "max_model_len": engine["max_model_len"]},
    }
    if isinstance(spec.engine, VllmEngineSpec):
        kept["engine"]["args"] = {
            name: value for name, value in spec.engine.args.items() if name not in _FREE_VLLM_ARGS
        }
    elif isinstance(spec.engine, FakeEngineSpec):
        kept["engine"].update({name: engine[name] for name in _SHAPING_FAKE_FIELDS})
    if isinstance(spec.engine, OpenaiEngineSpec) or spec.engine.ids != "exact":
        kept["engine"]["ids"] = spec.engine.ids
    if lossy := _lossy_speculation(spec):
        kept["speculation"] = {"args": lossy}
    return dict(_flatten(kept, ""))


def _lossy_speculation(spec: RunSpec) -> dict[str, Any]:
    args = spec.speculation.args if spec.speculation is not None else {}
    return {
        name: args[name] for name, keeps in LOSSY_SPECULATION_ARGS.items() if name in args and args[name] not in keeps
    }


def fingerprint(shaping: dict[str, Any]) -> str:
    """32 hex digits over everything that shapes outputs (see `output_shaping`)."""
    text = json.dumps(shaping, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.blake2b(text.encode("ascii"), digest_size=16).hexdigest()


def _flatten(value: Any, path: str) -> list[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        return [item for key in value for item in _flatten(value[key], f"{path}.{key}" if path else str(key))]
    return [(path, value)]


def _dotted(location: tuple[int | str, ...]) -> str:
    parts = [str(part) for part in location if part not in ("vllm", "fake", "openai")]
    return ".".join(parts) or "(the whole spec)"


def _reason(item: Any) -> str:
    if item["type"] == "extra_forbidden":
        return "unknown key"
    if item["type"] == "missing":
        return "is missing"
    if item["type"] == "union_tag_invalid":
        return f"kind: {item['ctx']['tag']!r} is none of {item['ctx']['expected_tags']}"
    if item["type"] == "union_tag_not_found":
        return "kind: is missing"
    message = str(item["msg"]).removeprefix("Value error, ")
    return message if item["type"] == "value_error" else f"{message} (found {item['input']!r})"
