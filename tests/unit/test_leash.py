"""Which processes an engine's start may kill: those of engines that it replaces, and no others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from regen.run.fleet.leash import Mark, is_leftover

MINE = Mark(run="a1b2", slot=1, session="s2", incarnation=3, owner=70)


def test_a_mark_survives_its_text_and_a_strangers_is_none() -> None:
    assert Mark.parse(str(MINE)) == MINE
    assert Mark.parse("") is None
    assert Mark.parse("a:b:c:d:e") is None


@pytest.mark.parametrize("owner_lives", [True, False])
def test_an_older_incarnation_is_a_leftover_and_an_equal_or_newer_one_is_not(owner_lives: bool) -> None:
    assert is_leftover(replace(MINE, incarnation=2, owner=60), MINE, owner_lives)
    assert not is_leftover(replace(MINE, owner=60), MINE, owner_lives)
    assert not is_leftover(replace(MINE, incarnation=4, owner=60), MINE, owner_lives)


def test_another_sessions_engine_is_a_leftover_only_if_its_worker_is_gone() -> None:
    other = replace(MINE, session="s1", incarnation=9, owner=60)
    assert is_leftover(other, MINE, owner_lives=False)
    assert not is_leftover(other, MINE, owner_lives=True)


@pytest.mark.parametrize("change", [{"slot": 0}, {"run": "ffff"}])
def test_another_replicas_and_another_runs_processes_are_none_of_ours(change: dict[str, object]) -> None:
    assert not is_leftover(replace(MINE, incarnation=0, **change), MINE, owner_lives=False)  # type: ignore[arg-type]
