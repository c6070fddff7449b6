"""What `regen check` finds, from what a spec asks for and what nodes have and say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from regen.run.fleet.fit import CHECKS, Answers, Evidence, Folder, Node, demand_of, facts, fit, questions_of
from regen.spec import RunSpec, parse_spec
from regen.speculative.evidence import Severity
from regen.speculative.preflight import is_refused

ROOT = Path(__file__).resolve().parents[3]
TARGET, DRAFT = "/models/target", "/models/draft"
WEIGHTS = {TARGET: Folder(12, 1_000_000, "aa"), DRAFT: Folder(3, 5_000, "bb")}
ANSWERS = Answers(
    python="3.12.12",
    packages={"regen": "0.1.0", "ray": "2.60.0", "transformers": "5.19.0", "vllm": "0.32.0"},
    folders=WEIGHTS,
)
DRAFTED = {"method": "eagle3", "draft": DRAFT, "num_tokens": 3}
LEFT_ALONE = {"calibrate": "off", "gate": "warn", "guard": "warn"}
HEAD = Node("head", cpus=0, gpus=0, is_head=True, answers=ANSWERS)


def node(name: str, cpus: float = 64, gpus: float = 8, **changes: Any) -> Node:
    return Node(name, cpus, gpus, answers=replace(ANSWERS, **changes))


def spec_of(engine: dict[str, Any] | None = None, **fields: Any) -> RunSpec:
    raw = {
        "name": "run",
        "output": "s3://bucket/run",
        "target": {"model": TARGET},
        "engine": {"kind": "vllm", "gpus_per_replica": 8, "args": {"tensor_parallel_size": 8}, **(engine or {})},
        "speculation": DRAFTED,
        "sampling": {"max_tokens": 16},
        "sources": [{"name": "a", "path": "/data/a.jsonl"}],
        **fields,
    }
    return parse_spec(raw, "test")


def evidence_of(spec: RunSpec, *nodes: Node, free: tuple[float, float] | None = None) -> Evidence:
    cpus, gpus = free or (sum(node.cpus for node in nodes), sum(node.gpus for node in nodes))
    return Evidence(demand_of(spec), questions_of(spec), nodes, cpus, gpus)


def codes(spec: RunSpec, *nodes: Node, free: tuple[float, float] | None = None) -> list[str]:
    return [finding.code for finding in fit(evidence_of(spec, *nodes, free=free))]


def test_a_cluster_that_has_all_of_it_has_no_findings() -> None:
    assert codes(spec_of({"replicas": 2}), HEAD, node("a"), node("b")) == []


def test_room_is_counted_node_by_node() -> None:
    """Three nodes of four GPUs have twelve, and no place for an engine on eight."""
    small = [node(name, gpus=4) for name in "abc"]
    assert codes(spec_of(), HEAD, *small) == ["replica-too-large"]
    (found,) = fit(evidence_of(spec_of(), HEAD, *small))
    assert "8 GPUs" in found.found
    assert "4 GPUs" in found.found
    assert is_refused([found])


def test_a_replica_that_has_no_place_is_told_with_how_many_have_one() -> None:
    (found,) = fit(evidence_of(spec_of({"replicas": 5}), HEAD, node("a"), node("b", gpus=16)))
    assert found.code == "too-few-places"
    assert "room for 3" in found.found
    assert "engine.replicas to 3" in found.fix


def test_cpus_bound_the_places_too() -> None:
    engine = {"replicas": 4, "gpus_per_replica": 1, "cpus_per_replica": 32, "args": {}}
    assert codes(spec_of(engine), HEAD, node("a", cpus=64, gpus=8)) == ["too-few-places"]
    assert codes(spec_of(engine), HEAD, node("a", cpus=128, gpus=8)) == []


def test_shares_of_a_gpu_are_not_lost_to_rounding() -> None:
    """7 / 0.07 is a hair below 100, and 7 * 0.1 a hair above 0.7."""
    fine = {"replicas": 100, "gpus_per_replica": 0.07, "cpus_per_replica": 0, "args": {}}
    assert codes(spec_of(fine), HEAD, node("a", gpus=7)) == []
    engine = {"replicas": 7, "gpus_per_replica": 0.1, "args": {}}
    assert codes(spec_of(engine), HEAD, node("a", gpus=1), free=(64, 0.7)) == []


def test_what_others_hold_is_a_warning() -> None:
    found = fit(evidence_of(spec_of(), HEAD, node("a"), free=(64, 3)))
    assert [(one.code, one.severity) for one in found] == [("busy-now", Severity.WARN)]


@pytest.mark.parametrize(
    ("gpus", "args", "expected"),
    [
        (8, {"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "data_parallel_size": 2}, []),
        (8, {"tensor_parallel_size": 4}, ["gpus-beyond-parallel"]),
        (8, {}, ["gpus-beyond-parallel"]),
        (1, {}, []),
        (0.5, {}, []),
    ],
)
def test_gpus_that_no_parallel_size_uses_are_a_warning(gpus: float, args: dict[str, int], expected: list[str]) -> None:
    assert codes(spec_of({"gpus_per_replica": gpus, "args": args}), HEAD, node("a")) == expected


def test_the_cpu_engine_on_a_cluster_with_gpus_is_a_warning_and_without_none() -> None:
    engine = {"gpus_per_replica": 0, "args": {}}
    assert codes(spec_of(engine), HEAD, node("a")) == ["gpus-unused"]
    assert codes(spec_of(engine), HEAD, node("a", gpus=0)) == []


OVER_NODES = {"distributed_executor_backend": "ray"}


def test_an_engine_over_several_nodes_is_counted_by_the_gpus_of_all_nodes() -> None:
    args = {"tensor_parallel_size": 8, "pipeline_parallel_size": 2, **OVER_NODES}
    spec = spec_of({"gpus_per_replica": 16, "args": args})
    assert codes(spec, HEAD, node("a"), node("b")) == []
    assert codes(spec, HEAD, node("a"), node("b", gpus=6), node("c", gpus=2)) == []
    assert codes(spec, HEAD, node("a")) == ["replica-too-large"]
    two = spec_of({"gpus_per_replica": 16, "args": args, "replicas": 2})
    assert codes(two, HEAD, node("a"), node("b"), node("c")) == ["too-few-places"]
    assert codes(two, HEAD, *(node(name) for name in "abcd"), free=(256, 24)) == ["busy-now"]


def test_cpus_are_counted_beside_each_gpu_of_an_engine_over_several_nodes() -> None:
    args = {"pipeline_parallel_size": 4, **OVER_NODES}
    spec = spec_of({"gpus_per_replica": 4, "cpus_per_replica": 2, "args": args})
    assert codes(spec, HEAD, node("a", cpus=5), node("b", cpus=5)) == []
    assert codes(spec, HEAD, node("a", cpus=5), node("b", cpus=3)) == ["replica-too-large"]


def test_sums_of_layers_over_a_network_are_a_warning() -> None:
    sizes = {"tensor_parallel_size": 16, **OVER_NODES}
    (found,) = fit(evidence_of(spec_of({"gpus_per_replica": 16, "args": sizes}), HEAD, node("a"), node("b")))
    assert (found.code, found.severity) == ("tensor-parallel-over-nodes", Severity.WARN)
    assert "more than 8" in found.found


def test_who_could_lie_over_several_nodes_is_told_how() -> None:
    engine = {"gpus_per_replica": 16, "args": {"tensor_parallel_size": 8, "pipeline_parallel_size": 2}}
    (found,) = fit(evidence_of(spec_of(engine), HEAD, node("a"), node("b")))
    assert found.code == "replica-too-large"
    assert "distributed_executor_backend: ray" in found.fix
    (found,) = fit(evidence_of(spec_of(engine), HEAD, node("a", gpus=15)))
    assert "distributed_executor_backend" not in found.fix


def test_of_a_fleet_that_comes_and_goes_the_fewest_must_fit() -> None:
    spec = spec_of({"replicas": {"min": 2, "max": 8}})
    assert codes(spec, HEAD, node("a"), node("b")) == []
    (found,) = fit(evidence_of(spec, HEAD, node("a")))
    assert found.code == "too-few-places"
    assert "engine.replicas.min to 1" in found.fix
    shown = dict(facts(evidence_of(spec, HEAD, *(node(name) for name in "abc"))))
    assert shown["asked for"] == "2 to 8 replicas, each 1 CPUs and 8 GPUs"
    assert shown["room for"] == "3"


SERVERS = [{"url": "http://10.0.0.1:8000/v1"}, {"url": "http://10.0.0.2:8000/v1"}]


def test_servers_take_no_room_and_need_no_engine_here() -> None:
    spec = spec_of(speculation=None)
    engine = parse_spec({**_fake(), "engine": {"kind": "openai", "endpoints": SERVERS}}, "test").engine
    served = spec.model_copy(update={"engine": engine})
    assert codes(served, HEAD) == []
    assert questions_of(served).packages == ("regen", "ray", "transformers")
    assert "all of them servers' own" in dict(facts(evidence_of(served, HEAD)))["asked for"]


def test_beside_servers_the_target_is_needed_everywhere_and_draft_and_engine_where_one_fits() -> None:
    """Whoever sends rows to a server renders them, and may come to any node."""
    spec = spec_of({"endpoints": SERVERS}, speculation={**DRAFTED, **LEFT_ALONE})
    packages = {**ANSWERS.packages, "vllm": None}
    head = replace(HEAD, answers=replace(ANSWERS, packages=packages, folders={TARGET: WEIGHTS[TARGET], DRAFT: None}))
    assert codes(spec, head, node("a")) == []
    head = replace(HEAD, answers=replace(ANSWERS, packages=packages, folders={TARGET: None, DRAFT: None}))
    (found,) = fit(evidence_of(spec, head, node("a")))
    assert (found.code, found.found) == ("weights-missing", f"{TARGET} is not on head")


def test_a_node_that_does_not_answer_is_named_with_its_error() -> None:
    silent = Node("b", 64, 8, error="ModuleNotFoundError: No module named 'regen'")
    (found,) = fit(evidence_of(spec_of(), HEAD, node("a"), silent))
    assert found.code == "node-silent"
    assert "b" in found.found
    assert "No module named 'regen'" in found.found


def test_weights_must_be_on_every_node_that_a_replica_can_come_to() -> None:
    without = node("b", folders={TARGET: WEIGHTS[TARGET], DRAFT: None})
    (found,) = fit(evidence_of(spec_of(), HEAD, node("a"), without))
    assert found.code == "weights-missing"
    assert found.found == f"{DRAFT} is not on b"


def test_a_head_without_room_for_a_replica_needs_no_weights() -> None:
    head = replace(HEAD, answers=replace(ANSWERS, folders=dict.fromkeys(WEIGHTS)))
    assert codes(spec_of(), head, node("a")) == []
    assert codes(spec_of(), replace(head, cpus=8, gpus=8), node("a")) == ["weights-missing"]


def test_half_a_copy_is_found_by_its_size() -> None:
    half = node("b", folders={**WEIGHTS, TARGET: Folder(12, 400_000, "cc")})
    (found,) = fit(evidence_of(spec_of(), HEAD, node("a"), half))
    assert found.code == "weights-differ"
    assert "1,000,000 bytes on a" in found.found
    assert "400,000 bytes on b" in found.found


def test_a_hub_model_that_is_not_cached_is_a_note() -> None:
    spec = spec_of(target={"model": "Qwen/Qwen3-8B"}, speculation=None)
    found = fit(evidence_of(spec, HEAD, node("a"), node("b", cached_models=frozenset({"Qwen/Qwen3-8B"}))))
    assert [(one.code, one.severity) for one in found] == [("weights-not-cached", Severity.NOTE)]
    assert found[0].found == "Qwen/Qwen3-8B is not whole in the cache of a"


def test_a_node_that_may_fetch_nothing_must_have_it() -> None:
    spec = spec_of(target={"model": "Qwen/Qwen3-8B"}, speculation=None)
    found = fit(evidence_of(spec, HEAD, node("a", is_offline=True), node("b")))
    assert [(one.code, one.severity) for one in found] == [("weights-not-cached", Severity.REFUSE)]
    assert "a may fetch nothing (HF_HUB_OFFLINE)" in found[0].found


def test_weights_that_the_index_names_and_that_are_not_there_are_refused() -> None:
    cut = replace(WEIGHTS[TARGET], missing=("model-00002-of-00002.safetensors",))
    found = fit(evidence_of(spec_of(), HEAD, node("a", folders={**WEIGHTS, TARGET: cut})))
    assert [one.code for one in found] == ["weights-incomplete"]
    assert "model-00002-of-00002.safetensors" in found[0].found


@pytest.mark.parametrize(
    ("sizes", "gpu_bytes", "expected"),
    [
        ({"tensor_parallel_size": 8}, 125_000, []),
        ({"tensor_parallel_size": 8}, 124_999, ["weights-beyond-memory"]),
        ({"tensor_parallel_size": 4, "data_parallel_size": 2}, 249_999, ["weights-beyond-memory"]),
        ({"tensor_parallel_size": 4, "data_parallel_size": 2}, 250_000, []),
    ],
)
def test_weights_larger_than_the_memory_of_their_gpus_are_a_warning(
    sizes: dict[str, int], gpu_bytes: int, expected: list[str]
) -> None:
    there = node("a", gpu_memory_bytes=(gpu_bytes,) * 8)
    assert codes(spec_of({"args": sizes}), HEAD, there) == expected


def test_other_versions_are_refused_and_told_with_their_nodes() -> None:
    old = node("c", packages={**ANSWERS.packages, "vllm": "0.31.2"}, python="3.11.9")
    (found,) = fit(evidence_of(spec_of(), HEAD, node("a"), old))
    assert found.code == "versions-differ"
    assert found.severity is Severity.REFUSE
    assert found.found == "python is 3.12.12 on head, a, 3.11.9 on c; vllm is 0.32.0 on head, a, 0.31.2 on c"


def test_another_transformers_is_a_warning() -> None:
    other = node("c", packages={**ANSWERS.packages, "transformers": "5.18.0"})
    found = fit(evidence_of(spec_of(), HEAD, node("a"), other))
    assert [(one.code, one.severity) for one in found] == [("libraries-differ", Severity.WARN)]


def test_an_engine_that_is_not_installed_is_refused_where_replicas_can_come() -> None:
    without = {**ANSWERS.packages, "vllm": None}
    assert codes(spec_of(), HEAD, node("a", packages=without)) == ["package-missing"]
    assert codes(spec_of(), replace(HEAD, answers=replace(ANSWERS, packages=without)), node("a")) == []


def test_sources_are_looked_for_on_the_head_alone() -> None:
    missing = replace(ANSWERS, sources_missing=("/data/a.jsonl",))
    assert codes(spec_of(), replace(HEAD, answers=missing), node("a")) == ["sources-missing"]
    assert codes(spec_of(), HEAD, replace(node("a"), answers=missing)) == []


def test_what_is_asked_of_nodes() -> None:
    asked = questions_of(spec_of())
    assert asked.folders == (TARGET, DRAFT)
    assert asked.sources == ("/data/a.jsonl",)
    assert asked.packages == ("regen", "ray", "transformers", "vllm")
    hub = questions_of(spec_of(target={"model": "org/model", "revision": "v2"}, speculation=None))
    assert hub.folders == ()
    assert hub.hub_models == (("org/model", "v2"),)


def test_the_fake_engine_asks_for_nothing_and_fits_anywhere() -> None:
    spec = spec_of(speculation=None)
    fake = spec.model_copy(update={"engine": parse_spec(_fake(), "test").engine})
    assert codes(fake, HEAD) == []


def _fake() -> dict[str, Any]:
    return {
        "name": "run",
        "output": "run",
        "target": {"model": TARGET},
        "engine": {"kind": "fake", "replicas": 3},
        "sampling": {"max_tokens": 16},
        "sources": [{"name": "a", "path": "a.jsonl"}],
    }


def test_many_nodes_are_not_all_named() -> None:
    without = [node(f"n{number}", folders=dict.fromkeys(WEIGHTS)) for number in range(40)]
    (found,) = fit(evidence_of(spec_of(), HEAD, *without))
    assert "and 34 more" in found.found
    assert "n39" not in found.found


def test_people_see_what_is_asked_for_and_every_node() -> None:
    shown = dict(facts(evidence_of(spec_of({"replicas": 2}), HEAD, node("a"), node("b"))))
    assert shown["asked for"] == "2 replicas, each 1 CPUs and 8 GPUs"
    assert shown["room for"] == "2"
    assert shown["head"] == "0 CPUs and 0 GPUs, room for 0 replicas, head"


def test_the_documentation_has_every_code() -> None:
    page = (ROOT / "docs" / "ray-jobs.md").read_text(encoding="utf-8")
    source = (ROOT / "regen" / "run" / "fleet" / "fit.py").read_text(encoding="utf-8")
    named = {line.strip().strip('",') for line in source.splitlines() if line.startswith('        "') and "-" in line}
    found = {code for code in named if code.replace("-", "").isalpha() and " " not in code}
    assert len(found) == len(CHECKS)
    assert not [code for code in found if f"`{code}`" not in page]


def test_servers_beside_our_engines_ask_for_nothing_of_the_cluster() -> None:
    servers = [{"url": f"http://h:{port}"} for port in range(1, 6)]
    demand = demand_of(spec_of({"replicas": 2, "endpoints": servers}, speculation=None))
    assert (demand.fewest, demand.most, demand.servers, demand.gpus) == (2, 2, 5, 8)
