"""A small HTTP server beside a run: GET and HEAD of a few paths, in threads of its own.

Guarantees: whatever clients do, and whatever a page raises, the run goes on. A client that sends nothing, or reads
nothing, is cut off; there are never more than `MOST_REQUESTS` at work, and `close` waits for none of them. On loopback
only the machine's own names are answered, so that a page elsewhere cannot read along by pointing its name here (DNS
rebinding). No TLS, no authentication: what is served to a network is for everybody there.
"""

from __future__ import annotations

import gzip
import ipaddress
import socket
import socketserver
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import urlsplit

from prometheus_client.exposition import gzip_accepted

from regen import __version__

SERVER_NAME = "regen"
MOST_REQUESTS = 16
# Without a byte for so long, and in all.
SILENCE_SECONDS = 5.0
COMPLAINT_SECONDS = 60.0
REQUEST_SECONDS = 30.0
_POLL_SECONDS = 0.1
_WORTH_PACKING_BYTES = 1000


@dataclass(frozen=True, slots=True)
class Page:
    """What is answered to one path. `headers` come on top of the content's type and length."""

    content_type: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: how, who asks (an address and what it calls itself), when, and with what headers and query."""

    method: str
    client: str
    at: float
    headers: Message
    query: str


Route = Callable[[Asked], Page]


class _Complaints:
    """Defects, printed with their trace: each once a minute, since one that lasts comes with every request."""

    def __init__(self) -> None:
        self._said_at: dict[str, float] = {}
        self._lock = threading.Lock()

    def print(self) -> None:
        """The exception that is being handled."""
        error, now = sys.exception(), time.monotonic()
        with self._lock:
            kind = type(error).__name__
            is_new = now - self._said_at.get(kind, float("-inf")) >= COMPLAINT_SECONDS
            if is_new:
                self._said_at[kind] = now
        if is_new:
            traceback.print_exc()


class HttpServer:
    """Listens from the constructor until `close`. Raises OSError when it cannot.

    `answered` is told of each GET that was answered in full. `orders` are the paths that take a POST: what they return
    is whether there was anything to do.
    """

    def __init__(
        self,
        host: str,
        port: int,
        routes: Mapping[str, Route],
        answered: Callable[[str, Asked], None] = lambda path, asked: None,
        orders: Mapping[str, Callable[[], bool]] | None = None,
    ) -> None:
        family, address = _resolved(host, port)
        self._server = _Server(family, address, _Site(routes, answered, orders or {}, _names(host, address[0])))
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._server.server_address[1]}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_SECONDS,), name="http", daemon=True
        )
        self._thread.start()

    def stop_listening(self) -> None:
        """Free the port; who is being answered gets the answer. May be called again, from any thread."""
        self._server.shutdown()
        self._server.server_close()

    def close(self) -> None:
        """Free the port, and cut off who is being answered."""
        self.stop_listening()
        self._server.cut_off()


@dataclass(frozen=True, slots=True)
class _Site:
    routes: Mapping[str, Route]
    answered: Callable[[str, Asked], None]
    orders: Mapping[str, Callable[[], bool]]
    names: frozenset[str] | None  # that a request may call this server by; None: any


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 32

    def __init__(self, family: socket.AddressFamily, address: Any, site: _Site) -> None:
        self.address_family = family
        self.site = site
        self.complaints = _Complaints()
        self._open: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            is_full = len(self._open) >= MOST_REQUESTS
            if not is_full:
                self._open[request] = time.monotonic()
        if is_full:
            request.close()
        else:
            super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Between requests: who takes too long goes. A byte now and then keeps nobody here."""
        self.cut_off(began_before=time.monotonic() - REQUEST_SECONDS)

    def cut_off(self, began_before: float = float("inf")) -> None:
        with self._lock:
            late = [request for request, began_at in self._open.items() if began_at < began_before]
        for request in late:
            try:
                request.shutdown(socket.SHUT_RDWR)  # its thread finds the end of the stream, and closes it
            except OSError:
                continue  # it has ended by itself

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away, or is cut off, is no error."""
        if not isinstance(sys.exception(), OSError):
            self.complaints.print()


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = SILENCE_SECONDS
    server_version = f"{SERVER_NAME}/{__version__}"
    sys_version = ""

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        if not self._is_for_us():
            return
        order = self.server.site.orders.get(self.path)
        if order is not None and order():
            self._send_text(HTTPStatus.ACCEPTED, "done")
        else:
            self._send_text(HTTPStatus.METHOD_NOT_ALLOWED, "GET and HEAD only", {"Allow": "GET, HEAD"})

    def _answer(self) -> None:
        if not self._is_for_us():
            return
        try:
            parts = urlsplit(self.path)
        except ValueError as error:
            self._send_text(HTTPStatus.BAD_REQUEST, f"this is no address: {error}")
            return
        route = self.server.site.routes.get(parts.path)
        if route is None:
            known = ", ".join(sorted(self.server.site.routes))
            self._send_text(HTTPStatus.NOT_FOUND, f"there is nothing here; there is {known}")
            return
        asked = Asked(self.command, self._client(), time.monotonic(), self.headers, parts.query)
        try:
            page = route(asked)
        except Exception:  # a defect, and the request's trouble alone: the run goes on
            self.server.complaints.print()
            self._send_text(
                HTTPStatus.INTERNAL_SERVER_ERROR, "this could not be made; the log of this process says why"
            )
            return
        self._send(HTTPStatus.OK, page)
        if self.command == "GET":
            self.wfile.flush()
            self.server.site.answered(parts.path, asked)

    def _is_for_us(self) -> bool:
        names, asked_for = self.server.site.names, self.headers.get("Host")
        if names is None or asked_for is None or _without_port(asked_for) in names:
            return True
        self._send_text(
            HTTPStatus.FORBIDDEN, f"this server answers to {', '.join(sorted(names))} only, since it is on loopback"
        )
        return False

    def _client(self) -> str:
        """For people, on a terminal: what it calls itself may be anything."""
        agent = "".join(character for character in self.headers.get("User-Agent", "") if " " <= character <= "~")
        return f"{self.client_address[0]} ({agent[:60]})" if agent else str(self.client_address[0])

    def _send_text(self, status: HTTPStatus, text: str, headers: Mapping[str, str] | None = None) -> None:
        self._send(status, Page("text/plain; charset=utf-8", f"{text}\n".encode(), headers or {}))

    def _send(self, status: HTTPStatus, page: Page) -> None:
        body, packed = page.body, {}
        if len(body) > _WORTH_PACKING_BYTES and gzip_accepted(self.headers.get("Accept-Encoding") or ""):
            body, packed = gzip.compress(body, compresslevel=5), {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
        self.send_response(status)
        for name, value in {
            "Content-Type": page.content_type,
            "Content-Length": str(len(body)),
            "X-Content-Type-Options": "nosniff",
            **packed,
            **page.headers,
        }.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """One line a scrape would be a flood."""


def _resolved(host: str, port: int) -> tuple[socket.AddressFamily, Any]:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return family, address


def _names(host: str, address: str) -> frozenset[str] | None:
    """By which names a server on loopback is called; None where it is not on loopback: any."""
    if not ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        return None
    return frozenset({"localhost", "127.0.0.1", "[::1]", f"[{host}]" if ":" in host else host.lower()})


def _without_port(host: str) -> str:
    name, _, port = host.strip().lower().rpartition(":")
    return name if name and port.isdecimal() else host.strip().lower()
