"""A vLLM server, or one that answers like it: facts, counters from /metrics, prompts, probes.

Speculation itself it discloses only in its development mode (`/server_info`); that it is on shows in `/metrics` too,
where the counters are from the start, at zero. Names as in vLLM 0.32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from regen.engines.exposition import Sample, samples
from regen.engines.http import Connection, Reply, plain_settings
from regen.engines.raw_counts import acceptance, whole
from regen.engines.served_failures import may_pass
from regen.errors import ServerUnavailable
from regen.records import Acceptance
from regen.served import Asked, Counters, Fate, Probe, Route, ServerFacts, Speculation

READ_SECONDS = 15.0
_DRAFTS = "vllm:spec_decode_num_drafts_total"
_DRAFTED = "vllm:spec_decode_num_draft_tokens_total"
_ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
_POSITIONS = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
_OUTPUT = "vllm:generation_tokens_total"
_NAMES = frozenset({_DRAFTS, _DRAFTED, _ACCEPTED, _POSITIONS, _OUTPUT})
# Status 400 and 404: no chat template, or no such route.
_NO_CHAT = (400, 404, 405, 422, 501)
PROBED: Mapping[str, object] = {"min_p": 0.05, "logit_bias": {"0": -1.0}}


class VllmServer:
    """One model on a vLLM server."""

    def __init__(self, connection: Connection, facts: ServerFacts) -> None:
        self.facts = facts
        self._connection = connection
        self._route = Route.CHAT

    @classmethod
    def open(cls, connection: Connection, facts: ServerFacts, info: dict[str, Any]) -> VllmServer:
        """`info` is what /server_info answered; empty where it is not served."""
        return cls(connection, replace(facts, speculation=_disclosed(info, connection)))

    async def counters(self) -> Counters:
        """Absent where /metrics is not served or has none of vLLM's series; refused where that may pass.

        Raises ServerUnavailable.
        """
        reply = await self._connection.get("/metrics", READ_SECONDS)
        found = list(samples(reply.text(), _NAMES)) if reply.is_ok else []
        output = [sample.value for sample in found if sample.name == _OUTPUT]
        return Counters(
            is_reported=bool(found),
            by_rank=_by_rank(found),
            output_tokens=int(sum(output)) if output else None,
            is_refused=may_pass(reply.status),
        )

    async def choose_route(self, seconds: float) -> Route:
        """Chat, or plain completions where the model has no chat template. Raises ServerUnavailable."""
        reply = await self._send(Route.CHAT, "Say yes.", {"temperature": 0.0, "max_tokens": 2}, seconds)
        self._route = Route.PLAIN if reply.status in _NO_CHAT else Route.CHAT
        return self._route

    async def ask(self, text: str, temperature: float, cap_tokens: int, seconds: float) -> Asked:
        """One prompt. `acceptance` only where the server was started with per_request_spec_decode_metrics."""
        try:
            reply = await self._send(self._route, text, {"temperature": temperature, "max_tokens": cap_tokens}, seconds)
        except ServerUnavailable as error:
            return Asked(temperature, error=str(error))
        fields = reply.fields()
        if not reply.is_ok or not isinstance(fields.get("choices"), list):
            return Asked(temperature, error=f"status {reply.status}: {self._connection.shown(_message(reply))}")
        return Asked(temperature, _output_tokens(fields), of_request(fields))

    async def probes(self) -> tuple[Probe, ...]:
        """One request each, for real: vLLM refuses them while speculation is on, and takes them otherwise."""
        return tuple([await self._probe(name, value) for name, value in PROBED.items()])

    async def _probe(self, name: str, value: object) -> Probe:
        body = {"temperature": 1.0, "max_tokens": 1, name: value}
        try:
            reply = await self._send(self._route, "Say yes.", body, READ_SECONDS)
        except ServerUnavailable as error:
            return Probe(name, Fate.UNCLEAR, str(error))
        said = self._connection.shown(_message(reply))
        if reply.is_ok:
            return Probe(name, Fate.TAKEN)
        if reply.status not in (400, 422):
            return Probe(name, Fate.UNCLEAR, f"status {reply.status}: {said}")
        return Probe(name, Fate.REFUSED, said, "speculative decoding" in reply.text().lower())

    async def _send(self, route: Route, text: str, sampling: Mapping[str, object], seconds: float) -> Reply:
        body: dict[str, object] = {"model": self.facts.model, **sampling}
        if route is Route.CHAT:
            body["messages"] = [{"role": "user", "content": text}]
            return await self._connection.post("/v1/chat/completions", body, seconds)
        return await self._connection.post("/v1/completions", {**body, "prompt": text}, seconds)


def _by_rank(found: list[Sample]) -> dict[str, Acceptance]:
    """Summed over everything but the engine: a server may have several front processes. All three counters, or none."""
    ranks: dict[str, dict[str, int]] = {}
    positions: dict[str, dict[int, int]] = {}
    for sample in found:
        rank = sample.labels.get("engine", "0")
        if sample.name == _POSITIONS and sample.labels.get("position", "").isdecimal():
            at, place = positions.setdefault(rank, {}), int(sample.labels["position"])
            at[place] = at.get(place, 0) + int(sample.value)
        elif sample.name in (_DRAFTS, _DRAFTED, _ACCEPTED):
            totals = ranks.setdefault(rank, {})
            totals[sample.name] = totals.get(sample.name, 0) + int(sample.value)
    return {
        rank: Acceptance(totals[_DRAFTS], totals.get(_DRAFTED, 0), totals[_ACCEPTED], _listed(positions.get(rank, {})))
        for rank, totals in sorted(ranks.items())
        if _DRAFTS in totals and _ACCEPTED in totals
    }


def _listed(at: dict[int, int]) -> tuple[int, ...]:
    """By position from 0; nothing if one is missing."""
    return tuple(at[place] for place in range(len(at))) if set(at) == set(range(len(at))) else ()


def _message(reply: Reply) -> str:
    """The error's own words, where it is in OpenAI's form."""
    error = reply.fields().get("error")
    said = error.get("message") if isinstance(error, dict) else None
    return said if isinstance(said, str) else reply.text()


def _output_tokens(fields: dict[str, Any]) -> int | None:
    usage = fields.get("usage")
    return whole(usage.get("completion_tokens")) if isinstance(usage, dict) else None


def of_request(fields: Mapping[str, Any]) -> Acceptance | None:
    """The counters of one request, where the server was started with per_request_spec_decode_metrics."""
    metrics = fields.get("metrics")
    said = metrics.get("speculative_decoding") if isinstance(metrics, dict) else None
    if not isinstance(said, dict):
        return None
    return acceptance(
        said.get("num_spec_steps"),
        said.get("num_accepted_draft_tokens"),
        said.get("num_draft_tokens"),
        said.get("acceptance_histogram"),
    )


def _disclosed(info: dict[str, Any], connection: Connection) -> Speculation | None:
    """None: not disclosed. A config that is there and has no speculative part says that it is off."""
    config = info.get("vllm_config")
    if not isinstance(config, dict) or "speculative_config" not in config:
        return None
    said = config["speculative_config"]
    if not isinstance(said, dict):
        return Speculation(method=None) if said is None else None
    draft, method = said.get("model"), said.get("method")
    return Speculation(
        method=connection.shown(method) if isinstance(method, str) else None,
        draft=connection.shown(draft) if isinstance(draft, str) else None,
        num_tokens=whole(said.get("num_speculative_tokens")),
        settings=plain_settings(said),
    )
