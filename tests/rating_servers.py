"""Stand-in servers that also rate tokens, as vLLM 0.32 (`prompt_logprobs`) and SGLang 0.5 (`return_logprob`) do.

What follows the longest prompt that was asked before is rated as the fake engine rates it.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from regen.records import TokenScore
from regen.spec import FakeEngineSpec, SpeculationSpec
from tests.served.answers import Answers, Wanted
from tests.served.sglang_server import SglangServer
from tests.served.vllm_server import VllmServer


def rating_server(kind: str, spec: FakeEngineSpec, speculation: SpeculationSpec | None) -> VllmServer | SglangServer:
    """`kind` is vllm or sglang. Its counters per request are on."""
    answers = RatingAnswers(spec, speculation)
    method = speculation.method.upper() if speculation else None
    if kind == "sglang":
        return RatingSglangServer(answers=answers, algorithm=method)
    return RatingVllmServer(answers=answers, gives_counts=speculation is not None)


class RatingAnswers(Answers):
    """Remembers the prompts that it answered."""

    def __init__(self, spec: FakeEngineSpec, speculation: SpeculationSpec | None) -> None:
        super().__init__(spec, speculation)
        self._prompts: set[tuple[int, ...]] = set()

    async def make(self, wanted: Wanted) -> Any:
        self._prompts.add(wanted.prompt)
        return await super().make(wanted)

    async def rated(self, whole: tuple[int, ...]) -> tuple[TokenScore | None, ...]:
        """One for each id, None for those of the prompt."""
        known = [prompt for prompt in self._prompts if whole[: len(prompt)] == prompt and len(prompt) < len(whole)]
        prompt = max(known, key=len)
        return (*[None] * len(prompt), *await self.engine.score(prompt, whole[len(prompt) :]))


class RatingVllmServer(VllmServer):
    async def _plain(self, request: web.Request) -> web.StreamResponse:  # type: ignore[override]
        body = await request.json()
        if body.get("prompt_logprobs") is None:
            return await super()._plain(request)
        assert isinstance(self.answers, RatingAnswers)
        places = [_of_vllm(score) for score in await self.answers.rated(tuple(body["prompt"]))]
        return web.json_response({"choices": [{"index": 0, "text": "", "prompt_logprobs": places}]})


class RatingSglangServer(SglangServer):
    async def _generate(self, request: web.Request) -> web.StreamResponse:  # type: ignore[override]
        body = await request.json()
        if not body.get("return_logprob"):
            return await super()._generate(request)
        assert isinstance(self.answers, RatingAnswers)
        ids = tuple(body["input_ids"])
        rated = await self.answers.rated(ids)
        own = [[score and score.logprob, token, None] for token, score in zip(ids, rated, strict=True)]
        top = [score and [[score.best_logprob, score.best_token_id, None]] for score in rated]
        return web.json_response({"meta_info": {"input_token_logprobs": own, "input_top_logprobs": top}})


def _of_vllm(score: TokenScore | None) -> dict[str, Any] | None:
    """The likeliest token and the one that stands there: one entry where they are the same."""
    if score is None:
        return None
    return {
        str(score.best_token_id): {"logprob": score.best_logprob, "rank": 1, "decoded_token": "?"},
        str(score.token_id): {"logprob": score.logprob, "rank": 2, "decoded_token": "?"},
    }
