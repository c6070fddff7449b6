"""How long the store's credentials last yet."""

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from unittest import mock

import pytest

from regen.errors import StoreUnavailable
from regen.run import credential_watch
from regen.run.credential_watch import ASK_SECONDS, CredentialWatch
from regen.store.s3_settings import CredentialLife
from tests.memory_storage import MemoryStorage


def in_hours(hours: float) -> datetime:
    return datetime.now(UTC) + timedelta(hours=hours)


class Store:
    """Answers in turn; `asked` counts."""

    def __init__(self, *answers: CredentialLife | Exception) -> None:
        self._answers: Iterator[CredentialLife | Exception] = iter(answers)
        self.asked = 0

    def __call__(self) -> CredentialLife:
        self.asked += 1
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer


def watched(ask: Callable[[], CredentialLife] | None, ticks: int) -> list[float | None]:
    """What is known after each minute."""

    async def minutes() -> list[float | None]:
        watch, seen = CredentialWatch(MemoryStorage()), []
        for tick in range(ticks):
            watch.tick(tick * ASK_SECONDS)
            watch.tick(tick * ASK_SECONDS + 1.0)
            while watch._asking is not None and not watch._asking.done():
                await asyncio.sleep(0)
            seen.append(watch.seconds_left)
        return seen

    with mock.patch.object(credential_watch, "credential_life", return_value=ask):
        return asyncio.run(minutes())


def test_a_folder_has_no_credentials() -> None:
    assert watched(None, 3) == [None, None, None]


@pytest.mark.parametrize(
    "life",
    [
        CredentialLife("iam-role", is_temporary=True, renews=True, ends_at=in_hours(1)),
        CredentialLife("env", is_temporary=True),
        CredentialLife("shared-credentials-file"),
    ],
)
def test_those_that_renew_themselves_or_have_no_known_end_are_asked_about_once(life: CredentialLife) -> None:
    store = Store(life)
    assert watched(store, 5) == [None] * 5
    assert store.asked == 1


def test_new_ones_are_seen_within_a_minute_and_an_outage_changes_nothing() -> None:
    store = Store(
        CredentialLife("env", is_temporary=True, ends_at=in_hours(1)),
        StoreUnavailable("away"),
        CredentialLife("env", is_temporary=True, ends_at=in_hours(12)),
        CredentialLife("env", is_temporary=True, ends_at=in_hours(-1)),
    )
    assert watched(store, 4) == [pytest.approx(hours * 3600, abs=30) for hours in (1, 1, 12, 0)]
    assert store.asked == 4
