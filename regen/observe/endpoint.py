"""What the coordinator serves: /metrics, and pages beside it.

Every number is read from a new snapshot with each scrape; a snapshot that cannot be had is that scrape's error, and
nobody else's. After the end it stays until whoever scrapes has the final numbers (scrapers.py). Then another run on
this machine may have its port: it asks, and gets it at once.
"""

from __future__ import annotations

import errno
import http.client
import math
import secrets
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import closing
from http import HTTPStatus
from urllib.parse import parse_qs

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from regen.errors import UserError
from regen.observe.exposition import TableCollector
from regen.observe.http_server import SERVER_NAME, Asked, HttpServer, Route
from regen.observe.http_server import Page as Page
from regen.observe.metrics import SERIES
from regen.observe.scrapers import Awaited, Scrapers
from regen.observe.snapshot import Snapshot

METRICS_PATH = "/metrics"
_YIELD_PATH = "/yield"
# Our own scrapes carry a word that nobody else knows.
_OWN_HEADER = "X-Regen-Check"
_ANSWER_SECONDS = 10.0
# How long another's port is tried for after it was given up.
_YIELD_SECONDS = 5.0


class Endpoint:
    """Serves until `close`. Raises UserError when it cannot listen."""

    def __init__(
        self, host: str, port: int, snapshot: Callable[[], Snapshot], pages: Mapping[str, Callable[[], Page]]
    ) -> None:
        """`snapshot` and `pages` are called in threads of the server, several at a time."""
        self._own_word = secrets.token_hex()
        self._scrapers = Scrapers()
        self._lock = threading.Lock()  # around the scrapers: requests come in threads of their own
        self._may_yield = False
        self._has_yielded = False
        registry = CollectorRegistry()
        registry.register(TableCollector(snapshot))
        routes: dict[str, Route] = {path: _without_request(page) for path, page in pages.items()}
        routes[METRICS_PATH] = self._noted(exposed(registry))
        self._server = _listening(lambda: HttpServer(host, port, routes, self._answered, self._orders()), host, port)
        self.url = self._server.url + METRICS_PATH

    def check(self) -> None:
        """Scrape ourselves once: every series of the table must be there before the first row. Raises UserError."""
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        request = urllib.request.Request(self.url, headers={_OWN_HEADER: self._own_word})
        try:
            with direct.open(request, timeout=_ANSWER_SECONDS) as answer:
                text = answer.read().decode("utf-8")
        except OSError as error:
            raise UserError(f"metrics: {self.url} does not answer to a scrape of our own: {error}") from error
        shown = {line.split()[2].removesuffix("_total") for line in text.splitlines() if line.startswith("# HELP ")}
        if missing := [series.name for series in SERIES if series.name not in shown]:
            raise UserError(f"metrics: {self.url} does not show {', '.join(missing)}")

    def release(self) -> None:
        """The run is over for others: from now on this port is anybody's who asks."""
        self._may_yield = True

    def farewell(self, hold_seconds: float | None) -> Awaited | None:
        """Who has yet to scrape the final numbers, which the first call says that they are; None: nobody (any more).

        `hold_seconds` as in `Scrapers.awaited`.
        """
        self.release()
        with self._lock:
            if not self._scrapers.has_ended:
                self._scrapers.end(time.monotonic())
            return None if self._has_yielded else self._scrapers.awaited(time.monotonic(), hold_seconds)

    def close(self) -> None:
        """Give up the port at once. May be called again."""
        self._server.close()

    def _noted(self, page: Route) -> Route:
        """That somebody comes is known before it has its answer."""

        def scraped(asked: Asked) -> Page:
            if self._is_scrape(asked):
                with self._lock:
                    self._scrapers.came(asked.client, asked.at)
            return page(asked)

        return scraped

    def _answered(self, path: str, asked: Asked) -> None:
        if path == METRICS_PATH and self._is_scrape(asked):
            with self._lock:
                self._scrapers.answered(asked.client, asked.at)

    def _is_scrape(self, asked: Asked) -> bool:
        return asked.method == "GET" and asked.headers.get(_OWN_HEADER) != self._own_word

    def _orders(self) -> dict[str, Callable[[], bool]]:
        return {_YIELD_PATH: self._yield}

    def _yield(self) -> bool:
        if self._may_yield:
            self._has_yielded = True
            self._server.stop_listening()
        return self._may_yield


def exposed(registry: CollectorRegistry) -> Route:
    """What this registry has, in the format that is asked for: OpenMetrics or Prometheus' own."""

    def page(asked: Asked) -> Page:
        encode, content_type = choose_encoder(asked.headers.get("Accept") or "")
        wanted = parse_qs(asked.query).get("name[]")
        return Page(content_type, encode(registry.restricted_registry(wanted) if wanted else registry))

    return page


def _without_request(page: Callable[[], Page]) -> Route:
    return lambda asked: page()


def _listening(listen: Callable[[], HttpServer], host: str, port: int) -> HttpServer:
    """Also where a run that is over still has the port: it gives it up when asked."""
    until = time.monotonic() + _YIELD_SECONDS
    is_yielded = False
    while True:
        try:
            return listen()
        except OSError as error:
            is_yielded = is_yielded or (error.errno == errno.EADDRINUSE and _is_yielded(host, port))
            if not is_yielded or time.monotonic() > until:
                raise UserError(
                    f"metrics: cannot listen on {host}:{port}: {error.strerror or error}."
                    " Set metrics.port to a free port, to 0 for any, or to null for none."
                ) from error
            time.sleep(0.05)


def _is_yielded(host: str, port: int) -> bool:
    """Whether a regen has this port, and gives it up. Nothing is asked of a server that does not call itself so."""
    try:
        for method, path in (("HEAD", METRICS_PATH), ("POST", _YIELD_PATH)):
            with closing(http.client.HTTPConnection(host, port, timeout=2.0)) as connection:
                connection.request(method, path)
                answer = connection.getresponse()
                if not (answer.getheader("Server") or "").startswith(f"{SERVER_NAME}/"):
                    return False
    except (OSError, http.client.HTTPException):
        return False
    return answer.status == HTTPStatus.ACCEPTED


def told_awaited(url: str, awaited: Awaited) -> str:
    """For the terminal."""
    who = ", ".join(awaited.names) or "a scrape"
    return (
        f"the run has ended; {url} stays for up to {math.ceil(awaited.seconds)} s more, until the final numbers were"
        f" scraped by {who} (Ctrl-C ends the wait)"
    )
