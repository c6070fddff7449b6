"""A server that generates as SGLang 0.5 does: /generate with `input_ids`, streamed or not.

/server_info, /v1/models and /get_model_info are tests/sglang_stand_in.py's, with the counts of what is made here. From
the source: an event of a stream holds *all* ids so far, unless the server runs with --incremental-streaming-output;
speculation counts are in the last `meta_info` only, and there only after a verification; an unknown sampling
parameter is an internal error, `top_k` 0 and too long a prompt are refused; prompt, cap and the places for drafts must
be below the context; `sampling_seed` means something only with --enable-deterministic-inference; a whole answer names
no model; an error inside a stream is an event with status 200; `return_logprob` rates the prompt's ids from
`logprob_start_len` on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from regen.records import Completion, FinishReason, Sampling
from tests.served.answers import Answers, Refused, Wanted
from tests.served.desk import FAULT, Desk
from tests.served.faults import Script
from tests.served.sending import Answer, Body, Event, send
from tests.served.tokenizing import Tokenizer, add_tokenize
from tests.served.vllm_server import histogram, prompt_ids, texts
from tests.sglang_stand_in import SglangStandIn, in_old_words

# The server's own, for whoever does not say.
DEFAULTS = {
    "max_new_tokens": 128,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
}
# Others of its SamplingParams that change nothing here.
_KNOWN = {
    *DEFAULTS,
    *("stop", "stop_token_ids", "stop_regex", "min_new_tokens", "n", "json_schema", "regex", "ebnf", "structural_tag"),
    *("ignore_eos", "skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim", "custom_params"),
    *("stream_interval", "logit_bias", "sampling_seed"),
}


@dataclass
class SglangServer(SglangStandIn):
    """One model on one server, which makes what `answers` make; `ranks` take requests in turn."""

    answers: Answers = field(default_factory=Answers)
    script: Script = field(default_factory=Script)
    tokens_per_second: float | None = None
    chunk_tokens: int = 4
    is_healthy: bool = True
    is_incremental: bool = False
    is_deterministic: bool = True
    tokenizer: Tokenizer | None = None
    defaults: dict[str, Any] = field(default_factory=lambda: dict(DEFAULTS))

    def __post_init__(self) -> None:
        speculation = self.answers.speculation
        self.context_length = self.answers.spec.max_model_len
        self.steps = speculation.num_tokens if speculation else 0
        if speculation is None:
            self.algorithm = None
        self.desk = Desk(self.script, error_body, self.answers.spec.slots)

    def app(self) -> web.Application:
        app = super().app()
        app.middlewares.append(self.desk.middleware)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        add_tokenize(app, self.tokenizer, self.context_length)
        return app

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.is_healthy else 503)

    async def _metrics(self, request: web.Request) -> web.Response:
        counters = self.answers.engine.counters()
        labels = f'model_name="{self.served_name}"'
        lines = [
            f"sglang:generation_tokens_total{{{labels}}} {counters.output_tokens}.0",
            f"sglang:prompt_tokens_total{{{labels}}} {counters.prompt_tokens}.0",
            f"sglang:num_running_reqs{{{labels}}} {self.desk.running}.0",
        ]
        return web.Response(text="\n".join(lines) + "\n")

    async def _generate(self, request: web.Request) -> web.StreamResponse:  # type: ignore[override]
        body = await request.json()
        try:
            wanted, began = self._wanted(body), time.time()
            rated = await self._input_logprobs(wanted, body) if body.get("return_logprob") else {}
            made = await self.answers.make(wanted)
        except Refused as error:
            return _refused(error, is_streamed=bool(body.get("stream")))
        rank = self._next_rank
        self._next_rank = (rank + 1) % self.ranks
        meta = self._meta_info(wanted, made, rank) | rated | {"e2e_latency": time.time() - began}
        answer = self._answer_of(wanted, made, meta)
        return await send(request, answer, request.pop(FAULT, None), self.tokens_per_second)

    async def _input_logprobs(self, wanted: Wanted, body: Body) -> Body:
        """Of the ids from `logprob_start_len` on, the first of which has none: (logprob, id, text). -1: of no id."""
        said = int(body.get("logprob_start_len", -1))
        start = len(wanted.prompt) - 1 if said < 0 else said
        scores = (await self.answers.rate(wanted.prompt))[start + 1 :]
        own: list[list[Any]] = [[None, wanted.prompt[start], None]]
        own += [[score.logprob, score.token_id, None] for score in scores if score is not None]
        best = [[[score.best_logprob, score.best_token_id, None]] for score in scores if score is not None]
        return {"input_token_logprobs": own, "input_top_logprobs": [None, *best]}

    # --- the request ---

    def _wanted(self, body: Body) -> Wanted:
        given = body.get("sampling_params") or {}
        if strange := set(given) - _KNOWN:
            raise Refused(500, f"SamplingParams.__init__() got an unexpected keyword argument {sorted(strange)[0]!r}")
        sampling = self._sampling({**self.defaults, **given})
        prompt = prompt_ids(body["input_ids"] if body.get("input_ids") is not None else body.get("text"))
        self._require_room(len(prompt), sampling.max_tokens)
        seed = given.get("sampling_seed") if self.is_deterministic else None
        return Wanted(prompt, sampling, seed, bool(body.get("stream")))

    def _require_room(self, prompt: int, cap: int) -> None:
        if prompt >= self.context_length:
            raise Refused(
                400,
                f"The input ({prompt} tokens) is longer than the model's context length ({self.context_length}"
                " tokens).",
            )
        reserved = self.steps + 1 if self.algorithm else 0
        if prompt + cap + reserved >= self.context_length:
            raise Refused(
                400,
                f"Requested token count exceeds the model's maximum context length of {self.context_length} tokens."
                f" You requested a total of {prompt + cap + reserved} tokens: {prompt} tokens from the input messages"
                f" and {cap} tokens for the completion.",
            )

    def _sampling(self, given: Body) -> Sampling:
        top_k = int(given["top_k"])
        if top_k < 1 and top_k != -1:
            raise Refused(400, f"top_k must be -1 (disable) or at least 1, got {top_k}.")
        return Sampling(
            max_tokens=int(given["max_new_tokens"]),
            temperature=float(given["temperature"]),
            top_p=float(given["top_p"]),
            top_k=top_k,
            min_p=float(given["min_p"]),
            presence_penalty=float(given["presence_penalty"]),
            frequency_penalty=float(given["frequency_penalty"]),
            repetition_penalty=float(given["repetition_penalty"]),
            stop=texts(given.get("stop")),
            stop_token_ids=tuple(given.get("stop_token_ids") or ()),
        )

    # --- the answer ---

    def _meta_info(self, wanted: Wanted, made: Completion, rank: int) -> Body:
        """Of the finished request: the counts are in no earlier one."""
        is_cut = made.finish_reason is FinishReason.LENGTH
        ended: Body = (
            {"type": "length", "length": len(made.token_ids)}
            if is_cut
            else {"type": "stop", "matched": self.answers.spec.end_token_id}
        )
        meta: Body = {
            "id": f"{len(self.desk.bodies):032x}",
            "finish_reason": ended,
            "prompt_tokens": len(wanted.prompt),
            "weight_version": "default",
            "num_retractions": 0,
            "reasoning_tokens": 0,
            "completion_tokens": len(made.token_ids),
            "cached_tokens": 0,
        }
        if self.ranks > 1 and not self.is_old:
            meta["dp_rank"] = rank
        return meta | self._spec_counts(made, rank)

    def _spec_counts(self, made: Completion, rank: int) -> Body:
        seen = made.acceptance
        if seen is None or not seen.drafts or not self.gives_counts:
            return {}
        total = self._verified.setdefault(rank, [0, 0])
        total[0] += seen.drafts
        total[1] += seen.drafts + seen.accepted
        counts = {
            "spec_accept_rate": seen.accepted / (seen.drafts * self.steps),
            "spec_accept_length": len(made.token_ids) / seen.drafts,
            "spec_num_correct_drafts": seen.accepted,
            "spec_num_proposed_drafts": seen.drafts * self.steps,
            "spec_verify_ct": seen.drafts,
            "spec_correct_drafts_histogram": histogram(seen, self.steps),
        }
        if self.is_old:
            return in_old_words(counts)
        aliases = {
            "spec_accepted_drafts": counts["spec_num_correct_drafts"],
            "spec_proposed_drafts": counts["spec_num_proposed_drafts"],
            "spec_accept_histogram": counts["spec_correct_drafts_histogram"],
        }
        return counts | aliases

    def _answer_of(self, wanted: Wanted, made: Completion, meta: Body) -> Answer:
        ids, total = list(made.token_ids), len(made.token_ids)
        if not wanted.is_streamed:
            return Answer(total, {"text": self.answers.text(made.token_ids), "output_ids": ids, "meta_info": meta})
        return Answer(total, events=tuple(self._events(made, meta)))

    def _events(self, made: Completion, meta: Body) -> Iterator[Event]:
        total = len(made.token_ids)
        early = {name: value for name, value in meta.items() if "spec_" not in name and name != "e2e_latency"}
        for start in range(0, total, self.chunk_tokens):
            out = min(start + self.chunk_tokens, total)
            ids = made.token_ids[start if self.is_incremental else 0 : out]
            said = meta if out == total else early | {"finish_reason": None, "completion_tokens": out}
            yield Event(out, {"text": self.answers.text(ids), "output_ids": list(ids), "meta_info": said})


def error_body(status: int, message: str) -> Body:
    """As SGLang's are: its own refusals of /generate, and FastAPI's for all else."""
    if status == 400:
        return {"error": {"message": message}}
    return {"object": "error", "message": message, "type": str(status), "param": None, "code": status}


def _refused(error: Refused, is_streamed: bool) -> web.Response:
    """Once a stream has begun, its status is 200."""
    body = error_body(error.status, str(error))
    if error.status == 400 and is_streamed:
        data = web.json_response(body).text
        return web.Response(text=f"data: {data}\n\ndata: [DONE]\n\n", content_type="text/event-stream")
    if error.status == 500:
        return web.Response(status=500, text="Internal Server Error")
    return web.json_response(body, status=error.status)
