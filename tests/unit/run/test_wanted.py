"""Another draft for a run: what of the speculation section goes on, and what belongs to the older draft."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from regen.errors import SpecError
from regen.run.speculation.wanted import NewDraft, with_new_draft
from regen.spec import RunSpec, SpeculationSpec
from tests.runs import make_spec

POLICY: dict[str, Any] = {
    "gate": "warn",
    "guard": "fail",
    "calibrate": "off",
    "warmup": {"rows": 9},
    "calibration": {"arms": 2},
}
OLDER: dict[str, Any] = {
    "accept": ["head-count"],
    "layer_convention": "output",
    "args": {"max_model_len": 512},
    "expected": {"by_position": [0.5]},
}


def spec_with(folder: Path, **section: Any) -> RunSpec:
    given = SpeculationSpec.model_validate({"method": "eagle3", "draft": "/older", "num_tokens": 3, **section})
    return make_spec(folder, rows=1).model_copy(update={"speculation": given})


@pytest.mark.parametrize("method", [None, "eagle3", "eagle"])
def test_how_it_is_watched_stays_and_what_was_said_of_the_older_draft_goes(tmp_path: Path, method: str | None) -> None:
    newer = with_new_draft(spec_with(tmp_path, **POLICY, **OLDER), NewDraft("/newer", method)).speculation
    assert newer == SpeculationSpec.model_validate(
        {"method": method or "eagle3", "draft": "/newer", "num_tokens": 3, **POLICY}
    )


def test_without_speculation_so_far_the_method_must_be_said(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="--method"):
        with_new_draft(make_spec(tmp_path, rows=1), NewDraft("/newer"))
