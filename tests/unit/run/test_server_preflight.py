"""What a server's preflight says, what it refuses, and what the spec may accept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from regen.errors import PreflightRefused
from regen.records import Acceptance
from regen.run.speculation.server_preflight import approve, approve_answers
from regen.served import Asked, ServerFacts, ServerKind, Speculation
from regen.spec import SpeculationSpec
from tests.heads import eagle3, whole_model

ALIVE, DEAD = Acceptance(600, 1800, 900, (500, 300, 100)), Acceptance(600, 1800, 3, (3, 0, 0))
SIZES = {"speculative_num_steps": 3, "speculative_eagle_topk": 1, "speculative_num_draft_tokens": 4}


def facts(method: str, url: str = "http://127.0.0.1:1", draft: str | None = None, **settings: Any) -> ServerFacts:
    said = Speculation(method, draft, 3, {**SIZES, **settings})
    return ServerFacts(url, ServerKind.SGLANG, "target", "0.5.23", "/models/target", 512, said)


def section(**changes: Any) -> SpeculationSpec:
    return SpeculationSpec.model_validate({"method": "ngram", "num_tokens": 3, "calibrate": "off", **changes})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models")
    whole_model(12).write(made / "target")
    eagle3().write(made / "head")
    return made


def looked_at(server: ServerFacts, speculation: SpeculationSpec | None, folder: Path) -> list[str]:
    said: list[str] = []
    approve(server, speculation, folder / "target", said.append)
    return said


def test_the_right_method_has_nothing_to_be_said(folder: Path) -> None:
    head = str(folder / "head")
    assert looked_at(facts("EAGLE3", draft=head), section(method="eagle3", draft=head), folder) == []
    assert looked_at(facts("EAGLE3", draft=head), None, folder) == []


@pytest.mark.parametrize("has_section", [True, False])
def test_the_founding_fault_is_refused_whether_the_spec_speaks_of_speculation_or_not(
    folder: Path, has_section: bool
) -> None:
    head = str(folder / "head")
    speculation = section(method="eagle3", draft=head) if has_section else None
    with pytest.raises(PreflightRefused, match=r"method-mismatch: the server runs speculative_algorithm 'EAGLE'"):
        looked_at(facts("EAGLE", draft=head), speculation, folder)
    accepted = section(method="eagle3", draft=head, accept=["method-mismatch"])
    said = looked_at(facts("EAGLE", draft=head), accepted, folder)
    assert [line.split(": ")[1:3] for line in said] == [["warning", "method-mismatch"]]


def test_a_folder_that_a_server_elsewhere_names_is_not_taken_for_one_here(folder: Path) -> None:
    said = looked_at(facts("EAGLE", "http://gpu-1:30000", str(folder / "head")), None, folder)
    assert [line.split(": ")[2] for line in said] == ["draft-unread"]


def test_what_changes_answers_is_refused_and_can_be_accepted_by_name(folder: Path) -> None:
    server = facts("NGRAM", speculative_accept_threshold_acc=0.8)
    with pytest.raises(PreflightRefused, match=r"lossy-verification.*\n.*accept: \[lossy-verification\]"):
        looked_at(server, section(), folder)
    said = looked_at(server, section(accept=["lossy-verification"]), folder)
    assert any("warning: lossy-verification" in line for line in said)


def test_a_server_that_tells_nothing_or_does_not_speculate_is_not_judged(folder: Path) -> None:
    for speculation in (None, Speculation(None)):
        server = ServerFacts("http://h:1", ServerKind.SGLANG, "target", speculation=speculation)
        assert looked_at(server, None, folder) == []


def answers(*by_rank: Acceptance, said: float | None = None) -> list[Asked]:
    return [Asked(0.0, 1500, counted, rank=str(rank), said_accept_length=said) for rank, counted in enumerate(by_rank)]


def test_one_dead_rank_behind_a_healthy_mean_is_refused_where_the_gate_would_fail() -> None:
    said: list[str] = []
    approve_answers(facts("NGRAM"), answers(ALIVE, ALIVE), section(gate="fail"), said.append)
    assert said == []
    with pytest.raises(PreflightRefused, match="rank-dead"):
        approve_answers(facts("NGRAM"), answers(ALIVE, DEAD), section(gate="fail"), said.append)
    approve_answers(facts("NGRAM"), answers(ALIVE, DEAD), section(gate="warn"), said.append)
    approve_answers(facts("NGRAM"), answers(ALIVE, DEAD), section(gate="fail", accept=["rank-dead"]), said.append)
    assert sum("warning: rank-dead" in line for line in said) == 2


def test_the_servers_own_figure_is_shown_beside_the_raw_counts_and_decides_nothing() -> None:
    said: list[str] = []
    approve_answers(facts("NGRAM"), answers(ALIVE, ALIVE, said=3.4), section(), said.append)
    assert len(said) == 1
    assert "is 3.40, their raw counts give 2.50" in said[0]


def test_a_dead_head_is_the_gates_to_judge() -> None:
    approve_answers(facts("NGRAM"), answers(DEAD), section(), lambda line: None)
