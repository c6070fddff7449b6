"""The founding story on a real engine: refused from files, and, forced past that, stopped by the gate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from regen.errors import ExitCode
from regen.run.record import require_record
from regen.run.session import standing
from regen.run.speculation.chosen import standing_choice
from regen.spec import dump_spec, parse_spec
from regen.store.local import LocalStorage
from tests.processes import regen
from tests.real_heads import build_random_head
from tests.runs import write_jsonl

pytestmark = [pytest.mark.engine, pytest.mark.ray]

# Only a failure takes so long; a busy machine needs five times the usual.
COMMAND_SECONDS = 900
# More than the 500 drafts that a verdict needs, also at accept length 1.8, in a third of the time that 64 rows take.
WARMUP = {"rows": 24, "max_tokens": 48, "canary_rows": 8}


def write_spec(folder: Path, model: Path, source: Path, **sections: Any) -> str:
    raw: dict[str, Any] = {
        "name": "real",
        "output": "run",
        "target": {"model": str(model)},
        "engine": {
            "kind": "vllm",
            "slots": 16,
            "max_model_len": 1024,
            "restarts": 0,
            "args": {"enforce_eager": True, "kv_cache_memory_bytes": 2**28},
        },
        "sampling": {"max_tokens": 96, "temperature": 0.0},
        "sources": [{"name": "rows", "path": str(source)}],
        "checkpoint": {"interval_seconds": 2},
        "metrics": {"port": None},
    }
    for name, section in sections.items():
        raw[name] = {**raw.get(name, {}), **section}
    (folder / "spec.yaml").write_text(dump_spec(parse_spec(raw, origin="test")), encoding="utf-8")
    return "spec.yaml"


def sums(folder: Path, count: int) -> Path:
    """Small sums in words: what a small model goes on about for a while."""
    return write_jsonl(
        folder / "rows.jsonl",
        (
            {"prompt": f"Ann has {n} apples and buys {2 * n + 3} more. She gives {n // 2} away. How many are left?"}
            for n in range(2, 2 + count)
        ),
    )


def has_made_nothing(folder: Path) -> bool:
    return standing(LocalStorage(folder / "run")).totals.done == 0


def test_a_head_run_under_the_wrong_method_is_refused_and_forced_past_that_stopped(
    tmp_path: Path, smollm2: Path, head: Path, shared_prompts: Path
) -> None:
    """`eagle` for an EAGLE-3 head: vLLM 0.32 runs it without a word if the architecture is named like this."""
    draft = tmp_path / "draft"
    draft.mkdir()
    config = json.loads((head / "config.json").read_text(encoding="utf-8"))
    (draft / "config.json").write_text(json.dumps({**config, "architectures": ["Eagle3LlamaForCausalLM"]}))
    (draft / "model.safetensors").symlink_to(head / "model.safetensors")
    speculation: dict[str, Any] = {"method": "eagle", "draft": str(draft), "num_tokens": 3, "warmup": WARMUP}
    questions = shared_prompts / "gsm8k_test.jsonl"
    spec = write_spec(tmp_path, smollm2, questions, speculation=speculation)
    refused = regen("preflight", "--json", spec, cwd=tmp_path)
    assert refused.returncode == ExitCode.PREFLIGHT
    codes = [finding["code"] for finding in json.loads(refused.stdout) if finding["severity"] == "refuse"]
    assert "method-mismatch" in codes
    assert regen("run", spec, cwd=tmp_path).returncode == ExitCode.PREFLIGHT
    assert not (tmp_path / "run").exists()

    spec = write_spec(tmp_path, smollm2, questions, speculation={**speculation, "accept": codes})
    stopped = regen("run", spec, cwd=tmp_path, timeout_seconds=COMMAND_SECONDS)
    assert stopped.returncode == ExitCode.SPECULATION, stopped.stdout + stopped.stderr
    assert "method-mismatch" in stopped.stderr, "what was accepted is named as a cause"
    assert has_made_nothing(tmp_path)


def test_a_head_that_files_cannot_tell_from_a_good_one_is_stopped_by_the_gate(tmp_path: Path, smollm2: Path) -> None:
    draft = build_random_head(smollm2, tmp_path / "draft")
    speculation = {"method": "eagle3", "draft": str(draft), "num_tokens": 3, "warmup": WARMUP}
    spec = write_spec(tmp_path, smollm2, sums(tmp_path, 80), speculation=speculation)
    assert regen("preflight", spec, cwd=tmp_path).returncode == 0
    stopped = regen("run", spec, cwd=tmp_path, timeout_seconds=COMMAND_SECONDS)
    assert stopped.returncode == ExitCode.SPECULATION, stopped.stdout + stopped.stderr
    assert "accept length 1.00" in stopped.stderr
    assert has_made_nothing(tmp_path)


def test_a_good_head_that_does_not_pay_is_switched_off_and_the_rows_made_count(
    tmp_path: Path, smollm2: Path, head: Path, shared_prompts: Path
) -> None:
    """At 16 slots on a CPU this head has accept length 1.8 and loses a third of the speed."""
    speculation = {
        "method": "eagle3",
        "draft": str(head),
        "num_tokens": 3,
        "warmup": WARMUP,
        "calibration": {"arms": 2, "window_seconds": 8.0, "max_engine_starts": 4},
    }
    spec = write_spec(tmp_path, smollm2, shared_prompts / "gsm8k_test.jsonl", speculation=speculation)
    done = regen("calibrate", spec, cwd=tmp_path, timeout_seconds=COMMAND_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    storage = LocalStorage(tmp_path / "run")
    choice = standing_choice(storage, require_record(storage).spec)
    assert choice is not None
    assert choice.arm == "off"
    figures = {arm["arm"]: arm for arm in choice.arms}
    assert figures["configured"]["accept_length"] > 1.5
    assert figures["off"]["tokens_per_second"] > figures["configured"]["tokens_per_second"]
    assert standing(storage).totals.done > 16
