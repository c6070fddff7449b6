"""HTTP to a server that somebody else runs: every request bounded in time and size, no key ever in a message.

A redirect is not followed (it would take the key elsewhere), an answer is not decompressed (a small one may be huge),
and nothing that the server says can raise anything but ServerUnavailable. aiohttp is imported when a connection opens.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from regen.errors import ServerUnavailable, SpecError

if TYPE_CHECKING:
    import aiohttp

ANSWER_BYTES = 8 * 2**20
CONNECT_SECONDS = 10.0
_SHOWN_CHARACTERS = 300
_LONGEST_LIST = 64


def server_url(text: str) -> str:
    """`http://HOST:PORT[/PREFIX]` without `/v1` at its end. Raises SpecError for anything else.

    A name and password in it are refused, unprinted: they would show in the list of processes.
    """
    try:
        parts = urlsplit(text.strip())
        has_host, _ = bool(parts.hostname), parts.port
    except ValueError as error:
        raise SpecError(f"the server's address is no URL: {error}") from error
    if parts.username is not None or parts.password is not None:
        raise SpecError("the server's address holds a name or password: name a variable with --api-key-env instead")
    if parts.scheme not in ("http", "https") or not has_host:
        raise SpecError(f"{text!r} is no address of a server: http://HOST:PORT is wanted")
    if parts.query or parts.fragment:
        raise SpecError(f"{text!r} holds a query: http://HOST:PORT is wanted")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1').rstrip('/')}"


def plain_text(value: object, characters: int = _SHOWN_CHARACTERS) -> str:
    """What a server said, fit for a terminal: one line, no control characters, not too long."""
    text = "".join(char if char.isprintable() else " " for char in str(value)[: characters * 4])
    text = " ".join(text.split())
    return text if len(text) <= characters else text[:characters] + "..."


def plain_settings(said: Mapping[str, object]) -> dict[str, object]:
    """Those settings that are numbers, words or short lists of numbers."""
    found: dict[str, object] = {}
    for name, value in said.items():
        if isinstance(value, str):
            found[name] = plain_text(value)
        elif _is_number(value) or _is_short_list(value):
            found[name] = value
    return found


def finite(value: object) -> float | None:
    """A number that a server computed; None for anything else."""
    return (
        float(value) if _is_number(value) and isinstance(value, int | float) and not isinstance(value, bool) else None
    )


def _is_short_list(value: object) -> bool:
    return isinstance(value, list) and len(value) <= _LONGEST_LIST and all(map(_is_number, value))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) < 2**63


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer. `retry_after` is the header as it was sent."""

    status: int
    body: bytes
    retry_after: str | None = None

    @property
    def is_ok(self) -> bool:
        return self.status == 200

    def text(self) -> str:
        return self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        """The JSON value, or None if it is none."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None

    def fields(self) -> dict[str, Any]:
        """The JSON object; empty if it is none."""
        value = self.json()
        return value if isinstance(value, dict) else {}


@dataclass(frozen=True, slots=True)
class OpenReply:
    """An answer whose body is still to come. `retry_after` is the header as it was sent."""

    status: int
    retry_after: str | None
    where: str
    response: aiohttp.ClientResponse

    def chunks(self) -> AsyncIterator[bytes]:
        """As they arrive."""
        return self.response.content.iter_any()

    async def whole(self) -> Reply:
        """The rest of it. Raises ServerUnavailable if it is too large."""
        return Reply(self.status, await _bounded(self.response, self.where), self.retry_after)


class Connection:
    """Requests to one server. Use as an async context manager; the key goes into a header and nowhere else."""

    def __init__(self, url: str, api_key: str | None = None, connections: int = 100) -> None:
        """At most so many `connections` at once; they are kept open between requests."""
        self.url = url
        self._connections = connections
        self._api_key = api_key
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Connection:
        import aiohttp

        headers = {"Accept-Encoding": "identity"}
        if self._api_key is not None:
            headers["Authorization"] = f"Bearer {self._api_key}"
        connector = aiohttp.TCPConnector(limit=self._connections)
        self._session = aiohttp.ClientSession(headers=headers, auto_decompress=False, connector=connector)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def get(self, path: str, seconds: float) -> Reply:
        """Raises ServerUnavailable: no connection, no whole answer in time, too large, a redirect."""
        return await self._ask("GET", path, None, seconds)

    async def post(self, path: str, body: object, seconds: float) -> Reply:
        """As `get`, with a JSON body."""
        return await self._ask("POST", path, body, seconds)

    @asynccontextmanager
    async def stream(self, path: str, body: object) -> AsyncIterator[OpenReply]:
        """A POST whose answer is read as it comes. Nothing bounds its time: the caller does, by what arrives.

        Leaving the block before the end closes the connection (aiohttp keeps none that is half read): the server then
        ends the request. Raises ServerUnavailable.
        """
        import aiohttp

        assert self._session is not None, "not opened"
        where = f"POST {self.url}{path}"
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
        try:
            async with self._session.post(
                self.url + path, json=body, timeout=timeout, allow_redirects=False
            ) as response:
                yield OpenReply(response.status, response.headers.get("Retry-After"), where, response)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ServerUnavailable(f"{where}: {self.shown(error) or type(error).__name__}") from error

    def shown(self, value: object) -> str:
        """What the server said, for people: without the key, should it have sent that back."""
        text = str(value)
        return plain_text(text.replace(self._api_key, "[key]") if self._api_key else text)

    async def _ask(self, method: str, path: str, body: object, seconds: float) -> Reply:
        import aiohttp

        assert self._session is not None, "not opened"
        timeout = aiohttp.ClientTimeout(total=max(seconds, 0.001), connect=CONNECT_SECONDS)
        where = f"{method} {self.url}{path}"
        try:
            async with self._session.request(
                method, self.url + path, json=body, timeout=timeout, allow_redirects=False
            ) as response:
                content = await _bounded(response, where)
                status, retry_after = response.status, response.headers.get("Retry-After")
        except TimeoutError as error:
            raise ServerUnavailable(f"{where}: no whole answer within {seconds:.0f} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            reason = self.shown(error) or type(error).__name__
            raise ServerUnavailable(f"{where}: {reason}. Is the server running, and is this its address?") from error
        if 300 <= status < 400:
            raise ServerUnavailable(f"{where}: redirects elsewhere (status {status}): give the server's own address")
        return Reply(status, content, retry_after)


async def _bounded(response: aiohttp.ClientResponse, where: str) -> bytes:
    """The body. Raises ServerUnavailable at the first byte too many."""
    content = bytearray()
    async for chunk in response.content.iter_any():
        content += chunk
        if len(content) > ANSWER_BYTES:
            raise ServerUnavailable(f"{where}: the answer is larger than {ANSWER_BYTES // 2**20} MiB: not read further")
    return bytes(content)
