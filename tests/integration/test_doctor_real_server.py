"""`regen doctor` against vLLM's own OpenAI server: the names of its counters, its refusals, what it discloses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.processes import regen
from tests.real_vllm_server import RealServer

pytestmark = pytest.mark.engine


def vllm_server(model: Path, speculation: dict[str, Any], log: Path, **variables: str) -> RealServer:
    return RealServer(model, log, ["--speculative-config", json.dumps(speculation)], **variables)


def test_ngram_speculation_and_what_the_server_keeps_to_itself(smollm2: Path, tmp_path: Path) -> None:
    ngram = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}
    with vllm_server(smollm2, ngram, tmp_path / "server.log") as server:
        done = regen("doctor", server.url, "--json", "--seconds", "60", cwd=tmp_path)
    said = json.loads(done.stdout)
    total = said["counts"]["total"]
    assert said["server"] | {"url": ""} == {
        "url": "",
        "kind": "vllm",
        "version": said["server"]["version"],
        "model": "target",
        "model_path": str(smollm2),
        "context_tokens": 1024,
    }
    assert said["speculation"]["state"] == "on"
    assert said["speculation"]["is_disclosed"] is False
    assert {(probe["parameter"], probe["fate"]) for probe in said["sampling"]} == {
        ("min_p", "refused"),
        ("logit_bias", "refused"),
    }
    assert total["drafts"] > 50
    assert total["accept_length"] > 1.2
    assert len(total["accepted_by_position"]) == 4
    assert sum(total["accepted_by_position"]) == total["accepted"]
    assert said["load"]["foreign_tokens"] in (0, None)  # None: the time ran out over a request
    assert said["verdict"] == ("healthy" if total["drafts"] >= 500 else "undecided")
    assert done.returncode == (0 if total["drafts"] >= 500 else 1)


def test_the_founding_fault_at_a_real_server(smollm2: Path, repository: Path, tmp_path: Path) -> None:
    """vLLM runs a good EAGLE-3 head under `eagle` without an error, if the architecture's name lets it."""
    trained = repository.parent / "shared" / "data" / "heads" / "smollm2-eagle3"
    if not trained.is_dir():
        pytest.skip(f"{trained} is not there")
    head = tmp_path / "head"
    shutil.copytree(trained, head)
    config = json.loads((head / "config.json").read_text())
    (head / "config.json").write_text(json.dumps({**config, "architectures": ["Eagle3LlamaForCausalLM"]}))
    eagle = {"method": "eagle", "model": str(head), "num_speculative_tokens": 3}
    with vllm_server(smollm2, eagle, tmp_path / "server.log", VLLM_SERVER_DEV_MODE="1") as server:
        done = regen("doctor", server.url, "--json", cwd=tmp_path)
    said = json.loads(done.stdout)
    assert done.returncode == 3
    assert said["verdict"] == "dead"
    assert said["counts"]["total"]["drafts"] >= 500
    assert said["counts"]["total"]["accept_length"] <= 1.05
    assert said["speculation"]["method"] == "eagle"
    assert said["causes"][0].startswith("method-mismatch")
    assert said["findings"][0]["code"] == "method-mismatch"
