"""A cluster that comes up while something else is done. A stand-in takes the place of the module that imports Ray."""

import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from regen.errors import SpecError, UserError
from regen.run.ahead import ClusterAhead
from regen.spec import RunSpec
from tests.runs import begin_run, make_spec


class StandIn:
    """`regen.run.cluster`, as far as `ClusterAhead` knows it. `may_join` holds it up."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.may_join = threading.Event()
        self.events: list[str] = []

    def join(self, spec: RunSpec, address: str | None, verbosity: int) -> SimpleNamespace:
        assert self.may_join.wait(30)
        if self.error is not None:
            raise self.error
        self.events.append(f"joined at {address}")
        return SimpleNamespace(logs="here", made_ahead={})

    def disconnect(self) -> None:
        thread = next(one.name for one in threading.enumerate() if one.name.startswith("cluster"))
        self.events.append(f"left while {thread} lived")


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    made = StandIn()
    monkeypatch.setitem(sys.modules, "regen.run.cluster", made)
    monkeypatch.setattr("regen.run.cluster", made, raising=False)
    return made


@pytest.fixture
def spec(tmp_path: Path) -> RunSpec:
    return make_spec(tmp_path)


def test_begin_waits_for_nothing_and_joined_for_all(stand_in: StandIn, spec: RunSpec):
    with ClusterAhead("a:1", 0) as ahead:
        ahead.begin(spec)
        assert not stand_in.events
        stand_in.may_join.set()
        assert ahead.joined(spec).logs == "here"
    assert stand_in.events == ["joined at a:1", "left while cluster_0 lived"]


def test_who_never_began_joins_in_the_end(stand_in: StandIn, spec: RunSpec):
    stand_in.may_join.set()
    with ClusterAhead("a:1", 0) as ahead:
        ahead.joined(spec)
        assert stand_in.events == ["joined at a:1"]


def test_nothing_is_begun_and_nothing_left_where_nobody_asks(stand_in: StandIn):
    with ClusterAhead("a:1", 0):
        pass
    assert not stand_in.events


def test_what_goes_wrong_meanwhile_is_said_when_the_cluster_is_wanted(stand_in: StandIn, spec: RunSpec):
    stand_in.error = UserError("nobody answers")
    stand_in.may_join.set()
    with ClusterAhead("a:1", 0) as ahead:
        ahead.begin(spec)
        with pytest.raises(UserError, match="nobody answers"):
            ahead.joined(spec)
    assert not stand_in.events


def test_a_plan_that_fails_leaves_the_cluster_again(stand_in: StandIn, spec: RunSpec):
    stand_in.may_join.set()
    with pytest.raises(ZeroDivisionError), ClusterAhead("a:1", 0) as ahead:  # noqa: PT012
        ahead.begin(spec)
        _ = 1 / 0
    assert stand_in.events == ["joined at a:1", "left while cluster_0 lived"]


def test_a_start_wants_its_cluster_only_for_a_plan_that_is_yet_to_be_made(spec: RunSpec):
    wanted: list[RunSpec] = []
    begin_run(spec, before_plan=wanted.append)
    assert len(wanted) == 1
    begin_run(spec, before_plan=wanted.append)
    assert len(wanted) == 1


def test_a_start_that_is_refused_wants_none(spec: RunSpec, tmp_path: Path):
    wanted: list[RunSpec] = []
    nowhere = spec.target.model_copy(update={"model": str(tmp_path / "nowhere")})
    with pytest.raises(SpecError):
        begin_run(spec.model_copy(update={"target": nowhere}), before_plan=wanted.append)
    assert not wanted


def test_a_start_tells_its_steps_in_order(spec: RunSpec):
    steps: list[str] = []
    begin_run(spec, lap=steps.append)
    assert steps == ["run folder", "target", "preflight", "plan"]
