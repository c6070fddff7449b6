"""A proxy in front of an S3 server that goes wrong as scripted: between regen and moto, or whatever speaks S3.

    with moto() as server, faulty(server.endpoint) as proxy:
        proxy.add(Fault(Kind.ANSWER, method="PUT", key="*/journal/*", status=503, code="SlowDown", times=3))
        storage = server.storage(endpoint=proxy.endpoint)

Each request is matched against the faults in the order in which they were added, and the first that fits strikes:
`method`, `key` (as in fnmatch, over `/bucket/key`) and `query` (what must stand in the query: `uploads` begins an
upload in parts, `partNumber` is a part, `uploadId` completes one, `list-type` lists) say where; `after` lets so many
matching requests pass first, `times` is how often it strikes then (None: for ever). What matches no fault is handed on.

    ANSWER      `status` with an error of `code` in its body; the server hears nothing (503 SlowDown, 500
                InternalError, 409 ConditionalRequestConflict, 412, 403 AccessDenied, 411 MissingContentLength ...)
    DELAY       handed on `seconds` later
    HANG        no answer for `seconds` (or until the proxy closes), then cut; the server hears nothing
    DROP        the connection is cut at once; the server hears nothing
    LOSE_REPLY  handed on, and the connection is cut before the answer
    TRUNCATE    the answer's header is whole, of its body half comes
    ALTER       the body is stored with chunk markers around it, as by servers that do not know that encoding

`expire(access_key)` makes every request that is signed with this key answer ExpiredToken, from now on or after some
requests; `renew(access_key)` takes that back. `away = True` cuts every connection until it is False again. `seen`
holds every request that came, and `struck` those that met a fault. Thread-safe; everything is on loopback. The server
must not check signatures of bodies (moto does not).
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from fnmatch import fnmatchcase
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "expect"}


class Kind(Enum):
    ANSWER = auto()
    DELAY = auto()
    HANG = auto()
    DROP = auto()
    LOSE_REPLY = auto()
    TRUNCATE = auto()
    ALTER = auto()


@dataclass(slots=True)
class Fault:
    """One scripted fault; see the module. `matched` counts what it fitted so far."""

    kind: Kind
    method: str = "*"
    key: str = "*"
    query: str = ""
    after: int = 0
    times: int | None = 1
    seconds: float = 0.0
    status: int = 503
    code: str = "SlowDown"
    matched: int = 0

    def strikes(self, request: Request) -> bool:
        """Counts the request if it fits."""
        fits = fnmatchcase(request.method, self.method) and fnmatchcase(request.key, self.key)
        if not fits or self.query not in request.query:
            return False
        self.matched += 1
        return self.matched > self.after and (self.times is None or self.matched <= self.after + self.times)


@dataclass(frozen=True, slots=True)
class Request:
    """One that came. `key` is `/bucket/key`; `access_key` is who has signed it."""

    method: str
    key: str
    query: str
    access_key: str


@dataclass(slots=True)
class FaultyProxy:
    """See the module."""

    endpoint: str
    away: bool = False
    seen: list[Request] = field(default_factory=list)
    struck: list[tuple[Request, Kind | None]] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)
    _faults: list[Fault] = field(default_factory=list)
    _expired: dict[str, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, fault: Fault) -> Fault:
        with self._lock:
            self._faults.append(fault)
        return fault

    def clear(self) -> None:
        """No faults from now on; what has expired stays so."""
        with self._lock:
            self._faults.clear()
            self.away = False

    def expire(self, access_key: str, after_requests: int = 0) -> None:
        """From now on (or when so many more of its requests have passed) this key has expired."""
        with self._lock:
            self._expired[access_key] = after_requests

    def renew(self, access_key: str) -> None:
        with self._lock:
            self._expired.pop(access_key, None)

    def judge(self, request: Request) -> Fault | None:
        """What happens to this request; None: it is handed on."""
        with self._lock:
            self.seen.append(request)
            fault = self._fault(request)
            if fault is not None:
                self.struck.append((request, fault.kind))
            return fault

    def _fault(self, request: Request) -> Fault | None:
        if self.away:
            return Fault(Kind.DROP)
        if request.access_key in self._expired:
            if self._expired[request.access_key] <= 0:
                return Fault(Kind.ANSWER, status=400, code="ExpiredToken")
            self._expired[request.access_key] -= 1
        return next((fault for fault in self._faults if fault.strikes(request)), None)


@contextmanager
def faulty(endpoint: str, port: int = 0) -> Iterator[FaultyProxy]:
    """The proxy in front of the server at `endpoint`, on loopback, while the block runs."""
    target = urlsplit(endpoint).netloc
    server = _Server(("127.0.0.1", port), _Handler)
    proxy = FaultyProxy(f"http://127.0.0.1:{server.server_address[1]}")
    server.proxy, server.target = proxy, target
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.closing.set()
        server.shutdown()
        server.server_close()
        thread.join(timeout=10)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    proxy: FaultyProxy
    target: str


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def handle_any(self) -> None:
        proxy, target = self.server.proxy, self.server.target
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = proxy.judge(self._request())
        kind = fault.kind if fault is not None else None
        if fault is not None and kind in (Kind.DELAY, Kind.HANG):
            proxy.closing.wait(fault.seconds or None)
        if kind in (Kind.HANG, Kind.DROP):
            self._cut()
        elif fault is not None and kind is Kind.ANSWER:
            self._answer(fault.status, {"Content-Type": "application/xml"}, _error(fault.code))
        else:
            self._hand_on(target, body, kind)

    def log_message(self, *args: Any) -> None:
        """Tests look at `seen`."""

    def _request(self) -> Request:
        parts = urlsplit(self.path)
        signed = self.headers.get("Authorization") or ""
        access_key = signed.partition("Credential=")[2].partition("/")[0]
        return Request(self.command, unquote(parts.path), parts.query, access_key)

    def _hand_on(self, target: str, body: bytes, kind: Kind | None) -> None:
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP_BY_HOP}
        if kind is Kind.ALTER:
            body = f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n"
            headers = {name: value for name, value in headers.items() if name.lower() != "content-md5"}
        connection = HTTPConnection(target, timeout=60)
        try:
            connection.request(self.command, self.path, body or None, {**headers, "Content-Length": str(len(body))})
            answer = connection.getresponse()
            status, told, data = answer.status, dict(answer.getheaders()), answer.read()
        except (OSError, HTTPException):
            self._cut()
            return
        finally:
            connection.close()
        if kind is Kind.LOSE_REPLY:
            self._cut()
        else:
            self._answer(status, told, data, is_truncated=kind is Kind.TRUNCATE)

    def _answer(self, status: int, headers: Mapping[str, str], data: bytes, is_truncated: bool = False) -> None:
        length = next((value for name, value in headers.items() if name.lower() == "content-length"), len(data))
        with suppress(OSError):  # nobody waits for it any more
            self.send_response(status)
            for name, value in headers.items():
                if name.lower() not in _HOP_BY_HOP | {"date", "server"}:
                    self.send_header(name, value)
            self.send_header("Content-Length", str(length if self.command == "HEAD" else len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data[: len(data) // 2] if is_truncated else data)
        if is_truncated:
            self._cut()

    def _cut(self) -> None:
        self.close_connection = True
        with suppress(OSError):
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)


for _method in ("GET", "PUT", "POST", "DELETE", "HEAD"):
    setattr(_Handler, f"do_{_method}", _Handler.handle_any)


def _error(code: str) -> bytes:
    return (
        f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code><Message>scripted</Message></Error>".encode()
    )
