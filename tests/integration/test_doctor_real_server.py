"""`regen doctor` against vLLM's own OpenAI server: the names of its counters, its refusals, what it discloses."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.processes import descendants, exists, free_port, kill, regen, wait_until

pytestmark = pytest.mark.engine

START_SECONDS = 240


@contextmanager
def vllm_server(model: Path, speculation: dict[str, Any], log: Path, **variables: str) -> Iterator[str]:
    """vLLM's server on loopback, with its process group and all below it ended at the end of the block."""
    port = free_port()
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--served-model-name", "target", "--host", "127.0.0.1", "--port", str(port), "--enforce-eager"]
    command += ["--max-model-len", "1024", "--max-num-seqs", "8", "--speculative-config", json.dumps(speculation)]
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", **variables}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: process.poll() is not None or answers(url), seconds=START_SECONDS)
        assert process.poll() is None, log.read_text(errors="replace")[-3000:]
        yield url
    finally:
        end(process)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        time.sleep(0.5)
        return False


def end(process: subprocess.Popen[bytes]) -> None:
    """In order first, so that it takes its engine along; then by force, whatever is left of it."""
    below = descendants(process.pid)
    process.terminate()
    try:
        process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=30)
    for pid in below:
        kill(pid)
    wait_until(lambda: not any(exists(pid) for pid in below), seconds=20)


def test_ngram_speculation_and_what_the_server_keeps_to_itself(smollm2: Path, tmp_path: Path) -> None:
    ngram = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}
    with vllm_server(smollm2, ngram, tmp_path / "server.log") as url:
        done = regen("doctor", url, "--json", "--seconds", "60", cwd=tmp_path)
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
    with vllm_server(smollm2, eagle, tmp_path / "server.log", VLLM_SERVER_DEV_MODE="1") as url:
        done = regen("doctor", url, "--json", cwd=tmp_path)
    said = json.loads(done.stdout)
    assert done.returncode == 3
    assert said["verdict"] == "dead"
    assert said["counts"]["total"]["drafts"] >= 500
    assert said["counts"]["total"]["accept_length"] <= 1.05
    assert said["speculation"]["method"] == "eagle"
    assert said["causes"][0].startswith("method-mismatch")
    assert said["findings"][0]["code"] == "method-mismatch"
