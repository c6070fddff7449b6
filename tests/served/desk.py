"""What every stand-in server does with a request before and after its own work: counts it, and lets faults strike.

`bodies` holds what was asked for tokens, in order; `left` counts requests whose client went away before the end;
`connections` are the clients' ends of those over which anything was asked.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from tests.served.faults import Fault, Kind, Script
from tests.served.sending import cut, send_whole, silence

GENERATING = frozenset({"/v1/completions", "/v1/chat/completions", "/generate"})
FAULT = web.RequestKey("fault", Fault)


@dataclass
class Desk:
    """`refusal` makes the body of an error in the server's own form from status and message. `slots` requests run at
    a time, the others wait.
    """

    script: Script
    refusal: Callable[[int, str], dict[str, Any]]
    slots: int
    bodies: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    waiting: int = 0
    running: int = 0
    most_running: int = 0
    left: int = 0
    connections: set[Any] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._places = asyncio.Semaphore(self.slots)

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        makes_tokens = request.path in GENERATING
        self.paths.append(request.path)
        self.connections.add(request.transport and request.transport.get_extra_info("peername"))
        if makes_tokens:
            await self._note(request)
        fault = self.script.strike(request.path, makes_tokens)
        if fault is not None and (struck := await self._at_the_door(request, fault, makes_tokens)) is not None:
            return struck
        if fault is not None:
            request[FAULT] = fault
        response = await (self._counted(request, handler) if makes_tokens else handler(request))
        return await self._changed(request, response)

    async def _note(self, request: web.Request) -> None:
        try:
            self.bodies.append(await request.json())
        except ValueError:
            self.bodies.append({})

    async def _at_the_door(self, request: web.Request, fault: Fault, makes_tokens: bool) -> web.StreamResponse | None:
        """Faults that strike before anything is made."""
        if fault.kind is Kind.STATUS:
            headers = {"Retry-After": fault.retry_after} if fault.retry_after is not None else {}
            body = self.refusal(fault.status, "this stand-in server was told to refuse this request")
            return web.json_response(body, status=fault.status, headers=headers)
        if fault.kind is Kind.HANG or (fault.kind is Kind.STALL and not makes_tokens):
            await silence(fault.seconds)
        if fault.kind is Kind.HANG or (fault.kind is Kind.DROP and not makes_tokens):
            cut(request)
            return web.Response()
        return None

    async def _changed(self, request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
        """A JSON answer as the fault leaves it, unless the handler has seen to that."""
        fault = request.pop(FAULT, None)
        if fault is None or not isinstance(response, web.Response) or response.content_type != "application/json":
            return response
        return await send_whole(request, json.loads(response.text or "null"), fault)

    async def _counted(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self.waiting += 1
        try:
            await self._places.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            return await handler(request)
        except (asyncio.CancelledError, ConnectionError):
            self.left += 1
            raise
        finally:
            self.running -= 1
            self._places.release()
