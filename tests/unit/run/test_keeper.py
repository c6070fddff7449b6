"""Has somebody taken the run since it was looked at: the last question before a command claims it."""

from __future__ import annotations

import pytest

from regen.ordinals import OrdinalSet
from regen.records import Totals
from regen.run.keeper import is_begun_meanwhile, keepers_claim, keepers_release, new_session
from regen.store.control import Claim, Released
from regen.store.reopened import reopened
from regen.store.replay import Replayed


def replayed(claim: Claim | None, released: Released | None = None) -> Replayed:
    nothing = reopened((), 0, lambda ordinal: -1)
    return Replayed(OrdinalSet(0), Totals(), 1, claim, released, (), nothing)


@pytest.mark.parametrize("seen", [None, "another"])
def test_a_claim_that_the_look_has_not_seen_is_somebodys_who_began_meanwhile(seen: str | None) -> None:
    assert is_begun_meanwhile(replayed(keepers_claim("rival")), seen)


def test_the_claim_that_was_seen_and_one_that_was_let_go_are_nobodys() -> None:
    assert not is_begun_meanwhile(replayed(None), None)
    assert not is_begun_meanwhile(replayed(keepers_claim("seen")), "seen")
    assert not is_begun_meanwhile(replayed(keepers_claim("rival"), keepers_release("rival")), None)


def test_a_keeper_is_its_own_driver_and_every_start_another_session() -> None:
    claim = keepers_claim(new_session())
    assert claim.pid == claim.driver_pid
    assert new_session() != claim.session
