"""When a method drafts, and how much: what a counter that stands still, or a moving accept length, can mean. Pure."""

from __future__ import annotations

from regen.spec import DRAFTLESS_METHODS, SCHEDULE_ARG, SpeculationSpec


def drafts_on_matches(speculation: SpeculationSpec) -> bool:
    """The method drafts only where the text repeats itself: rarely, and very unevenly from row to row."""
    return speculation.method in DRAFTLESS_METHODS


def drafts_every_step(speculation: SpeculationSpec) -> bool:
    """A decoded token without a draft is a fault. Not so for prompt lookup, for a schedule that drafts nothing at some
    batch sizes, and for a draft with a context of its own: vLLM drafts for no row while one of the batch is beyond it.
    """
    may_rest = drafts_nothing_at_some_size(speculation) or "max_model_len" in speculation.args
    return not (drafts_on_matches(speculation) or may_rest)


def drafts_nothing_at_some_size(speculation: SpeculationSpec) -> bool:
    """The schedule has a range of batch sizes for which it says 0 tokens. What is no such range says nothing."""
    schedule = speculation.args.get(SCHEDULE_ARG)
    return isinstance(schedule, list) and any(
        isinstance(entry, list | tuple) and len(entry) == 3 and entry[2] == 0 for entry in schedule
    )


def depth_varies(speculation: SpeculationSpec) -> bool:
    """How many tokens are drafted at once follows the load, so accept length moves without a fault; what the first
    position accepts does not.
    """
    return bool(speculation.args.get(SCHEDULE_ARG)) or bool(speculation.args.get("enable_adaptive_verification"))
