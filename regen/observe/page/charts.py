"""Charts as SVG that stretches with the page while its text and strokes keep their size.

Positions along the page are percentages, heights are pixels; colours are classes, since the page's policy forbids style
in attributes. Every chart says in words what it shows, and every bar has its number beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from regen.observe.page import figures
from regen.observe.page.facts import Event, EventKind
from regen.observe.page.html import Element, e

_TOP, _HEIGHT, _LABELS = 14, 150, 22
_WIDTH = 1000
_DIVISIONS = 4
# Marks nearer to each other than that share of the chart are one.
_MARK_SHARE = 0.012
_TIME_FORMS = ((600, "%H:%M:%S"), (20 * 3600, "%H:%M"), (math.inf, "%m-%d %H:%M"))
_LETTERS = {EventKind.SESSION: "S", EventKind.DECISION: "D", EventKind.FAULT: "F"}

Place = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Span:
    """What an axis reaches over."""

    low: float
    high: float

    def share(self, value: float) -> float:
        """Where a value is: 0 at the low end, 1 at the high one."""
        width = self.high - self.low
        return min(1.0, max(0.0, (value - self.low) / width)) if width > 0 else 0.5


@dataclass(frozen=True, slots=True)
class Series:
    """A line over time. `stretches` are drawn apart: between them nothing ran."""

    title: str
    unit: str
    stretches: tuple[tuple[Place, ...], ...]
    floor: float = 0.0

    @property
    def values(self) -> list[float]:
        return [value for stretch in self.stretches for _, value in stretch]


def time_chart(series: Series, over: Span, marks: Sequence[Event]) -> Element:
    """The line, its axes and the marks of what happened. `over` is in epoch seconds."""
    values = series.values
    axis = Span(series.floor, _round_up(max(values, default=series.floor + 1.0), series.floor))
    said = _told(series, over)
    return e(
        "figure",
        e("figcaption", e("b", series.title), ", ", series.unit),
        e(
            "div",
            _axis(axis),
            e(
                "svg",
                e("title", said),
                _grid(axis),
                _time_labels(over),
                _lines(series.stretches, over, axis),
                [_mark(kind, at, over, text) for kind, at, text in _grouped(marks, over)],
                [_dot(place, over, axis) for stretch in series.stretches if len(stretch) == 1 for place in stretch],
                None
                if values
                else e("text", "nothing measured yet", x="50%", y=_TOP + _HEIGHT / 2, text_anchor="middle"),
                class_="chart",
                role="img",
                aria_label=said,
                height=_TOP + _HEIGHT + _LABELS,
            ),
            class_="axes",
        ),
    )


def legend(kinds: Sequence[EventKind]) -> Element:
    """What the letters in time charts are."""
    return e(
        "ul",
        [
            e(
                "li",
                e("svg", _line("1", "8", "100%", "8", f"mark {kind}"), class_="key", aria_hidden="true"),
                f"{_LETTERS[kind]}: {kind}",
            )
            for kind in kinds
        ],
        class_="legend",
    )


def bar(parts: Sequence[tuple[str, float]], said: str) -> Element:
    """A bar that is full at 1, in parts: (class, share). What it says stands beside it, too."""
    drawn, at = [], 0.0
    for name, size in parts:
        size = min(max(0.0, size if math.isfinite(size) else 0.0), 1.0 - at)
        if size > 0:
            drawn.append(e("rect", x=_percent(at), y=0, width=_percent(size), height="100%", class_=name))
            at += size
    return e("svg", e("title", said), drawn, class_="bar", role="img", aria_label=said)


def histogram(counts: Sequence[int], said: str, ends: tuple[str, str] = ("", "")) -> Element:
    """Bars side by side, the highest as high as there is room. `ends` name the two ends of the axis."""
    most, width = max(counts, default=0), 100 / max(1, len(counts))
    labels = [
        e("text", text, x=x, y="100%", dy=-3, text_anchor=anchor)
        for text, x, anchor in ((ends[0], "0", "start"), (ends[1], "100%", "end"))
        if text
    ]
    room = 82 if labels else 100
    bars = [
        e(
            "rect",
            x=f"{width * index + width * 0.06:.2f}%",
            y=f"{room - _height(counted, most, room):.2f}%",
            width=f"{width * 0.88:.2f}%",
            height=f"{_height(counted, most, room):.2f}%",
            class_="line",
        )
        for index, counted in enumerate(counts)
        if counted
    ]
    name = "histogram" if labels else "histogram small"
    return e("svg", e("title", said), bars, labels, class_=name, role="img", aria_label=said)


def _height(counted: int, most: int, room: int) -> float:
    """One row among a million is still to be seen."""
    return max(1.5, room * counted / most)


def _lines(stretches: Sequence[Sequence[Place]], over: Span, axis: Span) -> Element:
    """In a view of its own, which only stretches sideways."""
    paths = [
        e(
            "polyline",
            points=" ".join(f"{_WIDTH * over.share(at):.1f},{_y(value, axis):.1f}" for at, value in stretch),
            class_="line",
            fill="none",
            vector_effect="non-scaling-stroke",
        )
        for stretch in stretches
        if len(stretch) > 1
    ]
    return e(
        "svg",
        paths,
        x=0,
        y=0,
        width="100%",
        height=_TOP + _HEIGHT,
        viewBox=f"0 0 {_WIDTH} {_TOP + _HEIGHT}",
        preserveAspectRatio="none",
    )


def _dot(place: Place, over: Span, axis: Span) -> Element:
    return e("circle", cx=_percent(over.share(place[0])), cy=f"{_y(place[1], axis):.1f}", r=3, class_="line")


def _y(value: float, axis: Span) -> float:
    return _TOP + _HEIGHT * (1 - axis.share(value))


def _steps(axis: Span) -> Iterator[tuple[float, str]]:
    """(value, its height) of every line of the grid."""
    for step in range(_DIVISIONS + 1):
        value = axis.low + (axis.high - axis.low) * step / _DIVISIONS
        yield value, f"{_y(value, axis):.1f}"


def _grid(axis: Span) -> list[Element]:
    return [_line("0", y, "100%", y, "grid") for _, y in _steps(axis)]


def _axis(axis: Span) -> Element:
    """Beside the chart, so that nothing is drawn over it."""
    labels = [e("text", figures.short(value), x="100%", y=y, dy=4, text_anchor="end") for value, y in _steps(axis)]
    return e("svg", labels, class_="axis", aria_hidden="true", height=_TOP + _HEIGHT + _LABELS)


def _time_labels(over: Span) -> Iterator[Element]:
    form = next(form for seconds, form in _TIME_FORMS if over.high - over.low < seconds)
    for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        moment = datetime.fromtimestamp(over.low + share * (over.high - over.low), UTC)
        yield e("text", moment.strftime(form), x=_percent(share), y=_TOP + _HEIGHT + 16, text_anchor=anchor)


def _mark(kind: EventKind, at: float, over: Span, text: str) -> Element:
    x = _percent(over.share(at))
    row = list(_LETTERS).index(kind)
    # At the right edge a letter would be cut off.
    anchor = "end" if over.share(at) > 0.97 else "start"
    return e(
        "g",
        e("title", text),
        _line(x, str(_TOP), x, str(_TOP + _HEIGHT), f"mark {kind}"),
        e(
            "text",
            _LETTERS[kind],
            x=x,
            y=_TOP + _HEIGHT - 5 - 11 * row,
            dx=-3 if anchor == "end" else 3,
            text_anchor=anchor,
        ),
    )


def _grouped(marks: Sequence[Event], over: Span) -> Iterator[tuple[EventKind, float, str]]:
    """Marks of one kind that would stand on each other, as one."""
    near = (over.high - over.low) * _MARK_SHARE
    for kind in EventKind:
        group: list[Event] = []
        for event in sorted(
            (one for one in marks if one.kind is kind and one.at is not None), key=lambda one: one.at or 0
        ):
            if group and (event.at or 0) - (group[0].at or 0) > near:
                yield kind, group[0].at or 0, _text_of(group)
                group = []
            group.append(event)
        if group:
            yield kind, group[0].at or 0, _text_of(group)


def _text_of(group: Sequence[Event]) -> str:
    more = f" (and {len(group) - 1} more near it)" if len(group) > 1 else ""
    return f"{figures.clock(group[0].at)}: {group[0].text}{more}"


def _line(x1: str, y1: str, x2: str, y2: str, name: str) -> Element:
    return e("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=name)


def _percent(share: float) -> str:
    return f"{100 * share:.2f}%"


def _round_up(value: float, floor: float) -> float:
    """The top of an axis: a number that divides well, above all values."""
    size = value - floor
    if not size > 0:
        return floor + 1.0
    power = 10.0 ** math.floor(math.log10(size))
    return floor + next(
        step * power for step in (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10) if step * power >= size * 0.9999
    )


def _told(series: Series, over: Span) -> str:
    values = series.values
    if not values:
        return f"{series.title}: nothing measured yet"
    return (
        f"{series.title}, {series.unit}, from {figures.clock(over.low)} to {figures.clock(over.high)}:"
        f" lowest {figures.short(min(values))}, highest {figures.short(max(values))}, last {figures.short(values[-1])}"
    )
