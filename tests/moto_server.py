"""moto as a server of its own: `python tests/moto_server.py PORT`, on loopback.

moto looks whether an object is there and writes it in two steps, so that of two conditional writes at once both may
succeed, which no S3 does. Here they come one after the other.
"""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple


class OneByOne:
    """A WSGI application whose conditional writes do not overlap. Their bodies are read before: that may take long."""

    def __init__(self, app: Callable[..., Iterable[bytes]]) -> None:
        self._app = app
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ.get("HTTP_IF_NONE_MATCH") != "*":
            return self._app(environ, start_response)
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        with self._lock:
            return self._app({**environ, "wsgi.input": io.BytesIO(body)}, start_response)


def main() -> None:
    """Until it is killed."""
    app = OneByOne(DomainDispatcherApplication(create_backend_app))
    run_simple("127.0.0.1", int(sys.argv[1]), app, threaded=True)


if __name__ == "__main__":
    main()
