"""Reading a metrics endpoint as Prometheus does."""

from __future__ import annotations

import urllib.error
import urllib.request

from prometheus_client.parser import text_string_to_metric_families


def scraped(port: int) -> str:
    """The endpoint's text; empty while nothing listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            return str(answer.read().decode("utf-8"))
    except (urllib.error.URLError, ConnectionError):
        return ""


def sample(text: str, name: str, **labels: str) -> float:
    """The value of one sample; nan if it is not there."""
    for family in text_string_to_metric_families(text):
        for found in family.samples:
            if found.name == name and labels.items() <= found.labels.items():
                return float(found.value)
    return float("nan")
