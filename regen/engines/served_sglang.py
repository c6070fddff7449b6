"""An SGLang server: facts from /server_info, raw counts per request from `meta_info`.

Its server-wide average is per data-parallel rank, absent before the first verification, and has no count beside it; so
it is shown and decides nothing. Names as in 0.5, where three generations of them are in use. /server_info also holds
the server's keys and its launch command: only the fields named here are taken out of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from regen.engines.exposition import samples
from regen.engines.http import Connection, Reply, finite, plain_settings
from regen.engines.raw_counts import acceptance, whole
from regen.errors import ServerUnavailable
from regen.records import Acceptance
from regen.served import Asked, Counters, Fate, Probe, Route, ServerFacts, Speculation

READ_SECONDS = 15.0
_OUTPUT = "sglang:generation_tokens_total"
_VERIFICATIONS = "spec_verify_ct"
_ACCEPTED = ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num")
_DRAFTED = ("spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num")
_HISTOGRAM = ("spec_correct_drafts_histogram", "spec_accept_histogram")
_PREFIX = "speculative_"
_STEPPED = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE")


class SglangServer:
    """One model on an SGLang server."""

    def __init__(self, connection: Connection, facts: ServerFacts, info_path: str) -> None:
        self.facts = facts
        self._connection = connection
        self._info_path = info_path
        self._route = Route.PLAIN

    @classmethod
    async def open(
        cls, connection: Connection, facts: ServerFacts, info_path: str, info: dict[str, Any]
    ) -> SglangServer:
        """`info` is what `info_path` answered; empty where that is kept from us."""
        model = info.get("model_path")
        context = whole(info.get("context_length")) or facts.context_tokens
        flag = info.get("enable_deterministic_inference")
        speculation = _disclosed(info, connection)
        is_on = speculation is not None and speculation.method is not None
        found = replace(
            facts,
            model_path=model if isinstance(model, str) else await _model_path(connection, facts.model_path),
            context_tokens=context,
            longest_tokens=longest_tokens(context, info, is_on),
            speculation=speculation,
            is_deterministic=flag if isinstance(flag, bool) else None,
        )
        return cls(connection, found, info_path)

    async def counters(self) -> Counters:
        """Averages per rank; output tokens only where it runs with --enable-metrics. Raises ServerUnavailable."""
        info = (await self._connection.get(self._info_path, READ_SECONDS)).fields()
        metrics = await self._connection.get("/metrics", READ_SECONDS)
        output = [sample.value for sample in samples(metrics.text(), {_OUTPUT})] if metrics.is_ok else []
        return Counters(
            is_reported=bool(info),
            output_tokens=int(sum(output)) if output else None,
            averages=_averages(info.get("internal_states")),
        )

    async def choose_route(self, seconds: float) -> Route:
        """Chat where it gives counts for a chat request (`return_meta_info`), else /generate, which always does."""
        reply = await self._send(Route.CHAT, "Count from one to twenty.", 0.0, 24, seconds)
        meta = _meta_info(reply, Route.CHAT)
        self._route = Route.CHAT if _VERIFICATIONS in meta else Route.PLAIN
        return self._route

    async def ask(self, text: str, temperature: float, cap_tokens: int, seconds: float) -> Asked:
        """One prompt, with the server's counts for it."""
        try:
            reply = await self._send(self._route, text, temperature, cap_tokens, seconds)
        except ServerUnavailable as error:
            return Asked(temperature, error=str(error))
        meta = _meta_info(reply, self._route)
        if not reply.is_ok or not meta:
            return Asked(temperature, error=f"status {reply.status}: {self._connection.shown(reply.text())}")
        rank = whole(meta.get("dp_rank"))
        return Asked(
            temperature,
            output_tokens=whole(meta.get("completion_tokens")),
            acceptance=of_meta_info(meta),
            rank=None if rank is None else str(rank),
            said_accept_length=finite(meta.get("spec_accept_length")),
        )

    async def probes(self) -> tuple[Probe, ...]:
        """Nothing to send: it answers as if it had taken min_p, and verifies drafts without it."""
        is_on = self.facts.speculation is not None and self.facts.speculation.method is not None
        return (Probe("min_p", Fate.IGNORED, "known of SGLang 0.5, not seen from outside"),) if is_on else ()

    async def _send(self, route: Route, text: str, temperature: float, cap_tokens: int, seconds: float) -> Reply:
        if route is Route.CHAT:
            body = {
                "model": self.facts.model,
                "messages": [{"role": "user", "content": text}],
                "temperature": temperature,
                "max_tokens": cap_tokens,
                "return_meta_info": True,
            }
            return await self._connection.post("/v1/chat/completions", body, seconds)
        sampling = {"temperature": temperature, "max_new_tokens": cap_tokens}
        return await self._connection.post("/generate", {"text": text, "sampling_params": sampling}, seconds)


def longest_tokens(context: int | None, info: Mapping[str, Any], speculates: bool) -> int | None:
    """What prompt and cap may have together. None: nothing is known of it.

    Its door wants them, and what drafts take, below the context; its scheduler cuts an answer short without a word at
    two below the context or one below the pool of its cache. `max_req_input_len` is four below that.
    """
    pool, known = whole(info.get("max_req_input_len")), []
    if context is not None:
        known.append(context - 2)
    if pool is not None:
        known.append(pool + 4)
    return max(0, min(known) - (_reserved(info) if speculates else 0)) if known else None


def _reserved(info: Mapping[str, Any]) -> int:
    """Places for draft tokens, which each request takes besides its own."""
    steps, tokens, width = (
        whole(info.get(f"speculative_{name}")) for name in ("num_steps", "num_draft_tokens", "eagle_topk")
    )
    return max((width or 1) * (steps or 0), tokens or 0)


async def streams_new_ids_only(connection: Connection) -> bool:
    """Whether its streams hold new ids only: else each event has all so far. Its arguments say so, by two names."""
    for path in ("/server_info", "/get_server_info"):
        if info := (await connection.get(path, READ_SECONDS)).fields():
            return any(info.get(name) is True for name in ("incremental_streaming_output", "stream_output"))
    return False


def _meta_info(reply: Reply, route: Route) -> dict[str, Any]:
    fields = reply.fields()
    if route is Route.CHAT:
        choices = fields.get("choices")
        fields = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    meta = fields.get("meta_info")
    return meta if isinstance(meta, dict) else {}


def of_meta_info(meta: Mapping[str, Any]) -> Acceptance | None:
    """The counters of one request."""
    return acceptance(
        meta.get(_VERIFICATIONS), _first(meta, _ACCEPTED), _first(meta, _DRAFTED), _first(meta, _HISTOGRAM)
    )


def _first(meta: Mapping[str, Any], names: tuple[str, ...]) -> object:
    return next((meta[name] for name in names if name in meta), None)


def _averages(states: object) -> dict[str, float | None]:
    """By rank, in the server's order."""
    found: dict[str, float | None] = {}
    for rank, state in enumerate(states if isinstance(states, list) else ()):
        said = state.get("avg_spec_accept_length") if isinstance(state, dict) else None
        found[str(rank)] = finite(said)
    return found


def _disclosed(info: dict[str, Any], connection: Connection) -> Speculation | None:
    """None: not disclosed. `speculative_algorithm: null` says that it is off."""
    if "speculative_algorithm" not in info:
        return None
    said, draft = info["speculative_algorithm"], info.get("speculative_draft_model_path")
    method = connection.shown(said).upper() if isinstance(said, str) else None
    return Speculation(
        method=method,
        draft=connection.shown(draft) if isinstance(draft, str) else None,
        num_tokens=_depth(method, info),
        settings=plain_settings({key: value for key, value in info.items() if key.startswith(_PREFIX)}),
    )


def _depth(method: str | None, info: dict[str, Any]) -> int | None:
    """Tokens that one verification may accept. Steps are the depth of EAGLE's trees; DFLASH and NGRAM set them to
    something else, and their draft tokens count the one that the target gives.
    """
    steps, tokens = whole(info.get("speculative_num_steps")), whole(info.get("speculative_num_draft_tokens"))
    if method in _STEPPED or tokens is None:
        return steps
    return max(0, tokens - 1)


async def _model_path(connection: Connection, fallback: str | None) -> str | None:
    for path in ("/model_info", "/get_model_info"):
        said = (await connection.get(path, READ_SECONDS)).fields().get("model_path")
        if isinstance(said, str):
            return said
    return fallback
