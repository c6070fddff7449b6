"""When a method drafts, and how much: what a counter that stands still, or a moving accept length, can mean. Pure."""

from __future__ import annotations

from regen.spec import SpeculationSpec

_SCHEDULE = "num_speculative_tokens_per_batch_size"
_ON_MATCHES = ("ngram", "suffix")


def drafts_on_matches(speculation: SpeculationSpec) -> bool:
    """The method drafts only where the text repeats itself: rarely, and very unevenly from row to row."""
    return speculation.method in _ON_MATCHES


def drafts_every_step(speculation: SpeculationSpec) -> bool:
    """A decoded token without a draft is a fault. Not so for prompt lookup, for a schedule that drafts nothing at some
    batch sizes, and for a draft with a context of its own: vLLM drafts for no row while one of the batch is beyond it.
    """
    schedule = speculation.args.get(_SCHEDULE)
    may_rest = isinstance(schedule, list) and any(isinstance(entry, list | tuple) and 0 in entry for entry in schedule)
    return not (drafts_on_matches(speculation) or may_rest or "max_model_len" in speculation.args)


def depth_varies(speculation: SpeculationSpec) -> bool:
    """How many tokens are drafted at once follows the load, so accept length moves without a fault; what the first
    position accepts does not.
    """
    return bool(speculation.args.get(_SCHEDULE)) or bool(speculation.args.get("enable_adaptive_verification"))
