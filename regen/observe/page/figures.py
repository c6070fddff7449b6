"""Numbers and times as people read them. What is not known says so, and is never a zero."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from regen.observe.page.html import Element, e

UNKNOWN = "n/a"


def is_known(value: float | None) -> bool:
    """Neither None nor NaN nor infinite."""
    return value is not None and math.isfinite(value)


def count(value: float | None) -> str:
    """`83000` -> `83,000`."""
    return f"{value:,.0f}" if value is not None and math.isfinite(value) else UNKNOWN


def short(value: float | None) -> str:
    """`1234567` -> `1.23 M`, for axes and tiles; small numbers as they are."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    for limit, sign in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g} {sign}"
    return f"{value:.3g}"


def ratio(value: float | None, digits: int = 2) -> str:
    return f"{value:,.{digits}f}" if value is not None and math.isfinite(value) else UNKNOWN


def share(part: float | None, of: float | None = 1.0) -> str:
    """`share(1, 3)` -> `33.3 %`; not known where there is nothing to have a share of."""
    if part is None or not of or not math.isfinite(part / of):
        return UNKNOWN
    percent = 100 * part / of
    return f"{percent:.0f} %" if percent in (0, 100) else f"{_not_rounded_away(percent):.1f} %"


def _not_rounded_away(percent: float) -> float:
    """Something is never shown as nothing, and a rest never as the whole."""
    return min(max(percent, 0.1), 99.9) if 0 < percent < 100 else percent


def duration(seconds: float | None) -> str:
    """`95` -> `1 min 35 s`; `200000` -> `2 d 7 h`."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def money(value: float | None, currency: str) -> str:
    return f"{value:,.2f} {currency}" if value is not None and math.isfinite(value) else UNKNOWN


def clock(at: float | None, seconds: bool = True) -> str:
    """A moment in UTC: `2026-11-30 11:20:17 UTC`."""
    if at is None or not math.isfinite(at):
        return UNKNOWN
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC" if seconds else "%Y-%m-%d %H:%M UTC")


def moment(at: float | None) -> Element | str:
    """The same as an element: the page's script adds the reader's own time to it."""
    if at is None or not math.isfinite(at):
        return UNKNOWN
    iso = datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
    return e("time", clock(at), datetime=iso)
