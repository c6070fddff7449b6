"""An answer on its way: whole or as server-sent events, at a speed, and with what a fault does to it.

Both kinds of server make their bodies themselves and send them by this.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from tests.served.answers import paced
from tests.served.faults import Fault, Kind

Body = dict[str, Any]
_LAST = b"data: [DONE]\n\n"
_ID_FIELDS = ("token_ids", "output_ids")
_PROMPT_FIELDS = ("prompt_token_ids",)
_MODEL_FIELDS = ("model", "model_path")
_CARD_FIELDS = ("id", "root")


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a stream, and how many tokens are out once it is there."""

    tokens: int
    body: Body


@dataclass(frozen=True, slots=True)
class Answer:
    """Events where the client asked for a stream, else one whole body. `count` is told how many tokens are out."""

    tokens: int
    whole: Body | None = None
    events: tuple[Event, ...] = ()
    count: Callable[[int], None] = lambda tokens: None


async def send(
    request: web.Request, answer: Answer, fault: Fault | None, tokens_per_second: float | None
) -> web.StreamResponse:
    """The whole way of one answer."""
    speed = fault.tokens_per_second if fault and fault.kind is Kind.SLOW else tokens_per_second
    if answer.whole is not None:
        await paced(answer.tokens, speed)
        answer.count(answer.tokens)
        return await send_whole(request, answer.whole, fault)
    return await _send_events(request, answer, fault, speed)


async def silence(seconds: float | None) -> None:
    """For so long, or until whoever waits is cancelled."""
    if seconds is None:
        await asyncio.Event().wait()
    else:
        await asyncio.sleep(seconds)


def cut(request: web.Request) -> None:
    """The connection ends at once, with a reset where anything is under way."""
    if request.transport is not None:
        request.transport.abort()


async def send_whole(request: web.Request, body: Body, fault: Fault | None) -> web.StreamResponse:
    """One JSON body, with what the fault does to it."""
    kind = fault.kind if fault else None
    if fault and kind is Kind.STALL:
        await silence(fault.seconds)
    data = _bytes_of(body, fault)
    if kind is Kind.DROP:
        cut(request)
        return web.Response()
    sent = data[: len(data) // 2] if kind in (Kind.TRUNCATE, Kind.SHORT) else data
    if kind is not Kind.TRUNCATE:
        return web.Response(body=sent, content_type="application/json")
    response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": str(len(data))})
    await response.prepare(request)
    await response.write(sent)
    if request.transport is not None:
        request.transport.close()  # after what is written: the half does arrive
    return response


async def _send_events(
    request: web.Request, answer: Answer, fault: Fault | None, speed: float | None
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    response.enable_chunked_encoding()
    await response.prepare(request)
    total, out = max((event.tokens for event in answer.events), default=0), 0
    for event in answer.events:
        await paced(event.tokens - out, speed)
        if fault and await _ends_here(request, fault, (out, event.tokens, total)):
            return response
        out = event.tokens
        answer.count(out)
        await response.write(b"data: " + _bytes_of(event.body, fault) + b"\n\n")
    await response.write(_LAST)
    return response


async def _ends_here(request: web.Request, fault: Fault, tokens: tuple[int, int, int]) -> bool:
    """Whether the stream ends before this event: (tokens out, tokens with this event, tokens in all)."""
    out, then, total = tokens
    if fault.kind is Kind.STALL and out <= fault.tokens < then:
        await silence(fault.seconds)
        return False
    if fault.kind is Kind.DROP and then > fault.tokens:
        cut(request)
        return True
    is_half = then * 2 > total and fault.kind in (Kind.TRUNCATE, Kind.SHORT)
    if is_half and fault.kind is Kind.TRUNCATE and request.transport is not None:
        request.transport.close()  # without the chunk that says that this was the last one
    return is_half


# --- what faults do to a body --------------------------------------------------------------------


def _bytes_of(body: Body, fault: Fault | None) -> bytes:
    kind = fault.kind if fault else None
    changed = body if fault is None else _changed(body, fault)
    data = json.dumps([changed] if kind is Kind.NOT_OBJECT else changed).encode()
    return data[:-1] + b", nul" if kind is Kind.BROKEN else data


def _changed(value: Any, fault: Fault) -> Any:
    """The body as the fault leaves it; the server's own stays as it is."""
    if isinstance(value, Mapping):
        kept = {name: entry for name, entry in value.items() if not _is_missing(name, fault)}
        naming = _CARD_FIELDS if "owned_by" in value else _MODEL_FIELDS
        return {name: _field(name, _changed(entry, fault), fault, naming) for name, entry in kept.items()}
    if isinstance(value, list):
        return [_changed(entry, fault) for entry in value]
    return value


def _is_missing(name: str, fault: Fault) -> bool:
    return fault.kind is Kind.MISSING and name in fault.fields


def _field(name: str, value: Any, fault: Fault, naming: tuple[str, ...]) -> Any:
    if fault.kind is Kind.WRONG_MODEL and name in naming:
        return "another-model"
    if name in _PROMPT_FIELDS and isinstance(value, list) and fault.kind is Kind.OTHER_PROMPT:
        return [0, *value]
    if name in _ID_FIELDS and isinstance(value, list) and value:
        return _other_ids(value, fault.kind)
    return value


def _other_ids(ids: list[int], kind: Kind) -> list[Any]:
    if kind is Kind.FEWER_IDS:
        return ids[:-1]
    if kind is Kind.ODD_IDS:
        return [*ids[:-1], -1]
    return [str(token) for token in ids] if kind is Kind.TEXT_IDS else ids
