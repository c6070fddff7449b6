"""A server that answers as SGLang 0.5 does: /server_info, /generate, chat with `return_meta_info`, /model_info.

From its source: `meta_info` has speculation counts only after the first verification; `spec_accept_length` divides
completion tokens by verifications; the average per rank is absent before the first one; /server_info holds all server
arguments, keys included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

from aiohttp import web

OLD_NAMES = {
    "spec_num_correct_drafts": "spec_accept_token_num",
    "spec_num_proposed_drafts": "spec_draft_token_num",
}


@dataclass
class SglangStandIn:
    """`accepted` is how many of `steps` draft tokens each verification accepts, in turn; `ranks` data-parallel engines.

    `dead_ranks` accept nothing. `gives_counts` off: as an engine whose counters are lost. `is_old`: the names of 0.5.5,
    /get_server_info, and no counts for chat requests.
    """

    algorithm: str | None = "EAGLE3"
    draft: str | None = None
    model: str = "/models/target"
    accepted: Sequence[int] = (2, 1, 0, 1)
    steps: int = 3
    answer_tokens: int = 128
    ranks: int = 1
    dead_ranks: frozenset[int] = frozenset()
    gives_counts: bool = True
    is_old: bool = False
    api_key: str | None = None
    served_name: str = "target"
    context_length: int = 4096
    arguments: dict[str, Any] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    _verified: dict[int, list[int]] = field(default_factory=dict)
    _next_rank: int = 0

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._authentication])
        info = "/get_server_info" if self.is_old else "/server_info"
        app.router.add_get(info, self._server_info)
        app.router.add_get("/get_model_info", self._model_info)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/generate", self._generate)
        app.router.add_post("/v1/chat/completions", self._chat)
        return app

    @web.middleware
    async def _authentication(self, request: web.Request, handler: Any) -> web.StreamResponse:
        is_open = self.api_key is None or request.path.startswith(("/health", "/metrics"))
        if not is_open and request.headers.get("Authorization") != f"Bearer {self.api_key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        answer: web.StreamResponse = await handler(request)
        return answer

    async def _models(self, request: web.Request) -> web.Response:
        name = self.served_name
        card = {"id": name, "object": "model", "owned_by": "sglang", "root": name, "max_model_len": self.context_length}
        return web.json_response({"object": "list", "data": [card]})

    async def _model_info(self, request: web.Request) -> web.Response:
        return web.json_response({"model_path": self.model, "tokenizer_path": self.model, "is_generation": True})

    async def _server_info(self, request: web.Request) -> web.Response:
        is_on = self.algorithm is not None
        return web.json_response(
            {
                "model_path": self.model,
                "context_length": self.context_length,
                "max_req_input_len": self.context_length - 6,
                "api_key": self.api_key,
                "speculative_algorithm": self.algorithm,
                "speculative_draft_model_path": self.draft,
                "speculative_num_steps": self.steps if is_on else None,
                "speculative_eagle_topk": 1 if is_on else None,
                "speculative_num_draft_tokens": self.steps + 1 if is_on else None,
                "speculative_accept_threshold_single": 1.0,
                "speculative_accept_threshold_acc": 1.0,
                **self.arguments,
                "internal_states": [self._state(rank) for rank in range(self.ranks)],
                "version": "0.5.5" if self.is_old else "0.5.23",
            }
        )

    def _state(self, rank: int) -> dict[str, Any]:
        verifications, emitted = self._verified.get(rank, [0, 0])
        state: dict[str, Any] = {"last_gen_throughput": 0.0}
        if verifications and self.gives_counts:
            state["avg_spec_accept_length"] = emitted / verifications
        return state

    async def _generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        sampling = body["sampling_params"]
        assert body["text"]
        assert "temperature" in sampling
        return web.json_response(
            {"text": "...", "meta_info": self._answer(int(sampling["max_new_tokens"]), "generate")}
        )

    async def _chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        choice: dict[str, Any] = {"index": 0, "message": {"role": "assistant", "content": "..."}}
        meta = self._answer(int(body["max_tokens"]), "chat")
        if body.get("return_meta_info") and not self.is_old:
            choice["meta_info"] = meta
        return web.json_response({"object": "chat.completion", "choices": [choice], "usage": {}})

    def _answer(self, cap: int, route: str) -> dict[str, Any]:
        self.asked.append(route)
        rank = self._next_rank
        self._next_rank = (rank + 1) % self.ranks
        tokens = min(cap, self.answer_tokens)
        meta: dict[str, Any] = {"id": "0", "finish_reason": {"type": "length"}, "completion_tokens": tokens}
        if self.ranks > 1 and not self.is_old:
            meta["dp_rank"] = rank
        if self.algorithm is not None and self.gives_counts and tokens > 1:
            counts = self._counts(tokens, (0,) if rank in self.dead_ranks else self.accepted, rank)
            meta |= in_old_words(counts) if self.is_old else counts
        return meta

    def _counts(self, tokens: int, pattern: Sequence[int], rank: int) -> dict[str, Any]:
        """The first token comes from the prompt; each verification gives the accepted ones and one more."""
        histogram, emitted = [0] * (self.steps + 1), 1
        for accepted in cycle(pattern):
            if emitted >= tokens:
                break
            taken = min(accepted, tokens - emitted - 1)
            histogram[taken] += 1
            emitted += 1 + taken
        verifications, correct = sum(histogram), sum(number * count for number, count in enumerate(histogram))
        total = self._verified.setdefault(rank, [0, 0])
        total[0] += verifications
        total[1] += verifications + correct
        return {
            "spec_verify_ct": verifications,
            "spec_num_correct_drafts": correct,
            "spec_num_proposed_drafts": verifications * self.steps,
            "spec_accept_rate": correct / (verifications * self.steps),
            "spec_accept_length": tokens / verifications,
            "spec_correct_drafts_histogram": histogram,
        }


def in_old_words(counts: dict[str, Any]) -> dict[str, Any]:
    """Other names, and no histogram."""
    return {OLD_NAMES.get(name, name): value for name, value in counts.items() if "histogram" not in name}
