"""`regen doctor` against servers that answer as SGLang and vLLM do, and against some that do not."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.heads import eagle3, whole_model
from tests.loopback import served
from tests.processes import REGEN, environment, free_port, regen_here
from tests.sglang_stand_in import SglangStandIn
from tests.vllm_stand_in import VllmStandIn


def visited(app: web.Application, folder: Path, *options: str, code: int) -> dict[str, Any]:
    """What doctor says of this server, as JSON."""
    with served(app) as url:
        done = regen_here("doctor", url, "--json", *options, cwd=folder)
    assert done.returncode == code, done.stdout + done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def refused(app: web.Application, folder: Path, *options: str) -> tuple[int, str]:
    """Exit code and message where it ends with an error."""
    with served(app) as url:
        done = regen_here("doctor", url, *options, cwd=folder)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stderr.splitlines()[-1]


def codes(said: dict[str, Any]) -> set[str]:
    return {finding["code"] for finding in said["findings"]}


# --- SGLang --------------------------------------------------------------------------------------


def test_a_healthy_sglang_server(tmp_path: Path) -> None:
    draft, target = eagle3().write(tmp_path / "draft"), whole_model(12).write(tmp_path / "target")
    server = SglangStandIn(draft=str(draft), model=str(target))
    said = visited(server.app(), tmp_path, code=0)
    assert said["verdict"] == "healthy"
    assert said["server"] | {"url": ""} == {
        "url": "",
        "kind": "sglang",
        "version": "0.5.23",
        "model": "target",
        "model_path": str(target),
        "context_tokens": 4096,
    }
    assert said["speculation"]["method"] == "EAGLE3"
    assert said["speculation"]["draft_config_says"] == "LlamaForCausalLMEagle3"
    assert said["speculation"]["auxiliary_layers"].startswith("[3, 7, 10] by what enters them")
    total = said["counts"]["total"]
    assert total["drafts"] >= 500
    assert (
        total["accept_length"] == pytest.approx(1 + total["accepted"] / total["drafts"]) == pytest.approx(2, rel=0.02)
    )
    assert set(said["counts"]["by_temperature"]) == {"0", "1"}
    assert codes(said) == {"sampling-ignored"}


def test_the_founding_fault(tmp_path: Path) -> None:
    """EAGLE for an EAGLE-3 draft, and answers of 20 tokens, for which SGLang itself says 1.05."""
    draft, target = eagle3().write(tmp_path / "draft"), whole_model(12).write(tmp_path / "target")
    server = SglangStandIn(
        algorithm="EAGLE", draft=str(draft), model=str(target), accepted=(0,), answer_tokens=20, is_old=True
    )
    said = visited(server.app(), tmp_path, code=3)
    assert said["verdict"] == "dead"
    assert said["counts"]["total"]["accept_length"] == 1.0
    (mismatch, dead) = said["findings"][:2]
    assert mismatch["code"] == "method-mismatch"
    assert "'EAGLE'" in mismatch["found"]
    assert "LlamaForCausalLMEagle3" in mismatch["found"]
    assert mismatch["fix"] == "Restart it with --speculative-algorithm EAGLE3."
    assert "own figure for these answers is 1.05" in dead["found"]
    assert said["causes"][0].startswith("method-mismatch")
    assert said["speculation"]["auxiliary_layers"].startswith("none")


def test_the_founding_fault_is_refused_even_where_nothing_can_be_counted(tmp_path: Path) -> None:
    draft = eagle3().write(tmp_path / "elsewhere")
    server = SglangStandIn(algorithm="EAGLE", draft="/on/the/server", accepted=(0,), answer_tokens=2)
    said = visited(server.app(), tmp_path, "--draft", str(draft), "--seconds", "5", code=3)
    assert said["verdict"] == "undecided"
    assert "method-mismatch" in codes(said)


def test_lossy_thresholds_are_refused_though_the_draft_is_well(tmp_path: Path) -> None:
    lossy = {"speculative_accept_threshold_single": 0.8, "speculative_accept_threshold_acc": 0.5}
    said = visited(SglangStandIn(draft="hub/head", arguments=lossy).app(), tmp_path, code=3)
    assert said["verdict"] == "healthy"
    (found,) = [finding["found"] for finding in said["findings"] if finding["code"] == "lossy-verification"]
    assert "speculative_accept_threshold_single is 0.8" in found
    assert "speculative_accept_threshold_acc is 0.5" in found
    assert "draft-unread" in codes(said)


def test_absent_counts_are_not_zero_counts(tmp_path: Path) -> None:
    absent = visited(SglangStandIn(gives_counts=False).app(), tmp_path, code=3)
    assert absent["verdict"] == "counters absent"
    assert absent["counts"]["total"] is None
    zero = visited(SglangStandIn(accepted=(0,)).app(), tmp_path, code=3)
    assert zero["verdict"] == "dead"
    assert zero["counts"]["total"]["accepted"] == 0


def test_speculation_that_is_off_is_no_fault(tmp_path: Path) -> None:
    said = visited(SglangStandIn(algorithm=None).app(), tmp_path, code=0)
    assert said["verdict"] == "speculation off"
    assert said["findings"] == []


def test_a_dead_rank_among_live_ones(tmp_path: Path) -> None:
    server = SglangStandIn(ranks=4, dead_ranks=frozenset({2}))
    said = visited(server.app(), tmp_path, code=3)
    assert said["verdict"] == "dead"
    assert said["because"].startswith("rank 2:")
    assert said["counts"]["total"]["accept_length"] > 1.5
    assert {"rank-dead", "rank-average-dead"} <= codes(said)


def test_an_older_sglang_gives_counts_for_plain_prompts_only(tmp_path: Path) -> None:
    server = SglangStandIn(is_old=True)
    said = visited(server.app(), tmp_path, code=0)
    assert said["verdict"] == "healthy"
    assert said["load"]["route"] == "plain"
    assert server.asked.count("chat") == 1
    assert "prompts-untemplated" in codes(said)


# --- vLLM ----------------------------------------------------------------------------------------


def test_a_dead_draft_at_a_vllm_server_that_discloses_nothing(tmp_path: Path) -> None:
    said = visited(VllmStandIn(accepted=((0,),)).app(), tmp_path, code=3)
    assert said["verdict"] == "dead"
    assert said["counts"]["total"] | {"drafts": 0, "drafted": 0} == {
        "drafts": 0,
        "drafted": 0,
        "accepted": 0,
        "accepted_by_position": [0, 0, 0],
        "accept_length": 1.0,
    }
    assert {"draft-dead", "method-undisclosed", "sampling-refused"} <= codes(said)


def test_a_healthy_vllm_server_with_company(tmp_path: Path) -> None:
    said = visited(VllmStandIn(foreign_tokens=200).app(), tmp_path, code=0)
    assert said["verdict"] == "healthy"
    assert said["load"]["foreign_tokens"] == 200 * said["load"]["answered"]
    assert "foreign-traffic" in codes(said)
    alone = visited(VllmStandIn().app(), tmp_path, code=0)
    assert alone["load"]["foreign_tokens"] == 0
    assert "foreign-traffic" not in codes(alone)


def test_what_a_vllm_server_in_development_mode_discloses(tmp_path: Path) -> None:
    draft = eagle3().write(tmp_path / "draft")
    config = {
        "method": "eagle",
        "model": str(draft),
        "num_speculative_tokens": 3,
        "rejection_sample_method": "synthetic",
    }
    said = visited(VllmStandIn(config=config, discloses=True).app(), tmp_path, code=3)
    assert said["verdict"] == "healthy"
    assert {"method-mismatch", "lossy-verification"} <= codes(said)
    assert '"method": "eagle3"' in said["findings"][0]["fix"]
    off = visited(VllmStandIn(accepted=(), discloses=True, has_metrics=False).app(), tmp_path, code=0)
    assert off["verdict"] == "speculation off"


@pytest.mark.parametrize(
    ("server", "verdict", "code"),
    [
        (VllmStandIn(accepted=()), "speculation off", 0),
        (VllmStandIn(has_counters=False), "counters absent", 3),
        (VllmStandIn(has_metrics=False), "counters absent", 3),
        (VllmStandIn(has_metrics=False, refuses=False), "cannot tell", 1),
        (VllmStandIn(answer_tokens=2), "undecided", 1),
    ],
    ids=["off", "no counters", "no metrics", "silent", "short"],
)
def test_verdicts_without_counts(server: VllmStandIn, verdict: str, code: int, tmp_path: Path) -> None:
    assert visited(server.app(), tmp_path, "--seconds", "20", code=code)["verdict"] == verdict


def test_a_model_without_a_chat_template_is_asked_plainly(tmp_path: Path) -> None:
    server = VllmStandIn(has_chat_template=False)
    said = visited(server.app(), tmp_path, code=0)
    assert set(server.routes) == {"plain"}
    assert "prompts-untemplated" in codes(said)


def test_a_profile_from_the_drafts_card(tmp_path: Path) -> None:
    """Positions 0.75, 0.25, 0: with the draft's card in hand it is off."""
    assert visited(VllmStandIn().app(), tmp_path, "--expected", "0.7,0.3,0", code=0)["verdict"] == "healthy"
    said = visited(VllmStandIn().app(), tmp_path, "--expected", "0.9,0.8,0.7", code=3)
    assert said["verdict"] == "off its expected profile"


def test_people_read_tables(tmp_path: Path) -> None:
    with served(VllmStandIn(accepted=((0,),)).app()) as url:
        done = regen_here("doctor", url, cwd=tmp_path)
    assert done.returncode == 3
    for said in ("not disclosed", "accept length 1.00", "draft-dead", "likely cause"):
        assert said in done.stdout


# --- what goes wrong -----------------------------------------------------------------------------


def test_nobody_there(tmp_path: Path) -> None:
    done = regen_here("doctor", f"http://127.0.0.1:{free_port()}", cwd=tmp_path)
    assert done.returncode == 8
    assert "Is the server running" in done.stderr


@pytest.mark.parametrize("address", ["spec.yaml", "localhost:8000", "http://me:secret@localhost:8000"])
def test_no_address(address: str, tmp_path: Path) -> None:
    done = regen_here("doctor", address, cwd=tmp_path)
    assert done.returncode == 2
    assert "secret" not in done.stdout + done.stderr


def test_a_server_of_another_kind(tmp_path: Path) -> None:
    code, message = refused(web.Application(), tmp_path)
    assert code == 8
    assert "/v1/models" in message


def test_a_model_that_is_not_served_and_an_adapter_that_is(tmp_path: Path) -> None:
    code, message = refused(VllmStandIn().app(), tmp_path, "--model", "other")
    assert code == 2
    assert "adapter, target" in message
    assert visited(VllmStandIn().app(), tmp_path, "--model", "adapter", code=0)["server"]["model"] == "adapter"
    assert visited(VllmStandIn().app(), tmp_path, code=0)["server"]["model"] == "target"


def test_a_key_comes_from_the_environment_and_is_never_shown(tmp_path: Path) -> None:
    server = SglangStandIn(api_key="sesame-1234")
    assert refused(server.app(), tmp_path)[0] == 2
    assert "--api-key-env" in refused(server.app(), tmp_path)[1]
    assert refused(server.app(), tmp_path, "--api-key-env", "NO_SUCH_VARIABLE")[0] == 2
    with served(server.app()) as url:
        command = [*REGEN, "doctor", url, "--json", "--api-key-env", "KEY_OF_SERVER"]
        known = {**environment(), "KEY_OF_SERVER": "sesame-1234"}
        done = subprocess.run(command, cwd=tmp_path, env=known, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verdict"] == "healthy"
    assert "sesame" not in done.stdout + done.stderr


def test_a_draft_that_is_nowhere(tmp_path: Path) -> None:
    code, message = refused(VllmStandIn().app(), tmp_path, "--draft", str(tmp_path / "absent"))
    assert code == 2
    assert "--draft" in message


async def endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b"x" * 2**16)


async def silent(request: web.Request) -> web.Response:
    await asyncio.sleep(60)
    return web.Response()


async def elsewhere(request: web.Request) -> web.Response:
    raise web.HTTPFound("http://127.0.0.1:1/")


async def garbage(request: web.Request) -> web.Response:
    return web.Response(body=b"[" * 100_000)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (endless, "larger than"),
        (silent, "not done within 5 s"),
        (elsewhere, "redirects"),
        (garbage, "no list of models"),
    ],
    ids=["endless", "silent", "redirect", "garbage"],
)
def test_hostile_answers_end_in_one_message_and_in_time(answer: Any, said: str, tmp_path: Path) -> None:
    began = time.monotonic()
    code, message = refused(VllmStandIn().app(models=answer), tmp_path, "--seconds", "5")
    assert code == 8
    assert said in message
    assert time.monotonic() - began < 20


def test_a_server_too_slow_to_answer_is_not_waited_for(tmp_path: Path) -> None:
    began = time.monotonic()
    code, message = refused(VllmStandIn().app(chat=silent), tmp_path, "--seconds", "5")
    assert code == 8
    assert "no whole answer" in message or "not done within" in message
    assert time.monotonic() - began < 20


def test_control_characters_of_a_server_do_not_reach_the_terminal(tmp_path: Path) -> None:
    server = SglangStandIn(draft="\x1b[2Jhead", arguments={"version": "\x1b]0;x\x07"})
    with served(server.app()) as url:
        done = regen_here("doctor", url, cwd=tmp_path)
    assert "\x1b" not in done.stdout + done.stderr
    assert os.path.basename(url) in done.stdout
