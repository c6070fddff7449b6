"""A server that generates as vLLM 0.32's OpenAI server does: /v1/completions with ids in and out, streamed or not.

The rest (/v1/models, /version, /metrics, /server_info) is tests/vllm_stand_in.py's, with the counts of what is made
here. From the source: unset sampling fields take the server's defaults (`defaults`, as from a generation_config.json);
`prompt_token_ids` come with the first event alone, `usage` with the last one if asked for; an end-of-sequence id is
among the ids, with `stop_reason` null; counts per request are there where `gives_counts` is on; `prompt_logprobs` rate
the prompt's ids.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from aiohttp import web

from regen.records import Acceptance, Completion, Sampling, TokenScore
from tests.served.answers import Answers, Refused, Wanted
from tests.served.desk import FAULT, Desk
from tests.served.faults import Script
from tests.served.sending import Answer, Body, Event, send
from tests.served.tokenizing import Tokenizer, add_tokenize
from tests.vllm_stand_in import REFUSAL, VllmStandIn

# The server's own, for whoever does not say: none is what a spec has by default.
DEFAULTS = {
    "max_tokens": 16,
    "temperature": 0.6,
    "top_p": 0.95,
    "top_k": 20,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.05,
}


@dataclass
class VllmServer(VllmStandIn):
    """One model on one server, which makes what `answers` make.

    `chunk_tokens` come with each event (vLLM: one, or what a verification gave). `api_key`: wanted at /v1 alone.
    """

    answers: Answers = field(default_factory=Answers)
    script: Script = field(default_factory=Script)
    tokens_per_second: float | None = None
    chunk_tokens: int = 4
    api_key: str | None = None
    is_healthy: bool = True
    gives_counts: bool = False
    returns_ids: bool = True
    tokenizer: Tokenizer | None = None
    defaults: dict[str, Any] = field(default_factory=lambda: dict(DEFAULTS))

    def __post_init__(self) -> None:
        speculation = self.answers.speculation
        self.max_model_len = self.answers.spec.max_model_len
        self.num_tokens = speculation.num_tokens if speculation else 0
        self.accepted = ((),) if speculation else ()
        self.desk = Desk(self.script, error_body, self.answers.spec.slots)

    def app(self, **instead: Any) -> web.Application:
        app = super().app(**instead)
        app.middlewares.extend([self._authentication, self.desk.middleware])
        app.router.add_get("/health", self._health)
        add_tokenize(app, self.tokenizer, self.max_model_len)
        return app

    @web.middleware
    async def _authentication(self, request: web.Request, handler: Any) -> web.StreamResponse:
        is_open = self.api_key is None or not request.path.startswith("/v1")
        if not is_open and request.headers.get("Authorization") != f"Bearer {self.api_key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        answer: web.StreamResponse = await handler(request)
        return answer

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.is_healthy else 503)

    async def _metrics(self, request: web.Request) -> web.Response:
        counted = await super()._metrics(request)
        labels = f'engine="0",model_name="{self.served_name}"'
        prompts = self.answers.engine.counters().prompt_tokens
        lines = [
            f"vllm:prompt_tokens_total{{{labels}}} {prompts}.0",
            f"vllm:num_requests_running{{{labels}}} {self.desk.running}.0",
            f"vllm:num_requests_waiting{{{labels}}} {self.desk.waiting}.0",
        ]
        return web.Response(text=f"{counted.text}" + "\n".join(lines) + "\n")

    async def _plain(self, request: web.Request) -> web.StreamResponse:  # type: ignore[override]
        try:
            body = await _body(request)
            wanted = self._wanted(body)
            rated = body.get("prompt_logprobs") is not None
            scores = [_logprobs(score) for score in await self.answers.rate(wanted.prompt)] if rated else None
            made = await self.answers.make(wanted)
        except Refused as error:
            return web.json_response(error_body(error.status, str(error)), status=error.status)
        answer = replace(self._answer_of(wanted, made, body), count=self._counting(made))
        if answer.whole is not None:
            answer.whole["choices"][0]["prompt_logprobs"] = scores
        return await send(request, answer, request.pop(FAULT, None), self.tokens_per_second)

    # --- the request ---

    def _wanted(self, body: Body) -> Wanted:
        if body.get("model", self.served_name) not in (self.served_name, *self.aliases):
            raise Refused(404, f"The model `{body['model']}` does not exist.")
        if (body.get("min_p") or body.get("logit_bias")) and self.answers.speculation:
            raise Refused(400, REFUSAL)
        if body.get("stream") and body.get("prompt_logprobs") is not None:
            raise Refused(400, "`prompt_logprobs` are not available when `stream=True`.")
        sampling = self._sampling({**self.defaults, **{key: value for key, value in body.items() if value is not None}})
        prompt = prompt_ids(body.get("prompt"))
        if len(prompt) + sampling.max_tokens > self.max_model_len:
            raise Refused(
                400,
                f"This model's maximum context length is {self.max_model_len} tokens. However, you requested"
                f" {sampling.max_tokens} output tokens and your prompt contains {len(prompt)} input tokens.",
            )
        return Wanted(prompt, sampling, body.get("seed"), bool(body.get("stream")))

    def _sampling(self, given: Body) -> Sampling:
        return Sampling(
            max_tokens=int(given["max_tokens"]),
            temperature=float(given["temperature"]),
            top_p=float(given["top_p"]),
            top_k=int(given["top_k"]),
            min_p=float(given["min_p"]),
            presence_penalty=float(given["presence_penalty"]),
            frequency_penalty=float(given["frequency_penalty"]),
            repetition_penalty=float(given["repetition_penalty"]),
            stop=texts(given.get("stop")),
            stop_token_ids=tuple(given.get("stop_token_ids") or ()),
        )

    # --- the answer ---

    def _counting(self, made: Completion) -> Callable[[int], None]:
        """Counts while the answer is on its way, in proportion to the tokens that are out; before they are sent."""
        total, seen, counted = len(made.token_ids), made.acceptance or Acceptance(), 0
        positions = self._positions.setdefault(0, [0] * self.num_tokens)

        def count(out: int) -> None:
            nonlocal counted
            before, counted = counted, out
            self._output += out - before
            self._drafts[0] = self._drafts.get(0, 0) + seen.drafts * out // total - seen.drafts * before // total
            for at, accepted in enumerate(seen.accepted_by_position):
                positions[at] += accepted * out // total - accepted * before // total

        return count

    def _answer_of(self, wanted: Wanted, made: Completion, body: Body) -> Answer:
        usage = _usage(len(wanted.prompt), len(made.token_ids))
        head = {
            "id": f"cmpl-{len(self.desk.bodies)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": self.served_name,
        }
        metrics = self._metrics_of(made)
        with_ids = bool(body.get("return_token_ids")) and self.returns_ids
        if wanted.is_streamed:
            options = body.get("stream_options") or {}
            events = self._events(head, wanted, made, with_ids)
            last = Event(len(made.token_ids), {**head, "choices": [], "usage": usage, **metrics})
            return Answer(len(made.token_ids), events=(*events, *([last] if options.get("include_usage") else [])))
        choice = {
            "index": 0,
            "text": self.answers.text(made.token_ids),
            "logprobs": None,
            "finish_reason": made.finish_reason.value,
            "stop_reason": made.stop_reason,
            "token_ids": list(made.token_ids) if with_ids else None,
            "prompt_logprobs": None,
            "prompt_token_ids": list(wanted.prompt) if with_ids else None,
        }
        whole = {**head, "choices": [choice], "usage": usage, "kv_transfer_params": None, "metrics": None, **metrics}
        return Answer(len(made.token_ids), whole)

    def _events(self, head: Body, wanted: Wanted, made: Completion, with_ids: bool) -> Iterator[Event]:
        total = len(made.token_ids)
        for start in range(0, total, self.chunk_tokens):
            part = made.token_ids[start : start + self.chunk_tokens]
            out = start + len(part)
            is_last = out == total
            choice: Body = {
                "index": 0,
                "text": self.answers.text(part),
                "logprobs": None,
                "finish_reason": made.finish_reason.value if is_last else None,
                "stop_reason": made.stop_reason if is_last else None,
                "prompt_token_ids": list(wanted.prompt) if with_ids and not start else None,
                "token_ids": list(part) if with_ids else None,
            }
            yield Event(out, {**head, "choices": [choice]})

    def _metrics_of(self, made: Completion) -> Body:
        if not self.gives_counts or made.acceptance is None or self.answers.speculation is None:
            return {}
        return {"metrics": {"speculative_decoding": _spec_metrics(made.acceptance, self.num_tokens)}}


def error_body(status: int, message: str) -> Body:
    """As vLLM's errors are."""
    names = {400: "BadRequestError", 404: "NotFoundError", 429: "RateLimitError"}
    kind = names.get(status, "InternalServerError")
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


def prompt_ids(prompt: object) -> tuple[int, ...]:
    """Ids, or one list of them in a list, or text: the ids of its characters."""
    if isinstance(prompt, str):
        return tuple(map(ord, prompt))
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], list):
        prompt = prompt[0]
    if not isinstance(prompt, list) or not prompt or not all(type(token) is int for token in prompt):
        raise Refused(400, "prompt: a text or a list of token ids is wanted")
    return tuple(prompt)


def texts(value: object) -> tuple[str, ...]:
    """Stop strings: one, several or none."""
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else tuple(value)  # type: ignore[arg-type]


def histogram(seen: Acceptance, depth: int) -> list[int]:
    """How many verifications accepted exactly none, one, two ... tokens."""
    at_least = [seen.drafts, *seen.accepted_by_position, *[0] * depth][: depth + 1]
    return [count - later for count, later in zip(at_least, [*at_least[1:], 0], strict=True)]


def _logprobs(score: TokenScore | None) -> Body | None:
    """The id that is there, and the best one."""
    if score is None:
        return None
    is_best = score.token_id == score.best_token_id
    best = {"logprob": score.best_logprob, "rank": 1, "decoded_token": None}
    own = best if is_best else {"logprob": score.logprob, "rank": 1000, "decoded_token": None}
    return {str(score.token_id): own, str(score.best_token_id): best}


def _usage(prompt: int, completion: int) -> Body:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _spec_metrics(seen: Acceptance, depth: int) -> Body:
    return {
        "mean_acceptance_length": seen.accept_length or 0.0,
        "draft_acceptance_rate": seen.accepted / seen.drafted if seen.drafted else 0.0,
        "acceptance_histogram": histogram(seen, depth),
        "num_spec_steps": seen.drafts,
        "num_accepted_draft_tokens": seen.accepted,
        "num_draft_tokens": seen.drafted,
        "num_spec_tokens": depth,
    }


async def _body(request: web.Request) -> Body:
    try:
        body = await request.json()
    except ValueError as error:
        raise Refused(400, f"JSON decode error: {error}") from error
    if not isinstance(body, dict):
        raise Refused(400, "an object is wanted")
    return body
