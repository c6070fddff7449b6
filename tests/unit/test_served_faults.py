"""Which requests the faults of a stand-in server strike."""

from __future__ import annotations

import json

from tests.served.faults import Fault, Kind, Script, faults_from


def struck(script: Script, requests: int, path: str = "/generate", makes_tokens: bool = True) -> list[int]:
    """The numbers of the requests that met a fault, from 1."""
    return [number for number in range(1, requests + 1) if script.strike(path, makes_tokens) is not None]


def test_a_fault_strikes_by_number_and_no_other_request() -> None:
    assert struck(Script(Fault(Kind.DROP, numbers=frozenset({2, 5}))), 8) == [2, 5]


def test_after_every_and_times() -> None:
    assert struck(Script(Fault(Kind.DROP, after=3, every=2, times=2)), 12) == [5, 7]
    assert struck(Script(Fault(Kind.DROP, times=None)), 4) == [1, 2, 3, 4]


def test_chance_follows_from_the_seed_alone() -> None:
    def of(seed: int) -> list[int]:
        return struck(Script(Fault(Kind.DROP, share=0.3, times=None, seed=seed)), 200)

    assert of(1) == of(1) != of(2)
    assert 30 < len(of(1)) < 90


def test_the_first_that_fits_strikes_and_the_other_keeps_its_turn() -> None:
    script = Script(Fault(Kind.STATUS, numbers=frozenset({1})), Fault(Kind.DROP, times=1))
    assert [fault.kind for _ in range(3) if (fault := script.strike("/generate", True))] == [Kind.STATUS, Kind.DROP]


def test_other_paths_are_not_counted() -> None:
    script = Script(Fault(Kind.STATUS), Fault(Kind.HANG, path="/server_*"))
    assert struck(script, 3, "/health", makes_tokens=False) == []
    assert struck(script, 1, "/server_info", makes_tokens=False) == [1]
    assert script.struck == [Kind.HANG]


def test_faults_as_json() -> None:
    text = '[{"kind": "missing", "numbers": [3], "fields": ["usage", "model"]}]'
    (fault,) = faults_from(json.loads(text))
    assert (fault.kind, fault.numbers, fault.fields) == (Kind.MISSING, frozenset({3}), ("usage", "model"))
