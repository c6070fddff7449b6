"""Who scrapes the endpoint, and who has yet to see the final numbers. Pure: `now` is handed in, in seconds.

A scraper is an address with a name. Nothing is known of one but when it came: one that has come twice comes again
after as long, one that has come once may come within `LONGEST_SECONDS`.
"""

from __future__ import annotations

from dataclasses import dataclass

LONGEST_SECONDS = 60.0
# A scrape may fail and be tried with the next interval: one is waited for a little longer than two.
INTERVALS = 2.5
_MOST_SCRAPERS = 16


@dataclass(frozen=True, slots=True)
class Awaited:
    """Whose scrape is waited for, and for how many seconds more at most. No names: anybody's."""

    seconds: float
    names: tuple[str, ...]


@dataclass(slots=True)
class _Scraper:
    last_at: float
    interval: float | None = None
    has_final: bool = False

    def may_come_until(self, now: float) -> float:
        """Seconds after `now`; beyond its interval it has gone."""
        return self.last_at + (LONGEST_SECONDS if self.interval is None else INTERVALS * self.interval) - now


class Scrapers:
    """Told of each scrape, and of the end."""

    def __init__(self) -> None:
        self._scrapers: dict[str, _Scraper] = {}
        self._ended_at: float | None = None

    @property
    def has_ended(self) -> bool:
        return self._ended_at is not None

    def end(self, now: float) -> None:
        """From now on every number is final."""
        self._ended_at = now

    def came(self, name: str, now: float) -> None:
        """One scrape begins."""
        known = self._scrapers.pop(name, None)
        interval, has_final = (now - known.last_at, known.has_final) if known else (None, False)
        self._scrapers[name] = _Scraper(now, interval, has_final)
        if len(self._scrapers) > _MOST_SCRAPERS:
            del self._scrapers[next(iter(self._scrapers))]

    def answered(self, name: str, came_at: float) -> None:
        """It has got all of its answer."""
        if name in self._scrapers and self._ended_at is not None and came_at > self._ended_at:
            self._scrapers[name].has_final = True

    def awaited(self, now: float, hold_seconds: float | None) -> Awaited | None:
        """Who has yet to see the final numbers; None: nobody (any more), or there is no end yet.

        `hold_seconds` None: whoever scraped until the end, for 2.5 of its own intervals and `LONGEST_SECONDS` at most.
        A number: until everybody who scraped has, or else anybody, for so long at most.
        """
        if self._ended_at is None:
            return None
        left = (LONGEST_SECONDS if hold_seconds is None else hold_seconds) - (now - self._ended_at)
        waits = self._waits(self._ended_at)
        if hold_seconds is None:
            waits = {name: seconds - (now - self._ended_at) for name, seconds in waits.items()}
            waits = {name: seconds for name, seconds in waits.items() if seconds > 0}
            left = min(left, max(waits.values(), default=0.0))
        is_seen = any(scraper.has_final for scraper in self._scrapers.values())
        if left <= 0 or (not waits and (is_seen or hold_seconds is None)):
            return None
        return Awaited(left, tuple(waits))

    def _waits(self, ended_at: float) -> dict[str, float]:
        """Seconds after the end within which each must come who has not seen the final numbers and has not gone."""
        return {
            name: INTERVALS * scraper.interval if scraper.interval is not None else LONGEST_SECONDS
            for name, scraper in self._scrapers.items()
            if not scraper.has_final and scraper.may_come_until(ended_at) > 0
        }
