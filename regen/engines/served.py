"""Whose server an address is, and a reader for it. What it does not say stays unknown.

A server is known by what it alone answers: vLLM and SGLang sign their models (`owned_by`), and their `/server_info`
have keys of their own. A gateway before them may hide both; then it is of kind OTHER, and only its answers count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from regen.engines.http import Connection, Reply
from regen.engines.served_sglang import SglangServer
from regen.engines.served_vllm import VllmServer
from regen.errors import ServerUnavailable, SpecError
from regen.served import Asked, Counters, Probe, Route, ServerFacts, ServerKind

READ_SECONDS = 15.0
HEALTH_SECONDS = 5.0
_HIDDEN = (401, 403, 404, 405)
_AUTHENTICATION = (401, 403)
# The query is for vLLM, whose default is one line of text.
_INFO_PATHS = ("/server_info?config_format=json", "/get_server_info")


class ServedModel(Protocol):
    """One model on one server. Every call is bounded by the seconds it is given."""

    facts: ServerFacts

    async def counters(self) -> Counters:
        """The server's totals now. Raises ServerUnavailable."""
        ...

    async def choose_route(self, seconds: float) -> Route:
        """How this server takes prompts and gives counters for them: found out with one request."""
        ...

    async def ask(self, text: str, temperature: float, cap_tokens: int, seconds: float) -> Asked:
        """One prompt. A failure is in the result, not raised."""
        ...

    async def probes(self) -> tuple[Probe, ...]:
        """What becomes of sampling parameters that do not go with speculation."""
        ...


@dataclass(frozen=True, slots=True)
class _Card:
    """One entry of /v1/models."""

    name: str
    owner: str
    path: str | None
    context_tokens: int | None
    is_adapter: bool


async def recognise(connection: Connection, model: str | None) -> ServedModel:
    """Who answers, and with which model.

    Raises ServerUnavailable if nobody does, or not as an OpenAI server; SpecError for a refused key, an unknown model.
    """
    reply = await connection.get("/v1/models", READ_SECONDS)
    _require_entry(connection, reply)
    cards = _cards(reply)
    card = _chosen(cards, model, connection)
    info_path, info = await _server_info(connection)
    kind = _kind(card, info)
    version = info.get("version") if kind is ServerKind.SGLANG else await _version(connection)
    facts = ServerFacts(
        url=connection.url,
        kind=kind,
        model=card.name,
        version=connection.shown(version) if isinstance(version, str) else None,
        model_path=card.path,
        context_tokens=card.context_tokens,
        longest_tokens=card.context_tokens,
        answers_as=_answers_as(kind, card, cards),
    )
    if kind is ServerKind.SGLANG:
        return await SglangServer.open(connection, facts, info_path, info)
    return VllmServer.open(connection, facts, info)


async def is_healthy(connection: Connection, kind: ServerKind) -> bool:
    """Whether it is there and says that it works, apart from any request for tokens. Raises nothing.

    By its list of models where a gateway hides the rest.
    """
    try:
        reply = await connection.get("/health", HEALTH_SECONDS)
        if kind is ServerKind.OTHER or reply.status in _HIDDEN:
            reply = await connection.get("/v1/models", HEALTH_SECONDS)
        return reply.is_ok
    except ServerUnavailable:
        return False


def _require_entry(connection: Connection, reply: Reply) -> None:
    if reply.status in _AUTHENTICATION:
        raise SpecError(
            f"{connection.url} refuses us (status {reply.status}): put its key into an environment variable and name"
            " that with --api-key-env (in a spec: api_key_env)"
        )
    if not reply.is_ok or not isinstance(reply.fields().get("data"), list):
        raise ServerUnavailable(
            f"GET {connection.url}/v1/models: status {reply.status}, and no list of models. Is this the address of a"
            " vLLM or SGLang server?"
        )


def _cards(reply: Reply) -> list[_Card]:
    found = []
    for entry in reply.fields()["data"]:
        if isinstance(entry, dict) and isinstance(entry.get("id"), str):
            path, context = entry.get("root"), entry.get("max_model_len")
            found.append(
                _Card(
                    entry["id"],
                    str(entry.get("owned_by") or ""),
                    path if isinstance(path, str) else None,
                    context if isinstance(context, int) and not isinstance(context, bool) else None,
                    entry.get("parent") is not None,
                )
            )
    return found


def _chosen(cards: list[_Card], model: str | None, connection: Connection) -> _Card:
    own = [card for card in cards if not card.is_adapter] or cards
    if not own:
        raise ServerUnavailable(f"GET {connection.url}/v1/models: the list of models is empty")
    if model is None:
        return own[0]
    for card in cards:
        if card.name == model:
            return card
    names = connection.shown(", ".join(card.name for card in cards))
    raise SpecError(f"the model {model!r} is not served at {connection.url}: it has {names}")


def _answers_as(kind: ServerKind, card: _Card, cards: list[_Card]) -> str | None:
    """vLLM takes every --served-model-name and answers with the first; one with other weights is another model."""
    if kind is not ServerKind.VLLM or card.is_adapter:
        return None
    return next(other.name for other in cards if not other.is_adapter and other.path == card.path)


def _kind(card: _Card, info: dict[str, Any]) -> ServerKind:
    if card.owner == "sglang" or "internal_states" in info or "speculative_algorithm" in info:
        return ServerKind.SGLANG
    return ServerKind.VLLM if card.owner == "vllm" or "vllm_config" in info else ServerKind.OTHER


async def _server_info(connection: Connection) -> tuple[str, dict[str, Any]]:
    """Where it is, and what it says. vLLM has it only in its development mode; older SGLang by another name."""
    for path in _INFO_PATHS:
        reply = await connection.get(path, READ_SECONDS)
        if reply.is_ok and (fields := reply.fields()):
            return path, fields
    return _INFO_PATHS[0], {}


async def _version(connection: Connection) -> object:
    return (await connection.get("/version", READ_SECONDS)).fields().get("version")
