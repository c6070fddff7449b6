"""Speed and acceptance over time, with what happened, and the same happenings as a list."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from regen.observe.page import figures
from regen.observe.page.charts import Series, Span, legend, time_chart
from regen.observe.page.facts import Event, EventKind, PageFacts
from regen.observe.page.history import Point, happened, stretches, thinned
from regen.observe.page.html import Element, e
from regen.observe.page.parts import remark, section, table

MOST_EVENTS = 200


def over_time_section(facts: PageFacts) -> Element:
    history = thinned(facts.history)
    times = [seen.at for seen in history] or [facts.at]
    over = Span(min(times), max(*times, min(times) + 1.0))
    found = stretches(history)
    marks = [event for event in all_events(facts) if event.at is not None and over.low <= event.at <= over.high]
    tokens = _series("Useful tokens a second", "committed", found, lambda point: point.tokens_per_second)
    accepted = _series(
        "Accept length", "tokens per verification step", found, lambda point: point.accept_length, floor=1.0
    )
    return section(
        "over-time",
        "Over time",
        time_chart(tokens, over, marks),
        time_chart(accepted, over, marks),
        legend(tuple(EventKind)),
        remark("Times are UTC. Each point is about the time since the one before; gaps are times when nobody ran it."),
    )


def events_section(facts: PageFacts) -> Element:
    events = all_events(facts)
    latest = sorted(events, key=lambda event: event.at or 0.0, reverse=True)[:MOST_EVENTS]
    rows = [(figures.moment(event.at), str(event.kind), event.text) for event in latest]
    left = len(events) - len(latest)
    return section(
        "events",
        "Decisions and sessions",
        e(
            "div",
            table("What happened, the latest first", ("when", "what", "told"), rows, left=("what", "told")),
            class_="told",
        ),
        remark(f"And {left:,} earlier ones.") if left else None,
    )


def all_events(facts: PageFacts) -> list[Event]:
    """Those that the store tells and those that the moments show; a session that both know stands once."""
    told = [event.text for event in facts.events if event.kind is EventKind.SESSION]
    found = happened(thinned(facts.history))
    seen = [event for event in found if not any(text.startswith(event.text) for text in told)]
    return [*facts.events, *seen]


def _series(
    title: str,
    unit: str,
    found: Sequence[Sequence[Point]],
    value: Callable[[Point], float | None],
    floor: float = 0.0,
) -> Series:
    """A moment without a value cuts the line, as a gap between sessions does."""
    lines: list[tuple[tuple[float, float], ...]] = []
    for stretch in found:
        line: list[tuple[float, float]] = []
        for point in stretch:
            known = value(point)
            if known is not None and figures.is_known(known):
                line.append((point.at, known))
            elif line:
                lines.append(tuple(line))
                line = []
        if line:
            lines.append(tuple(line))
    return Series(title, unit, tuple(lines), floor)
