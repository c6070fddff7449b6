"""How full a server is, out of its metrics."""

from __future__ import annotations

from regen.engines.served_gauges import Gauges, gauges


def test_the_fullest_engine_and_the_sums_over_all() -> None:
    text = (
        'vllm:kv_cache_usage_perc{engine="0"} 0.25\n'
        'vllm:kv_cache_usage_perc{engine="1"} 0.5\n'
        'vllm:prefix_cache_hits_total{engine="0"} 3.0\n'
        'vllm:prefix_cache_hits_total{engine="1"} 4.0\n'
        'vllm:num_preemptions_total{engine="0"} 2.0\n'
        "vllm:prefix_cache_hits_created 1.79e+09\n"
    )
    assert gauges(text) == Gauges(0.5, 7, 2)
    assert gauges("sglang:token_usage 0.75\nsglang:cached_tokens_total 9.0\n") == Gauges(0.75, 9, 0)


def test_what_is_not_there_is_zero() -> None:
    assert gauges("# nothing\n") == Gauges()
