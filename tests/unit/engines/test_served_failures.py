"""Whose a failure is, how long is waited, and when a server counts as gone."""

from __future__ import annotations

import pytest

from regen.engines.served_failures import Blame, Failure, SignsOfLife, of_status, retry_after_seconds, wait_seconds

OF_THE_MOMENT = Failure(Blame.MOMENT, "status_500", "")


@pytest.mark.parametrize(
    ("status", "blame"),
    [
        (400, Blame.ROW),
        (422, Blame.ROW),
        (401, Blame.CONFIGURATION),
        (403, Blame.CONFIGURATION),
        (404, Blame.CONFIGURATION),
        (307, Blame.CONFIGURATION),
        (429, Blame.OVERLOAD),
        (503, Blame.OVERLOAD),
        (408, Blame.MOMENT),
        (500, Blame.MOMENT),
        (502, Blame.MOMENT),
        (504, Blame.MOMENT),
    ],
)
def test_blame_follows_the_status(status: int, blame: Blame) -> None:
    failure = of_status(status, "words")
    assert failure.blame is blame
    assert "words" in failure.detail


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("3", 3.0),
        ("0", 0.0),
        ("Thu, 01 Jan 1970 00:01:40 GMT", 90.0),
        ("Thu, 01 Jan 1970 00:00:01 GMT", 0.0),
        ("999999", 300.0),
        ("soon", None),
        ("-1", None),
        ("", None),
        (None, None),
    ],
)
def test_retry_after_is_a_number_or_a_date(header: str | None, seconds: float | None) -> None:
    assert retry_after_seconds(header, now=10.0) == seconds


def test_waits_grow_to_a_limit_and_spread() -> None:
    waits = [wait_seconds(tries, OF_THE_MOMENT, 1.0) for tries in range(1, 40)]
    assert waits[:3] == [0.5, 1.0, 2.0]
    assert waits == sorted(waits)
    assert waits[-1] == 30.0
    assert wait_seconds(1, OF_THE_MOMENT, 0.0) == 0.25


def test_the_servers_own_wish_is_never_undercut() -> None:
    wish = Failure(Blame.OVERLOAD, "status_429", "", retry_after_seconds=7.0)
    assert wait_seconds(1, wish, 0.0) == 7.0
    assert 7.0 < wait_seconds(1, wish, 1.0) <= 8.0


def test_only_failing_without_a_sign_of_life_is_an_outage() -> None:
    life = SignsOfLife(outage_seconds=10.0)
    assert not life.is_gone_at(1000.0)  # idle before
    assert not life.is_gone_at(1010.0)
    life.seen()
    assert not life.is_gone_at(1011.0)
    assert life.is_gone_at(1021.5)
