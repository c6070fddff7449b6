"""Watching a run from its folder: what is shown when, and when it ends, on a clock of the test's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from regen.errors import ExitCode, StoreUnavailable
from regen.observe.price import Price
from regen.observe.terminal_facts import TerminalFacts
from regen.protocols import Storage
from regen.records import Eta, EtaState, Phase, SlotTally, Status, Tally, Totals
from regen.run.commands.watch import DEAD_SECONDS, SILENT_SECONDS, Heartbeat, ended, facts_of_look, watch
from regen.run.look import Look, look
from regen.store.holder import Holder, HolderProgress, HolderState, write_holder
from regen.store.local import LocalStorage
from tests.runs import begin_run, make_spec

PROGRESS = HolderProgress("now", Phase.RUNNING, Eta(EtaState.ESTIMATING, 1.0, 2.0, 3.0), 99.0, 8, 80, 2.5)
HOLDER = Holder("5e55", "here", "boot", 1, 2, "then", 7, "now", HolderState.RUNNING, PROGRESS)
LOOK = Look("test", "run", "f", 100, Totals({("rows", Status.OK): 12}), {}, 3, HOLDER, suspects=4)


class Clock:
    """Seconds that pass only while somebody waits; at each wait, what the test has planned for it."""

    def __init__(self, *deeds: Callable[[], object]) -> None:
        self.now = 0.0
        self.shown: list[TerminalFacts] = []
        self._deeds = list(deeds)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        assert self.now < 10_000, "it never ends"
        if self._deeds:
            self._deeds.pop(0)()

    def watch(self, storage: Storage) -> tuple[ExitCode, float]:
        return watch(storage, 5.0, lambda facts, _: self.shown.append(facts), self.wait, lambda: self.now)


def holder(storage: Storage, beat: int, state: HolderState = HolderState.RUNNING) -> Callable[[], None]:
    return lambda: write_holder(storage, replace(HOLDER, beat=beat, state=state))


def test_it_waits_for_the_run_to_begin_and_ends_as_its_session_does(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "run")
    clock = Clock(
        lambda: None,
        lambda: begin_run(make_spec(tmp_path, rows=5)),
        holder(storage, 1),
        holder(storage, 2),
        holder(storage, 2, HolderState.DRAINED),
    )
    assert clock.watch(storage) == (ExitCode.DRAINED, 0.0)
    assert [facts.phase for facts in clock.shown] == ["waiting", "waiting", "planned", "running", "running", "drained"]
    assert "no run here yet" in clock.shown[0].note
    assert clock.shown[3].eta == PROGRESS.eta
    assert clock.shown[5].eta is None


def test_a_heartbeat_that_stands_still_is_shown_and_then_is_the_end(tmp_path: Path) -> None:
    begun = begin_run(make_spec(tmp_path, rows=5))
    clock = Clock(holder(begun.storage, 1))
    code, silent_seconds = clock.watch(begun.storage)
    assert code is ExitCode.FAILED
    assert silent_seconds == DEAD_SECONDS
    ages = [facts.heartbeat_age_seconds for facts in clock.shown]
    assert ages[:4] == [None, None, None, None]
    assert ages[4] == SILENT_SECONDS
    assert clock.shown[4].eta is None, "what it said of itself is out of date"


class Away:
    """A store that does not answer for a while."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.is_away = False

    def __getattr__(self, name: str) -> object:
        if self.is_away and name == "read":
            raise StoreUnavailable("no route")
        return getattr(self._storage, name)


def test_a_store_that_is_away_is_waited_for(tmp_path: Path) -> None:
    away = Away(begin_run(make_spec(tmp_path, rows=5)).storage)

    def goes() -> None:
        away.is_away = True

    def comes() -> None:
        away.is_away = False
        write_holder(away, replace(HOLDER, state=HolderState.DRAINED))  # type: ignore[arg-type]

    clock = Clock(goes, lambda: None, comes)
    assert clock.watch(away)[0] is ExitCode.DRAINED  # type: ignore[arg-type]
    assert [facts.store_error for facts in clock.shown] == [None, "no route", "no route", None]
    assert {facts.planned for facts in clock.shown} == {5}


class Asked:
    """A store that keeps what it was asked for, in order."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., object]:
        def call(key: str, *more: object) -> object:
            self.asked.append(key)
            return getattr(self._storage, name)(key, *more)

        return call

    @property
    def url(self) -> str:
        return self._storage.url


def test_the_holder_is_read_before_the_journal(tmp_path: Path) -> None:
    """A run that ends in between would else be one that ended with rows left."""
    asked = Asked(begin_run(make_spec(tmp_path, rows=5)).storage)
    look(asked)  # type: ignore[arg-type]
    assert asked.asked.index("holder.json") < asked.asked.index("journal/")


def test_another_session_starts_the_silence_anew() -> None:
    heart = Heartbeat()
    assert heart.silent_seconds(HOLDER, 100.0) == 0.0
    assert heart.silent_seconds(HOLDER, 130.0) == 30.0
    assert heart.silent_seconds(replace(HOLDER, session="other"), 140.0) == 0.0
    assert heart.silent_seconds(replace(HOLDER, session="other", beat=8), 150.0) == 0.0
    assert heart.silent_seconds(replace(HOLDER, state=HolderState.DRAINED), 190.0) == 0.0
    assert heart.silent_seconds(None, 190.0) == 0.0


def test_what_the_coordinator_said_last_is_shown_with_what_is_published() -> None:
    facts = facts_of_look(LOOK)
    assert (facts.planned, facts.done, facts.left, facts.suspects) == (100, 12, 88, 4)
    assert (facts.phase, facts.tokens_per_second, facts.in_flight, facts.queued) == ("running", 99.0, 8, 80)
    assert facts.accept_length == 2.5
    assert facts.cost_so_far is None
    tally = Tally({slot: SlotTally(gpu_seconds=1800.0) for slot in (0, 1)})
    priced = facts_of_look(replace(LOOK, tally=tally, price=Price(2.5, "EUR")))
    assert (priced.cost_so_far, priced.currency) == (2.5, "EUR")
    reopened = facts_of_look(replace(LOOK, reopened=5))
    assert (reopened.done, reopened.left) == (7, 93)


@pytest.mark.parametrize(
    ("outcomes", "state", "code"),
    [
        ({("rows", Status.OK): 100}, HolderState.RUNNING, ExitCode.OK),
        (
            {("rows", Status.OK): 99, ("rows", Status.REJECTED): 1},
            HolderState.FINISHED,
            ExitCode.COMPLETED_WITH_REJECTS,
        ),
        ({("rows", Status.OK): 99, ("rows", Status.FAILED): 1}, HolderState.FINISHED, ExitCode.COMPLETED_WITH_REJECTS),
        ({}, HolderState.DRAINED, ExitCode.DRAINED),
        ({}, HolderState.FAILED, ExitCode.FAILED),
        ({}, HolderState.RUNNING, None),
    ],
)
def test_it_ends_as_the_run_did(
    outcomes: dict[tuple[str, Status], int], state: HolderState, code: ExitCode | None
) -> None:
    assert ended(replace(LOOK, totals=Totals(outcomes), holder=replace(HOLDER, state=state))) is code
    assert ended(replace(LOOK, holder=None)) is None
