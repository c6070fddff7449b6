"""One replica's answers turn to garbage, in the real coordinator, worker and driver. Time is virtual."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from regen.errors import EngineGarbage, RegenError
from regen.records import CoordinatorStatus, Phase, Status
from regen.run.commands.check import check
from regen.run.driver import Driver
from regen.run.held import control_records
from regen.run.local import LocalCluster
from regen.run.session import seal_run, standing
from regen.run.start import Begun
from regen.store.control import RowsReopened
from tests import virtual_time
from tests.runs import begin_run, make_spec, shard_table


def garbage_run(folder: Path, rows: int = 400, interval_seconds: float = 5.0, **engine: Any) -> Begun:
    prompts: list[dict[str, Any]] = [{"prompt": f"say {number}"} for number in range(rows)]
    faults = [{"kind": "garbage", "replica": 1, "after_requests": 60, "times": 10**6, "lives": 1}]
    spec = make_spec(
        folder,
        rows=prompts,
        # An answer of the fake engine is one wall of 60 ids when it is garbage: too short ones are never flagged.
        engine={
            "slots": 8,
            "replicas": 3,
            "step_seconds": 0.05,
            "answer_tokens": 150,
            "answer_spread": 0.1,
            "faults": faults,
            **engine,
        },
        sampling={"max_tokens": 400},
        checkpoint={"interval_seconds": interval_seconds, "rows_per_shard": 100},
    )
    return begin_run(spec)


def driven(begun: Begun, said: list[str]) -> CoordinatorStatus:
    return virtual_time.run(Driver(LocalCluster(), begun.worker_setup, lambda status: None, said.append).run())


def reopened(begun: Begun) -> list[RowsReopened]:
    return [record for record in control_records(begun.storage) if isinstance(record, RowsReopened)]


@pytest.mark.parametrize("interval_seconds", [2.0, 1000.0], ids=["committed already", "not committed yet"])
def test_a_replica_that_gives_garbage_is_replaced_and_its_rows_are_made_again(
    tmp_path: Path, interval_seconds: float
) -> None:
    begun = garbage_run(tmp_path, interval_seconds=interval_seconds)
    said: list[str] = []
    status = driven(begun, said)
    assert status.phase is Phase.FINISHED
    seal_run(begun.storage, begun.worker_setup.run)
    assert {row["status"] for row in shard_table(Path(begun.storage.url)).to_pylist()} == {"ok"}
    assert standing(begun.storage).is_finished
    found = check(begun.storage)
    assert found.is_right, found.summary()
    (told,) = said
    assert "replica 1 is gone: EngineGarbage" in told
    assert "rows are garbage (wall" in told
    assert len(status.dismissed) == 1
    if interval_seconds > 100:
        assert reopened(begun) == [], "they were never committed"
    else:
        (record,) = reopened(begun)
        assert json.loads(record.asked)["garbage"]["replica"] == 1


def test_a_slot_whose_engines_all_give_garbage_is_lost_and_the_others_make_its_rows(tmp_path: Path) -> None:
    faults = [{"kind": "garbage", "replica": 1, "times": 10**6, "lives": 10}]
    begun = garbage_run(tmp_path, faults=faults, restarts=1)
    said: list[str] = []
    status = driven(begun, said)
    assert status.phase is Phase.FINISHED
    assert status.totals.by_status()[Status.OK] == 400
    assert len(said) == 2
    assert "restarts left: 0" in said[0]
    assert "it gets no other engine" in said[1]


def test_the_only_replica_is_held_against_its_past(tmp_path: Path) -> None:
    faults = [{"kind": "garbage", "after_requests": 150, "times": 10**6, "lives": 1}]
    begun = garbage_run(tmp_path, rows=300, faults=faults, replicas=1)
    said: list[str] = []
    status = driven(begun, said)
    assert status.phase is Phase.FINISHED
    assert status.totals.by_status()[Status.OK] == 300
    assert "where the past had" in said[0]


def test_a_run_of_nothing_but_garbage_stops_early_and_says_what_it_is(tmp_path: Path) -> None:
    faults = [{"kind": "garbage", "times": 10**6, "lives": 10}]
    begun = garbage_run(tmp_path, faults=faults)
    with pytest.raises(
        RegenError, match=r"rows are garbage, more than limits.degenerate_share \(0.5\).*wall"
    ) as caught:
        driven(begun, [])
    assert not isinstance(caught.value, EngineGarbage)
    assert 200 <= standing(begun.storage).totals.done < 400
