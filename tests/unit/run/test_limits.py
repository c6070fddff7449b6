"""Where a run stops by itself: on what share, over which rows, and what it says."""

from __future__ import annotations

import pytest

from regen.errors import ExitCode
from regen.records import Status, Totals
from regen.run.fleet.limits import BREAKER_ROWS, too_many_failed


def totals(ok: int, **lost: int) -> Totals:
    """`stalled=3`: three rows failed for this reason; `refused_...` are rejected."""
    reasons = {(Status.REJECTED if name.startswith("refused") else Status.FAILED, name): n for name, n in lost.items()}
    outcomes = {("rows", Status.OK): ok}
    for (status, _), count in reasons.items():
        outcomes["rows", status] = outcomes.get(("rows", status), 0) + count
    return Totals(outcomes=outcomes, reasons=reasons)


def test_the_commonest_reasons_are_said_the_commonest_first() -> None:
    error = too_many_failed(totals(0), totals(150, stalled=20, engine_error=50, refused_by_engine=5, odd=1), 0.02)
    assert error is not None
    assert str(error).startswith(
        "76 of the 226 rows finished by this session have no answer, more than limits.failed_share (0.02) allows;"
        " commonest: engine_error 50, stalled 20, refused_by_engine 5."
    )
    assert "continue the run" in str(error)
    assert error.exit_code is ExitCode.FAILED


def test_few_rows_are_no_share() -> None:
    assert too_many_failed(totals(0), totals(0, stalled=BREAKER_ROWS - 1), 0.02) is None
    assert too_many_failed(totals(0), totals(0, stalled=BREAKER_ROWS), 0.02) is not None


@pytest.mark.parametrize(("lost", "stops"), [(4, False), (5, True)])
def test_the_share_itself_is_allowed(lost: int, stops: bool) -> None:
    assert (too_many_failed(totals(0), totals(200 - lost, stalled=lost), 0.02) is not None) is stops


def test_after_a_resume_only_what_this_session_has_finished_counts() -> None:
    before = totals(100, stalled=150)
    assert too_many_failed(before, before, 0.02) is None
    assert too_many_failed(before, totals(300, stalled=150), 0.02) is None
    error = too_many_failed(before, totals(200, stalled=150, engine_error=100), 0.02)
    assert error is not None
    assert "100 of the 200 rows" in str(error)
    assert "commonest: engine_error 100." in str(error)


def test_without_a_limit_nothing_stops() -> None:
    assert too_many_failed(totals(0), totals(0, stalled=10_000), None) is None
