"""`/tokenize` as vLLM 0.32 and SGLang 0.5 have it: a text in, its ids and their number out."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

Tokenizer = Callable[[str], list[int]]


def add_tokenize(app: web.Application, tokenizer: Tokenizer | None, max_model_len: int) -> None:
    """None: the server does not have it."""
    if tokenizer is None:
        return

    async def tokenize(request: web.Request) -> web.Response:
        body = await request.json()
        assert body["add_special_tokens"] is False
        ids = tokenizer(body["prompt"])
        return web.json_response({"tokens": ids, "count": len(ids), "max_model_len": max_model_len})

    app.router.add_post("/tokenize", tokenize)
