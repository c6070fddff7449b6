"""Prometheus' text, well formed and not."""

from __future__ import annotations

import pytest

from regen.engines.exposition import Sample, samples

NAMES = {"vllm:drafts_total"}


def test_samples_of_the_wanted_names_with_their_labels() -> None:
    text = (
        "# HELP vllm:drafts_total Number of drafts.\n"
        'vllm:drafts_total{engine="0",model_name="a \\"b\\", c"} 12.0\n'
        "vllm:drafts_created 1.79e+09\n"
        "vllm:drafts_total 3\n"
    )
    first, second = samples(text, NAMES)
    assert first == Sample("vllm:drafts_total", {"engine": "0", "model_name": 'a \\"b\\", c'}, 12.0)
    assert second == Sample("vllm:drafts_total", {}, 3.0)


@pytest.mark.parametrize(
    "line",
    [
        "vllm:drafts_total NaN",
        "vllm:drafts_total +Inf",
        "vllm:drafts_total -1",
        "vllm:drafts_total 1e300",
        "vllm:drafts_total many",
        "vllm:drafts_total",
        "vllm:drafts_total_of_something 3",
        'vllm:drafts_total{engine="0" 3',
        f'vllm:drafts_total{{engine="{"0" * 5000}"}} 3',
        "\x00\x00",
    ],
)
def test_what_is_no_count_is_left_out(line: str) -> None:
    assert list(samples(line, NAMES)) == []
