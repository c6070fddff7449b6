"""Engines are replaced one at a time: the others go on. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable


def one_at_a_time(bad: Iterable[int], being_replaced: Collection[int]) -> int | None:
    """The slot whose engine is to be replaced next: the first of `bad`; none while another one is being replaced."""
    return None if being_replaced else next(iter(bad), None)
