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
# Over less than that a rate is chance.
_NEAREST_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Point:
    """What went on until `at`, since the moment before. None: nothing can be said of that stretch."""

    at: float
    tokens_per_second: float | None
    accept_length: float | None


def thinned(history: Sequence[Seen], most: int = MOST_POINTS) -> tuple[Seen, ...]:
    """The first and last of every session stay, and between them about `most` over the whole run."""
    if len(history) < 3:
        return tuple(history)
    apart = max(_NEAREST_SECONDS, (max(seen.at for seen in history) - min(seen.at for seen in history)) / most)
    return tuple(seen for session in _sessions(history) for seen in _spaced(session, apart))


def mean_rate(history: Sequence[Seen]) -> float | None:
    """Tokens a second over all the time that somebody ran it."""
    ends = [(session[0], session[-1]) for session in _sessions(history)]
    seconds = sum(max(0.0, last.at - first.at) for first, last in ends)
    return sum(last.output_tokens - first.output_tokens for first, last in ends) / seconds if seconds else None


def stretches(history: Sequence[Seen]) -> list[list[Point]]:
    """Of each session its points. Between sessions nothing ran, and nothing is drawn."""
    return [
        [_point(before, after) for before, after in pairwise(session) if after.at > before.at]
        for session in _sessions(history)
    ]


def happened(history: Sequence[Seen]) -> list[Event]:
    """Sessions that began and troubles that were counted, as far as the moments tell."""
    events = [
        Event(moments[0].at, EventKind.SESSION, f"session {moments[0].session} began") for moments in _sessions(history)
    ]
    for before, after in pairwise(history):
        more = {name: count - before.troubles.get(name, 0) for name, count in after.troubles.items()}
        told = ", ".join(f"{count:,} {name}" for name, count in more.items() if count > 0)
        if told:
            events.append(Event(after.at, EventKind.FAULT, f"since {figures.clock(before.at)}: {told}"))
    return events


def _sessions(history: Sequence[Seen]) -> list[list[Seen]]:
    return [list(moments) for _, moments in groupby(history, lambda seen: seen.session)]


def _spaced(session: Sequence[Seen], apart: float) -> Iterator[Seen]:
    first, last = session[0], session[-1]
    kept_at = first.at
    yield first
    for seen in session[1:-1]:
        if seen.at - kept_at >= apart and last.at - seen.at >= apart:
            kept_at = seen.at
            yield seen
    if last is not first:
        yield last


def _point(before: Seen, after: Seen) -> Point:
    tokens, drafts = after.output_tokens - before.output_tokens, after.drafts - before.drafts
    accepted = after.accepted - before.accepted
    return Point(
        after.at,
        # A row that was made again takes the place of its older answer: sums may fall, and a rate is none then.
        tokens / (after.at - before.at) if tokens >= 0 else None,
        1.0 + accepted / drafts if drafts > 0 and accepted >= 0 else None,
    )
