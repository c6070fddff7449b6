"""Where a run stops by itself: too large a share of rows without an answer. Pure."""

from __future__ import annotations

from regen.errors import RegenError
from regen.records import Status, Totals

# Shares are looked at only after so many rows: one failure of three is no share.
BREAKER_ROWS = 200
_REASONS_SHOWN = 3


def too_many_failed(before: Totals, now: Totals, allowed_share: float | None) -> RegenError | None:
    """The error that ends the session, if too many of the rows finished since `before` have no answer.

    Rows that the plan refuses are in both totals, so they do not count; rows that the engine refuses do. Rows of
    earlier sessions do not count either: once the cause is mended, the run can go on.
    """
    lost_before, lost = _lost(before), _lost(now)
    finished, without_answer = now.done - before.done, lost - lost_before
    if allowed_share is None or finished < BREAKER_ROWS or without_answer <= allowed_share * finished:
        return None
    reasons = commonest_reasons(before, now)
    return RegenError(
        f"{without_answer} of the {finished} rows finished by this session have no answer, more than"
        f" limits.failed_share ({allowed_share:g}) allows; commonest: {reasons}. Nothing is lost: mend the cause and"
        " continue the run, or raise the limit."
    )


def commonest_reasons(before: Totals, now: Totals) -> str:
    """`stalled 12, engine_error 3`: why rows were rejected or failed since `before`."""
    counts: dict[str, int] = {}
    for (status, reason), count in now.reasons.items():
        new = count - before.reasons.get((status, reason), 0)
        if new and status in (Status.REJECTED, Status.FAILED):
            counts[reason] = counts.get(reason, 0) + new
    ordered = sorted(counts.items(), key=lambda item: -item[1])[:_REASONS_SHOWN]
    return ", ".join(f"{reason} {count}" for reason, count in ordered) or "not known"


def _lost(totals: Totals) -> int:
    counts = totals.by_status()
    return counts[Status.REJECTED] + counts[Status.FAILED]
