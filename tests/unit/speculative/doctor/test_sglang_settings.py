"""What an SGLang server's own settings tell, from answers of /server_info as its 0.5 versions give them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from regen.data.checkpoint import read_checkpoint
from regen.data.model_files import model_files
from regen.engines.http import Connection
from regen.engines.served_sglang import SglangServer
from regen.records import Acceptance
from regen.served import Asked, ServerFacts, ServerKind
from regen.speculative.doctor.diagnosis import Diagnosis, Verdict
from regen.speculative.doctor.sglang_settings import SGLANG_CHECKS
from regen.speculative.evidence import Severity
from regen.speculative.served_preflight import draft_files, shown, told
from tests.heads import Head, eagle3, whole_model

# Of 0.5.23 with --speculative-algorithm EAGLE3; what is not about speculation is cut to a few lines.
RECORDED: dict[str, Any] = {
    "model_path": "/models/target",
    "tokenizer_path": "/models/target",
    "context_length": 2048,
    "api_key": "secret",
    "dp_size": 1,
    "speculative_algorithm": "EAGLE3",
    "speculative_draft_model_path": "/models/head",
    "speculative_draft_model_revision": "main",
    "speculative_draft_load_format": None,
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4,
    "speculative_accept_threshold_single": 1.0,
    "speculative_accept_threshold_acc": 1.0,
    "speculative_use_rejection_sampling": False,
    "speculative_token_map": None,
    "speculative_attention_mode": "prefill",
    "speculative_draft_model_quantization": None,
    "speculative_adaptive": False,
    "speculative_ngram_max_bfs_breadth": 10,
    "internal_states": [{"last_gen_throughput": 812.4, "avg_spec_accept_length": 2.31}],
    "version": "0.5.23",
}
GONE = object()


def facts(changes: Mapping[str, Any] | None = None, version: str = "0.5.23") -> ServerFacts:
    """As the server's own reader takes them from its answer. No connection is opened."""
    info = {key: value for key, value in {**RECORDED, **(changes or {})}.items() if value is not GONE}
    bare = ServerFacts("http://h:1", ServerKind.SGLANG, "target", version=version)
    return asyncio.run(SglangServer.open(Connection("http://h:1", None), bare, "/server_info", info)).facts


def codes(changes: Mapping[str, Any] | None = None) -> set[str]:
    """But for what is said of every draft whose files are elsewhere."""
    return {finding.code for finding in told(facts(changes))} - {"draft-unread"}


SIZES = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")


def sized(steps: Any, topk: Any, tokens: Any) -> dict[str, Any]:
    return dict(zip(SIZES, (steps, topk, tokens), strict=True))


FINDINGS: list[tuple[str, dict[str, Any], set[str]]] = [
    ("as it should be", {}, set()),
    ("as 0.5.5 has it", {"speculative_adaptive": GONE, "speculative_use_rejection_sampling": GONE}, set()),
    ("off", {"speculative_algorithm": None, **sized(None, None, None)}, set()),
    ("not disclosed", {"speculative_algorithm": GONE}, set()),
    ("random weights", {"speculative_draft_load_format": "dummy"}, {"draft-random"}),
    ("another format", {"speculative_draft_load_format": "safetensors"}, set()),
    ("no draft", {"speculative_draft_model_path": None}, {"draft-unnamed"}),
    ("no draft, hidden by a gateway", {"speculative_draft_model_path": GONE}, {"draft-unnamed"}),
    ("no draft, and none is needed", {"speculative_algorithm": "NGRAM", "speculative_draft_model_path": None}, set()),
    ("the target as its draft", {"speculative_draft_model_path": "/models/target/"}, {"draft-is-target"}),
    (
        "prediction layers of the target",
        {"speculative_algorithm": "EAGLE", "speculative_draft_model_path": "/models/target"},
        set(),
    ),
    ("a token map", {"speculative_token_map": "/maps/32k.pt"}, {"token-map-ignored"}),
    (
        "a token map where it works",
        {"speculative_algorithm": "EAGLE", "speculative_token_map": "/maps/32k.pt"},
        set(),
    ),
    ("a new algorithm", {"speculative_algorithm": "DSPARK"}, {"algorithm-unknown"}),
    ("in small letters", {"speculative_algorithm": "eagle3"}, set()),
    ("no steps", {"speculative_num_steps": GONE}, {"sizes-missing"}),
    ("sizes that are null", sized(None, None, None), {"sizes-missing"}),
    ("a size that is text", {"speculative_eagle_topk": "1"}, {"sizes-missing"}),
    ("a chain that is too long", sized(3, 1, 8), {"sizes-odd"}),
    ("a chain that is too short", sized(3, 1, 2), {"sizes-odd"}),
    ("nothing to draft", sized(0, 1, 1), {"sizes-odd"}),
    ("a tree", sized(5, 8, 64), {"draft-tree"}),
    ("the largest tree of its kind", sized(2, 2, 7), {"draft-tree"}),
    ("a tree with more nodes than there are", sized(2, 2, 8), {"draft-tree", "sizes-odd"}),
    ("adaptive", {"speculative_adaptive": True}, {"adaptive-depth"}),
    ("lossy, one", {"speculative_accept_threshold_single": 0.9}, {"lossy-verification"}),
    ("lossy, the other", {"speculative_accept_threshold_acc": 0.5}, {"lossy-verification"}),
    ("whole numbers", {"speculative_accept_threshold_single": 1, "speculative_accept_threshold_acc": 1}, set()),
    ("rejection sampling is lossless", {"speculative_use_rejection_sampling": True}, set()),
    (
        "DFLASH has no tree",
        {"speculative_algorithm": "DFLASH", **sized(1, 1, 16)},
        set(),
    ),
]


@pytest.mark.parametrize(("changes", "found"), [row[1:] for row in FINDINGS], ids=[row[0] for row in FINDINGS])
def test_settings(changes: dict[str, Any], found: set[str]) -> None:
    assert codes(changes) == found


def test_each_check_has_a_row() -> None:
    of_counts = {"counts-contradict", "said-length-differs"}
    rows = {code for _, _, found in FINDINGS for code in found} - {"lossy-verification"}
    assert rows | of_counts == {check.code for check in SGLANG_CHECKS}


def test_settings_of_another_server_are_not_read_as_sglangs() -> None:
    as_vllm = replace(facts({"speculative_draft_load_format": "dummy"} | sized(3, 1, 8)), kind=ServerKind.VLLM)
    assert {finding.code for finding in told(as_vllm)} <= {"draft-unread"}


def test_what_refuses_comes_first_and_names_setting_and_value() -> None:
    found = told(facts({"speculative_draft_load_format": "dummy", "speculative_token_map": "/maps/32k.pt"}))
    assert [finding.severity for finding in found] == [Severity.REFUSE, Severity.NOTE, Severity.NOTE]
    assert "speculative_draft_load_format is 'dummy'" in found[0].found


@pytest.mark.parametrize(
    ("algorithm", "sizes", "depth"),
    [
        ("EAGLE3", sized(3, 1, 4), 3),
        ("EAGLE", sized(5, 8, 64), 5),
        ("DFLASH", sized(1, 1, 16), 15),
        ("NGRAM", sized(1, 10, 12), 11),
        ("NGRAM", sized(None, None, None), None),
    ],
)
def test_the_depth_of_a_draft(algorithm: str, sizes: dict[str, Any], depth: int | None) -> None:
    said = facts({"speculative_algorithm": algorithm, **sizes}).speculation
    assert said is not None
    assert said.num_tokens == depth


# --- the draft's files ---------------------------------------------------------------------------


def judged(head: Head, folder: Path, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Findings by code, with the draft's files at hand."""
    path, target = str(head.write(folder / "head")), str(whole_model(12).write(folder / "target"))
    server = facts({"speculative_draft_model_path": path, **(changes or {})})
    files = draft_files(server, read_checkpoint(path, model_files(path)), read_checkpoint(target, model_files(target)))
    return {finding.code: finding for finding in told(server, files)}


def test_the_founding_fault_is_known_before_any_request(tmp_path: Path) -> None:
    found = judged(eagle3(), tmp_path, {"speculative_algorithm": "EAGLE"})
    assert list(found) == ["method-mismatch"]
    assert found["method-mismatch"].severity is Severity.REFUSE
    assert found["method-mismatch"].fix == "Restart it with --speculative-algorithm EAGLE3."


def test_a_whole_head_under_its_own_algorithm_has_no_finding(tmp_path: Path) -> None:
    assert judged(eagle3(), tmp_path) == {}


@pytest.mark.parametrize(
    ("named", "is_other"),
    [
        ("/elsewhere/head", False),
        ("org/head", False),
        ("/cache/hub/models--org--head/snapshots/0a1b", False),
        ("/cache/hub/models--org--tail/snapshots/head", True),
        ("org/head-v2", True),
    ],
)
def test_files_of_another_draft_than_the_servers_are_named(named: str, is_other: bool, tmp_path: Path) -> None:
    assert ("draft-other" in judged(eagle3(), tmp_path, {"speculative_draft_model_path": named})) is is_other


# --- a warm-up -----------------------------------------------------------------------------------


def warmed(*answers: Asked, changes: Mapping[str, Any] | None = None) -> Diagnosis:
    return shown(facts(changes), answers)


def answer(tokens: int, drafts: int, accepted: int, depth: int = 3) -> Asked:
    """With the server's own figure, as it reckons."""
    return Asked(0.0, tokens, Acceptance(drafts, depth * drafts, accepted), said_accept_length=tokens / drafts)


def test_accept_length_comes_from_raw_counts() -> None:
    """Twenty tokens in nineteen verifications: the server says 1.05, which is not a dead draft's figure by itself."""
    diagnosis = warmed(*[answer(20, 19, 0)] * 30)
    assert diagnosis.verdict is Verdict.DEAD
    assert "accept length 1.00" in diagnosis.because
    assert diagnosis.is_refused


def test_the_servers_own_figure_is_said_where_it_differs() -> None:
    short = {finding.code: finding for finding in warmed(*[answer(11, 5, 5)] * 120).findings}
    assert "is 2.20, their raw counts give 2.00" in short["said-length-differs"].found
    long = {finding.code for finding in warmed(*[answer(401, 200, 200)] * 4).findings}
    assert "said-length-differs" not in long


def test_counts_that_these_settings_cannot_give() -> None:
    five = [Asked(0.0, 900, Acceptance(600, 3000, 900))]
    assert "counts-contradict" in {finding.code for finding in warmed(*five).findings}
    assert "counts-contradict" not in {finding.code for finding in warmed(*five, changes=sized(5, 1, 6)).findings}
    deep = [Asked(0.0, 900, Acceptance(600, 1800, 900, (400, 300, 150, 50)))]
    assert "counts-contradict" in {finding.code for finding in warmed(*deep).findings}
    cut = [Asked(0.0, 900, Acceptance(600, 1100, 600, (400, 200, 0, 0)))]
    assert "counts-contradict" not in {finding.code for finding in warmed(*cut).findings}


def test_a_warm_up_over_several_temperatures_and_ranks() -> None:
    good, dead = Acceptance(300, 900, 300), Acceptance(600, 1800, 0)
    diagnosis = warmed(Asked(0.0, 900, good, "0"), Asked(1.0, 900, good, "0"), Asked(1.0, 900, dead, "1"))
    assert diagnosis.verdict is Verdict.DEAD
    assert diagnosis.because == "rank 1: 0 of 1,800 draft tokens accepted in 600 verifications, accept length 1.00"


def test_a_warm_up_without_counts_and_one_of_a_server_that_is_off() -> None:
    assert warmed(Asked(0.0, 128)).verdict is Verdict.COUNTERS_ABSENT
    assert warmed(Asked(0.0, 128), changes={"speculative_algorithm": None}).verdict is Verdict.OFF
