"""What becomes of a request that a server did not answer: by status class, with the server's own wish to wait. Pure.

A failure belongs to the row (it is never sent again), to the configuration (nothing is sent any more), or to the
moment (the same request is sent again after a while). Overload is no failure of the request: it costs no attempt.
"""

from __future__ import annotations

from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import StrEnum

FIRST_WAIT_SECONDS = 0.5
LONGEST_WAIT_SECONDS = 30.0
# The server's own word is followed up to here: a wrong clock in a date must not stop a replica for a day.
LONGEST_RETRY_AFTER_SECONDS = 300.0
_ROW = frozenset({400, 413, 414, 422})
_CONFIGURATION = frozenset({401, 402, 403, 404, 405, 410})
_OVERLOADED = frozenset({429, 503})


class Blame(StrEnum):
    """Whose a failure is."""

    ROW = "row"
    CONFIGURATION = "configuration"
    OVERLOAD = "overload"
    MOMENT = "moment"


@dataclass(frozen=True, slots=True)
class Failure:
    """`reason` is of a closed set, for counting; `detail` is for people; `retry_after_seconds` is the server's wish."""

    blame: Blame
    reason: str
    detail: str
    retry_after_seconds: float | None = None


class RequestFailed(Exception):
    """Stays within the engine: becomes another attempt or an error of errors.py."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.detail)
        self.failure = failure


def of_status(status: int, said: str, retry_after: str | None = None, now: float = 0.0) -> Failure:
    """`now` in seconds since 1970, for a `Retry-After` that is a date."""
    detail = f"status {status}: {said}"
    if status in _ROW:
        return Failure(Blame.ROW, "engine_refused", detail)
    if status in _CONFIGURATION or 300 <= status < 400:
        return Failure(Blame.CONFIGURATION, f"status_{status}", detail)
    wait = retry_after_seconds(retry_after, now)
    blame = Blame.OVERLOAD if status in _OVERLOADED else Blame.MOMENT
    return Failure(blame, f"status_{status}", detail, wait)


def may_pass(status: int) -> bool:
    """Whether what is asked for may be there all the same: too many requests, or a fault of the server's."""
    return status == 429 or (status >= 500 and status != 501)


def retry_after_seconds(header: str | None, now: float) -> float | None:
    """Seconds from now, out of a number or a date; None where it is neither."""
    if header is None:
        return None
    try:
        seconds = float(header) if header.strip().isdecimal() else parsedate_to_datetime(header).timestamp() - now
    except (TypeError, ValueError, OverflowError):
        return None
    return min(max(seconds, 0.0), LONGEST_RETRY_AFTER_SECONDS)


def wait_seconds(tries: int, failure: Failure, draw: float) -> float:
    """How long before the next try after so many that failed. `draw` from 0..1 spreads those that failed together."""
    backoff = min(FIRST_WAIT_SECONDS * 2.0 ** min(tries - 1, 16), LONGEST_WAIT_SECONDS) * (0.5 + draw / 2)
    # Never before the server wants it; spread after that, too.
    return backoff if failure.retry_after_seconds is None else failure.retry_after_seconds + backoff * draw


@dataclass(slots=True)
class SignsOfLife:
    """Whether a server does nothing but fail, and for how long. An idle one does not fail."""

    outage_seconds: float
    failing_since: float | None = None

    def seen(self) -> None:
        """A token came, or a whole answer."""
        self.failing_since = None

    def is_gone_at(self, now: float) -> bool:
        """To be asked at each failure: the first since a sign of life begins the outage."""
        if self.failing_since is None:
            self.failing_since = now
        return now - self.failing_since > self.outage_seconds
