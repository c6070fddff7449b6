"""When a method drafts: what a schedule by batch size says of it."""

from __future__ import annotations

from typing import Any

import pytest

from regen.records import Acceptance, WarmupReport
from regen.spec import SCHEDULE_ARG, SpeculationSpec
from regen.speculative.drafting import drafts_every_step, drafts_nothing_at_some_size
from regen.speculative.gate import GateVerdict, judge


def scheduled(schedule: Any) -> SpeculationSpec:
    args = {SCHEDULE_ARG: schedule}
    return SpeculationSpec.model_validate({"method": "eagle3", "draft": "head", "num_tokens": 3, "args": args})


@pytest.mark.parametrize(
    ("schedule", "rests"),
    [
        ([[1, 8, 3], [9, 64, 0]], True),
        ([[1, 8, 3], [9, 64, 1]], False),
        ([[0, 8, 3]], False),  # no batch has 0 sequences: that is preflight's to refuse
        ([[1, 8]], False),
        ([[1, 0]], False),
        ([3, None], False),
        ("0", False),
        (None, False),
    ],
)
def test_gate_and_guard_read_a_schedule_alike(schedule: Any, rests: bool) -> None:
    spec = scheduled(schedule)
    assert drafts_nothing_at_some_size(spec) is rests
    assert drafts_every_step(spec) is not rests
    silent = judge(WarmupReport(1.0, 10, 0, 600, Acceptance()), spec)
    assert silent.verdict is (GateVerdict.UNDECIDED if rests else GateVerdict.ABSENT)
