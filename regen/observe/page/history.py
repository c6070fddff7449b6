"""From what the store said at many moments to what a chart draws: rates between two moments of one session.

Sums are taken apart, never averages: a moment that is left out changes no other figure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from regen.observe.page import figures
from regen.observe.page.facts import Event, EventKind, Seen

MOST_POINTS = 150


@dataclass(frozen=True, slots=True)
class Point:
    """What went on until `at`, since the moment before. None: nothing can be said of that stretch."""

    at: float
    tokens_per_second: float | None
    accept_length: float | None


def thinned(history: Sequence[Seen], most: int = MOST_POINTS) -> tuple[Seen, ...]:
    """In the order of time; the first and last of every session stay, between them about `most` over the whole run."""
    known = sorted(history, key=lambda seen: seen.at)
    if len(known) < 3:
        return tuple(known)
    apart = (known[-1].at - known[0].at) / most
    return tuple(
        seen for _, session in groupby(known, lambda seen: seen.session) for seen in _spaced([*session], apart)
    )


def _spaced(session: Sequence[Seen], apart: float) -> Iterator[Seen]:
    last_at = float("-inf")
    for seen in session[:-1]:
        if seen.at - last_at >= apart:
            last_at = seen.at
            yield seen
    yield session[-1]


def stretches(history: Sequence[Seen]) -> list[list[Point]]:
    """Of each session its points. Between sessions nothing ran, and nothing is drawn."""
    return [
        [_point(before, after) for before, after in pairwise(session) if after.at > before.at]
        for session in (list(moments) for _, moments in groupby(history, lambda seen: seen.session))
    ]


def _point(before: Seen, after: Seen) -> Point:
    tokens, drafts = after.output_tokens - before.output_tokens, after.drafts - before.drafts
    accepted = after.accepted - before.accepted
    return Point(
        after.at,
        # A row that was made again takes the place of its older answer: sums may fall, and a rate is none then.
        tokens / (after.at - before.at) if tokens >= 0 else None,
        1.0 + accepted / drafts if drafts > 0 and accepted >= 0 else None,
    )


def happened(history: Sequence[Seen]) -> list[Event]:
    """Sessions that began and troubles that were counted, as far as the moments tell."""
    events = [
        Event(moments[0].at, EventKind.SESSION, f"session {session} began")
        for session, moments in ((name, list(found)) for name, found in groupby(history, lambda seen: seen.session))
    ]
    for before, after in pairwise(history):
        more = {name: count - before.troubles.get(name, 0) for name, count in after.troubles.items()}
        told = ", ".join(f"{count:,} {name}" for name, count in more.items() if count > 0)
        if told:
            events.append(Event(after.at, EventKind.FAULT, f"since {figures.clock(before.at)}: {told}"))
    return events
