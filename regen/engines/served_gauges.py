"""How full a server is and what its cache saved, out of `/metrics`. Pure. What is not there stays zero.

These are the server's own totals, somebody else's requests included. Names as in vLLM 0.32 and SGLang 0.5.
"""

from __future__ import annotations

from dataclasses import dataclass

from regen.engines.exposition import samples

_KV_USAGE = ("vllm:kv_cache_usage_perc", "sglang:token_usage")
_PREFIX_HITS = ("vllm:prefix_cache_hits_total", "sglang:cached_tokens_total")
_PREEMPTIONS = ("vllm:num_preemptions_total",)
_NAMES = frozenset((*_KV_USAGE, *_PREFIX_HITS, *_PREEMPTIONS))


@dataclass(frozen=True, slots=True)
class Gauges:
    """`kv_usage` is that of the fullest engine; the others are totals since the server started."""

    kv_usage: float = 0.0
    prefix_hit_tokens: int = 0
    preemptions: int = 0


def gauges(text: str) -> Gauges:
    """Over all engines of the server."""
    found = list(samples(text, _NAMES))
    return Gauges(
        kv_usage=max((sample.value for sample in found if sample.name in _KV_USAGE), default=0.0),
        prefix_hit_tokens=int(sum(sample.value for sample in found if sample.name in _PREFIX_HITS)),
        preemptions=int(sum(sample.value for sample in found if sample.name in _PREEMPTIONS)),
    )
