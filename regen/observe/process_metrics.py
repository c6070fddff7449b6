"""A worker process' own metrics over HTTP: what its engine has registered with Prometheus' client library.

vLLM registers its series (`vllm:*`) in the process that holds `AsyncLLM`: the worker, whatever processes it starts.
"""

from __future__ import annotations

import os

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector

from regen.errors import UserError
from regen.observe.endpoint import METRICS_PATH, exposed
from regen.observe.http_server import HttpServer


def serve_process_metrics(host: str, port: int) -> HttpServer:
    """Until it is closed. Raises UserError when it cannot listen."""
    try:
        return HttpServer(host, port, {METRICS_PATH: exposed(_registry())})
    except OSError as error:
        raise UserError(
            f"the engine's own metrics cannot be had: cannot listen on {host}:{port}: {error.strerror or error}."
            " metrics.engine_port is the first of as many ports as there are replicas"
        ) from error


def _registry() -> CollectorRegistry:
    """As vLLM chooses: with a folder set for it, the client library keeps its values there."""
    if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
        return REGISTRY
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return registry
