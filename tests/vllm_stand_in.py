"""A server that answers as vLLM 0.32 does: /version, /v1/models, /metrics, chat completions, refusals, /server_info.

The real one is asked in tests/integration/test_doctor_real_server.py; this one has the ranks, the faults and the
company that a real one on a CPU has not. Asked by one of its `aliases`, it answers by its first name, as that does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

from aiohttp import web

REFUSAL = "The min_p and logit_bias sampling parameters are not yet supported with speculative decoding."


@dataclass
class VllmStandIn:
    """`accepted` by rank: how many of `num_tokens` draft tokens each verification accepts, in turn; empty: off.

    `foreign_tokens` are added to the server's output beside every answer, for somebody else. `config` is what
    /server_info has as speculative_config, where it `discloses` anything.
    """

    accepted: Sequence[Sequence[int]] = ((2, 1, 0, 1),)
    num_tokens: int = 3
    answer_tokens: int = 128
    foreign_tokens: int = 0
    has_metrics: bool = True
    has_counters: bool = True
    refuses: bool = True
    has_chat_template: bool = True
    config: dict[str, Any] | None = None
    discloses: bool = False
    served_name: str = "target"
    aliases: Sequence[str] = ()
    max_model_len: int = 4096
    routes: list[str] = field(default_factory=list)
    _drafts: dict[int, int] = field(default_factory=dict)
    _positions: dict[int, list[int]] = field(default_factory=dict)
    _output: int = 0
    _next_rank: int = 0

    def app(self, **instead: Any) -> web.Application:
        """`instead`: handlers by name, for those of this server."""
        for name, handler in instead.items():
            setattr(self, f"_{name}", handler)
        app = web.Application()
        app.router.add_get("/version", self._version)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/completions", self._plain)
        if self.has_metrics:
            app.router.add_get("/metrics", self._metrics)
        if self.discloses:
            app.router.add_get("/server_info", self._server_info)
        return app

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "0.32.0"})

    async def _models(self, request: web.Request) -> web.Response:
        name, root = self.served_name, "/models/target"
        card = {"id": name, "owned_by": "vllm", "root": root, "parent": None, "max_model_len": self.max_model_len}
        aliases = [{**card, "id": alias} for alias in self.aliases]
        data = [{**card, "id": "adapter", "parent": name}, card, *aliases]
        return web.json_response({"object": "list", "data": data})

    async def _server_info(self, request: web.Request) -> web.Response:
        return web.json_response({"vllm_config": {"speculative_config": self.config}, "vllm_env": {}})

    async def _metrics(self, request: web.Request) -> web.Response:
        lines = [f'vllm:generation_tokens_total{{engine="0",model_name="{self.served_name}"}} {self._output}.0']
        for rank in range(len(self.accepted)) if self.has_counters else ():
            labels = f'engine="{rank}",model_name="{self.served_name}"'
            positions = self._positions.get(rank, [0] * self.num_tokens)
            drafts = self._drafts.get(rank, 0)
            lines += [
                "# TYPE vllm:spec_decode_num_drafts_total counter",
                f"vllm:spec_decode_num_drafts_total{{{labels}}} {drafts}.0",
                f"vllm:spec_decode_num_drafts_created{{{labels}}} 1.79e+09",
                f"vllm:spec_decode_num_draft_tokens_total{{{labels}}} {drafts * self.num_tokens}.0",
                f"vllm:spec_decode_num_accepted_tokens_total{{{labels}}} {sum(positions)}.0",
            ]
            name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
            lines += [f'{name}{{{labels},position="{at}"}} {count}.0' for at, count in enumerate(positions)]
        return web.Response(text="\n".join(lines) + "\n")

    async def _chat(self, request: web.Request) -> web.Response:
        if not self.has_chat_template:
            return _error("As of transformers v4.44, default chat template is no longer allowed")
        return await self._answer(request, "chat")

    async def _plain(self, request: web.Request) -> web.Response:
        return await self._answer(request, "plain")

    async def _answer(self, request: web.Request, route: str) -> web.Response:
        body = await request.json()
        self.routes.append(route)
        is_excluded = body.get("min_p") or body.get("logit_bias")
        if is_excluded and self.accepted and self.refuses:
            return _error(REFUSAL)
        tokens = min(int(body["max_tokens"]), self.answer_tokens)
        if self.accepted:
            self._count(tokens)
        self._output += tokens + self.foreign_tokens
        choice = {"index": 0, "message": {"role": "assistant", "content": "..."}, "text": "..."}
        return web.json_response({"choices": [choice], "usage": {"completion_tokens": tokens}, "metrics": None})

    def _count(self, tokens: int) -> None:
        rank = self._next_rank
        self._next_rank = (rank + 1) % len(self.accepted)
        positions, emitted = self._positions.setdefault(rank, [0] * self.num_tokens), 1
        for accepted in cycle(self.accepted[rank]):
            if emitted >= tokens:
                return
            self._drafts[rank] = self._drafts.get(rank, 0) + 1
            for position in range(accepted):
                positions[position] += 1
            emitted += 1 + accepted


def _error(message: str) -> web.Response:
    body = {"error": {"message": message, "type": "BadRequestError", "param": None, "code": 400}}
    return web.json_response(body, status=400)
